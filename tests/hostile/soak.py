"""A bad hour: 300 connections, good, slow and hostile, while the broker restarts, lies a little, and the store fails.

    python -m tests.hostile.soak                    # and after it a crowd of 2,000 for ten minutes: crowd_soak.py
    python -m tests.hostile.soak --seconds 3600     # without that crowd

Each minute the broker restarts, the store refuses for six seconds and hangs for six. All the time it fails one GET in
fifty, and one bit is another in one of a thousand of the broker's answers, anywhere but in its record bytes.

It prints a line every 30 s and a summary, and ends with 1 when something was not as it must be: every round of every
good reader gives the broker's own bytes; what Tidegate answers to drawn questions is what the broker answers, at the
latest when it is asked again; resident memory at the end is that of the second minute, within 5 %, and never beyond the
limit; when all have gone, descriptors and tasks are as at the start.
"""

import argparse
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.hostile.crowd_soak import CLIENTS, CLIENTS_MIN, crowd_soak
from tests.hostile.crowd_soak import SECONDS as CROWD_SECONDS
from tests.support.aiven_tier import publish_tier
from tests.support.broker_relay import Alterations, altering_broker
from tests.support.differential import asker
from tests.support.differential_known import KnownPartition, look_up
from tests.support.differential_questions import Questions
from tests.support.differential_world import SEED
from tests.support.honest_consumer import Reading, Target
from tests.support.hostile_clients import announced, crowd, trickling_readers, trickling_senders
from tests.support.hostile_stage import (
    CACHE_BYTES,
    MEMORY_MAX_BYTES,
    MIB,
    RESIDENT_BYTES_MAX,
    Held,
    HonestTopic,
    LargeTopic,
    connections_to,
    descriptors,
    make_honest_topic,
    make_large_topic,
    peak_resident_bytes,
    resident_bytes,
    settled,
)
from tests.support.kafka import own_cluster
from tests.support.raw_client import RawClient, address_of, fetch_request, request_frame
from tests.support.replicas import broker_ports
from tests.support.s3_front import S3Front, s3_front
from tests.support.s3_server import s3_server
from tests.support.scripted_http import s3_error
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import METADATA_PARTITIONS

VERSION = 17
SECONDS = 3600.0
GOOD, SLOW, STUCK, ANNOUNCING, SENDING = 40, 60, 80, 80, 40
"""300 connections."""
WORK_S_MAX = 2.0
WORK_SHARE = 1 / 60
"""Share of the run for which the good ones work on each mebibyte: they read everything in a minute, too."""
REPORT_S = 30.0
SAMPLE_S = 1.0
PERIOD_S = 60.0
"""In each the store refuses, hangs, and the broker restarts; slow and hostile ones leave and come again."""
FAULT_SHARE = 0.1
"""Share of a period for which a fault lasts."""
GETS_A_FAULT = 50
ANSWERS_AN_ALTERATION = 1000
SETTLED_S_MAX = 60.0
"""For which an answer may be another than the broker's: what was altered may be believed until it is asked again."""
ASKING_PAUSE_S = 0.1
OWN_CONNECTIONS_MAX = METADATA_PARTITIONS + 4
"""To a broker, Tidegate's own: one for each partition of the metadata topic, and one each for that topic's offsets, for
the cluster's metadata, for questions about partitions, and in place of one that the broker has closed. Some come into
being with the first question."""
PIPE_ENDS = 2
"""Tidegate's one pipe, which it opens for the first records that it splices."""
GROWTH_MAX = 1.05
GONE_S = 60.0
TRACE_SHOWN = 3000


def accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True


class ForgivingReading(Reading):
    """An answer that makes no sense, or is an error, ends its connection: the next one asks for everything again."""

    def ask(self, partition: int, offset: int) -> bytes:
        try:
            records = super().ask(partition, offset)
        except Exception as error:  # what the broker's altered answer says may be anything
            self.errors[type(error).__name__] += 1
            records = b""
        if not records:
            self.close()
        return records


@dataclass(slots=True)
class Soak:
    """What runs, and what was seen of it."""

    seconds: float
    cluster: KafkaCluster
    tidegate: RunningTidegate
    front: S3Front
    honest: HonestTopic
    large: LargeTopic
    leader: tuple[str, int]
    upstream: str
    """Where Tidegate meets the broker."""
    alterations: Alterations
    growth_max: float
    say: Callable[[str], None]
    begun_s: float = field(default_factory=time.monotonic)
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Share of the run, resident bytes."""
    readers: list[Reading] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    questions: int = 0
    asked_again: int = 0

    @property
    def share(self) -> float:
        return (time.monotonic() - self.begun_s) / self.seconds

    def run(self) -> None:
        """All of it; `complaints` are complete behind it."""
        settled(self.tidegate)
        before = self._held()
        self._open_before = descriptors(self.tidegate)
        self.begun_s = time.monotonic()
        self._let_the_store_fail()
        periods = max(1, round(self.seconds / PERIOD_S))
        with self._good(), self._questioned():
            for number in range(periods):
                with self._slow(), self._hostile():
                    self._period(number, periods)
        self.front.heal()
        self._judge(before)

    def _let_the_store_fail(self) -> None:
        self.front.heal()
        self.front.refuse(s3_error(500, "InternalError"), path="*.log", request="GET *", one_in=GETS_A_FAULT)

    def _period(self, number: int, periods: int) -> None:
        """A minute, with its troubles."""
        fault = FAULT_SHARE / periods
        at = [(number + part) / periods for part in (0.2, 0.45, 0.7, 1.0)]
        self._sample_until(at[0])
        self.front.heal()
        self.front.refuse(s3_error(503, "SlowDown"), path="*.log")
        self._sample_until(at[0] + fault)
        self._let_the_store_fail()
        self._sample_until(at[1])
        with self.front.held("*.log"):
            self._sample_until(at[1] + fault)
        self._sample_until(at[2])
        self.cluster.restart_broker(1)
        self._sample_until(at[3])

    def _sample_until(self, share: float) -> None:
        waiting = threading.Event()
        while self.share < share:
            waiting.wait(SAMPLE_S)
            self.samples.append((self.share, resident_bytes(self.tidegate)))
            if int(self.share * self.seconds / REPORT_S) > self._reported:
                self._report()

    _reported: int = 0
    _open_before: Counter[str] = field(default_factory=Counter)

    def _report(self) -> None:
        self._reported = int(self.share * self.seconds / REPORT_S)
        held = Held.of(self.tidegate)
        self.say(
            f"{self.share * self.seconds:5.0f} s: {self.samples[-1][1] / MIB:4.0f} MiB, "
            f"{held.descriptors} descriptors, {held.gauges['tidegate_connections_active']:.0f} connections, "
            f"{held.gauges['tidegate_tasks']:.0f} tasks, {sum(each.rounds for each in self.readers)} rounds, "
            f"worst wait {max(each.worst_s for each in self.readers):.1f} s, "
            f"{sum(each.reconnects for each in self.readers)} reconnects, {self.questions} questions"
        )

    @contextmanager
    def _good(self) -> Iterator[None]:
        work_s = min(WORK_S_MAX, WORK_SHARE * self.seconds)
        target = Target(*self.tidegate.address, self.honest.name, self.honest.ends, work_s=work_s)
        self.readers = [ForgivingReading(target) for _ in range(GOOD)]
        threads = [threading.Thread(target=each.forever) for each in self.readers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for each in self.readers:
                each.is_over.set()
            for thread in threads:
                thread.join()

    @contextmanager
    def _questioned(self) -> Iterator[None]:
        partitions = list(look_up(self.cluster, [self.honest.name]))
        is_over = threading.Event()
        thread = threading.Thread(target=self._question_on, args=(partitions, is_over))
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _question_on(self, partitions: Sequence[KnownPartition], is_over: threading.Event) -> None:
        """Ask both sides, one question after another; what differs, or is not answered, is asked again."""
        broker, since_s, before = address_of(self.cluster.bootstrap_servers), time.monotonic(), self.questions
        failure = ""
        while not is_over.wait(ASKING_PAUSE_S):
            try:
                with asker(broker, self.leader, lanes=1, tier_fails=True) as both:
                    questions = Questions(SEED, partitions, both.versions())
                    while not is_over.wait(ASKING_PAUSE_S):
                        outcome = both.ask([questions.question(self.questions)])
                        if outcome.differences:
                            failure = outcome.differences[0]
                            break
                        self.questions += 1
            except ConnectionRefusedError as error:
                failure = repr(error)
                if not accepts(broker):
                    since_s = time.monotonic()  # it restarts, which takes minutes beside other work
            except Exception as error:  # an altered answer may be anything, and a broker that restarts says nothing
                failure = repr(error)
            self.asked_again += 1
            if self.questions > before:
                before, since_s = self.questions, time.monotonic()
            elif time.monotonic() - since_s > SETTLED_S_MAX:
                self.complaints.append(f"question {self.questions} of seed {SEED}: {failure}")
                self.questions += 1

    @contextmanager
    def _slow(self) -> Iterator[None]:
        with crowd(self.leader, SLOW) as clients, trickling_readers(clients):
            self._ask(clients)
            yield

    @contextmanager
    def _hostile(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._ask(stack.enter_context(crowd(self.leader, STUCK)))
            for client in stack.enter_context(crowd(self.leader, ANNOUNCING)):
                client.send_bytes(announced(16 * MIB - 4))
            senders = stack.enter_context(crowd(self.leader, SENDING))
            for client in senders:
                client.send_bytes(announced(400 * 1024))
            stack.enter_context(trickling_senders(senders))
            yield

    def _ask(self, clients: Sequence[RawClient]) -> None:
        frame = request_frame(fetch_request(VERSION, [self.large.target()]), 1)
        for client in clients:
            client.send_bytes(frame)

    def _judge(self, before: Held) -> None:
        try:
            after = wait_until(lambda: self._given_back(before), "everything given back", timeout_s=GONE_S) or before
        except AssertionError:
            after = self._held()
            more = dict(descriptors(self.tidegate) - self._open_before)
            self.complaints.append(f"not given back (now, before): {after.beyond(before)}; also open: {more}")
        traces = self.tidegate.log().split("Traceback")[1:]
        self.complaints += [f"a traceback: {trace[-TRACE_SHOWN:]}" for trace in traces[:2]]
        digests = {digest for each in self.readers for digest in each.digests}
        rounds = sum(each.rounds for each in self.readers)
        if not (self.questions and self.alterations.altered and self.front.refused):
            self.complaints.append("nothing was asked, altered or refused")
        if digests != {self.honest.digest}:
            wrong = len(digests - {self.honest.digest})
            self.complaints.append(f"{wrong} wrong digests in {rounds} rounds" if rounds else "no whole round")
        # If it lasts two minutes, the first half has to do: what happens in each minute has happened.
        minute = PERIOD_S / self.seconds
        reference = self._median((minute, 2 * minute) if minute <= 0.25 else (0.75 * minute, minute))
        end, peak = self._median((1 - minute / 4, 1.0)), peak_resident_bytes(self.tidegate)
        if end > reference * self.growth_max:
            self.complaints.append(f"{reference / MIB:.0f} MiB became {end / MIB:.0f}")
        if peak >= RESIDENT_BYTES_MAX:
            self.complaints.append(f"peak {peak / MIB:.0f} MiB, below {RESIDENT_BYTES_MAX / MIB:.0f} MiB wanted")
        self.say(
            f"{rounds} rounds of {GOOD} readers; {self.questions} questions, {self.asked_again} times asked again; "
            f"{self.front.refused} GETs refused; {self.alterations.altered} answers altered; "
            f"{reference / MIB:.0f} MiB in the second minute, {end / MIB:.0f} at the end, peak {peak / MIB:.0f}; "
            f"descriptors {before.descriptors} before, {after.descriptors} after"
        )
        for complaint in self.complaints or ["nothing wrong"]:
            self.say(complaint)

    def _held(self) -> Held:
        """Without the connections to the store: their pool keeps what was once needed, for anybody. And without its own
        to the broker, as many as it may have, and its pipe."""
        held = Held.of(self.tidegate)
        store_port = int(self.front.endpoint_url.rpartition(":")[2])
        ports = {int(each.rpartition(":")[2]) for each in (self.cluster.bootstrap_servers, self.upstream)}
        own = min(OWN_CONNECTIONS_MAX, sum(connections_to(self.tidegate, port) for port in ports))
        own += min(PIPE_ENDS, descriptors(self.tidegate)["pipe"])
        return replace(held, descriptors=held.descriptors - connections_to(self.tidegate, store_port) - own)

    def _given_back(self, before: Held) -> Held | None:
        now = self._held()
        return None if now.beyond(before) else now

    def _median(self, window: tuple[float, float]) -> float:
        inside = [size for share, size in self.samples if window[0] <= share <= window[1]]
        # On a busy machine what happens in a period may take longer than the window is: then the next sample counts, or
        # the last.
        later = [size for share, size in self.samples if share > window[0]]
        return statistics.median(inside or later[:1] or [self.samples[-1][1]])


def soak(
    seconds: float,
    *,
    growth_max: float = GROWTH_MAX,
    one_in: int = ANSWERS_AN_ALTERATION,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Run it on a cluster and a store of its own, and give what was wrong.

    Args:
        growth_max: what the end may have resident, as a multiple of the second minute.
        one_in: of so many answers of the broker one is altered.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-soak-")))
        cluster = stack.enter_context(own_cluster())
        honest, large = make_honest_topic(cluster, partitions=3, mebibytes=18), make_large_topic(cluster)
        server = stack.enter_context(s3_server())
        tier = publish_tier(cluster, server, [honest.name, large.name], folder, chunk_bytes=MIB)
        front = stack.enter_context(s3_front(server.endpoint_url))
        budgets = {"memory.max.bytes": str(MEMORY_MAX_BYTES), "cache.memory.bytes": str(CACHE_BYTES)}
        properties = {**tier.properties(endpoint_url=front.endpoint_url), **budgets}
        alterations = Alterations(random.Random(SEED), one_in=one_in)
        upstream = stack.enter_context(altering_broker(cluster, alterations))
        tidegate = stack.enter_context(own_tidegate(cluster, properties, bootstrap_servers=upstream))
        leader = "127.0.0.1", broker_ports(tidegate)[1]
        run = Soak(seconds, cluster, tidegate, front, honest, large, leader, upstream, alterations, growth_max, say)
        run.run()
        return run.complaints


def main() -> int:
    parser = argparse.ArgumentParser(
        description="A bad hour of 300 connections, good, slow and hostile, and what they leave behind; then a crowd."
    )
    lasts = f"how long ({SECONDS:g}, and {CROWD_SECONDS:g} the crowd); alone: the hour without a crowd"
    parser.add_argument("--seconds", type=float, help=lasts)
    parser.add_argument("--clients", type=int, help=f"the crowd alone, of so many ({CLIENTS})")
    chosen = parser.parse_args()
    if chosen.clients is not None and chosen.clients < CLIENTS_MIN:
        parser.error(f"at least {CLIENTS_MIN} clients")
    say = partial(print, flush=True)
    complaints = []
    if chosen.clients is None:
        complaints += soak(chosen.seconds or SECONDS, say=say)
    if chosen.clients is not None or chosen.seconds is None:
        complaints += crowd_soak(chosen.seconds or CROWD_SECONDS, chosen.clients or CLIENTS, say=say)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
