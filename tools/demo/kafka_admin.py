"""What the demo and the tests ask of a Kafka beyond confluent-kafka's reach: the local log start and the tier's end.

librdkafka's ListOffsets stops at version 7 and knows neither timestamp -4 (KIP-405) nor -5 (KIP-1005), so these
questions are written with kio, one short connection to the leader each time.
"""

import io
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.list_offsets.v9.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i16, i32, i64

from tools.demo.kafka_process import KafkaClusterError

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

ANSWER_TIMEOUT_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
TOPIC_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """`latest_tiered_offset` is the last offset in the tier, -1 when there is none; `high_watermark` is exclusive."""

    log_start_offset: int
    local_log_start_offset: int
    latest_tiered_offset: int
    high_watermark: int


def has_left_local_log(offsets: PartitionOffsets) -> bool:
    """Return whether some offsets can be read from the tier alone."""
    return offsets.local_log_start_offset > offsets.log_start_offset


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    """Create a topic, and return when each partition's leader answers.

    Raises:
        KafkaClusterError: refused, or without a leader after TOPIC_TIMEOUT_S.
    """
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs))
    deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
    _create(bootstrap_servers, topic, deadline_s)
    while len(_answered_offsets(bootstrap_servers, name)[0]) < partitions:
        if time.monotonic() > deadline_s:
            raise KafkaClusterError(f"topic {name}: no leader after {TOPIC_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)


def _create(bootstrap_servers: str, topic: NewTopic, deadline_s: float) -> None:
    was_cut_off = False
    while True:
        # Its end may find an event that nobody waits for, which is no news.
        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 5})
        try:
            admin.create_topics([topic], operation_timeout=TOPIC_TIMEOUT_S)[topic.topic].result(TOPIC_TIMEOUT_S)
        except KafkaException as error:
            code = error.args[0].code()
            if was_cut_off and code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            # librdkafka drops the connections of a broker whose address changes while it learns who is there, and with
            # them what was asked: nobody knows whether the topic was made.
            if code != KafkaError._DESTROY_BROKER or time.monotonic() > deadline_s:
                raise KafkaClusterError(f"topic {topic.topic}: {error}") from error
            was_cut_off = True
        else:
            return


def wait_tiered(
    bootstrap_servers: str,
    topic: str,
    until: Callable[[PartitionOffsets], bool],
    timeout_s: float,
    progress: Callable[[Mapping[int, PartitionOffsets]], None] | None,
) -> dict[int, PartitionOffsets]:
    """Block until `until` holds for every partition of topic; `progress` gets each look.

    Raises:
        KafkaClusterError: not within timeout_s; with the offsets last seen.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        offsets = partition_offsets(bootstrap_servers, topic)
        if progress is not None:
            progress(offsets)
        if all(until(partition) for partition in offsets.values()):
            return offsets
        if time.monotonic() > deadline_s:
            raise KafkaClusterError(f"topic {topic}: not in the tier after {timeout_s:g} s; last seen: {offsets}")
        time.sleep(_POLL_S)


def wait_all_named(addresses: Sequence[str], timeout_s: float) -> None:
    """Block until each of these brokers names them all: one that has just started may miss in another's metadata, and
    clients then give up on it.

    Raises:
        KafkaClusterError: not within timeout_s.
    """
    deadline_s = time.monotonic() + timeout_s
    for address in addresses:
        admin = AdminClient({"bootstrap.servers": address})
        while len(admin.list_topics(timeout=ANSWER_TIMEOUT_S).brokers) < len(addresses):
            if time.monotonic() > deadline_s:
                raise KafkaClusterError(f"broker {address} does not name all of {', '.join(addresses)}")
            time.sleep(_POLL_S)


def partition_offsets(bootstrap_servers: str, topic: str) -> dict[int, PartitionOffsets]:
    """The frontier of each partition as its leader says it, as soon as every leader answers.

    Raises:
        KafkaClusterError: a leader does not answer within TOPIC_TIMEOUT_S.
    """
    deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
    while True:
        found, are_all = _answered_offsets(bootstrap_servers, topic)
        if are_all:
            return found
        if time.monotonic() > deadline_s:
            raise KafkaClusterError(f"topic {topic}: only partitions {sorted(found)} answer")
        time.sleep(_POLL_S)


def _answered_offsets(bootstrap_servers: str, topic: str) -> tuple[dict[int, PartitionOffsets], bool]:
    """The frontiers of the partitions whose leader answers; and whether these are all that the topic has."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    metadata = admin.list_topics(topic, timeout=ANSWER_TIMEOUT_S)
    found: dict[int, PartitionOffsets] = {}
    partitions_of: dict[int, list[int]] = {}
    for partition in metadata.topics[topic].partitions.values():
        partitions_of.setdefault(partition.leader, []).append(partition.id)
    for leader, partitions in partitions_of.items():
        node = metadata.brokers.get(leader)
        if node is None:
            continue
        answers = [
            _list_offsets((str(node.host), node.port), topic, partitions, timestamp)
            for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, LATEST)
        ]
        for partition_id in partitions:
            offsets = [answer.get(partition_id) for answer in answers]
            known = [offset for offset in offsets if offset is not None]
            if len(known) == len(offsets):
                found[partition_id] = PartitionOffsets(*known)
    return found, 0 < len(found) == len(metadata.topics[topic].partitions)


def _list_offsets(address: tuple[str, int], topic: str, partitions: list[int], timestamp: int) -> dict[int, int]:
    """Offsets of the partitions that answered without an error."""
    asked = tuple(
        ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(timestamp)) for partition in partitions
    )
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=(ListOffsetsTopic(name=TopicName(topic), partitions=asked),),
    )
    header = RequestHeader(
        request_api_key=i16(2), request_api_version=i16(9), correlation_id=i32(0), client_id="tidegate-demo"
    )
    frame = io.BytesIO()
    entity_writer(RequestHeader)(frame, header)
    entity_writer(ListOffsetsRequest)(frame, request)
    try:
        answer = _exchange(address, frame.getvalue())
    except OSError:
        return {}  # a broker that is going or coming; the caller looks again
    # Correlation id and an empty tagged section come before the body.
    response, _ = entity_reader(ListOffsetsResponse)(answer, 5)
    return {
        int(partition.partition_index): int(partition.offset)
        for answered in response.topics
        for partition in answered.partitions
        if partition.error_code == 0
    }


def _exchange(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, ANSWER_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _receive(connection, 4))
        if not 5 <= length <= ANSWER_BYTES_MAX:
            raise KafkaClusterError(f"{address}: an answer of {length} bytes")
        return _receive(connection, length)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        received += part
    return bytes(received)
