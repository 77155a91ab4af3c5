"""Where background tasks are started: a trio nursery, or what looks after them there (proxy.tasks)."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class TaskNursery(Protocol):
    """The part of a trio nursery that those need who only start something."""

    def start_soon(
        self, async_fn: Callable[[*Arguments], Awaitable[object]], *args: *Arguments, name: object = None
    ) -> None:
        """As `trio.Nursery.start_soon`."""
        ...
