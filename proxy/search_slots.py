"""Who may search: so many searches run at a time, and one connection leaves room for others.

Rule 1. A connection has `share` of them as soon as that many are free.
Rule 2. Beyond its share it gets one only while more than `share` are free: whoever comes next finds his own.
Rule 3. Those who wait get theirs in the order in which they came, as far as the two rules let them.
"""

from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: Hashable
    granted: trio.Event = field(default_factory=trio.Event)


class SearchSlots:
    """Owned by the trio thread."""

    def __init__(self, total: int, share: int) -> None:
        self._free = total
        self._share = share
        self._held: Counter[Hashable] = Counter()
        self._waiting: list[_Waiter] = []

    @asynccontextmanager
    async def slot(self, owner: Hashable) -> AsyncIterator[None]:
        """Hold one meanwhile.

        Cancellation: while it waits, and nothing is held.
        """
        waiter = _Waiter(owner)
        self._waiting.append(waiter)
        self._grant()
        try:
            await waiter.granted.wait()
            yield
        finally:
            if waiter.granted.is_set():
                self._give_back(owner)
            else:
                self._waiting.remove(waiter)

    def _give_back(self, owner: Hashable) -> None:
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def _grant(self) -> None:
        for waiter in tuple(self._waiting):
            if self._free > (0 if self._held[waiter.owner] < self._share else self._share):
                self._waiting.remove(waiter)
                self._free -= 1
                self._held[waiter.owner] += 1
                waiter.granted.set()
            elif not self._held[waiter.owner]:
                del self._held[waiter.owner]
