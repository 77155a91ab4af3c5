"""A real KRaft Kafka with remote storage on, from Maven's jars, on loopback ports that are free at run time.

    with KafkaCluster(jars=..., work=...) as cluster:
        cluster.bootstrap_servers

Synchronous: async callers use a thread. Brokers are numbered from 1. One broker alone is its own controller; with
`separate_controller` (the default from two brokers on) a node of its own holds the quorum, so that any broker may
stop, leave, join or come back on another port. LocalTieredStorage is the tier, shared by all brokers in `tier_dir`.

With `sasl_plain_users` (name -> password) every broker has a second listener, SASL_PLAINTEXT (PLAIN, and SCRAM for
users that are made later), under StandardAuthorizer: the user `admin` and clients of the plaintext listener are
super users, everyone else needs ACLs.
"""

import os
import random
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tools.demo import kafka_admin
from tools.demo.kafka_admin import PartitionOffsets
from tools.demo.kafka_format import format_log_folder, random_uuid
from tools.demo.kafka_metrics import BrokerMetrics
from tools.demo.kafka_process import JavaProcess, KafkaClusterError
from tools.demo.kafka_properties import HOST, ClusterPlan, NodePlan, properties_text, server_properties

__all__ = ["FAST_START_JVM_OPTIONS", "Broker", "KafkaCluster", "KafkaClusterError", "PartitionOffsets"]

FAST_START_JVM_OPTIONS: Final = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Ready in three seconds instead of six, at the cost of top speed: benchmarks pass their own."""

CONTROLLER_ID: Final = 100
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
"""A broker gives up after 30 s what it waits for, and then ends in order."""
_STARTED_LINE: Final = "Kafka Server started"
_LOG_OPTIONS: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showShortLogName=true",
    # Each config class prints hundreds of lines of its values.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
)


class KafkaCluster:
    """A context manager; `start` and `close` for those who cannot use one.

    Args:
        jars: the folder that `make setup` fills.
        work: an existing or new folder for properties, logs, data and the tier; the caller removes it.
        properties: server.properties entries that win over ours, on every node.
    """

    def __init__(
        self,
        *,
        jars: Path,
        work: Path,
        brokers: int = 1,
        separate_controller: bool | None = None,
        sasl_plain_users: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = FAST_START_JVM_OPTIONS,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"at least one broker, not {brokers}")
        java = shutil.which("java")
        if java is None:
            raise KafkaClusterError("no java on the PATH: install Java 17 or 21")
        if not any(jars.glob("kafka_2.13-*.jar")):
            raise KafkaClusterError(f"no Kafka jars in {jars}: run `make setup`")
        self.java: Final = java
        self.work: Final = work
        self.jars: Final = jars
        self.tier_dir: Final = work / "tier"
        self.cluster_id: Final = random_uuid()
        self._launcher = (java, *jvm_options, *_archive_options(jars), *_LOG_OPTIONS, "-cp", f"{jars}/*")
        separate = brokers > 1 if separate_controller is None else separate_controller
        self.plan = ClusterPlan(
            controller_id=CONTROLLER_ID if separate else 1,
            controller_port=free_port(),
            replication_factor=min(brokers, 2),
            tier_dir=self.tier_dir,
            sasl_plain_users=dict(sasl_plain_users or {}),
            properties=dict(properties or {}),
        )
        self._controller = Broker(self, CONTROLLER_ID, is_broker=False) if separate else None
        self._brokers = [Broker(self, node_id) for node_id in range(1, brokers + 1)]

    @property
    def brokers(self) -> tuple["Broker", ...]:
        return tuple(self._brokers)

    @property
    def controller(self) -> "Broker":
        """The node that is a controller and nothing else."""
        assert self._controller is not None, "the one broker is its own controller"
        return self._controller

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{broker.port}" for broker in self._brokers)

    @property
    def sasl_bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{broker.sasl_port}" for broker in self._brokers)

    def broker(self, node_id: int) -> "Broker":
        return self._brokers[node_id - 1]

    def server_properties_path(self, node_id: int) -> Path:
        return self.broker(node_id).server_properties_path

    def start(self) -> None:
        """Start every node and wait until all are ready.

        Raises:
            KafkaClusterError: one did not start; none is left running.
        """
        try:
            nodes = [*([self._controller] if self._controller else []), *self._brokers]
            for node in nodes:
                node.launch()
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def change_properties(self, properties: Mapping[str, str]) -> None:
        """Other server.properties entries, beside those that were given before; each node has them from its next start
        on."""
        self.plan = replace(self.plan, properties={**self.plan.properties, **properties})

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Block until every broker that was launched serves clients and knows the others."""
        running = [broker for broker in self._brokers if broker.is_running]
        for broker in running:
            broker.wait_ready(timeout_s)
        if len(running) > 1:
            kafka_admin.wait_all_named([broker.address for broker in running], timeout_s)

    def close(self) -> None:
        """Kill every node. Nothing is written in order: the work folder is not meant to be used again."""
        for node in [*self._brokers, *([self._controller] if self._controller else [])]:
            node.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add_broker(self) -> "Broker":
        """Start one more broker, and return when it serves clients."""
        broker = Broker(self, len(self._brokers) + 1)
        self._brokers.append(broker)
        broker.start()
        return broker

    def restart_broker(self, node_id: int, *, new_port: bool = False) -> "Broker":
        """Stop a broker in order and start it again, if asked for on other ports."""
        broker = self.broker(node_id)
        broker.stop()
        if new_port:
            broker.choose_ports()
        broker.start()
        return broker

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> None:
        """Create a topic and wait until it has leaders."""
        factor = self.plan.replication_factor if replication_factor is None else replication_factor
        kafka_admin.create_topic(self.bootstrap_servers, name, partitions, factor, configs or {})

    def partition_offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """The frontier of each partition of topic as its leader says it."""
        return kafka_admin.partition_offsets(self.bootstrap_servers, topic)

    def wait_tiered(
        self,
        topic: str,
        *,
        until: Callable[[PartitionOffsets], bool] = kafka_admin.has_left_local_log,
        timeout_s: float = 90.0,
        progress: Callable[[Mapping[int, PartitionOffsets]], None] | None = None,
    ) -> dict[int, PartitionOffsets]:
        """Block until `until` holds for every partition; by default: until some offsets are only in the tier."""
        return kafka_admin.wait_tiered(self.bootstrap_servers, topic, until, timeout_s, progress)

    def java_command(self, main_class: str, *arguments: str) -> tuple[str, ...]:
        """The command that runs a main class of the jars."""
        return (*self._launcher, main_class, *arguments)


class Broker:
    """One node of a cluster, running or not. Its id, folders and (unless asked) ports outlive its process."""

    def __init__(self, cluster: KafkaCluster, node_id: int, *, is_broker: bool = True) -> None:
        self._cluster = cluster
        self._is_broker = is_broker
        self._process: JavaProcess | None = None
        self._metrics: BrokerMetrics | None = None
        self.node_id: Final = node_id
        self.directory: Final = cluster.work / f"node-{node_id}"
        self.server_properties_path: Final = self.directory / "server.properties"
        self.log_path: Final = self.directory / "node.log"
        self.data_dir: Final = self.directory / "data"
        self.port = 0
        self.sasl_port = 0
        self.choose_ports()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int:
        return self._running().pid

    def choose_ports(self) -> None:
        """Take other free ports; they hold from the next start on."""
        self.port, self.sasl_port = free_port(), free_port()

    def start(self) -> None:
        """Start, and return when it serves clients.

        Raises:
            KafkaClusterError: it did not; with the last lines of its log.
        """
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start without waiting. A node that runs already is a caller's bug."""
        if self.is_running:
            raise KafkaClusterError(f"node {self.node_id} runs already")
        self.kill()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._cluster.tier_dir.mkdir(parents=True, exist_ok=True)
        self.server_properties_path.write_text(self._properties_text(), encoding="utf-8")
        if not (self.data_dir / "meta.properties").exists():
            format_log_folder(self.data_dir, self._cluster.cluster_id, self.node_id)
        command = self._cluster.java_command("kafka.Kafka", str(self.server_properties_path))
        self._process = JavaProcess(f"Kafka node {self.node_id}", command, self.log_path)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        process = self._running()
        try:
            process.wait_for_log(_STARTED_LINE, timeout_s)
        except KafkaClusterError:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop in order: leadership moves away first, where there is another replica."""
        self._close_metrics()
        if self._process is not None:
            self._process.stop(STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """Stop as a power failure would."""
        self._close_metrics()
        if self._process is not None:
            self._process.kill()
            self._process = None

    def remote_fetch_requests(self, topic: str | None = None) -> int:
        """Return how often this broker has read from the tier since it started, by its own
        RemoteFetchRequestsPerSec."""
        return self.broker_topic_count("RemoteFetchRequestsPerSec", topic)

    def broker_topic_count(self, name: str, topic: str | None = None) -> int:
        """The count of any other meter of BrokerTopicMetrics, e.g. BytesOutPerSec."""
        if self._metrics is None:
            self._metrics = BrokerMetrics(self._cluster.java, self.pid)
        return self._metrics.broker_topic_count(name, topic)

    def _properties_text(self) -> str:
        node = NodePlan(
            node_id=self.node_id,
            data_dir=self.data_dir,
            plaintext_port=self.port if self._is_broker else None,
            sasl_port=self.sasl_port if self._is_broker and self._cluster.plan.sasl_plain_users else None,
        )
        return properties_text(server_properties(self._cluster.plan, node))

    def _running(self) -> JavaProcess:
        if self._process is None:
            raise KafkaClusterError(f"node {self.node_id} is not running")
        return self._process

    def _close_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None


def class_archive(jars: Path) -> Path:
    """Return where `tools.demo.kafka_classes` leaves the classes of these jars."""
    return jars.with_name("classes.jsa")


def _archive_options(jars: Path) -> tuple[str, ...]:
    """Without a word when the archive is of another JVM or of other jars: it only saves time."""
    archive = class_archive(jars)
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off") if archive.exists() else ()


def free_port() -> int:
    """A free TCP port of 127.0.0.1 that no other call gives, in this process or another, as long as this one runs.

    Below every system's range for outgoing connections (Linux begins at 32768, macOS at 49152): a port of that range
    may be some client's own before the broker has bound it, most of all while the broker restarts.
    """
    for _ in range(1000):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket(type=socket.SOCK_DGRAM) as claim, socket.socket() as probe:
            if os.name == "posix":  # a port in TIME_WAIT is free for a server, as Java too asks for it
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # UDP's port of the same number means nothing to Kafka, so the process that has bound it has the claim.
                claim.bind((HOST, port))
                probe.bind((HOST, port))
            except OSError:
                continue
            # Nobody closes it any more but the end of this process.
            claim.detach()
            return port
    raise KafkaClusterError(f"no free port found on {HOST}")
