"""`tidegate serve` as a process: its `ready:` line, its signals, its exit codes."""

import re
import socket
import threading
from pathlib import Path

import pytest

from proxy.process import exit_codes
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.raw_client import RawClient, fetch_request
from tests.support.serving import START_S_MAX, Serving, before_kafka, serving, without_kafka
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port


def with_admin(kafka: KafkaCluster) -> dict[str, str]:
    """Properties with an admin page whose port is known."""
    return {**before_kafka(kafka), "admin.listen": f"127.0.0.1:{free_port()}"}


def parked_fetch(served: Serving, client: RawClient, kafka: KafkaCluster, wait_ms: int) -> threading.Event:
    """A Fetch at the end of an empty topic that the broker holds for so long; set once its answer was read.

    It has begun when this returns: Tidegate has counted it.
    """
    topic = fresh_name("parked")
    kafka.create_topic(topic, 1, {})
    target = (topic, client.topic_id(topic), 0, 0, 1024)
    client.send(fetch_request(13, [target], max_wait_ms=wait_ms))
    answered = threading.Event()

    def read() -> None:
        try:
            client.read_frame(wait_ms / 1000 + 10)
        except (EOFError, OSError):
            return
        answered.set()

    threading.Thread(target=read, daemon=True).start()
    wait_until(lambda: served.metric("tidegate_requests_total", api_key="1") == 1, "the Fetch is there")
    return answered


def test_ready_says_where_with_how_many_brokers_and_segments(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path
) -> None:
    with serving(tmp_path, before_kafka(kafka)) as served:
        served.wait_log("ready: ")
        line = r"^ready: bootstrap 127\.0\.0\.1:(\d+), brokers 1, segments (\d+)$"
        found = re.findall(line, served.log(), re.MULTILINE)
        assert len(found) == 1
        port, segments = map(int, found[0])
        assert segments >= 2 * tiered.partitions
        with RawClient("127.0.0.1", port) as client:
            assert 3 in client.api_versions()
        served.terminate()
        assert served.process.wait(START_S_MAX) == exit_codes.DONE


def test_a_second_signal_stops_at_once(kafka: KafkaCluster, tmp_path: Path) -> None:
    with serving(tmp_path, with_admin(kafka)) as served:
        served.wait_log("ready: ")
        with served.client() as client:
            answered = parked_fetch(served, client, kafka, wait_ms=25_000)
            served.terminate()
            served.wait_log("draining")
            served.terminate()
            assert served.process.wait(START_S_MAX) == exit_codes.DONE
            assert not answered.is_set()
            assert "stopped_at_once" in served.log()


@pytest.mark.integration
def test_a_taken_port_is_exit_1_with_a_line_that_names_the_key(tmp_path: Path) -> None:
    key = "proxy.listen"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with serving(tmp_path, {**without_kafka(tmp_path), key: address}) as served:
            assert served.process.wait(START_S_MAX) == exit_codes.FOUND_WRONG
            (line,) = [line for line in served.log().splitlines() if line.startswith("tidegate:")]
            assert key in line
            assert address in line
