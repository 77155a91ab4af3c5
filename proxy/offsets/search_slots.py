"""Who may search: so many searches run at a time, and one connection leaves room for others.

Rule 1. A connection has `share` of them as soon as that many are free.
Rule 2. Beyond its share it gets one only while more than `share` are free: the next connection finds its own.
Rule 3. Those who wait get theirs in the order in which they came, as far as the two rules let them.
"""

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from itertools import count

import trio


class SearchSlots:
    """Owned by the trio thread."""

    def __init__(self, total: int, share: int) -> None:
        self._free = total
        self._share = share
        self._held: Counter[Hashable] = Counter()
        # By owner, then in the order in which they came: a look over the owners finds who is next.
        self._waiting: dict[Hashable, OrderedDict[int, trio.Event]] = {}
        self._arrivals = count()

    @asynccontextmanager
    async def slot(self, owner: Hashable) -> AsyncIterator[None]:
        """Hold one meanwhile.

        Cancellation: while it waits, and nothing is held.
        """
        granted, arrival = trio.Event(), next(self._arrivals)
        if owner not in self._waiting and self._may_have(owner):
            self._grant(owner, granted)
        else:
            self._waiting.setdefault(owner, OrderedDict())[arrival] = granted
        try:
            await granted.wait()
            yield
        finally:
            if granted.is_set():
                self._give_back(owner)
            else:
                self._leave(owner, arrival)

    def _may_have(self, owner: Hashable) -> bool:
        is_within_share = self._held.get(owner, 0) < self._share
        return self._free > (0 if is_within_share else self._share)

    def _grant(self, owner: Hashable, granted: trio.Event) -> None:
        self._free -= 1
        self._held[owner] += 1
        granted.set()

    def _give_back(self, owner: Hashable) -> None:
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while ready := [each for each in self._waiting if self._may_have(each)]:
            following = min(ready, key=lambda each: next(iter(self._waiting[each])))
            arrival = next(iter(self._waiting[following]))
            self._grant(following, self._leave(following, arrival))

    def _leave(self, owner: Hashable, arrival: int) -> trio.Event:
        """Out of those who wait."""
        waiting = self._waiting[owner]
        granted = waiting.pop(arrival)
        if not waiting:
            del self._waiting[owner]
        return granted
