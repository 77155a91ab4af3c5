"""`audit`: every object of the tier against its metadata. The checks are storage.checks', which know nothing of Spark.

- The driver looks at partitions (gaps, overlaps, what never ended) and lists the store (orphans); executors look at
  segments, the largest first, one a task.
- Segments are checked in waves. With a folder each wave leaves a file there (pipeline.jobs.audit_record), and the same
  job run again checks only segments that are new, that had findings, or whose metadata are others.
- The tier lives on meanwhile. At the end the metadata are read on, and what was found of segments that have been
  deleted since is dropped.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from pipeline.jobs.audit_record import AuditRecord, CheckedSegment, from_text, to_text
from storage.checks.audit_result import AuditResult, by_kind, in_order, still_true
from storage.checks.batch_audit import check_segment
from storage.checks.finding import Finding
from storage.checks.partition_check import PartitionState, check_partition
from storage.checks.strange_objects import GRACE_MS, check_store
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from storage.remote_storage_manager import RemoteStorageManager

SEGMENTS_PER_CORE = 4
WAVE_SEGMENTS_MIN, WAVE_SEGMENTS_MAX = 16, 1024

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedPartition:
    """A partition with all its segments, of every state, and what the broker says of it."""

    partition: TopicIdPartition
    segments: tuple[RemoteLogSegmentMetadata, ...]
    state: PartitionState = field(default_factory=PartitionState)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditInputs:
    """What an audit is of. `open_manager` is pickled: a function of a module, or a partial of one.

    `find_segment` and `refresh` stay on the driver: what the metadata have of a segment now, and reading them on.
    `metadata_read_ms`: when reading the metadata began. `topics`: whose objects are listed; None: the whole store.
    """

    open_manager: Callable[[], RemoteStorageManager]
    partitions: Sequence[AuditedPartition]
    find_segment: Callable[[RemoteLogSegmentId], RemoteLogSegmentMetadata | None]
    refresh: Callable[[], object]
    metadata_read_ms: int
    topics: tuple[str, ...] | None = None
    grace_ms: int = GRACE_MS
    deep: bool = True


OnWave = Callable[[int, int, int], None]
"""Told of segments done, of all, and of findings so far: before the first wave, and after each."""


def audit(spark: SparkSession, inputs: AuditInputs, record: AuditRecord | None, on_wave: OnWave) -> AuditResult:
    """Check everything.

    Args:
        record: what earlier runs left, and where this one leaves what it does.

    Raises:
        RemoteStorageError: the store cannot be listed.
    """
    segments = [
        segment for partition in inputs.partitions for segment in partition.segments if segment.state is _FINISHED
    ]
    checked = _check_segments(spark, inputs, segments, record, on_wave)
    findings = [finding for each in checked.values() for finding in each.findings]
    for partition in inputs.partitions:
        findings += check_partition(
            partition.partition,
            partition.segments,
            partition.state,
            now_ms=inputs.metadata_read_ms,
            unfinished_age_ms=inputs.grace_ms,
        )
    findings += _orphans(inputs)
    findings = _still_true(inputs, findings)
    return AuditResult(
        findings=in_order(findings),
        partitions=len(inputs.partitions),
        segments=len(segments),
        segments_checked_before=sum(each.is_kept for each in checked.values()),
        objects=sum(each.objects for each in checked.values()),
        stored_bytes=sum(each.stored_bytes for each in checked.values()),
        batches=sum(each.batches for each in checked.values()),
        records=sum(each.records for each in checked.values()),
        holes=sum(each.holes for each in checked.values()),
        by_kind=by_kind(findings),
    )


def check_segments_of(
    open_manager: Callable[[], RemoteStorageManager],
    todo: Sequence[RemoteLogSegmentMetadata],
    deep: bool,
    numbers: Iterable[int],
) -> Iterator[tuple[int, str]]:
    """Check in an executor the segments with these numbers in `todo`; yield each with its report."""
    manager = open_manager()
    for number in numbers:
        yield number, to_text(check_segment(manager, todo[number], deep=deep))


def _check_segments(
    spark: SparkSession,
    inputs: AuditInputs,
    segments: Sequence[RemoteLogSegmentMetadata],
    record: AuditRecord | None,
    on_wave: OnWave,
) -> dict[RemoteLogSegmentId, CheckedSegment]:
    checked = {} if record is None else record.sound(segments, deep=inputs.deep)
    left = sorted(
        (segment for segment in segments if segment.segment_id not in checked),
        key=lambda segment: (-segment.segment_size_bytes, segment.segment_id.id),
    )
    on_wave(len(checked), len(segments), 0)
    found = 0
    wave_segments = SEGMENTS_PER_CORE * spark.sparkContext.defaultParallelism
    wave_segments = min(max(WAVE_SEGMENTS_MIN, wave_segments), WAVE_SEGMENTS_MAX)
    for start in range(0, len(left), wave_segments):
        wave = tuple(left[start : start + wave_segments])
        work = functools.partial(check_segments_of, inputs.open_manager, wave, inputs.deep)
        # An RDD, since a data frame's functions in Python want pandas, which nothing else here does.
        reports = spark.sparkContext.parallelize(range(len(wave)), len(wave)).mapPartitions(work).collect()
        done = {wave[number].segment_id: from_text(report) for number, report in reports}
        checked |= done
        found += sum(len(each.findings) for each in done.values())
        if record is not None:
            record.keep(wave, done, deep=inputs.deep)
        on_wave(len(checked), len(segments), found)
    return checked


def _orphans(inputs: AuditInputs) -> list[Finding]:
    manager = inputs.open_manager()

    def state_of(segment_id: RemoteLogSegmentId) -> RemoteLogSegmentState | None:
        metadata = inputs.find_segment(segment_id)
        return None if metadata is None else metadata.state

    found: list[Finding] = []
    for topic in (None,) if inputs.topics is None else inputs.topics:
        found += check_store(
            manager, state_of, metadata_read_ms=inputs.metadata_read_ms, grace_ms=inputs.grace_ms, topic=topic
        )
    return found


def _still_true(inputs: AuditInputs, findings: list[Finding]) -> list[Finding]:
    """Without those of segments that have gone on since: the metadata are read on before."""
    if not findings:
        return findings
    inputs.refresh()
    before = (segment for partition in inputs.partitions for segment in partition.segments)
    return still_true(findings, before, inputs.find_segment)
