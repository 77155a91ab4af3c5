"""`proxy.workers=2` before a real broker: clients go on when a worker is killed, and all ends as one process would."""

import json
import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.integration.reading import Reading
from tests.integration.test_life_cycle import Traffic, at_ports, traffic
from tests.support.digests import read_with_confluent
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.raw_client import RawClient
from tests.support.serving import START_S_MAX, Serving, before_kafka, serving
from tests.support.waiting import wait_until
from tests.support.worker_processes import all_are_ready, connections_of, workers_of
from tidegate import exit_codes
from tidegate.workers.crew import DEATHS_MAX
from tools.demo.kafka_cluster import KafkaCluster, free_port

PATIENCE = {"reconnect.backoff.max.ms": 500}


def has_consumed(clients: Traffic, records: int) -> bool:
    return len(clients.consumed) > records


def test_a_killed_workers_clients_go_on_and_the_others_notice_nothing(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path
) -> None:
    broker_port = free_port()
    properties = at_ports(
        {
            **before_kafka(kafka),
            "proxy.broker.ports": f"1:{broker_port}",
            "proxy.workers": "2",
            "cache.path": str(tmp_path / "cache"),
        }
    )
    ends = {partition: offsets.high_watermark for partition, offsets in tiered.offsets.items()}
    direct = read_with_confluent(kafka.bootstrap_servers, tiered.name, ends, "read_uncommitted")
    topic = fresh_name("killed")
    kafka.create_topic(topic, 1, {})
    with serving(tmp_path, properties) as served:
        served.wait_log("ready: ")
        # One broker, two workers: its listener's connections go to the worker that has fewest.
        with RawClient("127.0.0.1", broker_port) as first, ExitStack() as later:
            wait_until(lambda: connections_of(served) == [1, 0], "a connection")
            second = later.enter_context(RawClient("127.0.0.1", broker_port))
            wait_until(lambda: connections_of(served) == [1, 1], "a connection each")
            told = {(node.host, node.port) for client in (first, second) for node in client.metadata().brokers}
            assert told == {("127.0.0.1", broker_port)}
            with (
                traffic(served.bootstrap, topic) as clients,
                Reading(served.bootstrap, tiered.name, PATIENCE, partitions=range(tiered.partitions)) as reading,
            ):
                reading.read_on(lambda: all(reading.offsets.values()))
                wait_until(lambda: len(clients.consumed) > 100, "records pass")
                for killed in (0, 1):
                    survivor, ended = (second, first) if killed == 0 else (first, second)
                    os.kill(workers_of(served)[killed]["pid"], signal.SIGKILL)
                    assert ended.is_closed_by_peer(START_S_MAX)
                    if killed == 0:
                        assert 3 in survivor.api_versions()
                    wanted = len(clients.consumed) + 100
                    wait_until(partial(has_consumed, clients, wanted), "records pass again")
                    wait_until(lambda: all_are_ready(served), "both workers are ready again")
                reading.read_on(lambda: all(len(reading.offsets[each]) >= end for each, end in ends.items()))
                assert reading.digest.result() == direct
                clients.stop()
                assert (clients.fatal, clients.failed) == ([], [])
        assert [each["last_death"] for each in workers_of(served)] == ["killed by SIGKILL"] * 2
        assert served.metric("tidegate_worker_deaths_total") == 2
        assert {event["worker"] for event in served.wait_events("worker_died", times=2)} == {"0", "1"}
        assert served.metric("tidegate_catalog_segments") >= 2 * tiered.partitions
        check_status(served, tiered)
        pids = [each["pid"] for each in workers_of(served)]
        served.terminate()
        assert served.process.wait(START_S_MAX) == exit_codes.DONE, served.log()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert "Traceback" not in served.log()
        assert "drain_timed_out" not in served.log()
    # What both had in their parts of the cache and in the catalog's snapshot is there again.
    with serving(tmp_path, properties) as again:
        again.wait_log("ready: ")
        assert again.metric("tidegate_catalog_snapshot_loads_total", outcome="used") == 2
        assert again.metric("tidegate_cache_resident_bytes", level="disk") > 0


def has_ended(served: Serving, pid: int) -> bool:
    return pid not in {each["pid"] for each in workers_of(served)}


def test_beside_a_worker_that_rests_the_others_are_ready_and_degraded(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Failed before: its fifth death drained and ended all."""
    properties = at_ports({**before_kafka(kafka), "proxy.workers": "2"})
    with serving(tmp_path, properties) as served:
        served.wait_log("ready: ")
        wait_until(lambda: all_are_ready(served), "both workers are ready")
        for _ in range(DEATHS_MAX):
            pid = wait_until(lambda: all_are_ready(served) and workers_of(served)[1]["pid"], "its next life")
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(has_ended, served, pid), "its end")
        wait_until(lambda: "worker_dies" in served.page("/readyz")[1], "the trouble")
        status, body = served.page("/readyz")
        report = json.loads(body)
        assert (status, report["ready"], report["degraded"]) == (200, True, True)
        (complaint,) = report["complaints"]
        assert complaint == (
            "1 of 2 workers serve; worker 1 died 5 times within 60 s, the last time: killed by SIGKILL"
        )
        with served.client() as client:
            assert client.metadata().brokers
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: all_are_ready(served), "its next try")


def check_status(served: Serving, tiered: TieredTopic) -> None:
    """The status page speaks for the supervisor and both workers."""
    # By its name: the first page has not all that a whole run leaves in the tier.
    status = json.loads(served.page(f"/status.json?topic={tiered.name}")[1])
    assert status["ready"]
    assert status["failed_sections"] == []
    assert [each["worker"] for each in status["workers"]] == [0, 1]
    assert "worker_died" in {each["event"] for each in status["errors"] if each["worker"] is None}
    rows = [row for row in status["partitions"]["rows"] if row["topic"] == tiered.name]
    assert [row["local_log_start_offset"] for row in rows] == [
        tiered.offsets[partition].local_log_start_offset for partition in range(tiered.partitions)
    ]
    assert [each["reachable"] for each in status["brokers"]] == [True]
    (connections,) = {each["max"] for each in status["limits"] if each["key"] == "proxy.connections.max"}
    assert connections == 2048
    assert tiered.name in served.page(f"/?topic={tiered.name}")[1]
