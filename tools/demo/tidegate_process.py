"""Tidegate as the demo runs it: a process of its own, started as anyone would start it, and judged by its /metrics."""

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from metrics.meters import Direction
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_process import JavaProcess, KafkaClusterError
from tools.demo.kafka_properties import HOST, properties_text
from tools.demo.steps import StepFailed

PROGRAM: Final = (sys.executable, "-m", "tidegate")
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 5.0
METRICS_TIMEOUT_S: Final = 10.0
METRICS_BYTES_MAX: Final = 16 * 1024 * 1024
REMOTE_FETCH_BYTES_NAME: Final = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
_READY: Final = "ready: bootstrap "


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes as Tidegate counted them, since it was started."""

    relayed_bytes: int
    """From brokers to clients."""
    served_tier_bytes: int
    """Record bytes from the tier to clients."""
    remote_fetch_bytes: int
    """For one topic, by KIP-405's own counter."""

    def __sub__(self, earlier: "Counters") -> "Counters":
        return Counters(
            self.relayed_bytes - earlier.relayed_bytes,
            self.served_tier_bytes - earlier.served_tier_bytes,
            self.remote_fetch_bytes - earlier.remote_fetch_bytes,
        )


class Tidegate:
    """`start`, `wait_ready`, and `stop` whatever came between; the process cannot outlive us, however we end."""

    def __init__(
        self,
        *,
        work: Path,
        server_properties: Path,
        bootstrap_servers: str,
        properties: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._program = program
        self.properties_path: Final = work / "tidegate.properties"
        self.log_path: Final = work / "tidegate.log"
        self.admin_address: Final = f"{HOST}:{free_port()}"
        self._properties = {
            "upstream.bootstrap.servers": bootstrap_servers,
            "broker.config": str(server_properties),
            "proxy.listen": f"{HOST}:0",
            "admin.listen": self.admin_address,
            **(properties or {}),
        }
        self._process: JavaProcess | None = None

    def write_properties(self) -> None:
        """Its configuration, as anyone could have written it; `start` does this too."""
        self.properties_path.write_text(properties_text(self._properties), encoding="utf-8")

    def start(self) -> None:
        """Start, without waiting."""
        self.write_properties()
        command = (*self._program, "serve", str(self.properties_path))
        self._process = JavaProcess("Tidegate", command, self.log_path)

    def wait_ready(self) -> str:
        """Block until Tidegate says `ready:`, and return its bootstrap address.

        Raises:
            StepFailed: it did not; with the last lines of its log.
        """
        if self._process is None:
            raise StepFailed("Tidegate was not started")
        try:
            # The address and what comes behind it are written in one piece.
            self._process.wait_for_log(_READY, READY_TIMEOUT_S)
        except KafkaClusterError as error:
            raise StepFailed(str(error)) from error
        return bootstrap_address(self.log_path.read_text("utf-8", "replace"))

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)

    def log_tail(self) -> str:
        return "" if self._process is None else self._process.log_tail()

    def counters(self, topic: str) -> Counters:
        """Return what Tidegate has counted up to now.

        Raises:
            StepFailed: /metrics does not answer.
        """
        try:
            with urllib.request.urlopen(f"http://{self.admin_address}/metrics", timeout=METRICS_TIMEOUT_S) as answer:
                return parse_counters(answer.read(METRICS_BYTES_MAX).decode(), topic)
        except (urllib.error.URLError, OSError) as error:
            raise StepFailed(f"Tidegate's /metrics does not answer: {error}\n{self.log_tail()}") from error


def bootstrap_address(log: str) -> str:
    """The address in the `ready:` line of Tidegate's log."""
    for line in log.splitlines():
        if line.startswith(_READY):
            return line.removeprefix(_READY).partition(",")[0]
    raise StepFailed("Tidegate said `ready:`, but not where")


def parse_counters(exposition: str, topic: str) -> Counters:
    """Prometheus' text format; a family without samples counts 0."""
    to_clients = Direction.UPSTREAM_TO_CLIENT.value
    return Counters(
        relayed_bytes=_sum(exposition, "tidegate_relayed_bytes_total", direction=to_clients),
        served_tier_bytes=_sum(exposition, "tidegate_served_tier_bytes_total"),
        remote_fetch_bytes=_sum(exposition, REMOTE_FETCH_BYTES_NAME, topic=topic),
    )


def _sum(exposition: str, name: str, **labels: str) -> int:
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
    )
