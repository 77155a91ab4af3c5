"""Requests of thousands of partitions, which the event loop must not stand still for: others go meanwhile, and one such
work is under way at a time. Without the turn a hundred clients with large requests would have a hundred of them
between two looks at the network.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")

ITEMS_AT_ONCE = 1000
"""Partitions that are handled without a look at the network: 1 to 3 µs each."""

BYTES_AT_ONCE = 16 * 1024
"""Bytes that are decoded so, whatever is in them: 0.1 to 0.3 µs each in the smallest items."""

_turns: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("turns of long work")


async def off_loop(is_large: bool, work: Callable[[], T]) -> T:
    """Return what `work` makes of messages alone: in a thread if it is large, else here, without a checkpoint.

    Cancellation: before it begins; what has begun is waited for.
    """
    if not is_large:
        return work()
    async with _turn():
        return await trio.to_thread.run_sync(work)


async def each_slice(items: Sequence[T], handle: Callable[[Sequence[T]], R]) -> list[R]:
    """Return what `handle` makes of the items, ITEMS_AT_ONCE by ITEMS_AT_ONCE; so many are handled without a
    checkpoint."""
    if len(items) <= ITEMS_AT_ONCE:
        return [handle(items)]
    results = []
    async with _turn():
        for at in range(0, len(items), ITEMS_AT_ONCE):
            results.append(handle(items[at : at + ITEMS_AT_ONCE]))
            await trio.lowlevel.checkpoint()
    return results


def _turn() -> trio.Lock:
    try:
        return _turns.get()
    except LookupError:
        lock = trio.Lock()
        _turns.set(lock)
        return lock
