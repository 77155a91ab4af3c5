"""Frontier questions: how they are dealt into requests, what is refused, and whose answer is whose."""

import pytest
import trio
from kio.schema.errors import ErrorCode

from protocol.client.errors import UpstreamProtocolError, UpstreamUnsupportedError
from protocol.client.messages import LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH
from protocol.client.offset_questions import EpochEndOffset, OffsetAnswer
from protocol.client.settings import ClientSettings
from protocol.list_offsets import OffsetTimestamp
from proxy.upstream.cluster import Cluster
from proxy.upstream.partition_questions import FrontierClient
from tests.support.fake_kafka import FakeBroker, FakeKafka, FakeLog, FakeTopic


@pytest.fixture
def broker(kafka: FakeKafka) -> FakeBroker:
    """Offsets of partition p: from 100 p on, local ones from 100 p + 4 on, up to 100 p + 9; epoch e ends at 10 e + p,
    and epochs from 5 on are unknown. Partition 9 is not led here."""
    for name in ("orders", "other"):
        kafka.topics[name] = topic = FakeTopic(name.encode().ljust(16), [1] * 10)
        for number in range(10):
            ends = {epoch: (epoch, 10 * epoch + number) for epoch in range(5)}
            start = 100 * number
            topic.logs[number] = FakeLog(start, start + 4, start + 9, epoch_ends=ends, leader_epoch=7)
        topic.log(9).error_code = ErrorCode.not_leader_or_follower
    return kafka.add(1, "a")


@pytest.fixture
def client(broker: FakeBroker, nursery: trio.Nursery) -> FrontierClient:
    return FrontierClient(Cluster(ClientSettings(bootstrap_servers=(("a", 1),)), nursery))


async def test_local_log_starts_come_in_one_request_of_a_debugger(broker: FakeBroker, client: FrontierClient) -> None:
    answers = await client.local_log_starts(1, [("orders", 0), ("orders", 9), ("other", 0)])
    first = OffsetAnswer(0, 4, 7, -1)
    assert answers == {("orders", 0): first, ("orders", 9): OffsetAnswer(6, -1, 7, -1), ("other", 0): first}
    [request] = broker.asked(LIST_OFFSETS)
    assert request.replica_id == -2
    assert [topic.name for topic in request.topics] == ["orders", "other"]


async def test_timestamps_of_one_partition_go_in_several_requests(broker: FakeBroker, client: FrontierClient) -> None:
    stamps = (OffsetTimestamp.LATEST, OffsetTimestamp.EARLIEST, OffsetTimestamp.EARLIEST_LOCAL)
    queries = [("orders", partition, stamp) for partition in (0, 1) for stamp in stamps]
    answers = await client.list_offsets(1, [*queries, queries[0]])
    assert {query: answer.offset for query, answer in answers.items()} == {
        (topic, partition, stamp): 100 * partition + {-1: 9, -2: 0, -4: 4}[stamp] for topic, partition, stamp in queries
    }
    assert len(broker.asked(LIST_OFFSETS)) == 3


async def test_a_broker_without_local_log_starts_is_named(broker: FakeBroker, client: FrontierClient) -> None:
    broker.versions[LIST_OFFSETS.key] = (0, 7)
    with pytest.raises(UpstreamUnsupportedError, match="a:1: list_offsets version 8 or later is needed"):
        await client.local_log_starts(1, [("orders", 0)])
    assert not broker.asked(LIST_OFFSETS)
    answers = await client.list_offsets(1, [("orders", 0, OffsetTimestamp.EARLIEST)])
    assert answers[("orders", 0, OffsetTimestamp.EARLIEST)].offset == 0


async def test_an_answer_without_a_partition_is_a_protocol_error(broker: FakeBroker, client: FrontierClient) -> None:
    broker.answer(LIST_OFFSETS, {"topics": ()})
    with pytest.raises(UpstreamProtocolError, match="says nothing of orders-0"):
        await client.local_log_starts(1, [("orders", 0)])


async def test_epoch_ends_of_many_partitions_come_in_one_request(broker: FakeBroker, client: FrontierClient) -> None:
    wanted = {("orders", 3): [4, 0, 5, 4], ("other", 0): [2], ("orders", 1): [1], ("orders", 2): []}
    answers = await client.epoch_end_offsets(1, wanted)
    assert answers == {
        ("orders", 3): {4: EpochEndOffset(0, 4, 43), 0: EpochEndOffset(0, 0, 3), 5: EpochEndOffset(0, -1, -1)},
        ("other", 0): {2: EpochEndOffset(0, 2, 20)},
        ("orders", 1): {1: EpochEndOffset(0, 1, 11)},
        ("orders", 2): {},
    }
    [told] = broker.asked(OFFSET_FOR_LEADER_EPOCH)
    asked = [(topic.topic, [(p.partition, p.leader_epoch) for p in topic.partitions]) for topic in told.topics]
    assert asked == [("orders", [(3, 4), (3, 0), (3, 5), (1, 1)]), ("other", [(0, 2)])]


async def test_other_epoch_answers_than_were_asked_for_are_a_protocol_error(
    broker: FakeBroker, client: FrontierClient
) -> None:
    end = {"error_code": ErrorCode.none, "leader_epoch": 1, "end_offset": 1}
    for partitions in ([], [0, 1], [0, 0, 0]):
        answers = [{**end, "partition": partition} for partition in partitions]
        broker.answer(OFFSET_FOR_LEADER_EPOCH, {"topics": [{"topic": "orders", "partitions": answers}]})
        with pytest.raises(UpstreamProtocolError, match=r"broker 1 .*answers other questions"):
            await client.epoch_end_offsets(1, {("orders", 0): [1, 2]})


async def test_no_question_needs_no_broker(broker: FakeBroker, client: FrontierClient) -> None:
    assert await client.local_log_starts(1, []) == {}
    assert await client.epoch_end_offsets(1, {}) == {}
    assert await client.epoch_end_offsets(1, {("orders", 0): []}) == {("orders", 0): {}}
    assert not broker.requests


async def test_topic_ids_are_those_a_broker_knows(broker: FakeBroker, kafka: FakeKafka, client: FrontierClient) -> None:
    other = kafka.add(2, "b", 2)
    kafka.topics["forbidden"] = FakeTopic(bytes(16), [1], ErrorCode.topic_authorization_failed)
    assert await client.topic_ids(2, ["orders", "forbidden", "absent"]) == {"orders": kafka.topics["orders"].topic_id}
    (request,) = other.asked(METADATA)
    assert [topic.name for topic in request.topics] == ["orders", "forbidden", "absent"]
    assert not request.allow_auto_topic_creation
