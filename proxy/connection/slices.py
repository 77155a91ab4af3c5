"""Long work on the event loop, in slices: others go between two of them, and one such work is under way at a time.

Without the turn a hundred clients with large requests would have a hundred slices between two looks at the network.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from protocol.wire.slices import SLICE_ITEMS, Slices, cut

T = TypeVar("T")
R = TypeVar("R")

_turns: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("turns of long work")


async def in_slices(work: Slices[T]) -> T:
    """The result of work that waits for its turn after its first slice, and lets others go after each.

    Work of one slice is done at once: no checkpoint.

    Cancellation: between two slices; the work is closed.
    """
    try:
        next(work)
    except StopIteration as end:
        whole: T = end.value
        return whole
    try:
        async with _turn():
            while True:
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await trio.lowlevel.checkpoint()
    finally:
        work.close()


async def each_slice(items: Sequence[T], handle: Callable[[Sequence[T]], R]) -> list[R]:
    """What `handle` makes of the items, slice by slice; up to SLICE_ITEMS of them are handled without a checkpoint."""
    if len(items) <= SLICE_ITEMS:
        return [handle(items)]
    return await in_slices(_each(items, handle))


def _each(items: Sequence[T], handle: Callable[[Sequence[T]], R]) -> Slices[list[R]]:
    results = []
    for some in cut(items):
        results.append(handle(some))
        yield
    return results


def _turn() -> trio.Lock:
    try:
        return _turns.get()
    except LookupError:
        lock = trio.Lock()
        _turns.set(lock)
        return lock
