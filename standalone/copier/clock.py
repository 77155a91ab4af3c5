"""What time it is for a copier: by this machine's clock, unless that is far from all others that are known.

Then the nearest of those counts in all that is kept for later: times of copying, marks, waits. Nothing is deleted while
any of them is far.
"""

from collections.abc import Callable, Mapping
from typing import Final

from metrics.copy_meters import CopyMeter
from storage.wall_clock import wall_clock_ms

OFF_MS_MAX: Final = 3_600_000


class ClockGuard:
    """Args:
    offsets_ms: by whose clock it is, how far it is ahead of ours; None while that is not known.
    own_ms: our own.
    """

    def __init__(
        self,
        offsets_ms: Mapping[str, Callable[[], int | None]],
        meter: CopyMeter,
        own_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._offsets_ms = offsets_ms
        self._meter = meter
        self._own_ms = own_ms

    def now_ms(self) -> int:
        """The time."""
        offset_ms = min((offset_ms for offset_ms, _ in self._known()), key=abs, default=0)
        return self._own_ms() + (offset_ms if abs(offset_ms) > OFF_MS_MAX else 0)

    def deletions_stopped(self) -> str | None:
        """Why nothing may be deleted, a sentence; None: the clock is right, or nobody else's is known."""
        offset_ms, whose = max(self._known(), key=lambda known: abs(known[0]), default=(0, ""))
        self._meter.on_clock(offset_ms / 1000)
        if abs(offset_ms) <= OFF_MS_MAX:
            return None
        side = "behind" if offset_ms > 0 else "ahead of"
        return f"this machine's clock is {abs(offset_ms) // 60_000} minutes {side} {whose}: set it right"

    def _known(self) -> list[tuple[int, str]]:
        asked = ((ask(), whose) for whose, ask in self._offsets_ms.items())
        return [(offset_ms, whose) for offset_ms, whose in asked if offset_ms is not None]
