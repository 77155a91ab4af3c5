"""A crowd for ten minutes: 2,000 clients signed in by SCRAM, and nobody is closed.

    python -m tests.hostile.soak --clients 2000 [--seconds 600]

Half of them are idle. A quarter reads records that the broker still has, which are relayed, and a quarter the tier; of
both a fifth stalls: it asks for 4 MiB, takes nothing for a minute, then takes all of it and begins again. All others
together send no more than FETCHES_PER_S, so that two cores suffice for broker, Tidegate and crowd.

Tidegate has as little memory as it takes. It prints a line now and then and a summary, and gives what was not as it
must be: a client that was closed; other bytes than the broker's own; a kind of client that got nothing; resident memory
or one of Tidegate's own figures beyond its part of `memory.max.bytes`; a traceback. It takes two open files a client,
and the crowd one: the limit is raised as far as it goes, and too low a one is named at once.
"""

import random
import resource
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial

import trio

from protocol.client.sasl import SaslCredentials
from protocol.wire.errors import ErrorCode
from tests.support.crowd_clients import ClosedError, CrowdClient, KnownLog, WrongBytesError
from tests.support.hostile_stage import (
    CACHE_BYTES,
    MEMORY_MAX_BYTES,
    MIB,
    RESIDENT_BYTES_MAX,
    blobs,
    peak_resident_bytes,
    resident_bytes,
)
from tests.support.kafka import fresh_name, produce, tiered_topic
from tests.support.raw_client import RawClient
from tests.support.samples import sum_of
from tests.support.secured_kafka import DESCRIBE, HOST, READ, SecuredKafka, password, secured_kafka
from tests.support.tidegate import RunningTidegate, own_tidegate

CLIENTS, CLIENTS_MIN, SECONDS = 2_000, 20, 600.0
MECHANISM, PROTOCOL, USER = "SCRAM-SHA-256", "SASL_PLAINTEXT", "reader"
TIER_MIB, LOCAL_MIB, PARTITIONS = 24, 32, 2
BATCH_BYTES = 64 * 1024
READ_BYTES, STALLED_BYTES = 128 * 1024, 4 * MIB
MAX_WAIT_MS = 500
FETCHES_PER_S = 150.0
STALLED_SHARE = 5
"""One in so many of those that read."""
STALL_S_MAX = 60.0
STALL_SHARE = 1 / 4
"""Share of the run for which a client takes nothing, at most STALL_S_MAX."""
IDLE_S_MAX = 240.0
"""Between two questions of an idle client: a broker ends connections that are silent for ten minutes."""
RECEIVE_BUFFER_BYTES = 8 * 1024
SIGNING_IN, SIGNED_IN_PER_S_MIN = 32, 10
"""At once, and on the slowest machine."""
TAKING = 8
"""Stalled clients that take their answer at once: each holds 4 MiB."""
SAMPLE_S, REPORT_S = 1.0, 30.0
REPORTS_MIN = 3
LAST_S = 120.0
"""For the last answers, when the time is over."""
FILES_SPARE = 1_000
SEED = 7

IDLE, RELAYING, READING = "idle", "relaying", "reading the tier"
STALLED_RELAYING, STALLED_READING = "stalled at the broker's records", "stalled at the tier's"
STALLED = (STALLED_RELAYING, STALLED_READING)

LIMITS = {
    "tidegate_held_bytes": MEMORY_MAX_BYTES // 24,
    "tidegate_inflight_bytes": MEMORY_MAX_BYTES // 3,
    "tidegate_readahead_unread_bytes": MEMORY_MAX_BYTES // 3,
    "tidegate_cache_resident_bytes": CACHE_BYTES + MEMORY_MAX_BYTES // 3,
}
"""Tidegate's own figures, and their parts of `memory.max.bytes` (docs/configuration.md). The cache has
what was read, and what is read ahead."""


def roles(clients: int) -> list[str]:
    """Return what each of so many clients is: half idle, a quarter each of the two kinds of readers."""
    readers = clients // 4
    stalled = max(1, readers // STALLED_SHARE)
    kinds = ((RELAYING, STALLED_RELAYING), (READING, STALLED_READING))
    found = [role for kind, stuck in kinds for role in (*[stuck] * stalled, *[kind] * (readers - stalled))]
    return [*found, *[IDLE] * (clients - len(found))]


class Pace:
    """Turns that come evenly, in the order in which they are asked for."""

    def __init__(self, turns_per_s: float) -> None:
        self._interval_s = 1 / turns_per_s
        self._next_s = 0.0

    async def turn(self) -> None:
        now_s = trio.current_time()
        self._next_s = max(now_s, self._next_s + self._interval_s)
        await trio.sleep_until(self._next_s)


@dataclass(slots=True)
class Crowd:
    """What runs, and what was seen of it."""

    seconds: float
    clients: int
    tidegate: RunningTidegate
    address: tuple[str, int]
    tier: Sequence[KnownLog]
    local: Sequence[KnownLog]
    say: Callable[[str], None]
    is_over: trio.Event = field(default_factory=trio.Event)
    signed_in: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """With records, and of idle clients all, by role."""
    empty: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    peaks: Counter[str] = field(default_factory=Counter)
    """The most of each of LIMITS that was seen."""
    resident: list[int] = field(default_factory=list)

    async def run(self) -> None:
        """All of it; `complaints` are complete behind it."""
        limiter = trio.CapacityLimiter(SIGNING_IN)
        async with trio.open_nursery() as nursery:
            for number, role in enumerate(roles(self.clients)):
                nursery.start_soon(self._client, role, random.Random(SEED + number), limiter)
            with trio.fail_after(self.clients / SIGNED_IN_PER_S_MIN + LAST_S):
                await self._all_came.wait()
            self.say(f"{self.signed_in} clients signed in, {resident_bytes(self.tidegate) / MIB:.0f} MiB")
            await self._watch()
            self.is_over.set()
            nursery.cancel_scope.deadline = trio.current_time() + LAST_S
        if nursery.cancel_scope.cancelled_caught:
            self.complaints.append(f"somebody was not answered within {LAST_S:g} s of the end")
        self._judge()

    _all_came: trio.Event = field(default_factory=trio.Event)
    _came: int = 0
    """Signed in, or refused."""
    _pace: Pace = field(default_factory=lambda: Pace(FETCHES_PER_S))
    _taking: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(TAKING))
    _reported: int = 0

    async def _client(self, role: str, chosen: random.Random, limiter: trio.CapacityLimiter) -> None:
        opening = CrowdClient.signed_in(
            self.address,
            SaslCredentials(MECHANISM, USER, password(USER)),
            limiter=limiter,
            receive_buffer_bytes=RECEIVE_BUFFER_BYTES if role in STALLED else None,
        )
        try:
            async with AsyncExitStack() as stack:
                try:
                    client = await stack.enter_async_context(opening)
                    self.signed_in += 1
                finally:
                    self._came += 1
                    if self._came == self.clients:
                        self._all_came.set()
                await self._all_came.wait()
                await self._act(role, client, chosen)
                await client.question()
        except ClosedError as error:
            self._note(self.closed, role, f"was closed: {error}")
        except WrongBytesError as error:
            self._note(self.wrong, role, f"got {error}")

    def _note(self, counts: Counter[str], role: str, words: str) -> None:
        """Count it, and complain about the first of a role."""
        counts[role] += 1
        if counts[role] == 1:
            self.complaints.append(f"a client that is {role} {words}")

    async def _act(self, role: str, client: CrowdClient, chosen: random.Random) -> None:
        logs = self.tier if role in (READING, STALLED_READING) else self.local
        known = chosen.choice(logs)
        number = chosen.randrange(len(known.batches) - 1)
        while not self.is_over.is_set():
            if role == IDLE:
                await self._wait(chosen.uniform(0.5, 1) * min(IDLE_S_MAX, self.seconds))
                await client.question()
                self.answers[role] += 1
                continue
            await self._pace.turn()
            if role in (RELAYING, READING):
                await client.send_fetch(known, number, READ_BYTES, MAX_WAIT_MS)
                number = await self._take(role, client, known, number)
            else:
                await client.send_fetch(known, number, STALLED_BYTES, MAX_WAIT_MS)
                await self._wait(min(STALL_S_MAX, STALL_SHARE * self.seconds))
                async with self._taking:
                    number = await self._take(role, client, known, number)

    async def _take(self, role: str, client: CrowdClient, known: KnownLog, number: int) -> int:
        """Take an answer and return the number of the batch that is next."""
        error_code, records = await client.take_fetched(known)
        if error_code not in (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE):
            raise WrongBytesError(f"error code {error_code}")
        self.read_bytes += len(records)
        (self.answers if records else self.empty)[role] += 1
        return known.follows(number, records)

    async def _wait(self, seconds: float) -> None:
        """Wait for so long, or until the time is over."""
        with trio.move_on_after(seconds):
            await self.is_over.wait()

    async def _watch(self) -> None:
        """Look at Tidegate's memory each second until the time is over."""
        begun_s = trio.current_time()
        report_s = min(REPORT_S, self.seconds / REPORTS_MIN)
        while (passed_s := trio.current_time() - begun_s) < self.seconds:
            await trio.sleep(SAMPLE_S)
            self.resident.append(resident_bytes(self.tidegate))
            page = await trio.to_thread.run_sync(self.tidegate.page, "/metrics")
            for name in LIMITS:
                self.peaks[name] = max(self.peaks[name], int(sum_of(page, name, {})))
            if passed_s > (self._reported + 1) * report_s:
                self._reported += 1
                self.say(
                    f"{passed_s:5.0f} s: {self.resident[-1] / MIB:4.0f} MiB, "
                    f"{sum_of(page, 'tidegate_connections_active', {}):.0f} connections, {self.closed.total()} closed, "
                    f"{self.answers.total()} answers, {self.empty.total()} empty, {self.read_bytes / MIB:.0f} MiB read"
                )

    def _judge(self) -> None:
        peak = peak_resident_bytes(self.tidegate)
        for what, counts in (("closed", self.closed), ("given something else", self.wrong)):
            if counts:
                self.complaints.append(f"{what}: {dict(counts)} of {dict(Counter(roles(self.clients)))}")
        if peak >= RESIDENT_BYTES_MAX:
            self.complaints.append(f"peak {peak / MIB:.0f} MiB, below {RESIDENT_BYTES_MAX / MIB:.0f} MiB wanted")
        for name, limit in LIMITS.items():
            if self.peaks[name] > limit:
                self.complaints.append(f"{name} was {self.peaks[name]}, at most {limit}")
        for role in {*roles(self.clients)} - {*self.answers}:
            self.complaints.append(f"nobody who is {role} was answered")
        traces = self.tidegate.log().split("Traceback")[1:]
        self.complaints += [f"a traceback: {trace[-3000:]}" for trace in traces[:2]]
        seen = {name: f"{self.peaks[name] / MIB:.1f} of {limit / MIB:.1f} MiB" for name, limit in LIMITS.items()}
        self.say(
            f"{self.signed_in} clients, {self.closed.total()} closed; {self.read_bytes / MIB:.0f} MiB read\n"
            f"resident {statistics.median(self.resident) / MIB:.0f} MiB, at most {peak / MIB:.0f} of "
            f"{RESIDENT_BYTES_MAX / MIB:.0f}\n"
            f"answers {dict(self.answers)}, empty {dict(self.empty)}\n"
            f"at most {', '.join(f'{name} {figure}' for name, figure in seen.items())}"
        )
        for complaint in self.complaints or ["nothing wrong"]:
            self.say(complaint)


def crowd_soak(seconds: float, clients: int, *, say: Callable[[str], None] = print) -> list[str]:
    """Run it on a broker of its own, and return what was wrong. `clients`: CLIENTS_MIN or more."""
    raise_open_files(clients)
    with ExitStack() as stack:
        kafka = stack.enter_context(secured_kafka())
        tier, local = make_topics(kafka)
        properties = {
            **kafka.identity("tidegate", MECHANISM, PROTOCOL),
            "memory.max.bytes": str(MEMORY_MAX_BYTES),
            "cache.memory.bytes": str(CACHE_BYTES),
            "proxy.connections.max": str(clients + 100),
        }
        address = kafka.address(PROTOCOL)
        tidegate = stack.enter_context(own_tidegate(kafka.cluster, properties, bootstrap_servers=address))
        with RawClient(*tidegate.address) as client:
            assert client.sasl_plain(USER, password(USER)) == 0
            (broker,) = client.metadata([]).brokers
        say(f"{clients} clients for {seconds:g} s")
        run = Crowd(seconds, clients, tidegate, (broker.host, broker.port), tier, local, say)
        trio.run(run.run)
        return run.complaints


def make_topics(kafka: SecuredKafka) -> tuple[list[KnownLog], list[KnownLog]]:
    """Return the partitions of a topic that is nearly all in the tier alone, and those of one that is the broker's."""
    tier, local = fresh_name("crowd-tier"), fresh_name("crowd-local")
    tiered_topic(
        kafka.cluster,
        tier,
        partitions=PARTITIONS,
        records=blobs(TIER_MIB, PARTITIONS),
        configs={"segment.bytes": str(4 * MIB)},
        batch_size=BATCH_BYTES,
    )
    kafka.cluster.create_topic(local, PARTITIONS)
    produce(kafka.cluster, local, blobs(LOCAL_MIB, PARTITIONS), batch_size=BATCH_BYTES)
    logs = []
    for topic in (tier, local):
        kafka.allow(USER, READ, topic)
        kafka.allow("tidegate", DESCRIBE, topic)
        ends = kafka.cluster.partition_offsets(topic)
        read = partial(KnownLog.read, (HOST, kafka.ports["PLAINTEXT"]), topic)
        logs.append([read(partition, known.high_watermark) for partition, known in ends.items()])
    return logs[0], logs[1]


def raise_open_files(clients: int) -> None:
    """Raise this process's limit, which its children inherit.

    Raises:
        SystemExit: the machine allows too few.
    """
    wanted = 2 * clients + FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"{clients} clients need {wanted} open files, and `ulimit -Hn` is {hard}")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
