"""Bytes that may be held at once; who finds no room waits in line.

Rule 1. Owners take turns, and each owner's requests are served in their order. Nobody overtakes the line, so that a
        large request is not starved by small ones, nor one owner by the many requests of another.
Rule 2. Owners who are said to take at once what they get (`prefer`) have a line of their own, and the two lines take
        turns: many who hold what they do not take keep nobody else waiting for longer than one of them.
Rule 3. A request larger than the whole budget is let in when nothing else is held (or little, where small requests
        are always let in): otherwise it never would be.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import trio

_Line = dict[Hashable, deque["_Waiter"]]
"""Who waits, by owner; the owner whose turn it is first."""


@dataclass(slots=True, eq=False)
class _Waiter:
    size_bytes: int
    line: _Line
    admitted: trio.Event = field(default_factory=trio.Event)


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
        self._held_bytes = 0
        self._lines: tuple[_Line, _Line] = {}, {}
        """That whose turn it is first."""
        self._preferred_line, self._other_line = self._lines
        self._preferred: set[Hashable] = set()
        self._on_room: list[Callable[[], None]] = []
        self._on_short: list[Callable[[], None]] = []

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for room."""
        return any(self._lines)

    @property
    def held(self) -> int:
        """Bytes."""
        return self._held_bytes

    @property
    def room(self) -> int:
        """Bytes that `try_acquire` would give."""
        return 0 if self.is_short else max(0, self.bytes_max - self._held_bytes)

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
        waiter = _Waiter(size_bytes, self._preferred_line if owner in self._preferred else self._other_line)
        waiter.line.setdefault(owner, deque()).append(waiter)
        for call in self._on_short:
            call()
        try:
            await waiter.admitted.wait()
        except trio.Cancelled:
            if waiter.admitted.is_set():
                # Admitted after the cancellation was on its way, before it arrived.
                self.release(size_bytes)
            else:
                self._leave(owner, waiter)
                self._admit()
            raise

    def try_acquire(self, size_bytes: int) -> bool:
        """Hold that much more, if nobody waits and there is room at once."""
        if size_bytes and (self.is_short or not self._fits(size_bytes)):
            return False
        self._hold(size_bytes)
        return True

    def overdraw(self, size_bytes: int) -> None:
        """Hold that much more, whether or not there is room for it."""
        self._hold(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Hold that much less."""
        assert size_bytes <= self._held_bytes, (size_bytes, self._held_bytes)
        self._hold(-size_bytes)
        self._admit()

    def when_room(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever there is room that nobody waits for."""
        self._on_room.append(call)

    def when_short(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever somebody begins to wait for room."""
        self._on_short.append(call)

    def prefer(self, owner: Hashable, *, is_preferred: bool) -> None:
        """Whether the owner's next requests wait in the line of those who take at once what they get (rule 2). To be
        taken back when the owner goes."""
        if is_preferred:
            self._preferred.add(owner)
        else:
            self._preferred.discard(owner)

    def _admit(self) -> None:
        while self.is_short:
            line = self._lines[0] or self._lines[1]
            owner, waiters = next(iter(line.items()))
            waiter = waiters[0]
            if not self._fits(waiter.size_bytes):
                break
            self._leave(owner, waiter)
            if owner in line:
                line[owner] = line.pop(owner)  # its next turn comes after the others'
            self._lines = (
                (self._other_line, self._preferred_line)
                if line is self._preferred_line
                else (self._preferred_line, self._other_line)
            )
            self._hold(waiter.size_bytes)
            waiter.admitted.set()
        if not self.is_short:
            for call in self._on_room:
                call()

    def _leave(self, owner: Hashable, waiter: _Waiter) -> None:
        waiters = waiter.line[owner]
        waiters.remove(waiter)
        if not waiters:
            del waiter.line[owner]

    def _fits(self, size_bytes: int) -> bool:
        return self._held_bytes + size_bytes <= self.bytes_max or self._held_bytes <= self._little_bytes

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        if self._on_held is not None:
            self._on_held(self._held_bytes)
