"""`tidegate serve`, or another command, as a process with whatever properties: for what starts, signals and ends it."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.program import tidegate_python
from tests.support.raw_client import RawClient, address_of
from tests.support.samples import sum_of
from tests.support.waiting import WAIT_S_MAX, wait_until
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text
from tools.demo.tidegate_process import bootstrap_address

START_S_MAX = WAIT_S_MAX
LISTENERS = {"proxy.listen": "127.0.0.1:0", "proxy.broker.port.start": "0", "admin.listen": "127.0.0.1:0"}
LOCAL_TIER = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


class Serving:
    """One process and what it wrote."""

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str],
        environ: Mapping[str, str],
        program: Sequence[str],
        command: str = "serve",
        head: str = "",
    ) -> None:
        self.file = folder / "tidegate.properties"
        self.write(properties, head)
        self.log_path = folder / "tidegate.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [tidegate_python(), *program, command, str(self.file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environ},
            )

    def write(self, properties: Mapping[str, str], head: str = "") -> None:
        """Give FILE other content, by renaming as editors do. `head`: what it begins with, as it stands."""
        new = self.file.with_suffix(".new")
        new.write_text(head + properties_text(properties), encoding="utf-8")
        new.replace(self.file)

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def events(self, name: str) -> list[dict[str, str]]:
        """The log's lines of one event, as the fields of their JSON."""
        lines = [line for line in self.log().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait_events(self, name: str, *, times: int = 1) -> list[dict[str, str]]:
        """Those of one event, once there are as many. Each process writes its lines in a thread: what its clients or
        its pages have said, or another worker's line, may be seen before them."""
        wait_until(lambda: len(self.events(name)) >= times, f"`{name}` in the log", timeout_s=START_S_MAX)
        return self.events(name)

    def wait_log(self, text: str, *, times: int = 1) -> None:
        wait_until(lambda: self.log().count(text) >= times, f"`{text}` in the log", timeout_s=START_S_MAX)

    @property
    def bootstrap(self) -> str:
        """`host:port` of the `ready:` line."""
        return bootstrap_address(self.log())

    def client(self) -> RawClient:
        return RawClient(*address_of(self.bootstrap))

    def page(self, path: str) -> tuple[int, str]:
        """Status and body of an admin page; `admin.listen` must name its port."""
        lines = [line for line in self.file.read_text().splitlines() if "=" in line]
        address = dict(line.split("=", 1) for line in lines)["admin.listen"]
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, sample_name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 without any."""
        return sum_of(self.page("/metrics")[1], sample_name, labels)

    def copy_problems(self) -> list[str]:
        """Return what the status page says of copying."""
        problems: list[str] = json.loads(self.page("/status.json")[1])["copy"]["problems"]
        return problems

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


@contextmanager
def serving(
    folder: Path,
    properties: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    program: Sequence[str] = ("-m", "tidegate"),
    command: str = "serve",
    head: str = "",
) -> Iterator[Serving]:
    started = Serving(folder, properties, environ or {}, program, command, head)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def before_kafka(kafka: KafkaCluster) -> dict[str, str]:
    return {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "broker.config": str(kafka.server_properties_path(1)),
        **LISTENERS,
    }


def without_kafka(folder: Path) -> dict[str, str]:
    return {
        "upstream.bootstrap.servers": "127.0.0.1:1",
        "remote.log.storage.manager.class.name": LOCAL_TIER,
        "remote.log.metadata.manager.class.name": "tidegate.InMemory",
        "rsm.config.dir": str(folder / "tier"),
        **LISTENERS,
    }
