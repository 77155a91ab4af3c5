"""A copier that runs in a world in memory, and what tests ask of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from standalone.copier.copier import Copier
from standalone.copier.progress import PartitionProgress
from tests.support.copy_world import PARTITION, CopyWorld, Hands, settings


@asynccontextmanager
async def running(
    hands: Hands, *, partitions: Any = (PARTITION,), generation: int = 1, **keys: Any
) -> AsyncIterator[Copier]:
    copier = hands.copier(settings(hands.world.folder, **keys))
    async with trio.open_nursery() as nursery:
        await nursery.start(copier.run)  # as standalone.copying does
        await copier.assign(partitions, generation)
        yield copier
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], object], within_s: float = 60) -> None:
    with trio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for is in the copier, which tells nobody
            await trio.sleep(within_s / 1200)


def ranges(world: CopyWorld) -> list[tuple[int, int]]:
    return [(segment.start_offset, segment.end_offset) for segment in world.finished()]


def only(copier: Copier) -> PartitionProgress:
    (progress,) = copier.progress()
    return progress


def value(hands: Hands, name: str, **labels: str) -> float | None:
    return hands.registry.sample_value(name, labels)
