"""One log line a spell of trouble: said when it begins, and again when it comes back after a while without."""

from collections.abc import Callable, Hashable

SPELL_S = 60.0
"""So long without the trouble ends a spell."""


class Spells:
    """Which trouble there is now.

    Args:
        now_s: a clock that does not go back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._last_s: dict[Hashable, float] = {}

    def begins(self, trouble: Hashable) -> bool:
        """The trouble is there: whether it is the first time in this spell. Callers name few kinds of trouble."""
        now_s = self._now_s()
        last_s = self._last_s.get(trouble)
        self._last_s[trouble] = now_s
        return last_s is None or now_s - last_s > SPELL_S

    def end(self, trouble: Hashable) -> None:
        """The trouble is known to be over."""
        self._last_s.pop(trouble, None)
