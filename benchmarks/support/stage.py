"""A real Kafka at full speed with a filled topic, and Tidegate before it; all on loopback, all gone afterwards.

Both sides of every comparison are this one broker, in one run: directly, and through this one Tidegate.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from tests.support.kafka import TIERED, own_cluster
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster, PartitionOffsets
from tools.demo.tidegate_process import Tidegate

JVM_OPTIONS = ("-Xms1g", "-Xmx1g")
"""The JVM's own compilers and collector: the fast start of tests and demo costs a broker half its speed."""

TIERED_CONFIGS = {**TIERED, "segment.bytes": str(16 * 1024 * 1024)}
PARTITIONS = 2
RECORD_BYTES = 1024
BATCH_BYTES = 64 * 1024
"""Between the Java producer's 16 KiB and librdkafka's 1 MB; in answers of 1 MiB little is cut off at the end."""

MEGABYTE = 1_000_000
_QUEUE_RECORDS_MAX = 90_000
_FLUSH_S = 120

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Stage:
    """What a benchmark measures on."""

    cluster: KafkaCluster
    tidegate: Tidegate
    topic: str
    offsets: Mapping[int, PartitionOffsets]
    direct: Address
    through: Address


@contextmanager
def set_up(
    *,
    megabytes: int,
    topic_configs: Mapping[str, str],
    is_tiered: bool,
    tidegate_properties: Mapping[str, str] | None = None,
    record_bytes: int = RECORD_BYTES,
) -> Iterator[Stage]:
    """Start a broker, and a stage on it."""
    with own_cluster(jvm_options=JVM_OPTIONS) as cluster:
        offsets = fill_topic(
            cluster, "benchmark", megabytes, topic_configs, is_tiered=is_tiered, record_bytes=record_bytes
        )
        with stage_on(cluster, "benchmark", offsets, cluster.work, tidegate_properties) as stage:
            yield stage


@contextmanager
def stage_on(
    cluster: KafkaCluster,
    topic: str,
    offsets: Mapping[int, PartitionOffsets],
    work: Path,
    tidegate_properties: Mapping[str, str] | None = None,
    server_properties: Path | None = None,
) -> Iterator[Stage]:
    """A fresh Tidegate before a running broker, whose file tells it of the tier unless another one does."""
    tidegate = Tidegate(
        work=work,
        server_properties=server_properties or cluster.server_properties_path(1),
        bootstrap_servers=cluster.bootstrap_servers,
        properties=tidegate_properties,
    )
    tidegate.start()
    try:
        through = address_of(tidegate.wait_ready())
        yield Stage(cluster, tidegate, topic, offsets, address_of(cluster.bootstrap_servers), through)
    finally:
        tidegate.stop()


def fill_topic(
    cluster: KafkaCluster,
    topic: str,
    megabytes: int,
    configs: Mapping[str, str],
    *,
    is_tiered: bool,
    record_bytes: int = RECORD_BYTES,
) -> dict[int, PartitionOffsets]:
    """Create and fill a topic; if it is tiered, wait until all but the active segments are in the tier alone."""

    def has_settled(offsets: PartitionOffsets) -> bool:
        # Between two rounds of copying, too, the tier may end where the local log begins: hence the second look.
        is_behind_tier = 0 <= offsets.latest_tiered_offset == offsets.local_log_start_offset - 1
        return is_behind_tier and _local_segments(cluster, topic) == PARTITIONS

    cluster.create_topic(topic, PARTITIONS, configs)
    fill(cluster.bootstrap_servers, topic, megabytes, record_bytes)
    return cluster.wait_tiered(topic, until=has_settled) if is_tiered else cluster.partition_offsets(topic)


def fill(
    bootstrap_servers: str, topic: str, megabytes: int, record_bytes: int = RECORD_BYTES, partitions: int = PARTITIONS
) -> None:
    """Produce records of that many bytes, uncompressed, as many in each partition."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": BATCH_BYTES,
            "error_cb": lambda error: failures.append(str(error)) if error.fatal() else None,
        }
    )
    for number in range(megabytes * MEGABYTE // record_bytes):
        if number % 1000 == 0:
            while len(producer) > _QUEUE_RECORDS_MAX:
                producer.poll(0.01)
        producer.produce(topic, b"%016d" % number + bytes(record_bytes - 16), partition=number % partitions)
    left = producer.flush(_FLUSH_S)
    if left or failures:
        raise RuntimeError(f"{left} records were not produced in {_FLUSH_S} s; {failures[:1]}")


def bootstrap_of(address: Address) -> str:
    """The address as clients are configured with it."""
    return "{}:{}".format(*address)


def _local_segments(cluster: KafkaCluster, topic: str) -> int:
    return sum(1 for _ in cluster.broker(1).data_dir.glob(f"{topic}-[0-9]/*.log"))
