"""`tidegate diff FILE`: the brokers' answers against those of a running `serve`, over a sample (docs/tools.md#diff).

Read-only and polite: one question at a time, `per_second` of them, FETCH_BYTES_MAX of records each. What is asked and
compared is `tidegate.commands.diff_questions`.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TextIO

import trio

from protocol.client.errors import UpstreamError, UpstreamProtocolError, UpstreamUnsupportedError
from protocol.client.leaders import FETCH_BY_NAME, code_name
from protocol.client.messages import FETCH, Question, kio_uuid
from protocol.client.offset_questions import CONSUMER_REPLICA, OffsetAnswer, offset_questions
from protocol.fetch.messages import FetchResponse, PartitionAnswer
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import MOVED_CODES
from proxy.upstream.cluster import Cluster
from storage.config.model import HostPort
from storage.config.sources import ConfigError
from storage.errors import TierError
from storage.model import RemoteLogSegmentState, TopicIdPartition
from storage.sizes import shown_size
from tidegate import exit_codes
from tidegate.commands.diff_questions import (
    Answer,
    Asked,
    SampledPartition,
    SegmentRange,
    Tally,
    choose,
    corrupt_batches,
    differences,
    has_other_bytes,
    is_settled,
    questions,
)
from tidegate.commands.output import Progress, print_json, print_table
from tidegate.commands.report import Report
from tidegate.commands.through_serve import BothSides, both_sides
from tidegate.commands.tier import OpenTier, run_on_tier
from tidegate.config.model import Config

ROLE: Final = "diff"

FETCH_BYTES_MAX: Final = 256 * 1024
FETCH_WAIT_MS: Final = 1000
"""For what comes from the tier; a broker waits 500 ms for it by default (remote.fetch.max.wait.ms)."""

ATTEMPTS_MAX: Final = 6
"""For a question whose answers differ; 0.25, 0.5, … seconds apart. At the end that is longer than `serve` holds what a
broker said of a partition's offsets for good (`authority.max.age.ms`), so that an old high watermark is not taken for a
wrong one."""
ATTEMPT_WAIT_S: Final = 0.25

SHOWN_MAX: Final = 20

_EDGES = (OffsetTimestamp.EARLIEST, OffsetTimestamp.EARLIEST_LOCAL, OffsetTimestamp.LATEST)
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    """`topic`, `partitions`: None for all. `samples`: segments. `seed`: None draws one."""

    topic: str | None
    partitions: frozenset[int] | None
    samples: int
    seed: int | None
    per_second: float
    bootstrap: HostPort | None
    command_config: Path | None


def run(config: Config, options: DiffOptions, out: TextIO, *, is_json: bool = False) -> int:
    """Compare and print; the exit code."""
    try:
        sides = both_sides(config, options.bootstrap, options.command_config, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            print(f"tidegate: {problem}", file=sys.stderr)
        return exit_codes.USAGE
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed

    async def compare(tier: OpenTier) -> int:
        async with trio.open_nursery() as nursery:
            brokers, serve = Cluster(sides.brokers, nursery), Cluster(sides.serve, nursery)
            comparison = _Comparison(brokers, serve, random.Random(seed))
            await comparison.connect(sides)
            asked = await comparison.draw(_segments(tier, options), options.samples)
            if comparison.tally.left_out and not asked:
                raise TierError(
                    f"the brokers do not tell of {', '.join(comparison.tally.left_out[:SHOWN_MAX])}: the topics are"
                    " gone, or this identity lacks ACL Describe on them; --command-config names another one"
                )
            if not asked:
                raise TierError(
                    "there is nothing to compare: no finished segment of such a partition is in the tier. `tidegate ls"
                    " FILE` shows what is; --topic and --partitions choose of it"
                )
            if not is_json:
                _announce(asked, seed, options, out)
            with Progress("comparing", "questions") as progress:
                await comparison.run(asked, options.per_second, progress.told)
            nursery.cancel_scope.cancel()
        if is_json:
            print_json(out, _document(comparison.tally, seed))
        else:
            show(comparison.tally, out)
        return exit_codes.FOUND_WRONG if comparison.found_wrong else exit_codes.DONE

    return run_on_tier(config, compare)


class _Comparison:
    """Asks both sides and keeps the tally. Every random choice comes from `chance`."""

    def __init__(self, brokers: Cluster, serve: Cluster, chance: random.Random) -> None:
        self.tally = Tally()
        self._brokers = brokers
        self._serve = serve
        self._chance = chance

    @property
    def found_wrong(self) -> bool:
        tally = self.tally
        return bool(tally.differences or tally.corrupt) or not tally.with_records

    async def connect(self, sides: BothSides) -> None:
        """Both must be there, and be one cluster."""
        await self._brokers.refresh()
        with self._of_serve(sides):
            await self._serve.refresh()
        if self._serve.cluster_id != self._brokers.cluster_id:
            host, port = sides.serve.bootstrap_servers[0]
            ids = f"cluster {self._serve.cluster_id}, and the brokers are of {self._brokers.cluster_id}"
            raise TierError(f"what listens at {host}:{port} is of {ids}: say --bootstrap")

    async def draw(self, segments: dict[TopicIdPartition, list[SegmentRange]], samples: int) -> list[Asked]:
        """The questions, once the brokers have said where the chosen partitions begin and end."""
        chosen = choose(segments, samples, self._chance)
        names = sorted({partition.topic for partition in chosen})
        await self._brokers.learn_topics(names)
        await self._serve.learn_topics(names)
        sampled = []
        for partition, ranges in chosen.items():
            if self._brokers.leader_of(partition.topic_id, partition.partition) is None:
                self.tally.left_out.append(f"{partition.topic}-{partition.partition}")
                continue
            edges = [await self._offset(self._brokers, partition, int(edge), 0) for edge in _EDGES]
            if any(edge.error_code for edge in edges):
                code = next(edge.error_code for edge in edges if edge.error_code)
                raise TierError(
                    f"{partition.topic}-{partition.partition}: the broker answers {code_name(code)}: this identity may"
                    " lack ACL Describe and Read on the topic; --command-config names another one"
                )
            log_start, local_log_start, high_watermark = (edge.offset for edge in edges)
            sampled.append(SampledPartition(partition, log_start, local_log_start, high_watermark, tuple(ranges)))
        return questions(sampled, self._chance)

    async def run(self, asked: Sequence[Asked], per_second: float, told: Callable[[int, int], None]) -> None:
        """Ask all, one after the other, at that pace."""
        began_at_s = trio.current_time()
        for number, question in enumerate(asked):
            told(number, len(asked))
            await trio.sleep_until(began_at_s + number / per_second)
            try:
                await self._compare(question)
            except UpstreamUnsupportedError:
                self.tally.not_asked += 1  # an older broker, and serve offers no more than it does

    async def _compare(self, question: Asked) -> None:
        theirs, ours, found = await self._round(question)
        for attempt in range(1, ATTEMPTS_MAX):
            if not found and (is_settled(theirs, ours) or ours.error_code in MOVED_CODES):
                break
            if attempt > 1 and has_other_bytes(found):
                break  # no wait heals that, and each attempt is a read of the broker's
            self.tally.asked_again += 1
            await trio.sleep(ATTEMPT_WAIT_S * attempt)
            theirs, ours, found = await self._round(question)
        self._note(question, theirs[-1], ours, found)

    async def _round(self, question: Asked) -> tuple[list[Answer], Answer, list[str]]:
        """The broker's one or two answers, Tidegate's, and what differs."""
        theirs = [await self._ask(self._brokers, question)]
        ours = await self._ask(self._serve, question)
        found = differences(theirs, ours)
        if found:
            theirs.append(await self._ask(self._brokers, question))
            found = differences(theirs, ours)
        return theirs, ours, found

    def _note(self, question: Asked, theirs: Answer, ours: Answer, found: list[str]) -> None:
        tally = self.tally
        tally.questions += 1
        size_bytes = theirs.records_bytes if isinstance(theirs, PartitionAnswer) else 0
        tally.with_records += size_bytes > 0
        tally.record_bytes += size_bytes
        if bad := corrupt_batches(theirs):
            tally.corrupt.append((question, bad))
        if found and not is_settled([theirs], theirs):
            tally.undecided.append((question, f"the broker answers {code_name(theirs.error_code)}"))
        elif found and question.is_remote and not size_bytes and isinstance(ours, PartitionAnswer):
            tally.undecided.append((question, "the broker reads nothing from its tier in time"))
        elif found:
            tally.differences.append((question, found))
        elif ours.error_code:
            tally.errors[ours.error_code] = tally.errors.get(ours.error_code, 0) + 1

    async def _ask(self, cluster: Cluster, question: Asked) -> Answer:
        if cluster is self._brokers:
            self.tally.remote_reads += question.is_remote
        if question.timestamp is not None:
            answer: Answer = await self._offset(
                cluster, question.partition, question.timestamp, question.isolation_level
            )
        else:
            answer = await self._fetch(cluster, question)
        if answer.error_code in MOVED_CODES:
            await cluster.learn_topics([question.partition.topic])
        return answer

    async def _offset(
        self, cluster: Cluster, partition: TopicIdPartition, timestamp: int, isolation_level: int
    ) -> OffsetAnswer:
        query = (partition.topic, partition.partition, timestamp)
        [question] = offset_questions(
            [query],
            replica_id=CONSUMER_REPLICA,
            isolation_level=isolation_level,
            timeout_s=cluster.settings.request_timeout_s,
        )
        node_id = await self._leader(cluster, partition)
        with self._of_serve(cluster):
            body = await cluster.ask(node_id, ROLE, question)
            return question.read(body, cluster.name_of(node_id))[query]

    async def _fetch(self, cluster: Cluster, question: Asked) -> PartitionAnswer:
        partition = question.partition
        wanted = {
            "partition": partition.partition,
            "fetch_offset": question.fetch_offset,
            "partition_max_bytes": FETCH_BYTES_MAX,
        }
        has_id = any(partition.topic_id)
        topic = {"topic": partition.topic, "topic_id": kio_uuid(partition.topic_id), "partitions": [wanted]}
        values = {
            "replica_id": CONSUMER_REPLICA,
            "max_wait": timedelta(milliseconds=FETCH_WAIT_MS if question.is_remote else 0),
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES_MAX,
            "isolation_level": question.isolation_level,
            "topics": [topic],
            "forgotten_topics_data": (),
        }
        fetch: Question[Any] = Question(FETCH if has_id else FETCH_BY_NAME, values)
        node_id = await self._leader(cluster, partition)
        with self._of_serve(cluster):
            response: FetchResponse = await cluster.ask(node_id, ROLE, fetch)
        if response.error_code:
            return PartitionAnswer.error(None, None, partition.partition, response.error_code)
        if [each.partition for each in response.partitions] != [partition.partition]:
            raise UpstreamProtocolError(f"{cluster.name_of(node_id)}: a Fetch response of other partitions")
        return response.partitions[0]

    async def _leader(self, cluster: Cluster, partition: TopicIdPartition) -> int:
        leader = cluster.leader_of(partition.topic_id, partition.partition)
        if leader is None or leader.leader_id not in cluster.brokers:
            with self._of_serve(cluster):
                await cluster.learn_topics([partition.topic])
            leader = cluster.leader_of(partition.topic_id, partition.partition)
        if leader is None or leader.leader_id not in cluster.brokers:
            raise TierError(f"{partition.topic}-{partition.partition} has no leader just now: run the command again")
        return leader.leader_id

    @contextmanager
    def _of_serve(self, side: "BothSides | Cluster") -> Iterator[None]:
        """Say whose answer is missing: the brokers' own errors name them."""
        try:
            yield
        except UpstreamUnsupportedError:
            raise
        except UpstreamError as error:
            if side is self._brokers:
                raise
            raise TierError(
                f"no answer through Tidegate ({error}): is `tidegate serve` running, and reachable from here?"
                " --bootstrap names another address"
            ) from error


def _segments(tier: OpenTier, options: DiffOptions) -> dict[TopicIdPartition, list[SegmentRange]]:
    found = {}
    for partition in tier.catalog.partitions():
        if options.topic is not None and partition.topic != options.topic:
            continue
        if options.partitions is not None and partition.partition not in options.partitions:
            continue
        ranges = [
            SegmentRange(each.start_offset, each.end_offset, each.max_timestamp_ms)
            for each in tier.catalog.list_segments(partition.topic_id, partition.partition)
            if each.state is _FINISHED
        ]
        if ranges:
            found[partition] = sorted(ranges, key=lambda each: each.start_offset)
    # In an order of their own, so that a seed draws the same sample again.
    return dict(sorted(found.items(), key=lambda item: (item[0].topic, item[0].topic_id, item[0].partition)))


def _announce(asked: Sequence[Asked], seed: int, options: DiffOptions, out: TextIO) -> None:
    remote = sum(each.is_remote for each in asked)
    out.write(
        f"{len(asked)} questions (seed {seed}), {options.per_second:g} a second at most. Each side answers all of them:"
        f" about {remote} of them are reads from the tier for the brokers, {shown_size(FETCH_BYTES_MAX)} at most.\n\n"
    )
    out.flush()


def _document(tally: Tally, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "questions": tally.questions,
        "not_asked": tally.not_asked,
        "with_records": tally.with_records,
        "record_bytes": tally.record_bytes,
        "broker_remote_reads": tally.remote_reads,
        "asked_again": tally.asked_again,
        "left_out": tally.left_out,
        "same_errors": {code_name(code): count for code, count in sorted(tally.errors.items())},
        "differences": [_told(asked, found) for asked, found in tally.differences],
        "corrupt": [_told(asked, found) for asked, found in tally.corrupt],
        "undecided": [_told(asked, [why]) for asked, why in tally.undecided],
    }


def _told(asked: Asked, found: Sequence[str]) -> dict[str, Any]:
    return {
        "topic": asked.partition.topic,
        "partition": asked.partition.partition,
        "place": asked.place,
        "fetch_offset": asked.fetch_offset,
        "timestamp": asked.timestamp,
        "isolation_level": int(asked.isolation_level),
        "found": list(found),
    }


def show(tally: Tally, out: TextIO) -> None:
    """The tally for people."""
    rows = [
        ("answers compared", tally.questions),
        ("with records", tally.with_records),
        ("reads from the tier by the brokers", tally.remote_reads),
        ("asked again", tally.asked_again),
        *((f"the same error: {code_name(code)}", count) for code, count in sorted(tally.errors.items())),
    ]
    print_table(out, ("what", "count"), rows)
    out.write(f"\n{shown_size(tally.record_bytes)} of records compared\n\n")
    report = Report(out)
    for asked, found in tally.differences[:SHOWN_MAX]:
        report.wrong(f"{asked}: {'; '.join(found)}")
    for asked, found in tally.corrupt[:SHOWN_MAX]:
        report.wrong(f"{asked}: {'; '.join(found)}. `tidegate verify` looks at the objects")
    for asked, why in tally.undecided[:SHOWN_MAX]:
        report.warning(f"{asked}: cannot be compared: {why}; run it again, with --seed for the same questions")
    if tally.left_out:
        report.warning(
            f"the brokers do not tell of {', '.join(tally.left_out[:SHOWN_MAX])}: gone, or not for this identity;"
            " --command-config names another"
        )
    more = max(0, len(tally.differences) - SHOWN_MAX) + max(0, len(tally.corrupt) - SHOWN_MAX)
    if more:
        report.wrong(f"{more} more: --json has all")
    if tally.differences:
        report.wrong(
            "clients would see this: leave them at the brokers. `tidegate verify` tells whose bytes are wrong; report"
            " what it finds right, with --json and the seed"
        )
    if not tally.with_records:
        report.wrong("no answer had records, so nothing is proven: may this identity read? --command-config names one")
    if not report.wrong_count:
        report.ok("no answer differs")
