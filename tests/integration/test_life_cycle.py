"""The life of a real `tidegate serve`: started before its brokers, left without them, reloaded, drained under load."""

import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.support.certificates import server_certificate
from tests.support.kafka import TieredTopic, fresh_name
from tests.support.raw_client import RawClient, fetch_request
from tests.support.serving import START_S_MAX, before_kafka, serving, without_kafka
from tests.support.waiting import HANG_S_MAX, wait_until
from tidegate import exit_codes
from tools.demo.kafka_cluster import KafkaCluster, free_port

CLIENTS = 8

SESSION_S = 300
"""How long a group keeps a silent member: longer than any outage here, however slowly a broker starts.

After 45 seconds without its coordinator, librdkafka's default, a consumer gives up its member id and joins as a new
member; a broker that starts again still knows the old one, and lets nobody in until that one's 45 seconds are over.
"""


def at_ports(properties: Mapping[str, str]) -> dict[str, str]:
    """The same with ports that are known before anything is ready."""
    return {**properties, "proxy.listen": f"127.0.0.1:{free_port()}", "admin.listen": f"127.0.0.1:{free_port()}"}


def address_of(properties: Mapping[str, str]) -> tuple[str, int]:
    host, _, port = properties["proxy.listen"].rpartition(":")
    return host, int(port)


patiently = partial(wait_until, timeout_s=HANG_S_MAX)
"""A broker that starts beside other work takes its time, and so do its clients."""


class Asking(threading.Thread):
    """A client that asks one request after the other until its connection ends."""

    def __init__(self, client: RawClient, request: Any) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._request = request
        self.answered = 0
        self.end = ""
        """How the connection ended."""

    def run(self) -> None:
        try:
            while True:
                self._client.send(self._request)
                self._client.read_frame()
                self.answered += 1
        except (EOFError, OSError) as error:
            self.end = str(error)


@contextmanager
def traffic(bootstrap: str, topic: str) -> Iterator["Traffic"]:
    started = Traffic(bootstrap, topic)
    try:
        yield started
    finally:
        started.stop()


class Traffic:
    """A producer and a consumer that go on, with default settings but a patient group, and what they complained of."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self.fatal: list[str] = []
        self.failed: list[str] = []
        self.delivered: set[int] = set()
        self.consumed: set[int] = set()
        self._next = 0
        self._stopping = threading.Event()
        common: dict[str, str | int | float | bool | Callable[[KafkaError], None]] = {
            "bootstrap.servers": bootstrap,
            "error_cb": self._complain,
            "log_level": 2,
        }
        self._producer = Producer({**common, "linger.ms": 5})
        group = {"group.id": topic, "session.timeout.ms": SESSION_S * 1000}
        self._consumer = Consumer({**common, **group, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([topic])
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(10)
        self._consumer.close()

    def _complain(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal.append(str(error))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        if error is None:
            self.delivered.add(int(value))
        else:
            self.failed.append(str(error))

    def _produce(self) -> None:
        while not self._stopping.is_set():
            if len(self._producer) < 1000:
                self._producer.produce(self._topic, str(self._next).encode(), on_delivery=self._delivered)
                self._next += 1
            self._producer.poll(0.01)
        self._producer.flush(10)

    def _consume(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error, value = message.error(), message.value()
            if error is not None:
                self._complain(error)
            elif value is not None:
                self.consumed.add(int(value))


def test_a_drain_under_load_leaves_no_request_half_answered(
    kafka: KafkaCluster, tiered: TieredTopic, tmp_path: Path
) -> None:
    ports = {"proxy.broker.ports": f"1:{free_port()}"}
    properties = at_ports({**before_kafka(kafka), **ports, "cache.path": str(tmp_path / "cache")})
    with serving(tmp_path, properties) as served:
        served.wait_log("ready: ")
        with RawClient(*address_of(properties)) as asker:
            topic_id = asker.topic_id(tiered.name)
        askers = []
        for number in range(CLIENTS):
            client = RawClient(*address_of(properties))
            target = (tiered.name, topic_id, number % tiered.partitions, 0, 256 * 1024)
            askers.append(Asking(client, fetch_request(13, [target], max_wait_ms=200)))
        topic = fresh_name("drained")
        kafka.create_topic(topic, 1, {})
        with traffic(served.bootstrap, topic) as clients:
            for each in askers:
                each.start()
            wait_until(lambda: all(each.answered > 5 for each in askers) and clients.consumed, "answers")
            served.terminate()
            assert served.process.wait(START_S_MAX) == exit_codes.DONE
            for each in askers:
                each.join(10)
                # Between two answers, and by a proper end of the stream: or, a moment later, at the next request.
                assert each.end == "closed by the peer after 0 of 4 bytes" or "Broken pipe" in each.end, each.end
            assert "drain_timed_out" not in served.log()
            assert "Traceback" not in served.log()
            # Another takes over the disk cache at once, and the catalog's snapshot: both were left in order.
            with serving(tmp_path, properties) as another:
                another.wait_log("ready: ")
                assert another.metric("tidegate_catalog_snapshot_loads_total", outcome="used") == 1
                before = len(clients.consumed)
                wait_until(lambda: len(clients.consumed) > before + 100, "the clients go on")
                clients.stop()
            assert (clients.fatal, clients.failed) == ([], [])


@pytest.mark.needs("java", "kafka")
@pytest.mark.integration
def test_it_starts_before_its_brokers_and_outlives_them_with_its_clients(moody: KafkaCluster, tmp_path: Path) -> None:
    topic = fresh_name("outage")
    moody.create_topic(topic, 1, {})
    moody.broker(1).stop()
    try:
        outlive(moody, topic, tmp_path)
    finally:
        if not moody.broker(1).is_running:
            moody.broker(1).start()


def outlive(cluster: KafkaCluster, topic: str, folder: Path) -> None:
    properties = at_ports(before_kafka(cluster))
    with serving(folder, properties) as served, closing(socket.socket()) as early:
        served.wait_log("upstream_unavailable")
        early.connect(address_of(properties))
        patiently(lambda: served.metric("tidegate_upstream_connect_waits") == 1, "the early client is held")
        assert "ready:" not in served.log()
        status, body = served.page("/readyz")
        assert status == 503
        assert any(reason.startswith("upstream: ") for reason in json.loads(body)["reasons"])
        assert served.page("/livez")[0] == 200

        cluster.broker(1).start()
        served.wait_log("ready: ")
        assert served.page("/readyz")[0] == 200
        patiently(lambda: served.metric("tidegate_upstream_connect_waits") == 0, "the early client is served")

        with traffic(served.bootstrap, topic) as clients:
            patiently(lambda: len(clients.consumed) > 100, "records pass")
            cluster.broker(1).stop()
            # A balancer that left it would close the connections that are held until the broker is back.
            patiently(lambda: json.loads(served.page("/readyz")[1])["degraded"], "degraded without a broker")
            assert served.metric("tidegate_ready") == 1
            silent = {"condition": "upstream", "state": "degraded"}
            patiently(lambda: served.metric("tidegate_condition_state", **silent) == 1, "it is the broker's silence")
            patiently(lambda: served.metric("tidegate_upstream_connect_waits") > 0, "clients are held")
            before = len(clients.consumed)
            cluster.broker(1).start()
            patiently(lambda: not json.loads(served.page("/readyz")[1])["degraded"], "content again")
            patiently(lambda: len(clients.consumed) > before + 100, "records pass again")
            clients.stop()
            assert (clients.fatal, clients.failed) == ([], [])
        served.terminate()
        assert served.process.wait(START_S_MAX) == exit_codes.DONE


def shown_certificate(address: tuple[str, int]) -> bytes | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address, 5) as plain, context.wrap_socket(plain) as secure:
        return secure.getpeercert(binary_form=True)


def test_a_renewed_certificate_is_shown_and_a_broken_pair_is_not(tmp_path: Path) -> None:
    workers = 2
    certificate, key = server_certificate(tmp_path)
    properties = at_ports(
        {
            **without_kafka(tmp_path),
            "proxy.tls.certificate.file": str(certificate),
            "proxy.tls.key.file": str(key),
            "proxy.workers": str(workers),
        }
    )
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    with serving(tmp_path, properties) as served:
        served.wait_log('"worker_started"', times=workers)
        first = shown_certificate(address_of(properties))
        expiry = served.metric("tidegate_certificate_expiry_timestamp_seconds", key="proxy.tls.certificate.file")
        assert expiry > time.time()

        new_certificate, new_key = server_certificate(renewed)
        new_certificate.replace(certificate)  # its key is not here yet
        assert "does not belong" in served.wait_events("config_problem")[0]["problem"]
        assert shown_certificate(address_of(properties)) == first

        new_key.replace(key)
        # Each worker's own, and the supervisor's.
        served.wait_log('"config_changed"', times=workers + 1)
        second = wait_until(
            lambda: shown if (shown := shown_certificate(address_of(properties))) != first else None, "the new one"
        )
        assert second == ssl.PEM_cert_to_DER_cert(certificate.read_text())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_systemd_is_told_of_start_reload_life_and_stop(tmp_path: Path, workers: str) -> None:
    """Once each, however many workers there are."""
    path = tmp_path / "notify"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(20)
        environ = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"}

        def heard_until(wanted: str) -> list[str]:
            heard: list[str] = []
            while not heard or not heard[-1].startswith(wanted):
                heard.append(systemd.recv(4096).decode())
            return [message for message in heard if message != "WATCHDOG=1"]

        with serving(tmp_path, {**without_kafka(tmp_path), "proxy.workers": workers}, environ) as served:
            assert heard_until("READY=1") == ["READY=1"]
            heard_until("STATUS=")
            heard_until("WATCHDOG=1")
            heard_until("WATCHDOG=1")
            served.process.send_signal(signal.SIGHUP)
            assert heard_until("READY=1")[0].startswith("RELOADING=1\nMONOTONIC_USEC=")
            served.terminate()
            assert heard_until("STOPPING=1") == ["STOPPING=1"]
            assert served.process.wait(START_S_MAX) == exit_codes.DONE
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as last:
                last.sendto(b"the end", str(path))
            assert heard_until("the end") == ["the end"]
            assert served.process.wait(START_S_MAX) == exit_codes.DONE
