"""Steps of a conversation with brokers, and the two loops that take them: one that blocks, one for async shells.

A conversation is a generator. It yields what is to be asked or done, gets the answer back, has the client's errors
thrown in where it waits for an answer, and returns its result. It knows no socket, no thread and no clock.
"""

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

from protocol.client.errors import UpstreamError

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], answer: Callable[[S], Any]) -> T:
    """Return what the conversation returns, with each step answered by `answer`."""
    advance: Callable[[], S] = partial(next, steps)
    while True:
        try:
            step = advance()
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            advance = partial(steps.send, answer(step))
        except UpstreamError as error:
            advance = partial(steps.throw, error)


async def drive_async(steps: Generator[S, Any, T], answer: Callable[[S], Awaitable[Any]]) -> T:
    """`drive` for an `answer` that is awaited."""
    advance: Callable[[], S] = partial(next, steps)
    while True:
        try:
            step = advance()
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            advance = partial(steps.send, await answer(step))
        except UpstreamError as error:
            advance = partial(steps.throw, error)
