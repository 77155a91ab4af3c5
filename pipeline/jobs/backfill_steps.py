"""Pieces of a job side by side: each in a thread of the driver, as Spark jobs of a group of its own.

Spark's scheduler gives a job's free cores to the next job, so a few pieces at once keep all cores busy: while one has
its last tasks, is planned or committed, the others have theirs.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from pyspark import InheritableThread, SparkContext

CANCEL_S = 1.0

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def side_by_side(
    context: SparkContext,
    pieces: Sequence[tuple[str, Piece]],
    do: Callable[[Piece], Result],
    on_done: Callable[[Piece, Result], None],
    *,
    at_once: int,
) -> None:
    """Do all pieces, `at_once` at a time, in about their order.

    Args:
        pieces: with the names of their job groups.
        on_done: called in this thread, as each is done.

    Raises:
        The first failure, or what `on_done` raises, when all threads have ended: the Spark jobs of the others are
            cancelled.
    """
    workers = _Workers(context, pieces, do)
    workers.start(min(at_once, len(pieces)))
    try:
        for _ in range(len(pieces)):
            on_done(*workers.next_done())
    finally:
        workers.end()


class _Workers(Generic[Piece, Result]):
    """Threads that take one piece after the other."""

    def __init__(
        self, context: SparkContext, pieces: Sequence[tuple[str, Piece]], do: Callable[[Piece], Result]
    ) -> None:
        self._context = context
        self._waiting, self._running = deque(pieces), set[str]()
        self._do = do
        self._done: queue.SimpleQueue[tuple[Piece, Result] | BaseException] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._threads: list[InheritableThread] = []

    def start(self, count: int) -> None:
        for number in range(count):
            thread = InheritableThread(target=self._work, name=f"step-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def next_done(self) -> tuple[Piece, Result]:
        """Wait for a piece; raises what it raised."""
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def end(self) -> None:
        """Cancel what runs, and wait for the threads."""
        self._stopped.set()
        for thread in self._threads:
            while thread.is_alive():
                # Again and again: it may have been between two jobs.
                for name in tuple(self._running):
                    self._context.cancelJobGroup(name)
                thread.join(CANCEL_S)

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                name, piece = self._waiting.popleft()
            except IndexError:
                return
            self._running.add(name)
            try:
                self._context.setJobGroup(name, name)
                self._done.put((piece, self._do(piece)))
            except BaseException as error:  # raised in the thread that waits
                self._done.put(error)
                return
            finally:
                self._running.discard(name)
