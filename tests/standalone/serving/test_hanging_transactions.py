"""Transactions that hang while upstream has deleted where they begin: when they are reported, and whose they are."""

from collections.abc import Sequence
from typing import cast

import pytest
import structlog.testing
import trio
from kio.schema.errors import ErrorCode

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.messages import DESCRIBE_PRODUCERS
from protocol.client.settings import ClientSettings
from protocol.fetch.messages import PartitionAnswer
from proxy.fetch.frontiers import Frontiers
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import FrontierClient
from standalone.serving.hanging_transactions import LOOK_S, HangingTransactions
from standalone.serving.log_starts import TierLogStarts
from standalone.serving.owner import WeOwnIt
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition, Uuid
from tests.support.fake_kafka import FakeBroker, FakeKafka

pytestmark = pytest.mark.autojump

ORDERS = TopicIdPartition(Uuid(b"orders orders id"), 0, "orders")
NOW_MS = 1_700_000_000_000


class NoLogStarts:
    def get(self, partition: TopicIdPartition) -> int | None:
        return 0


class World:
    def __init__(self, kafka: FakeKafka, nursery: trio.Nursery) -> None:
        self.broker: FakeBroker = kafka.add(1, "a")
        kafka.add_log(ORDERS, end_offset=100, log_start_offset=40)
        cluster = Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery)
        self.owner = WeOwnIt(Catalog(), cast(TierLogStarts, NoLogStarts()), Meters(Registry()).tier)
        self.frontiers = Frontiers(FrontierClient(cluster), nursery, age_s_max=1.0, owner=self.owner)
        self.told: list[list[str]] = []
        self.hanging = HangingTransactions(
            self.owner.held_back, self.frontiers, cluster, self._tell, now_ms=lambda: NOW_MS
        )

    def _tell(self, said: Sequence[str]) -> None:
        self.told.append([*said])

    async def saw(self, last_stable_offset: int) -> None:
        """A probe's answer passes."""
        await self.frontiers.refresh(1, [ORDERS])
        known = self.frontiers.get(1, ORDERS)
        assert known is not None
        answer = PartitionAnswer("orders", None, 0, 0, 100, last_stable_offset, log_start_offset=40)
        self.frontiers.saw(1, ORDERS, known, answer)

    def has(self, *producers: tuple[int, int], code: ErrorCode = ErrorCode.none) -> None:
        """Set what DescribeProducers is answered: producer ids and where their transactions begin."""
        active = [
            {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "last_sequence": 1,
                "last_timestamp": NOW_MS - 7000,
                "coordinator_epoch": 0,
                "current_txn_start_offset": first_offset,
            }
            for producer_id, first_offset in producers
        ]
        partition = {"partition_index": 0, "error_code": code, "error_message": None, "active_producers": active}
        self.broker.answer(DESCRIBE_PRODUCERS, {"topics": [{"name": "orders", "partitions": [partition]}]})

    async def look(self) -> str:
        await self.hanging.look()
        return "".join(self.told[-1])


@pytest.fixture
def world(kafka: FakeKafka, nursery: trio.Nursery) -> World:
    return World(kafka, nursery)


async def test_the_oldest_is_named_until_it_ends(world: World, nursery: trio.Nursery) -> None:
    world.has((6, -1), (8, 35), (7, 30), (9, 60))
    await world.saw(last_stable_offset=40)
    with structlog.testing.capture_logs() as logs:
        nursery.start_soon(world.hanging.run)
        await trio.sleep(2.5 * LOOK_S)
    assert [len(each) for each in world.told] == [1, 1, 1]
    assert "orders-0: a transaction is open" in world.told[-1][0]
    assert "producer 7 began it at offset 30 and wrote 7 s ago" in world.told[-1][0]
    assert [line["event"] for line in logs].count("transaction_hangs") == 1
    await world.saw(last_stable_offset=100)
    assert await world.look() == ""


async def test_what_upstream_still_has_is_not_told_of(world: World) -> None:
    for last_stable_offset in (41, 100):
        await world.saw(last_stable_offset)
        assert await world.look() == ""
    assert not world.broker.asked(DESCRIBE_PRODUCERS)
    world.has((7, 40), (8, -1))
    await world.saw(last_stable_offset=40)
    assert await world.look() == ""
    assert not world.owner.held_back


async def test_a_producer_that_is_not_told_is_said_to_be_unknown(world: World) -> None:
    await world.saw(last_stable_offset=40)
    world.has(code=ErrorCode.topic_authorization_failed)
    assert "DescribeProducers failed with TOPIC_AUTHORIZATION_FAILED (29)" in await world.look()
    world.broker.versions.pop(DESCRIBE_PRODUCERS.key)
    world.broker.disconnect_all()
    assert "describe_producers version 0 or later is needed" in await world.look()
