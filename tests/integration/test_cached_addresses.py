"""Clients that remember where the brokers are go on through restarts of Tidegate, while nobody bootstraps anew.

Tidegate's bootstrap listener gets another port at each start, so there is nobody to be told anything by: what such a
client finds at the broker's port must be there from the start on. Failed before: the port was bound when a client's
answer named the broker, so after a restart these clients were refused until somebody else bootstrapped.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from proxy.connection.address_book import FILE_NAME
from tests.support.client_programs import java_command
from tests.support.kafka import TieredTopic, fresh_name, orders, produce, tiered_topic
from tests.support.replicas import broker_ports
from tests.support.restarts import is_refused
from tests.support.tidegate import own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

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
        pytest.param(java, ["SIGTERM", "SIGKILL"], id="java"),
        pytest.param(kcat, ["SIGKILL"], id="kcat", marks=pytest.mark.needs("kcat")),
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
