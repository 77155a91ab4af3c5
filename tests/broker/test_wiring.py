"""What only a whole Tidegate shows: that its parts know of each other, and that a restart finds what was left."""

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.wire.errors import ErrorCode
from tests.broker.sides import HOST, fetched, wait_for
from tests.support.differential_known import local_logs, tiered_logs
from tests.support.differential_steps import delete_records
from tests.support.digests import PartitionDigest, read_with_confluent
from tests.support.disk_cache import log_blocks_below
from tests.support.kafka import fresh_name, orders, small_segments, tiered_topic
from tests.support.raw_client import RawClient
from tests.support.tidegate import TidegateInThread, tidegate_in_thread
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.needs("java", "kafka")

VERSION = 17
MUCH_BYTES = 1 << 20
AN_HOUR_MS = "3600000"


def segments_below(cache: Path) -> int:
    """Whose logs have blocks there; -1 while folders go."""
    try:
        return len({block.parent for block in log_blocks_below(cache)})
    except FileNotFoundError:
        return -1


def test_what_is_deleted_goes_from_probes_and_from_the_disk(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Given a client whose right to read need not be asked for within the hour, when another one deletes the records
    that it has just read, then it is refused them at once, and their blocks leave the disk; at the next start those go
    whose records were deleted meanwhile, and what is left is read from the disk."""
    configs = small_segments(batches=4)
    topic = tiered_topic(cluster, fresh_name("wired"), records=orders(2000, 1), configs=configs, batch_num_messages=20)
    name, ends = topic.name, {0: topic.offsets[0].high_watermark}
    wait_for(lambda: len(local_logs(cluster, name)) == 1, "the tier to have all closed segments")
    starts = [int(log.name[:20]) for log in tiered_logs(cluster, name)]
    assert len(starts) > 2
    cache = tmp_path / "cache"
    properties = {"authority.max.age.ms": AN_HOUR_MS, "cache.path": str(cache), "cache.encrypt": "false"}

    def read(gate: TidegateInThread) -> PartitionDigest:
        return read_with_confluent(gate.bootstrap_servers, name, ends, "read_uncommitted")[0]

    def wait_segments_on_disk(count: int) -> None:
        wait_for(lambda: segments_below(cache) == count, f"{count} segments")

    with tidegate_in_thread(cluster, tmp_path, properties) as gate, RawClient(*gate.listener()) as client:
        assert read(gate).records == topic.records
        wait_segments_on_disk(len(starts))
        target = (name, client.topic_id(name), 0, 0, MUCH_BYTES)
        assert fetched(client, VERSION, target).records
        admin = AdminClient({"bootstrap.servers": gate.bootstrap_servers})
        (deleted,) = admin.delete_records([TopicPartition(name, 0, starts[1])]).values()
        assert deleted.result(60).low_watermark == starts[1]
        assert fetched(client, VERSION, target).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        wait_segments_on_disk(len(starts) - 1)

    delete_records(cluster, name, 0, starts[2])
    wait_for(lambda: len(tiered_logs(cluster, name)) == len(starts) - 2, "the broker to delete a segment")
    with tidegate_in_thread(cluster, tmp_path, properties) as gate:
        wait_segments_on_disk(len(starts) - 2)
        (left,) = read_with_confluent(cluster.bootstrap_servers, name, ends, "read_uncommitted").values()
        assert read(gate) == left
        assert left.first == starts[2]
        assert gate.metric("tidegate_gets_total", object="log") == 0
        assert gate.metric("tidegate_cache_hits_total", level="disk") > 0


def test_a_balancers_header_is_taken_and_its_lack_refused(cluster: KafkaCluster, tmp_path: Path) -> None:
    properties = {"proxy.protocol": "true", "proxy.protocol.trusted": HOST}
    with tidegate_in_thread(cluster, tmp_path, properties) as gate:
        with RawClient(*gate.address) as client:
            client.send_bytes(b"PROXY TCP4 192.0.2.7 127.0.0.1 56324 9092\r\n")
            assert [broker.node_id for broker in client.metadata([]).brokers] == [1]
        with RawClient(*gate.address) as client, pytest.raises((EOFError, ConnectionError)):
            client.metadata([])
