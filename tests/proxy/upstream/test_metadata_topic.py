"""The metadata topic over fake brokers: leaders that move, denials, corrupt batches, connections of their own."""

import struct
import uuid
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from protocol.client.messages import FETCH, PRODUCE, Values
from protocol.client.settings import ClientSettings
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC, KafkaMetadataTopicClient
from storage.errors import MetadataLogError, MetadataOffsetOutOfRange, RetriableRemoteStorageError
from storage.metadata.reading import MetadataEvent
from storage.metadata.record_batches import parse_batches
from storage.metadata.topic_log import FetchedRecords
from tests.support.fake_kafka import FakeKafka, FakeLog, FakeTopic
from tests.support.metadata_records import batch_of

pytestmark = pytest.mark.autojump

TOPIC_ID = b"metadata topicid"
START, END = 3, 50


class MetadataLog:
    """Two brokers; partitions 0 and 2 are led by 1, partition 1 by 2, and each has offsets from START on."""

    def __init__(self, kafka: FakeKafka, nursery: trio.Nursery) -> None:
        self.kafka = kafka
        self.topics, self.brokers = self.kafka.topics, self.kafka.brokers
        settings = ClientSettings(bootstrap_servers=(("a", 1), ("b", 1)), client_host="host")
        self.client = KafkaMetadataTopicClient(Cluster(settings, nursery))
        self.gate: trio.Event | None = None
        logs = {number: FakeLog(START, end_offset=END) for number in range(3)}
        self.topics[METADATA_TOPIC] = FakeTopic(TOPIC_ID, [1, 2, 1], logs=logs)
        for node_id, host in ((1, "a"), (2, "b")):
            self.kafka.add(node_id, host).on(FETCH, partial(self.fetch, node_id))

    def answers(self, code: ErrorCode, batch: bytes = b"") -> None:
        """Set what each partition answers from now on."""
        for log in self.topics[METADATA_TOPIC].logs.values():
            log.error_code, log.batches = code, [(START, batch)]

    async def fetch(self, node_id: int, request: Any) -> Values:
        if self.gate is not None:
            await self.gate.wait()
        return self.kafka.fetch(node_id, request)


def batch_at_start(value: bytes) -> bytes:
    """At START."""
    return struct.pack(">q", START) + batch_of(value, 5)[8:]


@pytest.fixture
def fake(kafka: FakeKafka, nursery: trio.Nursery) -> MetadataLog:
    return MetadataLog(kafka, nursery)


async def test_an_absent_topic_is_named_with_the_acl_that_may_hide_it(fake: MetadataLog) -> None:
    del fake.topics[METADATA_TOPIC]
    client = fake.client
    produced = client.produce_batch(0, batch_of(b"v", 5))
    for call in (client.describe(), client.fetch(0, START, 1), produced, client.offsets([0])):
        with pytest.raises(MetadataLogError, match=r"__remote_log_metadata does not exist.*Describe on Topic"):
            await call


@pytest.mark.parametrize("version", [12, 18])
async def test_a_fetch_gives_records_watermark_start_and_next_offset(version: int, fake: MetadataLog) -> None:
    fake.brokers[2].versions[FETCH.key] = (4, version)
    fake.answers(ErrorCode.none, batch_at_start(b"value"))
    fetched = await fake.client.fetch(1, START, 500)
    assert fetched == FetchedRecords([MetadataEvent(1, START, 5, None, b"value")], END, START + 1)
    [request] = fake.brokers[2].asked(FETCH)
    assert request.max_bytes == request.topics[0].partitions[0].partition_max_bytes == 1024 * 1024
    assert version < 13 or request.topics[0].topic_id == uuid.UUID(bytes=TOPIC_ID)


@pytest.mark.parametrize("version", [9, 13])
async def test_a_produce_is_one_uncompressed_batch_for_the_leader(version: int, fake: MetadataLog) -> None:
    fake.brokers[2].versions[PRODUCE.key] = (3, version)
    assert await fake.client.produce_batch(1, batch_of(b"value", 5)) == END
    [request] = fake.brokers[2].asked(PRODUCE)
    assert request.acks == -1
    [record] = parse_batches(bytes(request.topic_data[0].partition_data[0].records), 1).records
    assert (record.key, record.value) == (None, b"value")


async def test_no_partitions_fetch_waits_behind_anothers_long_poll(fake: MetadataLog) -> None:
    held = fake.gate = trio.Event()
    async with trio.open_nursery() as polling:
        polling.start_soon(fake.client.fetch, 0, START, 60_000)
        await trio.testing.wait_all_tasks_blocked()
        fake.gate = None
        await fake.client.fetch(2, START, 60_000)
        assert await fake.client.produce_batch(0, batch_of(b"v", 5)) == END
        await fake.client.offsets([0, 2])
        held.set()


async def test_two_that_follow_one_partition_do_not_wait_for_each_other(fake: MetadataLog) -> None:
    """Failed before: a copier that was assigned a partition waited up to five seconds behind the catalog."""
    fake.gate = trio.Event()
    async with trio.open_nursery() as polling:
        polling.start_soon(fake.client.fetch, 0, START, 60_000)
        await trio.testing.wait_all_tasks_blocked()
        fake.gate = None
        with trio.fail_after(1):
            for _ in range(2):
                await fake.client.fetch(0, START, 1)
        polling.cancel_scope.cancel()


async def test_a_cancelled_fetch_does_not_hold_up_the_next_one(fake: MetadataLog) -> None:
    fake.gate = trio.Event()
    with trio.move_on_after(0):
        await fake.client.fetch(0, START, 60_000)
    async with trio.open_nursery() as polling:
        polling.start_soon(fake.client.fetch, 0, START, 60_000)
        await trio.testing.wait_all_tasks_blocked()
        polling.cancel_scope.cancel()
    fake.gate = None
    await fake.client.fetch(0, START, 60_000)


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_id])
async def test_a_moved_leader_is_retriable_and_found_by_the_next_call(code: ErrorCode, fake: MetadataLog) -> None:
    await fake.client.fetch(0, START, 1)
    fake.answers(code)
    with pytest.raises(RetriableRemoteStorageError, match=rf"{METADATA_TOPIC}-0 failed with [A-Z_]+ \({int(code)}\)"):
        await fake.client.fetch(0, START, 1)
    fake.answers(ErrorCode.none)
    fake.topics[METADATA_TOPIC].leaders[0] = 2
    await fake.client.fetch(0, START, 1)
    assert len(fake.brokers[2].asked(FETCH)) == 1


async def test_a_topic_made_anew_is_never_read_as_the_old_one(fake: MetadataLog) -> None:
    """Failed before: after its leader was looked up again, the new topic was read on from the old one's position."""
    await fake.client.fetch(0, START, 1)
    fake.answers(ErrorCode.unknown_topic_id)
    with pytest.raises(RetriableRemoteStorageError):
        await fake.client.fetch(0, START, 1)
    fake.topics[METADATA_TOPIC] = FakeTopic(b"metadata topici2", [1, 2, 1])
    with pytest.raises(MetadataLogError, match="was deleted and created again"):
        await fake.client.fetch(0, START, 1)


async def test_a_denial_names_the_missing_acl(fake: MetadataLog) -> None:
    fake.answers(ErrorCode.topic_authorization_failed)
    for call, operation in (
        (fake.client.fetch(0, START, 1), "Read"),
        (fake.client.offsets([0]), "Describe"),
        (fake.client.produce_batch(0, batch_of(b"v", 5)), "Write"),
    ):
        with pytest.raises(MetadataLogError, match=f"ACL {operation} on Topic {METADATA_TOPIC} is missing"):
            await call
    fake.topics[METADATA_TOPIC].error_code = ErrorCode.topic_authorization_failed
    with pytest.raises(MetadataLogError, match="ACL Describe"):
        await fake.client.describe()


async def test_an_offset_that_the_log_does_not_hold_has_its_own_error(fake: MetadataLog) -> None:
    with pytest.raises(MetadataOffsetOutOfRange, match="offset 99"):
        await fake.client.fetch(0, 99, 1)


async def test_a_record_that_the_broker_refuses_for_good_is_not_retriable(fake: MetadataLog) -> None:
    fake.answers(ErrorCode.message_too_large)
    with pytest.raises(MetadataLogError, match="error code 10"):
        await fake.client.produce_batch(0, batch_of(b"v", 5))


async def test_a_corrupt_batch_is_retriable_a_foreign_compression_is_not(fake: MetadataLog) -> None:
    batch = batch_of(b"value", 5)
    fake.answers(ErrorCode.none, batch[:-1] + b"\xff")
    with pytest.raises(RetriableRemoteStorageError, match=f"{METADATA_TOPIC}-0: batch at offset 0: its CRC"):
        await fake.client.fetch(0, START, 1)
    fake.answers(ErrorCode.none, batch[:30])
    with pytest.raises(RetriableRemoteStorageError, match="without a whole batch"):
        await fake.client.fetch(0, START, 1)


async def test_a_lost_broker_is_retriable_and_its_partitions_are_looked_up_again(fake: MetadataLog) -> None:
    await fake.client.fetch(1, START, 1)
    fake.kafka.stop(2)
    with pytest.raises(RetriableRemoteStorageError):
        await fake.client.fetch(1, START, 1)
    fake.topics[METADATA_TOPIC].leaders[1] = 1
    await fake.client.fetch(1, START, 1)
    assert len(fake.brokers[1].asked(FETCH)) == 1
