"""`tidegate verify FILE [TOPIC[:PARTITION]]`: the tier's objects against its metadata (docs/tools.md#verify).

The checks are storage.checks', the same that the Spark audit does on many machines: objects and their sizes, manifests,
the CRC of every batch, offsets, leader epochs, timestamps, indexes; per partition gaps, overlaps and what never ended;
and objects that belong to no segment.

The tier lives on meanwhile. The order of the questions decides whether gaps are real: first where brokers' own logs
begin, since all below that was in the tier by then; then the metadata, then log starts and leader epochs. At the end
what was found of segments that have been deleted since is dropped.

Memory: the findings, and for each of WORKERS segments a piece of its log, a chunk and its indexes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TextIO

import trio

from protocol.client.cluster_view import TopicMetadata
from protocol.client.errors import UpstreamError
from protocol.client.leaders import LeaderEpochAnswers, LeaderQuestions, Steps
from protocol.client.offset_questions import OffsetAnswer
from protocol.list_offsets import OffsetTimestamp
from storage.checks.audit_result import AuditResult, by_kind, in_order, still_true
from storage.checks.batch_audit import SegmentReport, check_segment
from storage.checks.finding import Finding, FindingKind, partition_finding
from storage.checks.partition_check import PartitionState, check_partition
from storage.checks.strange_objects import check_store
from storage.config.model import Mode
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
    uuid_to_text,
)
from storage.wall_clock import wall_clock_ms
from tidegate import exit_codes
from tidegate.commands.output import Progress, print_json, print_table
from tidegate.commands.selection import Place, finished, matching
from tidegate.commands.tier import OpenTier, run_on_tier
from tidegate.config.model import Config

WORKERS = 4
"""Segments at a time: one waits for the store while another's batches are summed up."""

SHOWN_FINDINGS_MAX = 200
"""Rows for people; `--json` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """`sample`: so many segments of each partition, spread over it; None: all. `deep`: read the logs."""

    place: Place | None
    topic_id: Uuid | None = None
    sample: int | None = None
    deep: bool = True
    as_json: bool = False


def run(config: Config, options: VerifyOptions, out: TextIO) -> int:
    """Check; exit_codes.FOUND_WRONG if anything was found, also that something could not be looked at."""

    async def work(tier: OpenTier) -> int:
        result = await Verification(tier, options).run()
        if options.as_json:
            print_json(out, {**tier.identity(), **result.as_json()})
        else:
            print_result(out, result)
        return tier.tell_problems() or (exit_codes.FOUND_WRONG if result.findings else exit_codes.DONE)

    return run_on_tier(config, work)


def print_result(out: TextIO, result: AuditResult) -> None:
    """The findings as a table, and what it came to."""
    rows = [
        (
            each.kind.value,
            "" if each.topic is None else f"{each.topic}:{each.partition}",
            each.object_name or each.segment,
            each.position,
            each.detail,
        )
        for each in result.findings[:SHOWN_FINDINGS_MAX]
    ]
    if rows:
        print_table(out, ("kind", "partition", "object or segment", "position", "what"), rows)
    if len(result.findings) > SHOWN_FINDINGS_MAX:
        out.write(f"… {len(result.findings) - SHOWN_FINDINGS_MAX} more: --json has all\n")
    out.writelines(f"{line}\n" for line in result.summary())


def sampled(segments: Sequence[RemoteLogSegmentMetadata], count: int | None) -> Sequence[RemoteLogSegmentMetadata]:
    """Return so many of them, evenly spread, the first and the last among them."""
    if count is None or count >= len(segments):
        return segments
    last = len(segments) - 1
    return [segments[number * last // max(1, count - 1)] for number in range(count)]


@dataclass(slots=True)
class Verification:
    """One run. Owned by the trio thread."""

    tier: OpenTier
    options: VerifyOptions
    findings: list[Finding] = field(default_factory=list)
    _segments: int = 0
    _total: SegmentReport = field(default_factory=lambda: SegmentReport(()))
    _suspects: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    """The segments that findings name, as they were when they were looked at."""

    async def run(self) -> AuditResult:
        """All of it.

        Raises:
            TierError, RemoteStorageError: the metadata or the store's listing cannot be read.
        """
        tier, options = self.tier, self.options
        partitions = matching(tier.catalog, options.place, options.topic_id)
        metadata_read_ms = wall_clock_ms()
        states = await self._local_starts(partitions)
        await tier.catch_up()
        for each in partitions:
            if each not in states:
                continue
            segments = tier.segments(each)
            state = await self._asked(each, states[each])
            if state is not None:
                self._add(check_partition(each, segments, state, now_ms=metadata_read_ms), segments)
        await self._check_segments(partitions)
        if options.place is None or options.place.partition is None:
            await trio.to_thread.run_sync(self._check_store, metadata_read_ms, abandon_on_cancel=True)
        if self.findings:
            await tier.catch_up()
            self.findings = still_true(self.findings, self._suspects, tier.catalog.find_segment)
        return AuditResult(
            findings=in_order(self.findings),
            partitions=len(partitions),
            segments=self._segments,
            objects=self._total.objects,
            stored_bytes=self._total.stored_bytes,
            batches=self._total.batches,
            records=self._total.records,
            holes=self._total.holes,
            by_kind=by_kind(self.findings),
        )

    def _add(self, found: Sequence[Finding], segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        named = {finding.segment for finding in found}
        self._suspects += [each for each in segments if uuid_to_text(each.segment_id.id) in named]
        self.findings += found

    # --- segments and objects ---

    async def _check_segments(self, partitions: Sequence[TopicIdPartition]) -> None:
        """Those of one partition are listed at a time: millions of them would not fit."""
        total_bytes = sum(each.segment_size_bytes for partition in partitions for each in self._chosen(partition))
        left = (segment for partition in partitions for segment in self._chosen(partition))
        done_bytes = 0

        async def check_next() -> None:
            nonlocal done_bytes
            for segment in left:
                check = partial(check_segment, self.tier.storage_manager, segment, deep=self.options.deep)
                # Interrupted, nobody waits for the rest of a segment of gigabytes: the store is closed under it.
                self._count(segment, await trio.to_thread.run_sync(check, abandon_on_cancel=True))
                done_bytes += segment.segment_size_bytes
                progress.told(done_bytes, total_bytes, f", {len(self.findings)} findings")

        with Progress("checking segments", "bytes") as progress:
            async with trio.open_nursery() as nursery:
                for _ in range(WORKERS):
                    nursery.start_soon(check_next)

    def _chosen(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        return sampled(finished(self.tier.segments(partition)), self.options.sample)

    def _count(self, segment: RemoteLogSegmentMetadata, report: SegmentReport) -> None:
        before = self._total
        self._segments += 1
        self._total = SegmentReport(
            (),
            before.objects + report.objects,
            before.stored_bytes + report.stored_bytes,
            before.batches + report.batches,
            before.records + report.records,
            holes=before.holes + report.holes,
        )
        self._add(report.findings, [segment])

    def _check_store(self, metadata_read_ms: int) -> None:
        tier, place = self.tier, self.options.place

        def state_of(segment_id: RemoteLogSegmentId) -> RemoteLogSegmentState | None:
            metadata = tier.catalog.find_segment(segment_id)
            return None if metadata is None else metadata.state

        self.findings += check_store(
            tier.storage_manager,
            state_of,
            metadata_read_ms=metadata_read_ms,
            topic=None if place is None else place.topic,
        )

    # --- what the brokers say ---

    async def _local_starts(self, partitions: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, PartitionState]:
        """By partition where its leader's own log begins; without those of topics that are gone, or created again."""
        states: dict[TopicIdPartition, PartitionState] = {}
        topics: dict[tuple[str, Uuid], list[TopicIdPartition]] = {}
        for each in partitions:
            topics.setdefault((each.topic, each.topic_id), []).append(each)
        for (name, topic_id), members in topics.items():
            try:
                described = await self.tier.ask_leaders(partial(_describe, name))
                if not _is_topic(described, topic_id):
                    continue
                known = [each for each in members if each.partition in described[0].partitions]
                starts = await self._offsets(known, OffsetTimestamp.EARLIEST_LOCAL)
            except UpstreamError as error:
                self.findings += [self._not_asked(each, error) for each in members]
                continue
            for each in known:
                start = starts[name, each.partition, int(OffsetTimestamp.EARLIEST_LOCAL)].offset
                states[each] = PartitionState(local_log_start_offset=None if start < 0 else start)
        return states

    async def _asked(self, partition: TopicIdPartition, state: PartitionState) -> PartitionState | None:
        """The state with the log start and the leader epochs, after the metadata were read; None: nobody said."""
        epochs = self.tier.catalog.epochs(partition.topic_id, partition.partition)
        try:
            starts = await self._offsets([partition], OffsetTimestamp.EARLIEST)
            said: LeaderEpochAnswers = await self.tier.ask_leaders(
                lambda questions: questions.epoch_ends(partition.topic, partition.partition, epochs)
            )
        except UpstreamError as error:
            self.findings.append(self._not_asked(partition, error))
            return None
        [start] = starts.values()
        firsts: Mapping[int, int] = {}
        if self.tier.config.mode is Mode.STANDALONE:  # what brokers tell is where their own logs start
            firsts = self.tier.catalog.epoch_starts(partition.topic_id, partition.partition)
        return PartitionState(
            lineage=LeaderEpochLineage(said.leader_epoch, said.answers) if epochs else None,
            log_start_offset=min([start.offset, *firsts.values()]),
            local_log_start_offset=state.local_log_start_offset,
        )

    async def _offsets(
        self, partitions: Sequence[TopicIdPartition], timestamp: OffsetTimestamp
    ) -> Mapping[tuple[str, int, int], OffsetAnswer]:
        queries = [(each.topic, each.partition, int(timestamp)) for each in partitions]
        return await self.tier.ask_leaders(lambda questions: questions.list_offsets(queries, {}))

    def _not_asked(self, partition: TopicIdPartition, error: UpstreamError) -> Finding:
        return partition_finding(FindingKind.NOT_CHECKED, partition, f"its leader was not asked: {error}")


def _describe(name: str, questions: LeaderQuestions) -> Steps[list[TopicMetadata]]:
    return questions.describe([name])


def _is_topic(described: Sequence[TopicMetadata], topic_id: Uuid) -> bool:
    return bool(described) and described[0].topic_id in (topic_id, bytes(16))
