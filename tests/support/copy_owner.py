"""Who has the partition of a copier's world, as a process does (standalone.copying): it copies, and looks at topics.

owner = Owner(world, settings(world.folder), Retention())
await owner.run(generation)         # until owner.kill(), or owner.scope is cancelled
strike(world, owner)                # something around it goes wrong, or right again
"""

import functools
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from protocol.client.errors import UpstreamError
from standalone.copier import copier, gone_topics, partition_copier, term
from standalone.copier.config import CopyConfig
from standalone.copier.seams import Retention
from storage.backoff import Backoff
from storage.model import TopicIdPartition
from tests.support.copy_cluster import NODES
from tests.support.copy_world import CopyWorld, Hands
from tests.support.memory_store import Killed
from tests.support.simulated_time import in_order

HOUR_MS = 3_600_000
CLOCKS_OFF_MS = (-50 * 365 * 24 * HOUR_MS, -3 * HOUR_MS, 3 * HOUR_MS, 2 * 365 * 24 * HOUR_MS)


class Owner:
    """A copier that believes that it has the partition. `folder`: where it stages; None: a disk of its own."""

    def __init__(self, world: CopyWorld, config: CopyConfig, retention: Retention, folder: Path | None = None) -> None:
        self.hands: Hands = world.hands()
        self.hands.folder = folder or self.hands.folder
        self.hands.retention = retention
        self.copier = self.hands.copier(config)
        self.scope = trio.CancelScope()
        self._interval_s = config.interval_ms / 1000

    async def run(self, generation: int) -> None:
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.copier.run)
                    await self._take_part(generation)
        except* Killed:
            pass

    def kill(self) -> None:
        self.hands.kill()
        self.scope.cancel()

    def lose_staging(self) -> None:
        """Its disk is empty."""
        shutil.rmtree(self.hands.folder, ignore_errors=True)

    async def _take_part(self, generation: int) -> None:
        """The group gives the partition to this copier for as long as it asks for the topic."""
        had: list[TopicIdPartition] = []
        while True:
            try:
                gone = await self.hands.topics.look()
            except UpstreamError:
                self.hands.cluster.node_id = self.hands.world.chance.choice(NODES)
            else:
                has = [TopicIdPartition(each, 0, name) for name, each in self.hands.topics.copied().items()]
                if has != had:
                    await self.copier.revoke(had)
                    await self.copier.assign(has, generation)
                had = has
                self.copier.follow_gone(gone)
            await trio.sleep(self._interval_s)


@contextmanager
def repeatable(seed: int) -> Iterator[pytest.MonkeyPatch]:
    """All that is drawn comes from the seed."""
    with pytest.MonkeyPatch.context() as patch, in_order(seed):
        for module in (copier, gone_topics, partition_copier, term):
            patch.setattr(module, "Backoff", functools.partial(Backoff, source=random.Random(seed)))
        yield patch


def strike(world: CopyWorld, owner: Owner) -> None:
    chance = world.chance
    cluster = owner.hands.cluster
    match chance.randrange(9):
        case 0:
            how = chance.randrange(3)
            world.brokers.cut_off(chance.choice(NODES), leads=how == 1, forgets=how == 2)
        case 1:
            world.brokers.away.add(chance.choice(NODES))
        case 2:
            world.brokers.heal()
        case 3:
            if chance.random() < 0.7:
                world.brokers.cut_off(chance.choice(NODES), leads=chance.random() < 0.5)
            world.recreate()
        case 4:
            world.lose_index()
        case 5:
            owner.hands.clock_off_ms = chance.choice(CLOCKS_OFF_MS)
        case 6:
            owner.hands.clock_off_ms = 0
        case 7:
            owner.lose_staging()
        case _:
            cluster.node_id = chance.choice(NODES)
