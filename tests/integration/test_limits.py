"""What strangers and crowds cost: bad bytes over real sockets, a thousand idle connections, one huge response."""

import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kafka import Record, fresh_name, produce
from tests.support.memory_transport import HEARTBEAT, request
from tests.support.raw_client import RawClient
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

MIB = 1024 * 1024
IDLE_CONNECTIONS = 1000
IDLE_BYTES_MAX = 64 * MIB
RESPONSE_BYTES = 50 * MIB
RESPONSE_GROWTH_BYTES_MAX = 1 * MIB

BAD_BYTES = {
    "garbage": bytes(range(255, -1, -1)),
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an oversize length": struct.pack(">i", 2**31 - 1) + b"x" * 100,
    "a negative length": struct.pack(">i", -5) + b"x" * 100,
    "an unknown api key": request(999, 0, 1),
    "a version that is not announced": request(1, 19, 1),
    "a frame cut in its length": b"\x00\x00",
    "a frame cut in its header": request(HEARTBEAT, 4, 1)[:9],
    "a frame cut in its body": request(HEARTBEAT, 4, 1, bytes(100_000))[:50_000],
    "a decoded frame cut in its body": request(1, 12, 1, bytes(100_000))[:50_000],
}


@pytest.fixture(scope="module")
def own(kafka: KafkaCluster) -> Iterator[RunningTidegate]:
    with own_tidegate(kafka) as running:
        yield running


def resident_bytes(running: RunningTidegate) -> int:
    """The process's resident memory, as Linux says it."""
    return _status_bytes(running, "VmRSS")


def reset_peak(running: RunningTidegate) -> None:
    """Have `peak_resident_bytes` begin anew."""
    Path(f"/proc/{running.process.pid}/clear_refs").write_text("5")


def peak_resident_bytes(running: RunningTidegate) -> int:
    return _status_bytes(running, "VmHWM")


def _status_bytes(running: RunningTidegate, name: str) -> int:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def closed_lines(running: RunningTidegate) -> list[str]:
    """Log lines about connections that ended; debug lines are not written."""
    return [line for line in running.log().splitlines() if "connection_" in line]


@pytest.mark.parametrize("bad", BAD_BYTES.values(), ids=BAD_BYTES.keys())
def test_bad_bytes_close_their_connection_with_one_line_and_others_go_on(own: RunningTidegate, bad: bytes) -> None:
    lines_before = len(closed_lines(own))
    with RawClient(*own.address) as good, RawClient(*own.address) as stranger:
        versions = good.api_versions()
        stranger.send_bytes(bad)
        stranger.socket.shutdown(socket.SHUT_WR)
        assert stranger.is_closed_by_peer()
        wait_until(lambda: len(closed_lines(own)) > lines_before, "a line about it")
        assert good.api_versions() == versions
    time.sleep(0.05)  # a second line would come right behind
    lines = closed_lines(own)[lines_before:]
    assert len(lines) == 1
    assert "malformed_frame" in lines[0]


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
    with own_tidegate(kafka) as running:
        with RawClient(*running.address) as bootstrap:
            (broker,) = bootstrap.metadata([topic]).brokers
            topic_id = bootstrap.topic_id(topic)
        with RawClient(broker.host, broker.port, timeout_s=60) as client:

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
