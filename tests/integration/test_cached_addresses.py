"""Clients that remember where the brokers are go on through restarts of Tidegate, while nobody bootstraps anew.

Tidegate's bootstrap listener gets another port at each start, so there is nobody to be told anything by: what such a
client finds at the broker's port must be there from the start on. Failed before: the port was bound when a client's
answer named the broker, so after a restart these clients were refused until somebody else bootstrapped.
"""

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from proxy.connection.address_book import FILE_NAME
from tests.support.client_programs import java_command
from tests.support.kafka import TieredTopic, fresh_name, orders, produce, tiered_topic
from tests.support.replicas import broker_ports
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]

RECORDS, MORE_RECORDS = 4000, 100
READ_S_MAX = 60.0
"""librdkafka and the Java client back off for up to ten seconds and one."""

Command = Callable[[str, str], list[str]]


def java(bootstrap: str, topic: str) -> list[str]:
    return [*java_command("CachedAddresses"), bootstrap, topic]


def kcat(bootstrap: str, topic: str) -> list[str]:
    # -E: without it kcat ends itself when its last connection does.
    output = ["-u", "-E", "-f", "next %o\n"]
    return ["kcat", "-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", *output]


class Reader:
    """A client's process, and how far it has come."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def offset(self) -> int:
        """The last one that it said in a whole line; 0 before the first."""
        lines = self._log.read_text("utf-8", "replace").splitlines(keepends=True)
        said = [line for line in lines if line.startswith("next ") and line.endswith("\n")]
        return int(said[-1].removeprefix("next ")) if said else 0

    def wait_offset(self, offset: int) -> None:
        def has_come() -> bool:
            assert self.process.poll() is None, self._log.read_text("utf-8", "replace")
            return self.offset() >= offset

        wait_until(has_come, f"the client to read up to {offset}", timeout_s=READ_S_MAX)


@contextmanager
def reading(command: list[str], log: Path) -> Iterator[Reader]:
    reader = Reader(command, log)
    try:
        yield reader
    finally:
        reader.process.kill()
        reader.process.wait()


@pytest.fixture(scope="module")
def cold(kafka: KafkaCluster) -> TieredTopic:
    return tiered_topic(
        kafka, fresh_name("cached"), partitions=1, records=orders(RECORDS, 1, 500), batch_size=16 * 1024
    )


@pytest.mark.parametrize(
    ("command", "stops"),
    [
        pytest.param(java, ["SIGTERM", "SIGKILL"], id="java-none"),
        pytest.param(kcat, ["SIGKILL"], id="kcat", marks=pytest.mark.needs("kcat")),
        pytest.param(java, ["SIGKILL", "SIGTERM"] * 2, id="java-none-4", marks=pytest.mark.long),
        pytest.param(kcat, ["SIGTERM", "SIGKILL"], id="kcat-2", marks=[pytest.mark.needs("kcat"), pytest.mark.long]),
    ],
)
def test_a_client_that_remembers_a_broker_goes_on_after_a_restart(
    kafka: KafkaCluster, cold: TieredTopic, tmp_path: Path, command: Command, stops: list[str]
) -> None:
    kept = tmp_path / "kept"
    properties = {"proxy.broker.port.start": "0", "catalog.snapshot.path": str(kept)}
    with ExitStack() as stack:
        tidegate = stack.enter_context(own_tidegate(kafka, properties))
        ports = broker_ports(tidegate)
        reader = stack.enter_context(reading(command(tidegate.bootstrap_servers, cold.name), tmp_path / "client.log"))
        end = max(RECORDS, kafka_end(kafka, cold.name))
        reader.wait_offset(end - 1)
        wait_until(lambda: (kept / FILE_NAME).exists(), "the brokers to be kept")
        for stop in stops:
            if stop == "SIGKILL":
                tidegate.kill()
            tidegate.process.stop()
            assert is_refused(ports[1])
            tidegate.start_again()
            # Nobody has asked anything yet: the port is there because it is ready.
            assert not is_refused(ports[1])
            end += produce(kafka, cold.name, orders(MORE_RECORDS, 1))
            reader.wait_offset(end - 1)


def kafka_end(kafka: KafkaCluster, topic: str) -> int:
    return kafka.partition_offsets(topic)[0].high_watermark


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) != 0


# --- two replicas behind one address ---


class Balancer:
    """A TCP load balancer: each of its ports leads to that of the first replica which accepts."""

    def __init__(self, behind: Mapping[int, list[int]]) -> None:
        self._threads: list[threading.Thread] = []
        self._servers = [self._listen(port, targets) for port, targets in behind.items()]

    def close(self) -> None:
        """Once clients have gone."""
        for server in self._servers:
            server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _listen(self, port: int, targets: list[int]) -> socket.socket:
        server = socket.create_server((HOST, port))
        self._start(self._accept, server, targets)
        return server

    def _accept(self, server: socket.socket, targets: list[int]) -> None:
        with server, suppress(OSError):
            while True:
                client, _ = server.accept()
                self._start(self._serve, client, targets)

    def _serve(self, client: socket.socket, targets: list[int]) -> None:
        with client:
            for target in targets:
                try:
                    upstream = socket.create_connection((HOST, target))
                except OSError:
                    continue
                with upstream:
                    back = self._start(self._pump, upstream, client)
                    self._pump(client, upstream)
                    back.join()
                return

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.mark.long
@pytest.mark.parametrize("command", [java, pytest.param(kcat, marks=pytest.mark.needs("kcat"))])
def test_a_rolling_restart_of_two_replicas_as_the_guide_describes_it(
    kafka: KafkaCluster, cold: TieredTopic, tmp_path: Path, command: Command
) -> None:
    bootstrap, broker = free_port(), free_port()
    own = [{"bootstrap": free_port(), "broker": free_port()} for _ in range(2)]
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(
                own_tidegate(
                    kafka,
                    {
                        "proxy.listen": f"{HOST}:{ports['bootstrap']}",
                        "proxy.broker.ports": f"1:{ports['broker']}",
                        # What clients are told: the balancer's port for broker 1.
                        "proxy.advertised.port.start": str(broker - 1),
                        "catalog.snapshot.path": str(tmp_path / f"kept-{ports['broker']}"),
                    },
                )
            )
            for ports in own
        ]
        behind = {bootstrap: [each["bootstrap"] for each in own], broker: [each["broker"] for each in own]}
        stack.enter_context(closing(Balancer(behind)))
        reader = stack.enter_context(reading(command(f"{HOST}:{bootstrap}", cold.name), tmp_path / "client.log"))
        end = max(RECORDS, kafka_end(kafka, cold.name))
        reader.wait_offset(end - 1)
        for _ in range(2):
            for replica, ports in zip(replicas, own, strict=True):
                replica.process.stop()
                replica.start_again()
                assert not is_refused(ports["broker"])
                end += produce(kafka, cold.name, orders(MORE_RECORDS, 1))
                reader.wait_offset(end - 1)
