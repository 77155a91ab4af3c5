"""The metadata topic over fake brokers: leaders that move, denials, corrupt batches, connections of their own."""

import uuid
from typing import Any

import pytest
import trio
import trio.testing
from kio.schema.errors import ErrorCode

from protocol.client.connection import ClientSettings
from protocol.client.messages import FETCH, LIST_OFFSETS, METADATA, PRODUCE, Values
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC, KafkaMetadataTopicClient
from storage.errors import MetadataLogError, MetadataOffsetOutOfRange, RetriableRemoteStorageError
from storage.metadata.event_log import MetadataEvent
from storage.metadata.record_batches import TopicDescription, build_batch, parse_batches
from storage.metadata.topic_log import FetchedRecords
from tests.support.fake_broker import FakeNetwork
from tests.support.fake_cluster import FakeCluster, FakeTopic

TOPIC_ID = b"metadata topicid"


class MetadataCluster(FakeCluster):
    """Two brokers; partitions 0 and 2 are led by 1, partition 1 by 2. `batches` is what a fetch answers."""

    code = ErrorCode.none
    batches = b""
    gate: trio.Event | None = None

    def prepare(self) -> None:
        self.topics[METADATA_TOPIC] = FakeTopic(TOPIC_ID, [1, 2, 1])
        for node_id, host in ((1, "a"), (2, "b")):
            broker = self.add(node_id, host, 1)
            broker.on(FETCH, self.fetch)
            broker.on(LIST_OFFSETS, self.list_offsets)
            broker.on(PRODUCE, self.produce)

    async def fetch(self, request: Any) -> Values:
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        [topic] = request.topics
        partition = {
            "partition_index": topic.partitions[0].partition,
            "error_code": self.code,
            "high_watermark": 50,
            "log_start_offset": 3,
            "aborted_transactions": None,
            "records": self.batches,
        }
        named = {"topic": getattr(topic, "topic", None), "topic_id": getattr(topic, "topic_id", None)}
        return {"error_code": ErrorCode.none, "responses": [{**named, "partitions": [partition]}]}

    async def list_offsets(self, request: Any) -> Values:
        await trio.lowlevel.checkpoint()
        assert request.replica_id == -1
        partitions = [
            {"partition_index": asked.partition_index, "error_code": self.code, "offset": 3 - asked.timestamp * 10}
            for asked in request.topics[0].partitions
        ]
        return {"topics": [{"name": METADATA_TOPIC, "partitions": partitions}]}

    async def produce(self, request: Any) -> Values:
        await trio.lowlevel.checkpoint()
        assert request.acks == -1
        [topic] = request.topic_data
        index = topic.partition_data[0].index
        answer = {"index": index, "error_code": self.code, "base_offset": 77, "record_errors": ()}
        named = {"name": getattr(topic, "name", None), "topic_id": getattr(topic, "topic_id", None)}
        return {"responses": [{**named, "partition_responses": [answer]}]}


@pytest.fixture
def fake(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> MetadataCluster:
    fake = MetadataCluster(FakeNetwork(nursery))
    monkeypatch.setattr("proxy.upstream.connection.open_transport", fake.network.open_transport)
    fake.prepare()
    return fake


@pytest.fixture
def client(fake: MetadataCluster, nursery: trio.Nursery) -> KafkaMetadataTopicClient:
    settings = ClientSettings(bootstrap_servers=(("a", 1), ("b", 1)), client_host="host")
    return KafkaMetadataTopicClient(Cluster(settings, nursery))


async def test_the_topic_is_described_by_id_and_partition_count(client: KafkaMetadataTopicClient) -> None:
    assert await client.describe() == TopicDescription(TOPIC_ID, 3)


async def test_an_absent_topic_is_named_with_the_acl_that_may_hide_it(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    del fake.topics[METADATA_TOPIC]
    for call in (client.describe(), client.fetch(0, 0, 1), client.produce(0, b"v"), client.offsets([0])):
        with pytest.raises(MetadataLogError, match=r"__remote_log_metadata does not exist.*Describe on Topic"):
            await call


async def test_offsets_come_from_each_partitions_leader(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    assert await client.offsets([0, 1, 2]) == dict.fromkeys(range(3), (23, 13))
    asked = [topic for request in fake.brokers[2].asked(LIST_OFFSETS) for topic in request.topics]
    assert {entry.partition_index for topic in asked for entry in topic.partitions} == {1}


@pytest.mark.parametrize("version", [12, 18])
async def test_a_fetch_gives_records_watermark_start_and_next_offset(
    version: int, fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    fake.brokers[2].versions[FETCH.key] = (4, version)
    fake.batches = build_batch(b"value", 5)
    fetched = await client.fetch(1, 0, 500)
    assert fetched == FetchedRecords([MetadataEvent(1, 0, 5, None, b"value")], 50, 3, 1)
    [request] = fake.brokers[2].asked(FETCH)
    assert request.max_bytes == request.topics[0].partitions[0].partition_max_bytes == 1024 * 1024
    assert version < 13 or request.topics[0].topic_id == uuid.UUID(bytes=TOPIC_ID)


async def test_an_empty_fetch_knows_no_next_offset(client: KafkaMetadataTopicClient) -> None:
    assert await client.fetch(0, 9, 500) == FetchedRecords([], 50, 3, -1)


@pytest.mark.parametrize("version", [9, 13])
async def test_a_produce_is_one_uncompressed_batch_for_the_leader(
    version: int, fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    fake.brokers[2].versions[PRODUCE.key] = (3, version)
    assert await client.produce(1, b"value") == 77
    [request] = fake.brokers[2].asked(PRODUCE)
    [record] = parse_batches(bytes(request.topic_data[0].partition_data[0].records), 1).records
    assert (record.key, record.value) == (None, b"value")


async def test_no_partitions_fetch_waits_behind_anothers_long_poll(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    held = fake.gate = trio.Event()
    async with trio.open_nursery() as polling:
        polling.start_soon(client.fetch, 0, 0, 60_000)
        await trio.testing.wait_all_tasks_blocked()
        fake.gate = None
        await client.fetch(2, 0, 60_000)
        assert await client.produce(0, b"v") == 77
        await client.offsets([0, 2])
        held.set()


async def test_a_cancelled_fetch_does_not_hold_up_the_next_one(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    fake.gate = trio.Event()
    with trio.move_on_after(0):
        await client.fetch(0, 0, 60_000)
    async with trio.open_nursery() as polling:
        polling.start_soon(client.fetch, 0, 0, 60_000)
        await trio.testing.wait_all_tasks_blocked()
        polling.cancel_scope.cancel()
    fake.gate = None
    await client.fetch(0, 0, 60_000)


@pytest.mark.parametrize("code", [ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_id])
async def test_a_moved_leader_is_retriable_and_found_by_the_next_call(
    code: ErrorCode, fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    await client.fetch(0, 0, 1)
    fake.code = code
    with pytest.raises(RetriableRemoteStorageError, match=rf"{METADATA_TOPIC}-0 failed with [A-Z_]+ \({int(code)}\)"):
        await client.fetch(0, 0, 1)
    fake.code = ErrorCode.none
    fake.topics[METADATA_TOPIC].leaders[0] = 2
    await client.fetch(0, 0, 1)
    assert len(fake.brokers[2].asked(FETCH)) == 1


async def test_a_topic_made_anew_is_never_read_as_the_old_one(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    """Failed before: after its leader was looked up again, the new topic was read on from the old one's position."""
    await client.fetch(0, 0, 1)
    fake.code = ErrorCode.unknown_topic_id
    with pytest.raises(RetriableRemoteStorageError):
        await client.fetch(0, 0, 1)
    fake.code, fake.topics[METADATA_TOPIC] = ErrorCode.none, FakeTopic(b"metadata topici2", [1, 2, 1])
    with pytest.raises(MetadataLogError, match="was deleted and made anew"):
        await client.fetch(0, 0, 1)


async def test_a_denial_names_the_missing_acl(fake: MetadataCluster, client: KafkaMetadataTopicClient) -> None:
    fake.code = ErrorCode.topic_authorization_failed
    for call, operation in (
        (client.fetch(0, 0, 1), "Read"),
        (client.offsets([0]), "Describe"),
        (client.produce(0, b"v"), "Write"),
    ):
        with pytest.raises(MetadataLogError, match=f"ACL {operation} on Topic {METADATA_TOPIC} is missing"):
            await call
    fake.topics[METADATA_TOPIC].error_code = ErrorCode.topic_authorization_failed
    with pytest.raises(MetadataLogError, match="ACL Describe"):
        await client.describe()


async def test_an_offset_that_the_log_does_not_hold_has_its_own_error(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    fake.code = ErrorCode.offset_out_of_range
    with pytest.raises(MetadataOffsetOutOfRange, match="offset 99"):
        await client.fetch(0, 99, 1)


async def test_a_record_that_the_broker_refuses_for_good_is_not_retriable(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    fake.code = ErrorCode.message_too_large
    with pytest.raises(MetadataLogError, match="error code 10"):
        await client.produce(0, b"v")


async def test_a_corrupt_batch_is_retriable_a_foreign_compression_is_not(
    fake: MetadataCluster, client: KafkaMetadataTopicClient
) -> None:
    batch = build_batch(b"value", 5)
    fake.batches = batch[:-1] + b"\xff"
    with pytest.raises(RetriableRemoteStorageError, match=f"{METADATA_TOPIC}-0: batch at offset 0: its CRC"):
        await client.fetch(0, 0, 1)
    fake.batches = batch[:30]
    with pytest.raises(RetriableRemoteStorageError, match="without a whole batch"):
        await client.fetch(0, 0, 1)


async def test_a_lost_broker_is_retriable_and_its_partitions_are_looked_up_again(
    fake: MetadataCluster, client: KafkaMetadataTopicClient, autojump_clock: trio.testing.MockClock
) -> None:
    await client.fetch(1, 0, 1)
    fake.stop(2)
    with pytest.raises(RetriableRemoteStorageError):
        await client.fetch(1, 0, 1)
    fake.topics[METADATA_TOPIC].leaders[1] = 1
    await client.fetch(1, 0, 1)
    assert len(fake.brokers[1].asked(FETCH)) == 1


async def test_closing_ends_the_fetches_connections(fake: MetadataCluster, client: KafkaMetadataTopicClient) -> None:
    await client.fetch(0, 0, 1)
    asked_before = len(fake.brokers[1].asked(METADATA))
    await client.aclose()
    await trio.testing.wait_all_tasks_blocked()
    await client.fetch(0, 0, 1)
    assert len(fake.brokers[1].asked(METADATA)) == asked_before
    assert fake.brokers[1].client_ids.count("tidegate-metadata-log-host") == 4
