"""All brokers on one port, over real TLS: a client bootstraps, gets names, and reads the tier through the broker
that a name stands for. The names exist in no DNS, so the client connects to the port and says them."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.wire.errors import ErrorCode
from tests.support.certificates import server_certificate
from tests.support.kafka import TIERED, orders, produce, small_segments, wait_settled
from tests.support.raw_client import FetchedPartition, RawClient
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

DOMAIN = "kafka.example.org"
TOPIC = "named"
MOVED_S_MAX = 60.0
NOT_LEADER_OR_FOLLOWER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@dataclass(frozen=True, slots=True)
class OnePort:
    """A ready Tidegate, and what trusts its certificate."""

    tidegate: RunningTidegate
    trusting: ssl.SSLContext

    def client(self, name: str) -> RawClient:
        return RawClient(*self.tidegate.address, ssl_context=self.trusting, server_hostname=name)


@contextmanager
def one_port(cluster: KafkaCluster, folder: Path, **properties: str) -> Iterator[OnePort]:
    certificate, key = server_certificate(folder, f"*.{DOMAIN}")
    listeners = {
        "proxy.tls.certificate.file": str(certificate),
        "proxy.tls.key.file": str(key),
        "proxy.tls.sni.pattern": f"broker-$(nodeId).{DOMAIN}",
    }
    with own_tidegate(cluster, listeners | properties) as running:
        yield OnePort(running, ssl.create_default_context(cafile=str(certificate)))


def test_clients_read_the_tier_through_the_brokers_that_they_name(pair: KafkaCluster, tmp_path: Path) -> None:
    # One replica each: a follower would answer a Fetch, too.
    pair.create_topic(TOPIC, 2, {**TIERED, **small_segments(batches=4)}, replication_factor=1)
    produce(pair, TOPIC, orders(2000, 2), batch_num_messages=100)
    wait_settled(pair, TOPIC)
    with one_port(pair, tmp_path, **{"proxy.advertised.port.start": "443"}) as made:
        for bootstrap in (f"bootstrap.{DOMAIN}", "localhost", "127.0.0.1"):
            with made.client(bootstrap) as client:
                brokers = client.metadata([]).brokers
            told = {int(each.node_id): (each.host, int(each.port)) for each in brokers}
            assert told == {node_id: (f"broker-{node_id}.{DOMAIN}", 443) for node_id in (1, 2)}
        with made.client(f"any.{DOMAIN}") as client:
            (found,) = client.metadata([TOPIC]).topics
        leaders = {int(each.partition_index): int(each.leader_id) for each in found.partitions}
        assert sorted(leaders.values()) == [1, 2]

        served_bytes = 0
        for partition, leader in leaders.items():
            part = first_fetch(made, f"BROKER-{leader}.{DOMAIN}", partition)
            assert (part.error_code, bool(part.records)) == (0, True)
            served_bytes += len(part.records)
            other = first_fetch(made, f"broker-{3 - leader}.{DOMAIN}", partition)
            assert (other.error_code, other.records) == (NOT_LEADER_OR_FOLLOWER, b"")
        assert made.tidegate.metric("tidegate_served_tier_bytes_total") == served_bytes

        pair.broker(2).stop()
        pair.broker(2).choose_ports()
        pair.broker(2).start()
        (partition,) = (each for each, leader in leaders.items() if leader == 2)
        wait_until(lambda: reads(made, partition), "broker 2 at its new address", timeout_s=MOVED_S_MAX)


def first_fetch(made: OnePort, name: str, partition: int) -> FetchedPartition:
    with made.client(name) as client:
        result = client.patient_fetch(13, [(TOPIC, client.topic_id(TOPIC), partition, 0, 1 << 20)])
    (part,) = result.partitions
    return part


def reads(made: OnePort, partition: int) -> bool:
    """Return whether broker 2, by its name, gives the first records of a partition that it leads."""
    try:
        part = first_fetch(made, f"broker-2.{DOMAIN}", partition)
    except (EOFError, OSError):
        return False  # it is not up yet
    return (part.error_code, bool(part.records)) == (0, True)
