"""What several files here begin with."""

import pytest
import trio

from storage.model import TopicIdPartition
from tests.support.program_fixtures import kafka
from tests.support.segments import filled_segment
from tests.support.tier import Tier, open_tier
from tests.support.tier_world import FakeFetcher, TierWorld

__all__ = ["kafka"]


@pytest.fixture
def world(nursery: trio.Nursery) -> TierWorld:
    """Everything behind a FetchService, in memory; files with a world of another kind have a fixture of that name."""
    return TierWorld(nursery)


@pytest.fixture
def partition(world: TierWorld) -> TopicIdPartition:
    """The world's first one: `orders`, whose tier ends where its local log begins, at 1000, as does the log."""
    return world.add_partition()


@pytest.fixture
def client(world: TierWorld) -> FakeFetcher:
    """A client connection of the world as it is before the test changes it."""
    return world.client()


@pytest.fixture
def tier(nursery: trio.Nursery) -> Tier:
    """A reader of one segment, `filled_segment(0)`, in blocks of 1000 bytes."""
    return open_tier(nursery, [filled_segment(0)], block_bytes=1000)
