"""What several files here begin with."""

import logging
from collections.abc import Iterator

import pytest
import structlog
import trio

from storage.model import TopicIdPartition
from tests.support.fake_kafka import FakeKafka
from tests.support.segments import filled_segment
from tests.support.tier import Tier, open_tier
from tests.support.tier_world import FakeFetcher, TierWorld
from tidegate.logs import OUR_PACKAGES


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


@pytest.fixture
def kafka(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    """A cluster without brokers, to which our own connections lead."""
    fake = FakeKafka(nursery)
    monkeypatch.setattr("proxy.upstream.connection.open_transport", fake.open_transport)
    return fake


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Leaves logging as it was found: what sets it up does so for the process, and pytest has handlers of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)
    structlog.reset_defaults()
