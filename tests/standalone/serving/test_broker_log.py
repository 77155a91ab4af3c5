"""Upstream's partitions as the copier reads them: whose answer it is, and what its errors become."""

import pytest
import trio
from kio.schema.errors import ErrorCode

from protocol.client.messages import FETCH
from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from standalone.copier.seams import LogRange, OffsetBelowLogStartError, TopicGoneError
from standalone.serving.broker_log import ClusterBrokerLog
from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.model import TopicIdPartition, Uuid
from tests.support.fake_kafka import FakeKafka, FakeLog

ORDERS = TopicIdPartition(Uuid(b"orders orders id"), 0, "orders")
AGAIN = TopicIdPartition(Uuid(b"made again's  id"), 0, "orders")


@pytest.fixture
def log(kafka: FakeKafka) -> FakeLog:
    """From offset 40 on, stable up to 90, in batches of ten bytes' worth of nothing that anybody looks into."""
    kafka.add(1, "a")
    log = kafka.add_log(ORDERS, end_offset=100, log_start_offset=40)
    log.last_stable_offset = 90
    log.batches = [(number * 10 + 9, b"batch %d" % number) for number in range(4, 9)]
    return log


@pytest.fixture
def brokers(log: FakeLog, nursery: trio.Nursery) -> ClusterBrokerLog:
    return ClusterBrokerLog(Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery))


async def test_the_range_ends_at_the_last_stable_offset(brokers: ClusterBrokerLog, log: FakeLog) -> None:
    expected = LogRange(
        log_start_offset=40, last_stable_offset=90, high_watermark=log.end_offset, leader_epoch=log.leader_epoch
    )
    assert await brokers.range(ORDERS) == expected


async def test_batches_come_raw_by_topic_id_and_without_a_wait(brokers: ClusterBrokerLog, kafka: FakeKafka) -> None:
    fetched = await brokers.fetch(ORDERS, 60, max_bytes=1000)
    assert bytes(fetched.data) == b"batch 6batch 7batch 8"
    [request] = kafka.brokers[1].asked(FETCH)
    assert (request.isolation_level, request.max_wait.total_seconds(), request.max_bytes) == (1, 0, 1000)
    assert request.topics[0].topic_id.bytes == ORDERS.topic_id


async def test_an_offset_that_upstream_has_deleted_says_where_its_log_starts(brokers: ClusterBrokerLog) -> None:
    with pytest.raises(OffsetBelowLogStartError) as caught:
        await brokers.fetch(ORDERS, 39, max_bytes=1000)
    assert caught.value.log_start_offset == 40


async def test_an_offset_beyond_the_end_may_pass(brokers: ClusterBrokerLog) -> None:
    with pytest.raises(RetriableRemoteStorageError, match="it ends at 90"):
        await brokers.fetch(ORDERS, 101, max_bytes=1000)


async def test_ends_of_epochs_are_the_leaders(brokers: ClusterBrokerLog, log: FakeLog) -> None:
    log.epoch_ends = {3: (2, 77)}
    assert await brokers.epoch_end(ORDERS, 3) == (2, 77)
    assert await brokers.epoch_end(ORDERS, 1) == (-1, -1)


async def test_a_name_that_is_another_topics_is_one_that_is_gone(brokers: ClusterBrokerLog, kafka: FakeKafka) -> None:
    """Whatever was known before; and the new topic is read as itself."""
    await brokers.range(ORDERS)
    kafka.add_log(AGAIN, end_offset=5)
    with pytest.raises(RetriableRemoteStorageError):  # the broker says only that it does not know the id
        await brokers.fetch(ORDERS, 50, max_bytes=1000)
    with pytest.raises(TopicGoneError, match="made again"):
        await brokers.fetch(ORDERS, 50, max_bytes=1000)
    for question in (brokers.range(ORDERS), brokers.epoch_end(ORDERS, 0)):
        with pytest.raises(TopicGoneError):
            await question
    assert (await brokers.range(AGAIN)).last_stable_offset == 5
    assert (await brokers.fetch(AGAIN, 0, max_bytes=1000)).data == b""


async def test_a_topic_that_is_not_there_may_come_back(brokers: ClusterBrokerLog, kafka: FakeKafka) -> None:
    del kafka.topics["orders"]
    with pytest.raises(RetriableRemoteStorageError, match="there is no topic orders"):
        await brokers.range(ORDERS)


async def test_a_right_that_is_missing_stays_and_is_named(brokers: ClusterBrokerLog, log: FakeLog) -> None:
    log.error_code = ErrorCode.topic_authorization_failed
    with pytest.raises(RemoteStorageError, match="ACL Read on Topic orders is missing") as caught:
        await brokers.fetch(ORDERS, 50, max_bytes=1000)
    assert not isinstance(caught.value, RetriableRemoteStorageError)


async def test_a_broker_that_is_away_may_come_back(brokers: ClusterBrokerLog, kafka: FakeKafka) -> None:
    await brokers.range(ORDERS)
    kafka.stop(1)
    with pytest.raises(RetriableRemoteStorageError):
        await brokers.range(ORDERS)
