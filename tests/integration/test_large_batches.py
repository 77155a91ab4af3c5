"""Any batch that the broker would give is given, with default limits: one of 100 MB, alone and beside others, local or
in the tier, at both isolation levels; and what fifty such clients take in memory."""

import hashlib
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.hostile_stage import MIB, peak_resident_bytes
from tests.support.kafka import Record, orders, own_cluster, produce, tiered_topic
from tests.support.plain_kafka import drop_all, standalone
from tests.support.raw_client import RawClient, fetch_request, request_frame
from tests.support.serving import Serving
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.tier_proofs import copied_offsets
from tests.support.waiting import HANG_S_MAX, wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port

LARGE_BYTES = 100_000_000
"""A whole batch: as large as the broker takes with LARGE_CONFIGS."""
VALUE_BYTES = LARGE_BYTES - 74
"""Without the batch's header (61), and the record's own."""
LARGE, SMALL = "large", "small"
LARGE_CONFIGS = {"max.message.bytes": str(LARGE_BYTES), "segment.bytes": str(96 * MIB)}
MEMORY_BYTES = 768 * MIB
"""With this, each budget is less than two such batches, and most are less than one."""
CLIENTS = 50
OWN_VALUES = [os.urandom(VALUE_BYTES), b"a"]
SMALL_RECORDS = 1000
VERSION = 17


@dataclass(frozen=True, slots=True)
class Stage:
    cluster: KafkaCluster
    local_start: int
    """In LARGE: the batch that begins here is in the broker's log, the one before it in the tier."""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """LARGE has a batch of 90 MB in the tier, one in the broker's log, and small ones behind each; SMALL is tiered."""
    with own_cluster(jvm_options=("-Xms1g", "-Xmx2g")) as cluster:
        large = [Record(0, None, each) for each in (os.urandom(VALUE_BYTES), b"a", os.urandom(VALUE_BYTES), b"b")]
        settings = {"message_max_bytes": 2 * LARGE_BYTES, "batch_num_messages": 1}
        made = tiered_topic(cluster, LARGE, records=iter(large), configs=LARGE_CONFIGS, **settings)
        tiered_topic(cluster, SMALL)
        yield Stage(cluster, made.offsets[0].local_log_start_offset)


@pytest.fixture(scope="module")
def own_stage(plain_kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Standalone, and the broker has nothing left of what the tier has."""
    topics = {LARGE: LARGE_CONFIGS, SMALL: {}}
    for name, configs in topics.items():
        plain_kafka.create_topic(name, 1, {**configs, "retention.ms": "-1"})
    settings = {"message_max_bytes": 2 * LARGE_BYTES, "batch_num_messages": 1}
    produce(plain_kafka, LARGE, iter([Record(0, None, each) for each in OWN_VALUES]), **settings)
    produce(plain_kafka, SMALL, orders(SMALL_RECORDS, 1))
    folder = tmp_path_factory.mktemp("own")
    copy = {"copy.topics": f"{LARGE},{SMALL}", "copy.enabled": "true", "copy.segment.ms": "1000"}
    with standalone(plain_kafka, folder, {**copy, "admin.listen": f"127.0.0.1:{free_port()}"}) as served:
        served.wait_log("ready: bootstrap")
        ends = {(LARGE, 0): len(OWN_VALUES) - 1, (SMALL, 0): SMALL_RECORDS - 1}
        wait_until(lambda: copied_offsets(served).items() >= ends.items(), "both to be copied", timeout_s=120.0)
        for (name, partition), last in ends.items():
            drop_all(plain_kafka, name, {partition: last + 1})
        yield served


def digests(bootstrap_servers: str, isolation: str, at: dict[str, int]) -> dict[str, list[str]]:
    """Return digests of all records from these offsets on, by topic and in order, as librdkafka has them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "receive.message.max.bytes": 120_000_000,
        }
    )
    found: dict[str, list[str]] = {topic: [] for topic in at}
    left = set(at)
    try:
        consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in at.items()])
        while left:
            message = consumer.poll(HANG_S_MAX)
            assert message is not None, f"nothing more of {left}"
            topic = message.topic()
            assert topic is not None
            if message.error() is not None:
                left.discard(topic)  # its end
            else:
                found[topic].append(hashlib.sha256(message.value() or b"").hexdigest())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_batch_of_100_mb_is_given_as_by_the_broker(stage: Stage, isolation: str) -> None:
    """How it failed: the connection was closed where the answer had to be held, and the client came back for ever."""
    with own_tidegate(stage.cluster) as running:
        for at in ({LARGE: 0}, {LARGE: stage.local_start, SMALL: 0}, {LARGE: 0, SMALL: 0}):
            expected = digests(stage.cluster.bootstrap_servers, isolation, at)
            assert digests(running.bootstrap_servers, isolation, at) == expected
            assert len(expected[LARGE]) == 4 - at[LARGE]
        assert running.metric("tidegate_connections_closed_total", cause="limit") == 0
        assert running.metric("tidegate_batches_too_large_total") == 0
        assert running.metric("tidegate_served_tier_bytes_total") > 2 * LARGE_BYTES


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_batch_of_100_mb_comes_from_a_tier_of_our_own(own_stage: Serving, isolation: str) -> None:
    for at in ({LARGE: 0}, {LARGE: 0, SMALL: 0}):
        found = digests(own_stage.bootstrap, isolation, at)
        assert found[LARGE] == [hashlib.sha256(value).hexdigest() for value in OWN_VALUES]
        assert at == {LARGE: 0} or len(found[SMALL]) == SMALL_RECORDS
    assert own_stage.events("batch_too_large") == []


@pytest.mark.needs("linux")
def test_fifty_clients_of_batches_of_100_mb_stay_within_the_documented_memory(stage: Stage) -> None:
    """Half of them read the one in the tier, half the broker's, beside a partition of the tier."""
    with own_tidegate(stage.cluster, {"memory.max.bytes": str(MEMORY_BYTES)}) as running:
        with RawClient(*running.address) as client:
            large_id, small_id = client.topic_id(LARGE), client.topic_id(SMALL)
            (broker,) = client.metadata([LARGE]).brokers
        asked = [
            [(LARGE, large_id, 0, 0, MIB), (SMALL, small_id, 0, 0, MIB)],
            [(LARGE, large_id, 0, stage.local_start, MIB), (SMALL, small_id, 0, 0, MIB)],
        ]
        frames = [request_frame(fetch_request(VERSION, each, max_wait_ms=5000), 1) for each in asked]
        with ThreadPoolExecutor(CLIENTS) as pool:
            read = [pool.submit(read_large, (broker.host, broker.port), frames[at % 2]) for at in range(CLIENTS)]
            assert all(each.result() > LARGE_BYTES for each in read)
        peak_bytes = peak_resident_bytes(running)
        print(f"{CLIENTS} clients: peak {peak_bytes / MIB:.0f} MiB")
        assert peak_bytes < MEMORY_BYTES + 150 * MIB
        assert running.metric("tidegate_connections_closed_total", cause="limit") == 0
        _wait_given_back(running)


def read_large(address: tuple[str, int], frame: bytes) -> int:
    """Ask until the batch comes; how large the answer was. Nothing of it is kept."""
    buffer = bytearray(MIB)
    with socket.create_connection(address, HANG_S_MAX) as sock:
        while True:
            sock.sendall(frame)
            head = sock.recv(4, socket.MSG_WAITALL)
            (left,) = (size,) = struct.unpack(">i", head)
            while left:
                received = sock.recv_into(buffer, min(left, len(buffer)))
                assert received, "closed"
                left -= received
            if size > LARGE_BYTES:
                return int(size)


def _wait_given_back(running: RunningTidegate) -> None:
    wait_until(lambda: running.metric("tidegate_held_bytes") == 0, "everything given back")
