"""Answers that tasks wait for, by the ids of their questions: the one place where a reader hands over what came.

Rule 1. An answer that belongs to nobody is dropped. Its asker may leave in the very turn of the loop in which the
        answer comes, and TLS streams hand over bytes in a turn in which they cannot be cancelled.
Rule 2. When the connection ends, all who wait hear of it, and nobody begins to wait for it any more.
"""

from typing import Generic, TypeVar

import trio

A = TypeVar("A")


class Waiter(Generic[A]):
    """A question under way."""

    __slots__ = ("_settled", "answer")

    def __init__(self) -> None:
        self._settled = trio.Event()
        self.answer: A | None = None
        """None until it comes, and for good when the connection is lost."""

    async def wait(self) -> A | None:
        """The answer; None: it does not come any more."""
        await self._settled.wait()
        return self.answer

    def settle(self, answer: A | None) -> None:
        """Called by the table."""
        self.answer = answer
        self._settled.set()


class Waiters(Generic[A]):
    """Who waits on one connection."""

    def __init__(self) -> None:
        self._by_id: dict[int, Waiter[A]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, id_: int) -> Waiter[A]:
        """Somebody asks."""
        waiter = self._by_id[id_] = Waiter[A]()
        return waiter

    def forget(self, id_: int) -> None:
        """The asker has left; its answer will belong to nobody."""
        self._by_id.pop(id_, None)

    def hand_over(self, id_: int, answer: A) -> bool:
        """Return whether there is somebody to have it."""
        waiter = self._by_id.pop(id_, None)
        if waiter is not None:
            waiter.settle(answer)
        return waiter is not None

    def end(self) -> int:
        """No answer comes any more; how many waited."""
        waiters, self._by_id = self._by_id, {}
        for waiter in waiters.values():
            waiter.settle(None)
        return len(waiters)
