"""Work in slices: a generator that yields wherever its caller may let others go first. Sans-IO.

Messages of thousands of partitions are decoded and encoded this way, so that the event loop is never still for long:

    decode_request(frame, header)                                   all at once
    await in_slices(decode_request_in_slices(frame, header))        with a checkpoint after each
    (proxy.connection.slices)

A message of no more than one slice never yields.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SLICE_ITEMS = 1000
"""Partitions that are handled between two yields: 1 to 3 µs each."""

SLICE_BYTES = 16 * 1024
"""Bytes that are decoded between two yields, whatever is in them: 0.1 to 0.3 µs each in the smallest items."""

Slices = Generator[None, None, T]
"""Work that returns a T."""


def cut(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items in runs of up to SLICE_ITEMS."""
    if len(items) <= SLICE_ITEMS:
        return iter((items,))
    return (items[at : at + SLICE_ITEMS] for at in range(0, len(items), SLICE_ITEMS))


def at_once(work: Callable[P, Slices[T]]) -> Callable[P, T]:
    """The same work as an ordinary function: all slices one after another."""

    @wraps(work)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        slices = work(*args, **kwargs)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result

    return whole
