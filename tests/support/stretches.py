"""What the event loop does in one go: calls between two checkpoints, counted, not timed."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import trio

R = TypeVar("R")


class Stretches(trio.abc.Instrument):
    """How many calls of a function fall between two checkpoints, at most; calls in other threads fall between none."""

    def __init__(self) -> None:
        self.longest = 0
        self._thread = threading.get_ident()
        self.calls = 0
        self._since = 0

    def __call__(self, function: Callable[..., R]) -> Callable[..., R]:
        """The function, counted."""

        def counted(*fields: Any, **named: Any) -> R:
            self.calls += 1
            self._since += threading.get_ident() == self._thread
            return function(*fields, **named)

        return counted

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, self._since)
        self._since = 0
