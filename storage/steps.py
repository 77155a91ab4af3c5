"""Work that is done at once as far as it can be, and waits only for what is not at hand.

A function in steps is a generator: it yields what is to be waited for, and is sent what comes of that. All that is at
hand is done by `next`, without a checkpoint, a task or a cancel scope; what is left goes on in any task (`finish`).
So nothing in such a function may belong to a task: it enters no cancel scope and no nursery.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

Wait = Callable[[], Awaitable[Any]]
Steps = Generator[Wait, Any, T]


def waited(wait: Callable[[], Awaitable[T]]) -> Steps[T]:
    """Wait for what a function in steps needs."""
    came: T = yield wait
    return came


async def finish(steps: Steps[T], wait: Wait | None = None) -> T:
    """Do all of the steps, and return what they lead to. `wait`: what they wait for, if they have begun."""
    try:
        wait = wait or next(steps)
        while True:
            try:
                came = await wait()
            except BaseException as error:  # belongs to the steps, as does a cancellation
                wait = steps.throw(error)
            else:
                wait = steps.send(came)
    except StopIteration as done:
        result: T = done.value
        return result
