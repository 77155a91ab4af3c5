"""Bytes that may be held at once; requests without room wait in line.

Rule 1. A line is fair by bytes, as in weighted fair queueing: with each request that is let in, its clock goes on by
        that size divided by the number in line; a request's turn is its own size behind the clock, or behind the
        last turn of its owner. So an owner that asks for little waits neither for many that ask for much nor for the
        many requests of another, and the clock reaches every large request. One owner's requests are served in order.
Rule 2. Owners who are said to take at once what they get (`prefer`) have a line of their own, and the two lines take
        turns: many who hold what they do not take keep nobody else waiting for longer than one of them.
Rule 3. A request larger than the whole budget is let in when nothing else is held (or little, where small requests
        are always let in): otherwise it never would be.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import count

import trio

LARGE_BYTES = 16 * 1024 * 1024
"""What is larger is charged with more than half of a budget, so that there is one of them at a time: a single batch may
have 100 MiB."""


@dataclass(slots=True, order=True)
class _Waiter:
    turn: int
    """In bytes by the line's clock (rule 1)."""
    number: int
    """Decides between equal turns: first come, first served."""
    size_bytes: int = field(compare=False)
    owner: Hashable = field(compare=False)
    admitted: trio.Event = field(compare=False, default_factory=trio.Event)


class _Line:
    """Who waits, by turns."""

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []
        self._last_of: dict[Hashable, _Waiter] = {}
        self._clock_bytes = 0
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    @property
    def first(self) -> _Waiter:
        return self._waiters[0]

    def join(self, size_bytes: int, owner: Hashable) -> _Waiter:
        last = self._last_of.get(owner)
        begins = self._clock_bytes if last is None else max(self._clock_bytes, last.turn)
        waiter = self._last_of[owner] = _Waiter(begins + size_bytes, next(self._numbers), size_bytes, owner)
        insort(self._waiters, waiter)
        return waiter

    def serve_first(self) -> _Waiter:
        waiter = self._waiters[0]
        self._clock_bytes += waiter.size_bytes // len(self._waiters)
        del self._waiters[0]
        if self._last_of[waiter.owner] is waiter:
            del self._last_of[waiter.owner]
        return waiter

    def leave(self, waiter: _Waiter) -> None:
        del self._waiters[bisect_left(self._waiters, waiter)]
        if self._last_of[waiter.owner] is waiter:
            del self._last_of[waiter.owner]
            earlier = [each for each in self._waiters if each.owner == waiter.owner]
            if earlier:
                self._last_of[waiter.owner] = earlier[-1]


class ByteBudget:
    """The budget. Owned by the trio thread.

    Args:
        on_held: called with what is held after every change.
        little_bytes: what counts as nothing (rule 3).
    """

    def __init__(self, bytes_max: int, on_held: Callable[[int], None] | None = None, *, little_bytes: int = 0) -> None:
        self.bytes_max = bytes_max
        self._little_bytes = little_bytes
        self._on_held = on_held
        self.held = 0
        """Bytes."""
        self._preferred_line, self._other_line = _Line(), _Line()
        self._lines = [self._preferred_line, self._other_line]
        """That whose turn it is first."""
        self.wanted = 0
        """Bytes that those want who wait; 0: nobody does."""
        self._preferred: set[Hashable] = set()
        self._on_room: list[Callable[[], None]] = []
        self._on_short: list[Callable[[], None]] = []

    @property
    def is_short(self) -> bool:
        """Return whether somebody waits for room."""
        return self.wanted > 0

    @property
    def room(self) -> int:
        """Bytes that `try_acquire` would give."""
        return 0 if self.wanted else max(0, self.bytes_max - self.held)

    def charged(self, size_bytes: int) -> int:
        """Return what so much is charged with."""
        return size_bytes if size_bytes <= LARGE_BYTES else max(size_bytes, self.bytes_max // 2 + 1)

    async def acquire(self, size_bytes: int, owner: Hashable = None) -> None:
        """Hold that much more, once there is room for it. A checkpoint in any case.

        Args:
            owner: for whom.

        Cancellation: nothing is held.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.try_acquire(size_bytes):
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        line = self._preferred_line if owner in self._preferred else self._other_line
        waiter = line.join(size_bytes, owner)
        self.wanted += size_bytes
        for call in self._on_short:
            call()
        try:
            await waiter.admitted.wait()
        except trio.Cancelled:
            if waiter.admitted.is_set():
                # Admitted after the cancellation was on its way, before it arrived.
                self.release(size_bytes)
            else:
                line.leave(waiter)
                self.wanted -= size_bytes
                self._admit()
            raise

    def try_acquire(self, size_bytes: int) -> bool:
        """Hold that much more, if nobody waits and there is room at once."""
        if size_bytes and (self.wanted or not self._fits(size_bytes)):
            return False
        self._hold(size_bytes)
        return True

    def overdraw(self, size_bytes: int) -> None:
        """Hold that much more, whether or not there is room for it."""
        self._hold(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Hold that much less."""
        assert size_bytes <= self.held, (size_bytes, self.held)
        self._hold(-size_bytes)
        self._admit()

    def when_room(self, call: Callable[[], None]) -> None:
        """Register `call` for whenever there is room that nobody waits for."""
        self._on_room.append(call)

    def when_short(self, call: Callable[[], None]) -> None:
        """Register `call` for whenever somebody begins to wait for room."""
        self._on_short.append(call)

    def prefer(self, owner: Hashable, *, is_preferred: bool) -> None:
        """Say whether the owner's next requests wait in the line of those who take at once what they get (rule 2). To
        be taken back when the owner goes."""
        if is_preferred:
            self._preferred.add(owner)
        else:
            self._preferred.discard(owner)

    def _admit(self) -> None:
        while self.wanted:
            line = self._lines[0] or self._lines[1]
            if not self._fits(line.first.size_bytes):
                return
            waiter = line.serve_first()
            self.wanted -= waiter.size_bytes
            self._lines.sort(key=lambda each: each is line)  # the other's turn
            self._hold(waiter.size_bytes)
            waiter.admitted.set()
        for call in self._on_room:
            call()

    def _fits(self, size_bytes: int) -> bool:
        return self.held + size_bytes <= self.bytes_max or self.held <= self._little_bytes

    def _hold(self, size_bytes: int) -> None:
        self.held += size_bytes
        if self._on_held is not None:
            self._on_held(self.held)
