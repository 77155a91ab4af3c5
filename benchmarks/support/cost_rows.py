"""The rows of cost.py: on which stage each is measured, and a Tidegate that is ready for it.

The client is a bare Fetch of two partitions, 1 MiB of each.

- `relay`, `relay-tls`: what the broker has in its page cache, without TLS and with it on both sides.
- `memory`: what is in the tier alone, all of it read before.
- `cold-http`, `cold-small` (batches of 6 KiB), `cold-https`: what is in the tier alone, by a Tidegate that has just
  started.
- `again-memory`, `again-disk`: the second read of four times the memory cache, the latter with a disk cache that holds
  it.
- `slow`: `cold-http` over connections of 10 MB/s whose answers begin 30 ms late; here MB/s are compared.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import cycle, islice
from pathlib import Path

from benchmarks.support.aiven_stage import ColdStage, ColdTopic, cold_stage
from benchmarks.support.bare_fetch import FetchStep, Transfer, learn_requests, read_for, read_steps
from benchmarks.support.bare_replica import Kept
from benchmarks.support.bare_store import THREADS
from benchmarks.support.cold_options import ColdOptions
from benchmarks.support.counts import ANSWER_BYTES, ANSWERS
from benchmarks.support.fresh_tidegate import fresh_tidegate
from benchmarks.support.shaped_store import slowed
from benchmarks.support.stage import JVM_OPTIONS, TIERED_CONFIGS, Address, fill_topic
from benchmarks.support.tier_fetch import read_partitions
from tests.support.certificates import server_certificate
from tests.support.needs import JARS
from tests.support.raw_client import address_of
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import HOST
from tools.demo.tidegate_process import PROGRAM, Tidegate


@dataclass(frozen=True, slots=True)
class Way:
    """A row's name, and its aim: core-seconds of the floor's at most, or MB/s of the floor's at least."""

    name: str
    aim: float
    counts: str = "core_s_per_gb"


RELAY_ROWS = {
    "relay": Way("relay", 1.0),
    "relay-tls": Way("relay, TLS on both sides", 1.3),
    "memory": Way("tier, from memory", 1.5),
}
COLD_ROWS = {
    "cold-http": Way("tier, cold, HTTP, batches of 64 KB", 1.5),
    "cold-small": Way("tier, cold, HTTP, batches of 6 KB", 2.0),
    "cold-https": Way("tier, cold, HTTPS, batches of 64 KB", 0.5),
    "again-memory": Way("tier, once more, four times the memory cache", 1.5),
    "again-disk": Way("tier, once more, the same with a disk cache", 1.5),
    "slow": Way("tier, cold, connections of 10 MB/s and 30 ms", 0.95, "megabytes_per_s"),
}
WAYS = {**RELAY_ROWS, **COLD_ROWS}
BARE_ROWS = {
    **dict.fromkeys(("cold-http", "cold-small", "cold-https"), Kept.MEMORY),
    "again-memory": Kept.NOWHERE,
    "again-disk": Kept.DISK,
}
LOCAL_CONFIGS = {"retention.ms": "-1", "segment.bytes": str(512 * 1024 * 1024)}
MIB = 1024 * 1024
SECONDS = 1.5
"""One side of one round, where the same data is read over and over."""
LARGE_KIB, SMALL_KIB = 64, 6
SLOW = "slow"
"""A way to the store by HTTP, as the others are named by their scheme."""
SLOW_LINK = {"first_byte_ms": 30, "connection_megabytes_per_s": 10}
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Side:
    """A Tidegate that is ready for a row. `read` reads one round of it, `read_answers` as much as is counted."""

    process: Tidegate
    read: Callable[[], Transfer]
    read_answers: Callable[[], Transfer]
    served_bytes_min: int = 0
    """It serves at least so many bytes of the tier in a reading."""
    answers: float = ANSWERS
    """The number of full answers that hold what `read_answers` reads."""
    peers: Sequence[int] = ()
    """Processes that it talks to, but for the client."""

    @property
    def pids(self) -> list[int]:
        """Return the processes that a reading needs: the client is this one."""
        return [os.getpid(), self.process.pid, *self.peers]


# --- read over and over ---


@dataclass(frozen=True)
class RelayStage:
    """A broker that also listens with TLS, and a topic in its page cache. `steps` read that topic."""

    cluster: KafkaCluster
    work: Path
    megabytes: int
    certificate: tuple[Path, Path]
    tls_port: int
    steps: Sequence[FetchStep]

    @property
    def plain(self) -> Address:
        """Return where the broker listens without TLS."""
        return address_of(self.cluster.bootstrap_servers)

    @cached_property
    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate[0]))

    @cached_property
    def tiered_ends(self) -> Mapping[int, int]:
        """Return the offsets up to which a topic "tiered" is in the tier alone, by partition."""
        configs = {**TIERED_CONFIGS, "segment.bytes": str(min(16, self.megabytes // 8) * MIB)}
        offsets = fill_topic(self.cluster, "tiered", self.megabytes, configs, is_tiered=True)
        return {partition: known.local_log_start_offset for partition, known in offsets.items()}

    @contextmanager
    def side(self, row: str, program: Sequence[str] = PROGRAM) -> Iterator[Side]:
        """Start a Tidegate that is ready for a row, and warm."""
        process = Tidegate(
            work=Path(tempfile.mkdtemp(prefix="tidegate-", dir=self.work)),
            server_properties=self.cluster.server_properties_path(1),
            bootstrap_servers=f"{HOST}:{self.tls_port}" if row == "relay-tls" else self.cluster.bootstrap_servers,
            properties=self._properties(row),
            program=program,
        )
        process.start()
        try:
            address, steps = address_of(process.wait_ready()), self.steps
            if row == "memory":
                steps = learn_requests(address, "tiered", self.tiered_ends)
            tls = self.trusting if row == "relay-tls" else None
            read = partial(read_steps, address, tls=tls)
            read(steps)
            # SECONDS as it is when it is read: a test makes it short.
            yield Side(
                process, lambda: read_for(address, steps, SECONDS, tls), lambda: read(islice(cycle(steps), ANSWERS))
            )
        finally:
            process.stop()

    def _properties(self, row: str) -> dict[str, str]:
        if row == "relay-tls":
            path, key = map(str, self.certificate)
            return {
                "upstream.security.protocol": "SSL",
                "upstream.ssl.ca.location": path,
                "proxy.tls.certificate.file": path,
                "proxy.tls.key.file": key,
            }
        cache_bytes = self.megabytes * 1_250_000
        return {"cache.memory.bytes": str(cache_bytes), "memory.max.bytes": str(cache_bytes + 2048 * MIB)}


@contextmanager
def relay_stage(megabytes: int) -> Iterator[RelayStage]:
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-cost-")))
        certificate = server_certificate(work)
        cluster, tls_port = stack.enter_context(tls_cluster(certificate))
        offsets = fill_topic(cluster, "local", megabytes, LOCAL_CONFIGS, is_tiered=False)
        ends = {number: each.high_watermark for number, each in offsets.items()}
        steps = learn_requests(address_of(cluster.bootstrap_servers), "local", ends)
        yield RelayStage(cluster, work, megabytes, certificate, tls_port, steps)


@contextmanager
def tls_cluster(certificate: tuple[Path, Path]) -> Iterator[tuple[KafkaCluster, int]]:
    """A broker at full speed, that also listens with TLS; and where."""
    path, key = certificate
    keystore = path.with_name("keystore.pem")
    keystore.write_bytes(key.read_bytes() + path.read_bytes())
    cluster = KafkaCluster(jars=JARS, work=path.parent, jvm_options=JVM_OPTIONS)
    ports = {"PLAINTEXT": cluster.broker(1).port, "SSL": free_port()}
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    cluster.change_properties(
        {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{cluster.plan.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
        }
    )
    with cluster:
        yield cluster, ports["SSL"]


# --- read by a Tidegate that has just started ---


@contextmanager
def cold_rows_stage(rows: Sequence[str], megabytes: int) -> Iterator[ColdStage]:
    """Fill what the cold ones among these rows need."""
    sizes = {SMALL_KIB if row == "cold-small" else LARGE_KIB for row in rows if row in COLD_ROWS}
    wanted = ColdOptions(
        schemes=("http", "https") if "cold-https" in rows else ("http",),
        batch_kib=tuple(sorted(sizes)),
        partitions=(PARTITIONS,),
        megabytes=megabytes,
        segment_mib=min(64, megabytes // 8),
        connection_megabytes_per_s=0,
    )
    with cold_stage(wanted) as stage, ExitStack() as stack:
        if SLOW in rows:
            way = stack.enter_context(slowed(stage.work, stage.store.ways["http"], **SLOW_LINK))
            stage = replace(stage, store=replace(stage.store, ways={**stage.store.ways, SLOW: way}))
        yield stage


def scheme_of(row: str) -> str:
    """Return by which way a cold row reads the store."""
    return {"cold-https": "https", SLOW: SLOW}.get(row, "http")


def topic_of(stage: ColdStage, row: str) -> ColdTopic:
    return stage.topics[SMALL_KIB if row == "cold-small" else LARGE_KIB]


@contextmanager
def cold_side(stage: ColdStage, row: str, program: Sequence[str] = PROGRAM) -> Iterator[Side]:
    """Start a Tidegate that is ready for a row, and has read the tier once where the row reads it again. It is good for
    one reading."""
    topic = topic_of(stage, row)
    log_bytes, ends = topic.log_bytes(PARTITIONS), topic.ends(PARTITIONS)
    with tempfile.TemporaryDirectory(dir=stage.work) as folder:
        keys = {"cache.memory.bytes": str(log_bytes // 4)} if row.startswith("again") else {}
        if row == SLOW:
            keys["tier.concurrent.gets.max"] = str(THREADS)
        if row == "again-disk":
            keys |= {"cache.path": folder, "cache.disk.bytes": str(log_bytes * 2)}
        with fresh_tidegate(stage, "plain", scheme_of(row), keys, program) as fresh:
            read = partial(read_partitions, fresh.address, topic.name, ends)
            if row.startswith("again"):
                read()
            way = stage.store.ways[scheme_of(row)]
            peers = [stage.cluster.broker(1).pid, way.server_pid, *([way.link_pid] if way.link_pid else [])]
            yield Side(fresh.process, read, read, log_bytes, log_bytes / ANSWER_BYTES, peers)
