"""One async test that is a run of its own for each case, in virtual time: each begins in a new world, at second 0.

    @for_each_run("version", range(4, 19))
    async def test_every_version_is_served(world: TierWorld, version: int) -> None: ...

A test gets `nursery`, `world` (of the class that it names), and that world's first `partition` and a `client` of it,
as the fixtures of these names would have them. Other fixtures are the same in every run, and not async.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import trio
from trio.testing import MockClock

from tests.support.for_each import for_each

MADE_HERE = ("nursery", "world", "partition", "client")
AsyncTest = Callable[..., Awaitable[None]]


def for_each_run(names: str, cases: Iterable[Any]) -> Callable[[AsyncTest], Callable[..., None]]:
    """The cases as `for_each` has them."""
    return lambda test: for_each(names, cases)(_in_virtual_time(test))


def _in_virtual_time(test: AsyncTest) -> Callable[..., None]:
    signature = inspect.signature(test)
    wanted = signature.parameters

    async def turn(given: Mapping[str, Any]) -> None:
        # Caught inside: a nursery would make a group of the test's own failure.
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:
            try:
                await test(**given, **_made(wanted, nursery))
            except Exception as error:
                failures.append(error)
            nursery.cancel_scope.cancel()
        for failure in failures:
            raise failure

    @functools.wraps(test)
    def run(**given: Any) -> None:
        trio.run(turn, given, clock=MockClock(autojump_threshold=0))

    kept = [each for each in wanted.values() if each.name not in MADE_HERE]
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what pytest reads
    return run


def _made(wanted: Mapping[str, inspect.Parameter], nursery: trio.Nursery) -> dict[str, Any]:
    made: dict[str, Any] = {"nursery": nursery}
    if "world" in wanted:
        world = made["world"] = wanted["world"].annotation(nursery)
        makers = {"partition": "add_partition", "client": "client"}
        made |= {name: getattr(world, maker)() for name, maker in makers.items() if name in wanted}
    return {name: value for name, value in made.items() if name in wanted}
