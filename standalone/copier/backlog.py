"""How long records have waited for the tier, and whether upstream is about to delete them. Without input or output."""

from collections import deque
from typing import Final

_MARKS_MAX: Final = 1000
_STEPS_AHEAD: Final = 2


class Backlog:
    """One partition's, by the copier's own clock: records' timestamps are their producers' matter."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque()
        """(where the log ended, when that was seen first), ascending."""
        self._log_start = -1
        self._step = 0

    def see(self, log_start_offset: int, high_watermark: int, now_ms: int) -> None:
        """Upstream's log begins and ends there now."""
        if self._log_start >= 0:
            self._step = max(self._step, log_start_offset - self._log_start)
        self._log_start = log_start_offset
        if self._marks and high_watermark < self._marks[-1][0]:
            self._marks.clear()  # truncated
        if not self._marks or high_watermark > self._marks[-1][0]:
            self._marks.append((high_watermark, now_ms))
        if len(self._marks) > _MARKS_MAX:
            self._marks = deque(list(self._marks)[::2])

    def since_ms(self, copied_offset: int) -> int | None:
        """Since when the first record behind this offset was seen to wait; None: there is none."""
        while self._marks and self._marks[0][0] <= copied_offset + 1:
            if len(self._marks) == 1:
                return None
            self._marks.popleft()
        return self._marks[0][1] if self._marks else None

    def is_pressed(self, offset: int) -> bool:
        """Return whether upstream has deleted the offset, or would with the next two of the largest steps that its log
        start has taken."""
        return self._log_start >= 0 and offset < self._log_start + _STEPS_AHEAD * self._step
