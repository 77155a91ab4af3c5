"""A computation under way, that any number of readers may wait for.

Rule 1. It runs in the application's nursery, never in a client's: a caller that is cancelled stops to wait, the
        computation goes on, and the next caller finds its result (docs/protocol.md#l3).
Rule 2. A failure goes to everyone who waits at that moment and is not kept: the next caller starts afresh.
"""

from typing import Generic, TypeVar

import trio

V = TypeVar("V")


class Flight(Generic[V]):
    """A computation under way."""

    __slots__ = ("_done", "_error", "_followers", "_value")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._value: V | None = None
        self._error: Exception | None = None
        self._followers: list[Flight[V]] = []

    async def wait(self) -> V:
        """The value, or the error that the computation raised.

        Cancellation: the flight goes on.
        """
        await self._done.wait()
        if self._error is not None:
            # A fresh traceback for every waiter: raising one object from many tasks would grow its own.
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]  # set before _done whenever there is no error

    def follow(self, other: "Flight[V]") -> None:
        """Let this one, which nothing else ends, end as the other does."""
        other._followers.append(self)

    def land(self, value: V) -> None:
        self._value = value
        self._done.set()
        for follower in self._followers:
            follower.land(value)

    def fail(self, error: Exception) -> None:
        self._error = error
        self._done.set()
        for follower in self._followers:
            follower.fail(error)
