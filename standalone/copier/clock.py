"""Whether this machine's clock can be believed where segments are deleted by their age: held against the store's."""

from collections.abc import Callable
from typing import Final

from metrics.copy_meters import CopyMeter

OFF_MS_MAX: Final = 3_600_000


class ClockGuard:
    """Args:
    offset_ms: how far the store's clock is ahead of ours, None while that is not known; a folder has none.
    """

    def __init__(self, offset_ms: Callable[[], int | None], meter: CopyMeter) -> None:
        self._offset_ms = offset_ms
        self._meter = meter

    def deletions_stopped(self) -> str | None:
        """Why nothing may be deleted, a sentence; None: the clock is right, or nobody else's is known."""
        offset_ms = self._offset_ms() or 0
        self._meter.on_clock(offset_ms / 1000)
        if abs(offset_ms) <= OFF_MS_MAX:
            return None
        side = "behind" if offset_ms > 0 else "ahead of"
        return f"this machine's clock is {abs(offset_ms) // 60_000} minutes {side} the store's: set it right"
