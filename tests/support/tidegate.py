"""Tidegate as a process of its own before a test cluster, and what it counted.

The fixture `tidegate` is one for the whole run, before the shared broker, with `authority.max.age.ms=0`: every tier
read has its own probe, so answers are the broker's of that very moment. Tests that need other settings, or that
restart things, run their own with `own_tidegate`.
"""

import os
import signal
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.raw_client import address_of
from tests.support.samples import sum_of
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.tidegate_process import Tidegate


@dataclass(frozen=True, slots=True)
class RunningTidegate:
    """A ready Tidegate."""

    process: Tidegate
    bootstrap_servers: str
    work: Path

    @property
    def address(self) -> tuple[str, int]:
        return address_of(self.bootstrap_servers)

    def page(self, path: str) -> str:
        """A page of the admin listener."""
        with urllib.request.urlopen(f"http://{self.process.admin_address}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def metric(self, sample_name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 without any."""
        return sum_of(self.page("/metrics"), sample_name, labels)

    def kill(self) -> None:
        """End it as a power failure would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.stop()

    def start_again(self) -> None:
        """Start with the same folder and configuration, whose ports must be named, and return when it is ready."""
        self.process.start()
        self.process.wait_ready()

    def log(self) -> str:
        return self.process.log_path.read_text("utf-8", "replace")


@contextmanager
def own_tidegate(
    cluster: KafkaCluster, properties: Mapping[str, str] | None = None, *, bootstrap_servers: str | None = None
) -> Iterator[RunningTidegate]:
    """A Tidegate before `cluster`; `properties` win over the usual ones."""
    with tempfile.TemporaryDirectory(prefix="tidegate-test-") as folder:
        process = Tidegate(
            work=Path(folder),
            server_properties=cluster.server_properties_path(1),
            bootstrap_servers=bootstrap_servers or cluster.bootstrap_servers,
            properties=properties,
        )
        process.start()
        try:
            yield RunningTidegate(process, process.wait_ready(), Path(folder))
        finally:
            process.stop()
