"""Unclean leader elections after the tier has got what the new leader never had: segments of dead epochs beside live
ones, at the same offsets, in one `__remote_log_metadata`.

Broker 1 is the controller and holds the metadata topic alone, so that its log is not cut. The partition is on brokers
2 and 3: broker 3 stops, broker 2 goes on, copies to the tier and dies, broker 3 leads. What is asked is asked of the
leader and of Tidegates that saw it all; no answer may differ, and none may hold what was cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest
from confluent_kafka.admin import AdminClient

from protocol.fetch.messages import NO_TAGS, PartitionAnswer
from protocol.fetch.response import decode_response
from protocol.wire.errors import ErrorCode
from tests.support.digests import read_with_confluent
from tests.support.kafka import TIERED, Record, fresh_name, own_cluster, produce, small_segments, wait_settled
from tests.support.raw_client import RawClient, fetch_request
from tests.support.replicas import broker_ports, leaders_of, move_leaders
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import METADATA_PARTITIONS

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

METADATA_TOPIC = "__remote_log_metadata"
OFFSET_FOR_LEADER_EPOCH = 23

COMMON, CUT, KEPT = b"before the cut", b"of the branch that was cut", b"of the branch that was kept"
CUT_AT, CUT_RECORDS = 1000, 1500
BATCH_RECORDS = 100
BATCHES_PER_SEGMENT = 4
PARTITION_BYTES_MAX = 64 * 1024
VERSIONS = (11, 12, 13, 17)
LAST_FETCHED_VERSION_MIN = 12
PASSING = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.LEADER_NOT_AVAILABLE)

AGES: Mapping[str, Mapping[str, str]] = {
    "default ages": {},
    "ages of zero": {"authority.max.age.ms": "0", "expert.frontier.max.age.ms": "0"},
    # Nothing is learned again because of its age, only because of what the broker says.
    "an endless frontier": {"expert.frontier.max.age.ms": "600000"},
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One question about the partition."""

    version: int
    offset: int
    isolation: int = 0
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    properties = {
        "unclean.leader.election.enable": "true",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    }
    with own_cluster(brokers=3, separate_controller=False, properties=properties) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        wait_until(lambda: METADATA_TOPIC in admin.list_topics(timeout=20).topics, "the metadata topic")
        move_leaders(started, METADATA_TOPIC, {partition: [1] for partition in range(METADATA_PARTITIONS)})
        yield started


def test_segments_of_dead_epochs_are_never_served(cluster: KafkaCluster) -> None:
    topic = fresh_name("unclean")
    cluster.create_topic(topic, 1, {**TIERED, **small_segments(BATCHES_PER_SEGMENT)}, replication_factor=2)
    move_leaders(cluster, topic, {0: [2, 3]})
    fill(cluster, topic, COMMON, CUT_AT)
    with ExitStack() as stack:
        tidegates = {name: stack.enter_context(own_tidegate(cluster, ages)) for name, ages in AGES.items()}
        cluster.broker(3).stop()
        fill(cluster, topic, CUT, CUT_RECORDS)
        # They know the branch that will be cut, and have it in their caches.
        dead_epoch = require_the_leaders_answers(cluster, tidegates, topic, 2, end=CUT_AT + CUT_RECORDS, may_hold=CUT)
        cluster.broker(2).kill()
        cluster.broker(3).start()
        wait_until(lambda: leaders_of(cluster, topic) == {0: 3}, "broker 3 to lead")
        live_epoch = require_the_leaders_answers(cluster, tidegates, topic, 3, end=CUT_AT)
        assert live_epoch > dead_epoch

        # Shorter than what was cut, so that dead segments lie behind the end of the log; then longer.
        for end in (CUT_AT + 600, CUT_AT + CUT_RECORDS + 700):
            fill(cluster, topic, KEPT, end - high_watermark(cluster, topic))
            require_the_leaders_answers(cluster, tidegates, topic, 3, end=end)
        assert is_overlapped(cluster, topic), "else dead epochs would have had nothing to be confused with"

        cluster.broker(2).start()
        move_leaders(cluster, topic, {0: [2, 3]})
        end = high_watermark(cluster, topic)
        require_the_leaders_answers(cluster, tidegates, topic, 2, end=end)
        direct = read_with_confluent(cluster.bootstrap_servers, topic, {0: end}, "read_uncommitted")
        for name, tidegate in tidegates.items():
            through = read_with_confluent(tidegate.bootstrap_servers, topic, {0: end}, "read_uncommitted")
            assert through == direct, name
            assert "ERROR" not in tidegate.log()


def require_the_leaders_answers(
    cluster: KafkaCluster,
    tidegates: Mapping[str, RunningTidegate],
    topic: str,
    leader: int,
    *,
    end: int,
    may_hold: bytes = KEPT,
) -> int:
    """Every question of `questions`, and OffsetForLeaderEpoch, at the leader and through each Tidegate.

    Returns the leader's epoch.
    """
    with ExitStack() as stack:
        direct = stack.enter_context(RawClient("127.0.0.1", cluster.broker(leader).port))
        topic_id = direct.topic_id(topic)
        (found,) = direct.list_offsets(9, [(topic, 0, -1)])
        assert found.offset == end
        # A broker that came up says of its own tier "not available", and for a moment even "out of range".
        for offset in range(0, end, BATCH_RECORDS):
            wait_served(direct, topic, topic_id, offset)
        asked = [*questions(end, found.leader_epoch)]
        expected = [ask(direct, topic, topic_id, question) for question in asked]
        ends = epoch_ends(direct, topic, found.leader_epoch)
        for name, tidegate in tidegates.items():
            client = stack.enter_context(RawClient("127.0.0.1", wait_listener(tidegate, leader)))
            served_before = tier_bytes(tidegate, topic)
            for question, answer in zip(asked, expected, strict=True):
                assert ask(client, topic, topic_id, question) == answer, f"{name}: {question}"
            assert epoch_ends(client, topic, found.leader_epoch) == ends, name
            assert tier_bytes(tidegate, topic) > served_before, name
        records = b"".join(answer.records[0] for answer in expected)
        assert COMMON in records
        assert may_hold == CUT or CUT not in records
        return found.leader_epoch


def wait_served(direct: RawClient, topic: str, topic_id: bytes, offset: int) -> None:
    wait_until(
        lambda: ask(direct, topic, topic_id, Asked(17, offset)).records_bytes, f"the leader to serve offset {offset}"
    )


def questions(end: int, leader_epoch: int) -> Iterator[Asked]:
    """Offsets that begin, end and halve batches, up to behind what was cut; then epochs of all kinds."""
    for border in range(0, max(end, CUT_AT + CUT_RECORDS) + BATCH_RECORDS, BATCH_RECORDS):
        for offset in (border - 1, border, border + 1, border + BATCH_RECORDS // 2):
            if offset not in (-1, end):
                yield Asked(17, offset)
        yield Asked(12, border + 1, isolation=1)
    for offset in (0, CUT_AT - 1, CUT_AT + 1, CUT_AT + 250):
        for epoch in range(leader_epoch + 3):
            for version in VERSIONS:
                yield Asked(version, offset, current_leader_epoch=epoch)
                if version >= LAST_FETCHED_VERSION_MIN:
                    yield Asked(version, offset, last_fetched_epoch=epoch)


def ask(client: RawClient, topic: str, topic_id: bytes, question: Asked) -> PartitionAnswer:
    """The final answer: what is late comes empty, and leaders may be new or not know their tier yet."""
    message = fetch_request(
        question.version,
        [(topic, topic_id, 0, question.offset, PARTITION_BYTES_MAX)],
        isolation=question.isolation,
        current_leader_epoch=question.current_leader_epoch,
    )
    if question.version >= LAST_FETCHED_VERSION_MIN:
        (asked_topic,) = message.topics
        (asked_partition,) = asked_topic.partitions
        asked_partition = replace(asked_partition, last_fetched_epoch=question.last_fetched_epoch)
        message = replace(message, topics=(replace(asked_topic, partitions=(asked_partition,)),))

    def answered() -> PartitionAnswer | None:
        client.send(message)
        (answer,) = decode_response(memoryview(client.read_frame()), question.version).partitions
        answer.records, answer.tags = (b"".join(answer.records),), bytes(answer.tags)
        is_final = answer.error_code not in (ErrorCode.NONE, *PASSING)
        return answer if answer.records_bytes or is_final or answer.tags != NO_TAGS else None

    answer = wait_until(answered, f"an answer to {question}")
    assert answer is not None
    return answer


def epoch_ends(client: RawClient, topic: str, leader_epoch: int) -> Sequence[tuple[int, int, int]]:
    """Error code, epoch and end offset that OffsetForLeaderEpoch tells for each epoch, and one that was not."""
    found = []
    for epoch in range(leader_epoch + 2):
        partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        values = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
        (answered,) = client.call(OFFSET_FOR_LEADER_EPOCH, 4, values).topics
        (answer,) = answered.partitions
        found.append((int(answer.error_code), int(answer.leader_epoch), int(answer.end_offset)))
    return found


def fill(cluster: KafkaCluster, topic: str, marker: bytes, count: int) -> None:
    """Add records in batches of BATCH_RECORDS, and wait for the tier."""
    records = (Record(0, None, b"%s %06d %s" % (marker, number, b"x" * 200)) for number in range(count))
    produce(cluster, topic, records, acks=1, batch_num_messages=BATCH_RECORDS)
    wait_settled(cluster, topic)


def high_watermark(cluster: KafkaCluster, topic: str) -> int:
    return cluster.partition_offsets(topic)[0].high_watermark


def is_overlapped(cluster: KafkaCluster, topic: str) -> bool:
    """Return whether the tier holds logs of both branches from behind the cut (LocalTieredStorage names them by their
    first offset)."""
    (folder,) = cluster.tier_dir.glob(f"**/{topic}-0-*")
    behind = [path.read_bytes() for path in folder.glob("*.log") if int(path.name.partition("-")[0]) > CUT_AT]
    return any(CUT in log for log in behind) and any(KEPT in log for log in behind)


def wait_listener(tidegate: RunningTidegate, node_id: int) -> int:
    """The port of a broker that may just have come back."""
    return wait_until(lambda: broker_ports(tidegate).get(node_id, 0), f"a listener for broker {node_id}")


def tier_bytes(tidegate: RunningTidegate, topic: str) -> float:
    return tidegate.metric("kafka_server_brokertopicmetrics_remotefetchbytes_total", topic=topic)
