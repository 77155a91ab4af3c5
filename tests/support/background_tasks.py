"""Tidegate's background tasks, for tests: looked after as the application does it, and killed where they wait."""

import random
from collections.abc import Iterator
from operator import attrgetter

import trio

from metrics.process_meters import TaskMeter
from metrics.registry import Registry
from proxy.tasks import Tasks


def tasks_in(nursery: trio.Nursery) -> Tasks:
    """Return what looks after the tasks of a nursery; nobody hears of those that fail."""
    return Tasks(nursery, TaskMeter(Registry()), lambda _reasons: None)


def task_named(name: str) -> trio.lowlevel.Task | None:
    """The running task of that name; None: there is none just now."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return next((each for each in _below(root) if each.name == name), None)


def kill(task: trio.lowlevel.Task, error: Exception, source: random.Random) -> None:
    """Raise the error in the task where it waits, or in one of those below it, as trio raises a cancellation there.
    What runs just now, or waits to be begun again, is left alone."""

    def raise_it() -> None:
        raise error

    is_begun = any(frame.f_code.co_qualname == "Tasks._run" for frame, _ in task.iter_await_frames())
    chosen = source.choice([task, *_below(task)])
    waits, attempt_abort = attrgetter("_abort_func", "_attempt_abort")(chosen)  # trio has no other way in
    if is_begun and waits is not None:
        attempt_abort(raise_it)


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield child
            yield from _below(child)
