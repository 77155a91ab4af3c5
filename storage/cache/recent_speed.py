"""How fast something went lately: bytes a second over a window that slides, and 0 once nothing has come for so long."""

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 10.0
"""A reader of 2 MiB answers that takes 1 MB/s shows one each two seconds."""


@dataclass(slots=True)
class RecentSpeed:
    """What came in the window that runs, and in the one before it. Times are seconds of one monotonic clock."""

    begun_s: float
    size_bytes: int = 0
    before_bytes: int = 0

    def add(self, now_s: float, size_bytes: int) -> None:
        """Add how much has come now."""
        self._roll(now_s)
        self.size_bytes += size_bytes

    def at(self, now_s: float) -> float:
        """Bytes a second, as if what came in the window before had come evenly."""
        self._roll(now_s)
        left = 1 - (now_s - self.begun_s) / WINDOW_S
        return (self.size_bytes + left * self.before_bytes) / WINDOW_S

    def _roll(self, now_s: float) -> None:
        passed = int((now_s - self.begun_s) // WINDOW_S)
        if passed > 0:
            self.before_bytes = self.size_bytes if passed == 1 else 0
            self.size_bytes, self.begun_s = 0, self.begun_s + passed * WINDOW_S
