"""Tidegate before a test cluster, as a process of its own or in a thread of this one, and what it counted.

The fixture `tidegate` is a process for the whole run, before the shared broker, with `authority.max.age.ms=0`: every
tier read has its own probe, so answers are the broker's of that very moment. Tests that need other settings, or that
restart things, run their own with `own_tidegate`. `tidegate_in_thread` is the application without a process' start.
"""

import os
import signal
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from tests.support.program import tidegate_python
from tests.support.raw_client import RawClient, address_of
from tests.support.samples import sum_of
from tests.support.serving import before_kafka
from tidegate import serve as application
from tidegate.application import Application
from tidegate.config.load import load
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text
from tools.demo.tidegate_process import Tidegate

READY_S_MAX: Final = 240.0
"""Against hangs, not slowness."""


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
            program=(tidegate_python(), "-m", "tidegate"),
        )
        process.start()
        try:
            yield RunningTidegate(process, process.wait_ready(), Path(folder))
        finally:
            process.stop()


class TidegateInThread:
    """The whole application on a loop of its own, for clients that block."""

    def __init__(self, running: Application, token: trio.lowlevel.TrioToken, stopping: trio.Event) -> None:
        self._running = running
        self._token = token
        self._stopping = stopping

    @property
    def address(self) -> tuple[str, int]:
        return self._running.bootstrap

    @property
    def bootstrap_servers(self) -> str:
        host, port = self.address
        return f"{host}:{port}"

    def listener(self) -> tuple[str, int]:
        """That of the cluster's only broker, as a client that need not sign in gets it."""
        with RawClient(*self.address) as client:
            (broker,) = client.metadata([]).brokers
            return broker.host, broker.port

    def metric(self, sample_name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 without any."""
        # On its own loop, which changes what is summed up.
        return trio.from_thread.run_sync(
            sum_of, self._running.meters.registry, sample_name, labels, trio_token=self._token
        )

    def stop(self) -> None:
        trio.from_thread.run_sync(self._stopping.set, trio_token=self._token)


@contextmanager
def tidegate_in_thread(
    cluster: KafkaCluster, folder: Path, properties: Mapping[str, str] | None = None
) -> Iterator[TidegateInThread]:
    """A ready Tidegate before `cluster`; `properties` win over the usual ones.

    Args:
        folder: for its configuration; this Tidegate's alone.
    """
    file = folder / "tidegate.properties"
    file.write_text(properties_text({**before_kafka(cluster), **(properties or {})}), encoding="utf-8")
    started: Future[TidegateInThread] = Future()

    async def run() -> None:
        stopping = trio.Event()
        async with application.run(load(file, {})) as running:
            with trio.fail_after(READY_S_MAX):
                await running.readiness.wait_ready()
            started.set_result(TidegateInThread(running, trio.lowlevel.current_trio_token(), stopping))
            await stopping.wait()

    with ThreadPoolExecutor(1, "tidegate") as threads:
        ended = threads.submit(trio.run, run)
        either: list[Future[Any]] = [started, ended]
        wait(either, return_when=FIRST_COMPLETED)
        if ended.done():
            ended.result()
        tidegate = started.result()
        try:
            yield tidegate
        finally:
            if not ended.done():
                tidegate.stop()
            ended.result()
