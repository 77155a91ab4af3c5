"""What crowds cost: a thousand idle connections, one huge response. Bad bytes: proxy/connection/test_bad_input.py."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.hostile_stage import MIB, peak_resident_bytes, resident_bytes
from tests.support.kafka import Record, fresh_name, produce
from tests.support.raw_client import RawClient
from tests.support.replicas import broker_ports
from tests.support.tidegate import RunningTidegate, own_tidegate
from tools.demo.kafka_cluster import KafkaCluster

IDLE_CONNECTIONS = 1000
IDLE_BYTES_MAX = 64 * MIB
RESPONSE_BYTES = 50 * MIB
RESPONSE_GROWTH_BYTES_MAX = 1 * MIB


def reset_peak(running: RunningTidegate) -> None:
    """Make `peak_resident_bytes` begin again."""
    Path(f"/proc/{running.process.pid}/clear_refs").write_text("5")


@pytest.mark.needs("linux")
def test_a_thousand_idle_connections_fit_in_64_mib(kafka: KafkaCluster) -> None:
    """Each has asked for versions and brokers, as clients do first. Reads /proc, so only Linux will do."""
    topic = fresh_name("idle")
    kafka.create_topic(topic, 1, {})
    with own_tidegate(kafka) as running, ExitStack() as stack:

        def connect() -> None:
            client = stack.enter_context(RawClient(*running.address))
            client.api_versions()
            client.metadata([topic])

        for _ in range(20):
            connect()  # imports and first allocations are not the connections'
        before = resident_bytes(running)
        for _ in range(IDLE_CONNECTIONS):
            connect()
        growth = resident_bytes(running) - before
        assert running.metric("tidegate_connections_active") == IDLE_CONNECTIONS + 20
    print(f"{IDLE_CONNECTIONS} idle connections: {growth / MIB:.1f} MiB, {growth // IDLE_CONNECTIONS} bytes each")
    assert growth <= IDLE_BYTES_MAX


@pytest.mark.needs("linux")
@pytest.mark.parametrize("version", [12, 17])
def test_a_response_of_50_mib_passes_in_1_mib(kafka: KafkaCluster, version: int) -> None:
    """v12 is relayed unread, v17 is walked. Reads /proc, so only Linux will do."""
    topic = fresh_name("large-response")
    kafka.create_topic(topic, 1, {"max.message.bytes": str(2 * MIB)})
    records = (Record(0, None, bytes(MIB - 4096)) for _ in range(RESPONSE_BYTES // MIB + 3))
    produce(kafka, topic, records, message_max_bytes=2 * MIB, linger_ms=0)
    with own_tidegate(kafka) as running, RawClient("127.0.0.1", broker_ports(running)[1], timeout_s=60) as client:
        topic_id = client.topic_id(topic)

        def fetch(size: int) -> int:
            return len(client.fetch(version, [(topic, topic_id, 0, 0, size)], max_bytes=size).frame)

        for _ in range(3):
            fetch(4 * MIB)  # buffers, schemas and the allocator are warm
        reset_peak(running)
        before = resident_bytes(running)
        received = fetch(RESPONSE_BYTES + 2 * MIB)
        growth = peak_resident_bytes(running) - before
    assert received >= RESPONSE_BYTES
    print(f"a response of {received / MIB:.1f} MiB: {growth / MIB:.2f} MiB more")
    assert growth <= RESPONSE_GROWTH_BYTES_MAX
