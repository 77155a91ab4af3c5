"""Questions to one peer, gathered: while one request is under way, further questions wait for the next.

Rule 1. At most one request is under way. A question that comes meanwhile joins the next one, even for what it names:
        each gets an answer that is younger than its question.
Rule 2. A request goes on when those who asked have left.
Rule 3. A failure goes to everyone who asked in that request and is not kept.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import trio

from storage.tasks import TaskNursery

Q = TypeVar("Q")
A = TypeVar("A")


class Round(Generic[Q, A]):
    """One request: `done` is set when it was answered, or failed with `error`."""

    __slots__ = ("answers", "done", "error", "questions")

    def __init__(self) -> None:
        self.questions: dict[Q, None] = {}
        self.answers: Mapping[Q, A] = {}
        self.error: Exception | None = None
        self.done = trio.Event()


class Gathered(Generic[Q, A]):
    """Owned by the trio thread.

    Args:
        nursery: the application's; requests live in it.
        ask: asks all of these and gives the answers.
    """

    def __init__(
        self, nursery: TaskNursery, ask: Callable[[Sequence[Q]], Awaitable[Mapping[Q, A]]], *, name: str
    ) -> None:
        self._nursery = nursery
        self._ask = ask
        self._name = name
        self._next: Round[Q, A] = Round()
        self._is_running = False

    def __len__(self) -> int:
        """Questions that wait for the next request."""
        return len(self._next.questions)

    def add(self, questions: Iterable[Q]) -> Round[Q, A]:
        """Ask these soon; return the round that they are in. Nothing to ask is a round that is done."""
        wanted = dict.fromkeys(questions)
        if not wanted:
            nothing: Round[Q, A] = Round()
            nothing.done.set()
            return nothing
        if not self._is_running:
            # First, because it raises once the nursery is closed: nobody may wait for what is never asked.
            self._nursery.start_soon(self._run, name=self._name)
            self._is_running = True
        self._next.questions.update(wanted)
        return self._next

    async def get(self, question: Q) -> A:
        """The answer to one question.

        Raises:
            Exception: what `ask` raised.

        Cancellation: the request goes on.
        """
        return (await self.wait((question,)))[question]

    async def wait(self, questions: Iterable[Q]) -> Mapping[Q, A]:
        """The answers to these questions, perhaps among others; otherwise as `get`."""
        joined = self.add(questions)
        await joined.done.wait()
        if joined.error is not None:
            # A fresh traceback for every waiter: raising one object from many tasks would grow its own.
            raise joined.error.with_traceback(None)
        return joined.answers

    async def _run(self) -> None:
        asked = self._next
        try:
            while self._next.questions:
                asked, self._next = self._next, Round()
                try:
                    asked.answers = await self._ask(list(asked.questions))
                except Exception as error:  # it belongs to those who wait; the nursery must live on
                    asked.error = error
                asked.done.set()
        finally:
            self._is_running = False
            for cut_off in (asked, self._next):
                if not cut_off.done.is_set() and cut_off.questions:
                    # Shutdown: nobody may be left waiting.
                    cut_off.error = trio.ClosedResourceError("the application is shutting down")
                    cut_off.done.set()
