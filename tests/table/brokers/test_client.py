"""The blocking client over scripted brokers: what is asked of whom, what is tried again, what is said at once."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from protocol.client.cluster_view import PartitionLeader, TopicMetadata
from protocol.client.errors import (
    OffsetOutOfRangeError,
    TopicAuthorizationError,
    TopicReplacedError,
    UnknownTopicError,
    UpstreamAuthenticationError,
    UpstreamDeadlineError,
    UpstreamRefusedError,
)
from protocol.client.leaders import LeaderEpochAnswers
from protocol.client.messages import (
    API_VERSIONS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    SASL_HANDSHAKE,
)
from protocol.client.offset_questions import OffsetAnswer
from protocol.client.sasl import SaslCredentials
from protocol.client.settings import ClientSettings
from table.brokers.client import BrokerClient
from tests.support.cases import case
from tests.support.fake_kafka import FakeKafka, FakeLog, FakeTopic
from tests.support.for_each import for_each

ORDERS = b"orders-topic-id1"
OTHER = b"orders-topic-id2"
DENIED = ErrorCode.topic_authorization_failed
ANONYMOUS = "is denied to an anonymous client: ACL"
MAY_NOT_READ = f"Fetch of orders-0 {ANONYMOUS} Read on Topic orders is missing"


@dataclass
class World:
    """Two brokers and a topic; `waits` are the back-offs, and time is nothing but them."""

    kafka: FakeKafka = field(default_factory=FakeKafka)
    waits: list[float] = field(default_factory=list)
    on_wait: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first, self.second = self.kafka.add(1, "a"), self.kafka.add(2, "b")
        logs = {number: FakeLog(1, 1, 10 + number) for number in range(3)}
        self.kafka.topics["orders"] = FakeTopic(ORDERS, [1, 2, 1], logs=logs)
        self.log = logs[0]
        self.log.append(b"batches", 9)
        self.client = self.open(ClientSettings(bootstrap_servers=(("a", 1),), deadline_s=5))

    def open(self, settings: ClientSettings) -> BrokerClient:
        return BrokerClient(settings, clock=lambda: sum(self.waits), wait=self._wait)

    def move(self, *leaders: int) -> None:
        """Others lead the partitions."""
        self.kafka.topics["orders"].leaders = [*leaders]

    def _wait(self, delay_s: float) -> None:
        self.waits.append(delay_s)
        if self.on_wait:
            self.on_wait.pop(0)()


@contextmanager
def opened() -> Iterator[World]:
    made = World()
    with made.kafka.blocking(), made.client:
        yield made


@pytest.fixture
def world() -> Iterator[World]:
    with opened() as made:
        yield made


def fetch(world: World, partition: int = 0, topic: str = "orders") -> bytes:
    return world.client.fetch(topic, partition, 5, max_bytes=100, read_committed=True, max_wait_ms=0).data


# --- topics ---


def test_topics_are_described_by_name_and_absent_ones_left_out(world: World) -> None:
    leaders = {partition: PartitionLeader(leader, 4) for partition, leader in enumerate((1, 2, 1))}
    described = TopicMetadata(ORDERS, "orders", 0, leaders)
    assert world.client.topics(["orders", "nope"]) == {"orders": described}
    assert world.client.topics() == {"orders": described}
    assert world.client.topics([]) == {}
    assert not any(request.allow_auto_topic_creation for request in world.first.asked(METADATA))


# --- offsets ---


def test_each_leader_is_asked_once_for_all_of_its_partitions(world: World) -> None:
    asked = {("orders", partition): -1 for partition in range(3)}
    answers = world.client.list_offsets(asked, read_committed=True)
    assert answers == {("orders", partition): OffsetAnswer(0, 10 + partition, 4, -1) for partition in range(3)}
    (request,) = world.first.asked(LIST_OFFSETS)
    assert [entry.partition_index for entry in request.topics[0].partitions] == [0, 2]
    assert (request.isolation_level, request.replica_id) == (1, -1)
    assert len(world.second.asked(LIST_OFFSETS)) == 1
    # No record at that time.
    assert world.client.list_offsets({("orders", 0): 1_700_000_000_000}) == {("orders", 0): OffsetAnswer(0, -1, 4, -1)}


def test_of_what_failed_only_that_is_asked_again_of_the_new_leader(world: World) -> None:
    world.kafka.hooks["latest"] = lambda: world.move(1, 2, 2)
    answers = world.client.list_offsets({("orders", partition): -1 for partition in range(3)})
    assert {partition: answer.offset for (_, partition), answer in answers.items()} == {0: 10, 1: 11, 2: 12}
    assert len(world.first.asked(LIST_OFFSETS)) == 1
    assert [entry.partition_index for entry in world.second.asked(LIST_OFFSETS)[1].topics[0].partitions] == [2]


def test_a_partition_without_a_leader_does_not_hold_up_the_others(world: World) -> None:
    world.move(1, -1)
    world.on_wait.append(lambda: world.move(1, 1))
    answers = world.client.list_offsets({("orders", 0): -1, ("orders", 1): -1})
    assert [answer.offset for answer in answers.values()] == [10, 11]
    assert len(world.waits) == 1


# --- leader epochs ---


def test_epochs_are_asked_together_under_the_current_leader_epoch(world: World) -> None:
    assert world.client.leader_epoch_ends("orders", 1, []) == LeaderEpochAnswers(4, {})
    assert not world.second.asked(OFFSET_FOR_LEADER_EPOCH)
    world.kafka.log("orders", 1).epoch_ends = {0: (0, 100), 2: (0, 100), 4: (4, 900)}
    ends = world.client.leader_epoch_ends("orders", 1, [0, 2, 4, 0])
    assert ends == LeaderEpochAnswers(4, {0: (0, 100), 2: (0, 100), 4: (4, 900)})
    (request,) = world.second.asked(OFFSET_FOR_LEADER_EPOCH)
    assert {entry.current_leader_epoch for entry in request.topics[0].partitions} == {4}


def test_a_leader_epoch_that_has_passed_is_asked_again_under_the_new_one(world: World) -> None:
    log = world.kafka.log("orders", 1)

    def elect() -> None:
        log.leader_epoch, log.epoch_ends = 5, {0: (0, 7)}

    world.kafka.hooks["epochs"] = elect
    assert world.client.leader_epoch_ends("orders", 1, [0]) == LeaderEpochAnswers(5, {0: (0, 7)})
    assert len(world.waits) == 1


# --- records ---


def test_a_fetch_names_the_topic_by_its_id_and_gives_bytes_as_they_are(world: World) -> None:
    world.log.batches, world.log.aborted, world.log.last_stable_offset = [(9, b"\x00\x01raw")], [(70, 3, 7)], 8
    answer = world.client.fetch("orders", 0, 5, max_bytes=100, read_committed=True, max_wait_ms=20)
    assert (answer.data, answer.high_watermark) == (b"\x00\x01raw", 10)
    assert answer.aborted == ((70, 3),)
    (request,) = world.first.asked(FETCH)
    assert request.topics[0].topic_id.bytes == ORDERS
    assert (request.isolation_level, request.max_bytes, request.max_wait) == (1, 100, timedelta(milliseconds=20))


def test_without_topic_ids_a_fetch_goes_by_name(world: World) -> None:
    world.kafka.topics["orders"].topic_id = bytes(16)
    assert fetch(world) == b"batches"
    (request,) = world.first.asked(FETCH)
    assert (request.__version__, request.topics[0].topic) == (12, "orders")


def test_no_more_is_asked_for_than_a_frame_may_hold(world: World) -> None:
    with world.open(ClientSettings(bootstrap_servers=(("a", 1),), frame_bytes_max=10_000)) as client:
        client.fetch("orders", 0, 5, max_bytes=1_000_000, read_committed=False, max_wait_ms=0)
    assert world.first.asked(FETCH)[0].max_bytes == 5_000


@for_each(
    "field_name, value, error, said",
    [
        ("log_start_offset", 6, OffsetOutOfRangeError, "orders-0 does not hold offset 5"),
        ("error_code", ErrorCode.invalid_request, UpstreamRefusedError, "Fetch of orders-0 failed with error code 42"),
        ("error_code", DENIED, TopicAuthorizationError, MAY_NOT_READ),
    ],
)
def test_what_will_not_pass_is_said_at_once(field_name: str, value: Any, error: type[Exception], said: str) -> None:
    with opened() as world:
        setattr(world.log, field_name, value)
        with pytest.raises(error, match=re.escape(f"broker 1 (a:1): {said}")):
            fetch(world)
        assert not world.waits


def test_what_does_not_exist_or_may_not_be_described_is_said_at_once(world: World) -> None:
    for topic, partition, said in (("nope", 0, "no topic nope"), ("orders", 3, "topic orders has no partition 3")):
        with case(topic), pytest.raises(UnknownTopicError, match=said):
            fetch(world, partition, topic)
    world.kafka.topics["orders"].error_code = DENIED
    said = re.escape(f"the cluster at a:1: Metadata of orders {ANONYMOUS} Describe on Topic orders is missing")
    with pytest.raises(TopicAuthorizationError, match=said):
        world.client.topics(["orders"])
    assert not world.waits


def test_a_topic_that_is_made_anew_is_never_read_as_the_old_one(world: World) -> None:
    fetch(world)
    world.kafka.topics["orders"].topic_id = OTHER
    with pytest.raises(TopicReplacedError, match="topic orders was deleted and created again"):
        fetch(world)


def test_a_topic_that_is_deleted_while_it_is_read_is_said(world: World) -> None:
    world.kafka.hooks["fetch"] = world.kafka.topics.clear
    with pytest.raises(UnknownTopicError, match="there is no topic orders"):
        fetch(world)


# --- patience ---


def test_a_lost_connection_is_opened_anew(world: World) -> None:
    fetch(world)
    world.first.disconnect_all()
    assert fetch(world) == b"batches"
    assert len(world.waits) == 1


def test_a_leader_that_is_gone_is_looked_for_at_the_other_brokers(world: World) -> None:
    fetch(world)
    world.kafka.stop(1)
    world.move(2)
    assert fetch(world) == b"batches"
    assert len(world.second.asked(FETCH)) == 1


def test_trouble_that_stays_is_given_up_at_the_deadline_with_its_reason(world: World) -> None:
    world.log.error_code = ErrorCode.not_leader_or_follower
    with pytest.raises(UpstreamDeadlineError) as caught:
        fetch(world)
    assert str(caught.value) == (
        "given up after 5 s: broker 1 (a:1): Fetch of orders-0 failed with NOT_LEADER_OR_FOLLOWER (6)"
    )
    assert isinstance(caught.value.__cause__, UpstreamRefusedError)
    assert sum(world.waits) < 5
    assert world.waits[0] < world.waits[1] < world.waits[2]
    assert len(world.first.asked(FETCH)) == len(world.waits) + 1


def test_brokers_that_cannot_be_reached_are_all_named(world: World) -> None:
    settings = ClientSettings(bootstrap_servers=(("a", 9), ("b", 9)), deadline_s=1)
    says = r"no broker answers: .*a:9: .*b:9: "
    with world.open(settings) as client, pytest.raises(UpstreamDeadlineError, match=says):
        client.topics()


# --- who is asked ---


def test_a_bootstrap_server_that_fails_is_asked_last_from_then_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: every look for metadata began at the same dead server, and took its whole timeout."""
    monkeypatch.setattr(random, "shuffle", lambda servers: None)
    world.second.on(API_VERSIONS, lambda _request: None)
    del world.kafka.addresses[2]
    servers = (("b", 1), ("a", 1))
    with world.open(ClientSettings(bootstrap_servers=servers)) as client:
        for _ in range(3):
            assert list(client.topics()) == ["orders"]
            client.close()
    assert (world.second.connections_taken, world.first.connections_taken) == (1, 3)


def test_a_leader_and_its_bootstrap_address_share_a_connection(world: World) -> None:
    for _ in range(3):
        world.client.list_offsets({("orders", 0): -1})
    assert (world.first.connections_taken, len(world.first.asked(METADATA))) == (1, 1)


def test_a_refused_sign_in_is_not_tried_at_every_broker(world: World) -> None:
    for broker in (world.first, world.second):
        broker.answer(SASL_HANDSHAKE, {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": ("PLAIN",)})
    servers, sasl = (("a", 1), ("b", 1)), SaslCredentials("OAUTHBEARER", "s", "t")
    settings = ClientSettings(bootstrap_servers=servers, sasl=sasl)
    with world.open(settings) as client, pytest.raises(UpstreamAuthenticationError, match="it offers PLAIN"):
        client.topics()
    assert world.first.connections_taken + world.second.connections_taken == 1
