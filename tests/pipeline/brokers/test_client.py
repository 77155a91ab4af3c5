"""The blocking client over scripted brokers: what is asked of whom, what is tried again, what is said at once."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from pipeline.brokers.client import BrokerClient
from protocol.client.connection import ClientSettings
from protocol.client.errors import (
    OffsetOutOfRangeError,
    TopicAuthorizationError,
    TopicReplacedError,
    UnknownTopicError,
    UpstreamAuthenticationError,
    UpstreamDeadlineError,
    UpstreamRefusedError,
)
from protocol.client.leaders import LeaderEpochAnswers, PartitionLeader, TopicMetadata
from protocol.client.messages import (
    API_VERSIONS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    SASL_HANDSHAKE,
    OffsetAnswer,
    Values,
)
from protocol.client.sasl import SaslCredentials
from tests.support.blocking_broker import BlockingBroker

ORDERS = b"orders-topic-id1"
OTHER = b"orders-topic-id2"


@dataclass
class World:
    """Two brokers and a topic; `waits` are the back-offs, and time is nothing but them."""

    first: BlockingBroker
    second: BlockingBroker
    topics: dict[str, tuple[bytes, list[int]]] = field(default_factory=lambda: {"orders": (ORDERS, [1, 2, 1])})
    waits: list[float] = field(default_factory=list)
    on_wait: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        brokers = {1: self.first.address, 2: self.second.address}
        for broker in (self.first, self.second):
            broker.serve_metadata(brokers, self.topics)
        self.client = self.open(ClientSettings(bootstrap_servers=(self.first.address,), deadline_s=5))

    def open(self, settings: ClientSettings) -> BrokerClient:
        return BrokerClient(settings, clock=lambda: sum(self.waits), wait=self._wait)

    def _wait(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        if self.on_wait:
            self.on_wait.pop(0)()


@pytest.fixture
def world() -> Iterator[World]:
    with BlockingBroker() as first, BlockingBroker() as second:
        made = World(first, second)
        with made.client:
            yield made


def offsets(by_partition: dict[int, int], codes: dict[int, ErrorCode] | None = None) -> Callable[[Any], Values]:
    def answer(request: Any) -> Values:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": asked.partition_index,
                            "error_code": (codes or {}).get(asked.partition_index, ErrorCode.none),
                            "timestamp": -1,
                            "offset": by_partition.get(asked.partition_index, -1),
                            "leader_epoch": 4,
                        }
                        for asked in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    return answer


def fetched(records: bytes = b"batches", code: ErrorCode = ErrorCode.none) -> Callable[[Any], Values]:
    def answer(request: Any) -> Values:
        (topic,) = request.topics
        (asked,) = topic.partitions
        return {
            "error_code": ErrorCode.none,
            "session_id": 0,
            "responses": [
                {
                    "topic": getattr(topic, "topic", None),
                    "topic_id": getattr(topic, "topic_id", None),
                    "partitions": [
                        {
                            "partition_index": asked.partition,
                            "error_code": code,
                            "high_watermark": 9,
                            "last_stable_offset": 8,
                            "log_start_offset": 1,
                            "aborted_transactions": [{"producer_id": 70, "first_offset": 3}],
                            "preferred_read_replica": -1,
                            "records": records,
                        }
                    ],
                }
            ],
        }

    return answer


def fetch(world: World, partition: int = 0, topic: str = "orders") -> bytes:
    return world.client.fetch(topic, partition, 5, max_bytes=100, read_committed=True, max_wait_ms=0).data


# --- topics ---


def test_topics_are_described_by_name_and_absent_ones_left_out(world: World) -> None:
    leaders = {partition: PartitionLeader(leader, 4) for partition, leader in enumerate((1, 2, 1))}
    described = TopicMetadata(ORDERS, "orders", 0, leaders)
    assert world.client.topics(["orders", "nope"]) == {"orders": described}
    assert world.client.topics() == {"orders": described}
    assert world.client.topics([]) == {}


def test_asking_never_creates_a_topic(world: World) -> None:
    world.client.topics(["nope"])
    assert not any(request.allow_auto_topic_creation for request in world.first.asked(METADATA))


def test_a_topic_that_may_not_be_described_is_said_with_the_principals_name(world: World) -> None:
    denied = {"error_code": ErrorCode.topic_authorization_failed, "name": "orders", "topic_id": None, "partitions": ()}
    world.first.answer(
        METADATA,
        {"brokers": (), "cluster_id": "c", "controller_id": 1, "topics": [denied], "error_code": ErrorCode.none},
    )
    with pytest.raises(TopicAuthorizationError) as caught:
        world.client.topics(["orders"])
    assert str(caught.value) == (
        f"the cluster at 127.0.0.1:{world.first.port}: Metadata of orders is denied to an anonymous client:"
        " ACL Describe on Topic orders is missing"
    )
    assert not world.waits


# --- offsets ---


def test_each_leader_is_asked_once_for_all_of_its_partitions(world: World) -> None:
    world.first.on(LIST_OFFSETS, offsets({0: 10, 2: 12}))
    world.second.on(LIST_OFFSETS, offsets({1: 11}))
    asked = {("orders", partition): -1 for partition in range(3)}
    answers = world.client.list_offsets(asked, read_committed=True)
    assert answers == {("orders", partition): OffsetAnswer(0, 10 + partition, 4, -1) for partition in range(3)}
    (request,) = world.first.asked(LIST_OFFSETS)
    assert [entry.partition_index for entry in request.topics[0].partitions] == [0, 2]
    assert (request.isolation_level, request.replica_id) == (1, -1)
    assert len(world.second.asked(LIST_OFFSETS)) == 1


def test_of_what_failed_only_that_is_asked_again_of_the_new_leader(world: World) -> None:
    world.first.on(LIST_OFFSETS, offsets({0: 10, 2: 12}, {2: ErrorCode.not_leader_or_follower}))
    world.second.on(LIST_OFFSETS, offsets({1: 11, 2: 22}))
    world.on_wait.append(lambda: world.topics.update(orders=(ORDERS, [1, 2, 2])))
    answers = world.client.list_offsets({("orders", partition): -1 for partition in range(3)})
    assert {partition: answer.offset for (_, partition), answer in answers.items()} == {0: 10, 1: 11, 2: 22}
    assert len(world.first.asked(LIST_OFFSETS)) == 1
    assert [entry.partition_index for entry in world.second.asked(LIST_OFFSETS)[1].topics[0].partitions] == [2]


def test_a_partition_without_a_leader_does_not_hold_up_the_others(world: World) -> None:
    world.topics["orders"] = (ORDERS, [1, -1])
    world.first.on(LIST_OFFSETS, offsets({0: 10, 1: 11}))
    world.on_wait.append(lambda: world.topics.update(orders=(ORDERS, [1, 1])))
    answers = world.client.list_offsets({("orders", 0): -1, ("orders", 1): -1})
    assert [answer.offset for answer in answers.values()] == [10, 11]
    assert len(world.waits) == 1


def test_no_record_at_that_time_is_an_offset_of_minus_one(world: World) -> None:
    world.first.on(LIST_OFFSETS, offsets({}))
    assert world.client.list_offsets({("orders", 0): 1_700_000_000_000}) == {("orders", 0): OffsetAnswer(0, -1, 4, -1)}


# --- leader epochs ---


def epoch_ends(answers: list[tuple[int, int]], code: ErrorCode = ErrorCode.none) -> Values:
    partitions = [
        {"error_code": code, "partition": 1, "leader_epoch": epoch, "end_offset": end} for epoch, end in answers
    ]
    return {"topics": [{"topic": "orders", "partitions": partitions}]}


def test_epochs_are_asked_together_under_the_current_leader_epoch(world: World) -> None:
    world.second.answer(OFFSET_FOR_LEADER_EPOCH, epoch_ends([(0, 100), (0, 100), (4, 900)]))
    ends = world.client.leader_epoch_ends("orders", 1, [0, 2, 4, 0])
    assert ends == LeaderEpochAnswers(4, {0: (0, 100), 2: (0, 100), 4: (4, 900)})
    (request,) = world.second.asked(OFFSET_FOR_LEADER_EPOCH)
    assert {entry.current_leader_epoch for entry in request.topics[0].partitions} == {4}


def test_a_leader_epoch_that_has_passed_is_asked_again_under_the_new_one(world: World) -> None:
    world.second.answer(OFFSET_FOR_LEADER_EPOCH, epoch_ends([(0, 1)], ErrorCode.fenced_leader_epoch))

    def move() -> None:
        world.second.answer(OFFSET_FOR_LEADER_EPOCH, epoch_ends([(0, 7)]))
        for broker in (world.first, world.second):
            broker.serve_metadata({1: world.first.address, 2: world.second.address}, world.topics, leader_epoch=5)

    world.on_wait.append(move)
    assert world.client.leader_epoch_ends("orders", 1, [0]) == LeaderEpochAnswers(5, {0: (0, 7)})


def test_no_epochs_are_no_question(world: World) -> None:
    assert world.client.leader_epoch_ends("orders", 1, []) == LeaderEpochAnswers(4, {})
    assert not world.second.asked(OFFSET_FOR_LEADER_EPOCH)


# --- records ---


def test_a_fetch_names_the_topic_by_its_id_and_gives_bytes_as_they_are(world: World) -> None:
    world.first.on(FETCH, fetched(b"\x00\x01raw"))
    answer = world.client.fetch("orders", 0, 5, max_bytes=100, read_committed=True, max_wait_ms=20)
    assert (answer.data, answer.high_watermark, answer.last_stable_offset) == (b"\x00\x01raw", 9, 8)
    assert (answer.log_start_offset, answer.aborted) == (1, ((70, 3),))
    (request,) = world.first.asked(FETCH)
    assert request.topics[0].topic_id.bytes == ORDERS
    assert (request.isolation_level, request.max_bytes, request.max_wait) == (1, 100, timedelta(milliseconds=20))


def test_without_topic_ids_a_fetch_goes_by_name(world: World) -> None:
    world.topics["orders"] = (bytes(16), [1])
    world.first.on(FETCH, fetched())
    assert fetch(world) == b"batches"
    (request,) = world.first.asked(FETCH)
    assert (request.__version__, request.topics[0].topic) == (12, "orders")


def test_no_more_is_asked_for_than_a_frame_may_hold(world: World) -> None:
    world.first.on(FETCH, fetched())
    with world.open(ClientSettings(bootstrap_servers=(world.first.address,), frame_bytes_max=10_000)) as client:
        client.fetch("orders", 0, 5, max_bytes=1_000_000, read_committed=False, max_wait_ms=0)
    assert world.first.asked(FETCH)[0].max_bytes == 5_000


def test_an_offset_that_the_log_does_not_hold_is_said_at_once(world: World) -> None:
    world.first.on(FETCH, fetched(b"", ErrorCode.offset_out_of_range))
    with pytest.raises(OffsetOutOfRangeError, match=r"broker 1 \(127.*\): orders-0 does not hold offset 5"):
        fetch(world)
    assert not world.waits


def test_a_denied_fetch_names_broker_partition_principal_and_right(world: World) -> None:
    world.first.on(FETCH, fetched(b"", ErrorCode.topic_authorization_failed))
    with pytest.raises(TopicAuthorizationError) as caught:
        fetch(world)
    host, port = world.first.address
    assert str(caught.value) == (
        f"broker 1 ({host}:{port}): Fetch of orders-0 is denied to an anonymous client: ACL Read on Topic orders is"
        " missing"
    )
    assert ClientSettings(bootstrap_servers=(), sasl=SaslCredentials("PLAIN", "al", "x")).principal == "'al'"


@pytest.mark.parametrize(("topic", "partition"), [("nope", 0), ("orders", 3)])
def test_what_does_not_exist_is_said_at_once(world: World, topic: str, partition: int) -> None:
    with pytest.raises(UnknownTopicError, match=f"no topic nope|topic orders has no partition {partition}"):
        fetch(world, partition, topic)
    assert not world.waits


def test_a_topic_that_was_made_anew_is_never_read_as_the_old_one(world: World) -> None:
    world.first.on(FETCH, fetched())
    fetch(world)
    world.first.on(FETCH, fetched(b"", ErrorCode.unknown_topic_id))
    world.on_wait.append(lambda: world.topics.update(orders=(OTHER, [1])))
    with pytest.raises(TopicReplacedError, match="topic orders was deleted and made anew"):
        fetch(world)


def test_a_topic_that_was_deleted_while_it_is_read_is_said(world: World) -> None:
    world.first.on(FETCH, fetched(b"", ErrorCode.unknown_topic_or_partition))
    world.on_wait.append(world.topics.clear)
    with pytest.raises(UnknownTopicError, match="there is no topic orders"):
        fetch(world)


# --- patience ---


def test_a_lost_connection_is_opened_anew(world: World) -> None:
    world.first.on(FETCH, fetched())
    fetch(world)
    world.first.disconnect_all()
    assert fetch(world) == b"batches"
    assert len(world.waits) == 1


def test_a_leader_that_is_gone_is_looked_for_at_the_other_brokers(world: World) -> None:
    world.second.on(FETCH, fetched(b"from the second"))
    world.first.on(FETCH, lambda _request: None)
    world.on_wait.append(lambda: world.topics.update(orders=(ORDERS, [2])))
    assert fetch(world) == b"from the second"


def test_trouble_that_stays_is_given_up_at_the_deadline_with_its_reason(world: World) -> None:
    world.first.on(FETCH, fetched(b"", ErrorCode.not_leader_or_follower))
    with pytest.raises(UpstreamDeadlineError) as caught:
        fetch(world)
    assert str(caught.value) == (
        f"given up after 5 s: broker 1 (127.0.0.1:{world.first.port}):"
        " Fetch of orders-0 failed with NOT_LEADER_OR_FOLLOWER (6)"
    )
    assert isinstance(caught.value.__cause__, UpstreamRefusedError)
    assert sum(world.waits) < 5
    assert world.waits[0] < world.waits[1] < world.waits[2]
    assert len(world.first.asked(FETCH)) == len(world.waits) + 1


def test_brokers_that_cannot_be_reached_are_all_named(world: World) -> None:
    settings = ClientSettings(bootstrap_servers=(("127.0.0.1", 1), ("127.0.0.1", 2)), deadline_s=1)
    says = r"no broker answers: .*127\.0\.0\.1:1: .*127\.0\.0\.1:2: "
    with world.open(settings) as client, pytest.raises(UpstreamDeadlineError, match=says):
        client.topics()


def test_a_refusal_that_will_not_pass_is_said_at_once(world: World) -> None:
    world.first.on(FETCH, fetched(b"", ErrorCode.invalid_request))
    with pytest.raises(UpstreamRefusedError, match="Fetch of orders-0 failed with error code 42"):
        fetch(world)
    assert not world.waits


# --- who is asked ---


def test_a_bootstrap_server_that_fails_is_asked_last_from_then_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: every look for metadata began at the same dead server, and took its whole timeout."""
    monkeypatch.setattr(random, "shuffle", lambda servers: None)
    world.second.on(API_VERSIONS, lambda _request: None)
    world.first.serve_metadata({1: world.first.address}, world.topics)
    servers = (world.second.address, world.first.address)
    with world.open(ClientSettings(bootstrap_servers=servers)) as client:
        for _ in range(3):
            assert list(client.topics()) == ["orders"]
            client.close()
    assert (world.second.connections_taken, world.first.connections_taken) == (1, 3)


def test_a_leader_and_its_bootstrap_address_share_a_connection(world: World) -> None:
    world.first.on(LIST_OFFSETS, offsets({0: 10}))
    for _ in range(3):
        world.client.list_offsets({("orders", 0): -1})
    assert (world.first.connections_taken, len(world.first.asked(METADATA))) == (1, 1)


def test_a_refused_sign_in_is_not_tried_at_every_broker(world: World) -> None:
    for broker in (world.first, world.second):
        broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("PLAIN",)})
    servers, sasl = (world.first.address, world.second.address), SaslCredentials("OAUTHBEARER", "s", "t")
    settings = ClientSettings(bootstrap_servers=servers, sasl=sasl)
    with world.open(settings) as client, pytest.raises(UpstreamAuthenticationError, match="it offers PLAIN"):
        client.topics()
    assert world.first.connections_taken + world.second.connections_taken == 1
