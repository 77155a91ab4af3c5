"""One log line a spell of trouble: said when it begins, and again when it comes back after a while without."""

from collections.abc import Callable, Hashable

from storage.bounded_map import BoundedMap

SPELL_S = 60.0
"""So long without the trouble ends a spell."""

TROUBLES_MAX = 1000
"""Spells that are remembered: the oldest is forgotten first."""


class Spells:
    """Which trouble there is now.

    Args:
        now_s: a clock that does not go back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._last_s: BoundedMap[Hashable, float] = BoundedMap(TROUBLES_MAX)

    def begins(self, trouble: Hashable) -> bool:
        """The trouble is there: whether it is the first time in this spell."""
        now_s = self._now_s()
        last_s = self._last_s.get(trouble)
        self._last_s[trouble] = now_s
        return last_s is None or now_s - last_s > SPELL_S

    def end(self, trouble: Hashable) -> None:
        """The trouble is known to be over."""
        self._last_s.pop(trouble, None)
