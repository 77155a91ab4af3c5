"""A Tidegate of little memory with an honest consumer beside, and what must be true while others misbehave.

    with hostile_stage(kafka, honest_topic) as stage:
        with stuck_readers(stage.leader, frame, 12):
            stage.suffer(seconds=3)
        stage.recover()
        stage.check()

`suffer` measures while the attack goes on, `recover` waits until no client is there and everything has been given back,
and `check` tells
everything that was not as it must be at once: the digest, the longest wait for bytes, resident memory.

A wait is judged by the larger of 0.5 s and five times what the same consumer waits at worst without attackers, before
and after: on a busy machine that is more than a sleepy one needs, and it is nowhere near a starved consumer's.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.honest_consumer import HonestConsumer, Measured, read_once
from tests.support.kafka import Record, fresh_name, tiered_topic
from tests.support.raw_client import FetchTarget, RawClient
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster

MIB = 1024 * 1024
MEMORY_MAX_BYTES = 192 * MIB
"""The least that Tidegate takes."""
RESIDENT_BYTES_MAX = MEMORY_MAX_BYTES + 150 * MIB
CACHE_BYTES = 8 * MIB
"""Less than the honest consumer reads: it must get bytes, and room for them, all the time."""

WORST_S_MAX = 3.0 if os.environ.get("PYTEST_XDIST_WORKER") else 0.5
"""Half a second, where nothing else runs (`-n 0`). Beside other tests a second may be the machine's;
what this is to find, one client that keeps the others from theirs, lasts until somebody goes."""
TIMES_QUIET = 5
QUIET_S = 1.0
GIVEN_BACK_S = 20.0
LISTENS = "0A"
"""A listener's state in /proc/net/tcp."""
TASKS_SLACK = 4
"""The page that shows the number is itself answered by tasks."""

GAUGES = (
    "tidegate_connections_active",
    "tidegate_inflight_bytes",
    "tidegate_held_bytes",
    "tidegate_fetch_sessions",
    "tidegate_gets_in_flight",
    "tidegate_gets_queued",
    "tidegate_readahead_streams",
    "tidegate_tasks",
)
"""What clients hold, and give back when they go."""


@dataclass(frozen=True, slots=True)
class HonestTopic:
    """A topic that nobody adds to, mostly in the tier, and the digest of its bytes at the broker."""

    name: str
    ends: Mapping[int, int]
    digest: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a Tidegate holds at one moment."""

    gauges: Mapping[str, float]
    descriptors: int

    @classmethod
    def of(cls, tidegate: RunningTidegate) -> Self:
        # By hand, since it is looked at again and again: prometheus-client's parser costs as much as the page.
        found = dict[str, float]()
        for line in tidegate.page("/metrics").splitlines():
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            if name in GAUGES:
                found[name] = found.get(name, 0.0) + float(value)
        return cls(found, len(os.listdir(f"/proc/{tidegate.process.pid}/fd")))

    def beyond(self, other: "Held") -> dict[str, tuple[float, float]]:
        """Return what it has more than the other, and the other's."""
        slack = {"tidegate_tasks": TASKS_SLACK}
        more = {
            name: (value, other.gauges[name])
            for name, value in self.gauges.items()
            if value > other.gauges[name] + slack.get(name, 0)
        }
        if self.descriptors > other.descriptors:
            more["descriptors"] = self.descriptors, other.descriptors
        return more


@dataclass(slots=True)
class HostileStage:
    """The running pair and what has been seen; `leader` is where clients read what the first broker leads."""

    tidegate: RunningTidegate
    honest: HonestConsumer
    topic: HonestTopic
    leader: tuple[str, int]
    before: Held
    quiet: Measured
    suffered: list[Measured] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    resident_bytes_max: int = RESIDENT_BYTES_MAX

    def suffer(self, seconds: float) -> None:
        """Measure the honest consumer now, while others misbehave."""
        self.suffered.append(self.honest.measure(seconds))

    def begin_again(self) -> None:
        """For another test on the same pair: nothing has been seen yet. The highest memory is that of all of them."""
        self.suffered, self.complaints = [], []
        self.quiet = self.honest.measure(QUIET_S)
        self.note_what_is_held()

    def note_what_is_held(self) -> None:
        """Note what is held now, without clients: that is to be left in the end."""
        self.honest.pause()
        self.before = settled(self.tidegate)
        self.honest.go_on()

    def recover(self) -> None:
        """Wait until what the attackers held has been given back; the consumer is away for as long, and goes on."""
        self.honest.pause()
        try:
            wait_until(
                lambda: not Held.of(self.tidegate).beyond(self.before), "everything given back", timeout_s=GIVEN_BACK_S
            )
        except AssertionError:
            self.complaints.append(f"not given back (now, before): {Held.of(self.tidegate).beyond(self.before)}")
        self.honest.go_on()

    def check(self) -> None:
        """Everything that must be true.

        Raises:
            AssertionError: it is not; with all that is wrong.
        """
        after = self.honest.measure(QUIET_S)
        bar_s = max(WORST_S_MAX, TIMES_QUIET * max(self.quiet.worst_s, after.worst_s))
        peak = peak_resident_bytes(self.tidegate)
        worst_s = max(each.worst_s for each in self.suffered)
        print(
            f"worst wait {worst_s:.3f} s (quiet {self.quiet.worst_s:.3f} s, after {after.worst_s:.3f} s), "
            f"{sum(each.answers for each in self.suffered)} answers, peak {peak / MIB:.0f} MiB"
        )
        if worst_s >= bar_s:
            self.complaints.append(f"the honest consumer waited {worst_s:.2f} s, at most {bar_s:.2f} s")
        for each in (*self.suffered, after):
            if each.digests - {self.topic.digest}:
                self.complaints.append("the honest consumer got other bytes than the broker's")
            if each.reconnects or each.errors:
                self.complaints.append(f"the honest consumer: {each.reconnects} reconnects, errors {each.errors}")
        if not after.digests:
            self.complaints.append("the honest consumer gets nothing although the others have gone")
        if peak >= self.resident_bytes_max:
            self.complaints.append(f"peak {peak / MIB:.0f} MiB, below {self.resident_bytes_max / MIB:.0f} MiB wanted")
        assert not self.complaints, "\n".join(self.complaints)

    def counter(self, name: str, **labels: str) -> float:
        return self.tidegate.metric(name, **labels)


@contextmanager
def hostile_stage(
    kafka: KafkaCluster,
    topic: HonestTopic,
    properties: Mapping[str, str] | None = None,
    *,
    user: str | None = None,
    password: str = "",
    bootstrap_servers: str | None = None,
) -> Iterator[HostileStage]:
    """Start both; the consumer has read the topic, and is away, when what is held without clients is noted."""
    budgets = {"memory.max.bytes": str(MEMORY_MAX_BYTES), "cache.memory.bytes": str(CACHE_BYTES)}
    settings = {**budgets, **(properties or {})}
    with own_tidegate(kafka, settings, bootstrap_servers=bootstrap_servers) as tidegate:
        with RawClient(*tidegate.address) as client:
            if user is not None:
                assert client.sasl_plain(user, password) == 0
            (broker, *_) = sorted(client.metadata([topic.name]).brokers, key=lambda each: int(each.node_id))
        with HonestConsumer(tidegate.address, topic.name, topic.ends, user=user, password=password) as honest:
            honest.measure(0, rounds=2)
            quiet = honest.measure(QUIET_S)
            honest.pause()
            before = settled(tidegate)
            honest.go_on()
            yield HostileStage(tidegate, honest, topic, (broker.host, broker.port), before, quiet)


def settled(tidegate: RunningTidegate) -> Held:
    """Return what is held once nobody's GET is under way any more."""

    def look() -> Held | None:
        held = Held.of(tidegate)
        return None if held.gauges["tidegate_gets_in_flight"] or held.gauges["tidegate_inflight_bytes"] else held

    found = wait_until(look, "nothing is under way")
    assert found is not None
    return found


def make_honest_topic(kafka: KafkaCluster, *, partitions: int = 2, mebibytes: int = 24) -> HonestTopic:
    """Half-mebibyte batches of bytes that differ, in segments of 4 MiB."""
    name = fresh_name("honest")
    records = blobs(mebibytes, partitions)
    made = tiered_topic(
        kafka, name, partitions=partitions, records=records, configs={"segment.bytes": str(4 * MIB)}, **BATCHES
    )
    ends = {partition: known.high_watermark for partition, known in made.offsets.items()}
    return honest_topic_of(kafka.broker(1).port, name, ends)


def honest_topic_of(port: int, name: str, ends: Mapping[int, int]) -> HonestTopic:
    return HonestTopic(name, ends, read_once(("127.0.0.1", port), name, ends))


BLOB_BYTES = 32 * 1024
BATCHES: Mapping[str, int] = {"batch_size": 512 * 1024}


def blobs(mebibytes: int, partitions: int) -> Iterator[Record]:
    """Records of 32 KiB, each with a number of its own, dealt out to the partitions in turn."""
    for number in range(mebibytes * MIB // BLOB_BYTES):
        head = f"{number:016d}".encode()
        yield Record(number % partitions, head, head * ((BLOB_BYTES - 200) // len(head)))


@dataclass(frozen=True, slots=True)
class LargeTopic:
    """One partition, with so large a segment in the tier that 50 MiB can be asked of it at once."""

    name: str
    topic_id: bytes
    log: Path
    """The first segment's file in the tier: what every reader from offset 0 must get."""

    def target(self, size: int = 50 * MIB, offset: int = 0) -> FetchTarget:
        return self.name, self.topic_id, 0, offset, size


def make_large_topic(kafka: KafkaCluster) -> LargeTopic:
    """One segment of 64 MiB in the tier, and a bit behind it in the broker."""
    name = fresh_name("large")
    tiered_topic(kafka, name, records=blobs(68, 1), configs={"segment.bytes": str(64 * MIB)}, **BATCHES)
    with RawClient("127.0.0.1", kafka.broker(1).port) as client:
        topic_id = client.topic_id(name)
    log = min(kafka.tier_dir.glob(f"kafka-tiered-storage/{name}-*/*.log"), key=lambda path: path.name)
    return LargeTopic(name, topic_id, log)


def resident_bytes(tidegate: RunningTidegate) -> int:
    """Return what the process has resident, as Linux says it."""
    return _status_bytes(tidegate, "VmRSS")


def peak_resident_bytes(tidegate: RunningTidegate) -> int:
    """The most that the process had resident since it started."""
    return _status_bytes(tidegate, "VmHWM")


def connections_to(tidegate: RunningTidegate, port: int) -> int:
    """Return how many of the process's connections go to that port of this machine."""
    return sum(count for name, count in descriptors(tidegate).items() if name.endswith(f"to :{port}"))


def descriptors(tidegate: RunningTidegate) -> Counter[str]:
    """Return what the process has open: connections by their ports (of listeners, the port alone), files by their
    names."""
    process = Path(f"/proc/{tidegate.process.pid}")
    rows = [line.split() for line in (process / "net" / "tcp").read_text().splitlines()[1:]]
    ports = {row[9]: (int(row[1].rpartition(":")[2], 16), int(row[2].rpartition(":")[2], 16)) for row in rows}
    listening = {local for local, remote in ports.values() if not remote}
    found = Counter[str]()
    for descriptor in (process / "fd").iterdir():
        # One may be closed while we look.
        with suppress(FileNotFoundError):
            name = os.readlink(descriptor)
            local, remote = ports.get(name.removeprefix("socket:[").removesuffix("]"), (0, 0))
            if remote:
                name = f"socket at :{local}" if local in listening else f"socket to :{remote}"
            elif local:
                name = f"listener :{local}"
            found[name.partition(":[")[0]] += 1
    return found


def unread_bytes(tidegate: RunningTidegate) -> int:
    """Bytes that have come for the process, by all of its connections, and that it has not read."""
    process = Path(f"/proc/{tidegate.process.pid}")
    own = set[str]()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):
            own.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in (process / "net" / "tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].rpartition(":")[2], 16) for row in rows if row[9] in own and row[3] != LISTENS)


def _status_bytes(tidegate: RunningTidegate, name: str) -> int:
    status = Path(f"/proc/{tidegate.process.pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
