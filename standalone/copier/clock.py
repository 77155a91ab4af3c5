"""What time it is for a copier: by this machine's clock, unless that is far from the store's.

Then the store's counts in all that is kept for later: times of copying, marks, waits. And nothing is deleted.
"""

import time
from collections.abc import Callable
from typing import Final

from metrics.copy_meters import CopyMeter

OFF_MS_MAX: Final = 3_600_000


class ClockGuard:
    """Args:
    offset_ms: how far the store's clock is ahead of ours, None while that is not known; a folder has none.
    own_ms: our own.
    """

    def __init__(
        self,
        offset_ms: Callable[[], int | None],
        meter: CopyMeter,
        own_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._offset_ms = offset_ms
        self._meter = meter
        self._own_ms = own_ms

    def now_ms(self) -> int:
        """The time."""
        offset_ms = self._offset_ms() or 0
        return self._own_ms() + (offset_ms if abs(offset_ms) > OFF_MS_MAX else 0)

    def deletions_stopped(self) -> str | None:
        """Why nothing may be deleted, a sentence; None: the clock is right, or nobody else's is known."""
        offset_ms = self._offset_ms() or 0
        self._meter.on_clock(offset_ms / 1000)
        if abs(offset_ms) <= OFF_MS_MAX:
            return None
        side = "behind" if offset_ms > 0 else "ahead of"
        return f"this machine's clock is {abs(offset_ms) // 60_000} minutes {side} the store's: set it right"
