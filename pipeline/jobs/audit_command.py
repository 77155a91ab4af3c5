"""`audit` from its command line: what is looked at, the work on executors, and what was found as a table and a summary.

Exit code 1 when anything was found, also when something could not be looked at. With `--report` the folder holds
report.json and what a run that is cut off has done (pipeline.jobs.audit_record).

The order of the questions decides whether gaps are real while segments are copied and deleted meanwhile: first where
brokers' own logs begin, since all below that was in the tier by then; then the metadata and log starts
(table.planning.tier_view); then leader epochs.
"""

import argparse
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pipeline.jobs.audit import AuditedPartition, AuditInputs, audit
from pipeline.jobs.audit_record import AuditRecord
from pipeline.jobs.job_context import DONE, FOUND_WRONG, JobContext, RunJob
from pipeline.jobs.job_folder import JobFolder
from pipeline.jobs.progress import JobProgress
from pipeline.jobs.topics import topic_selection
from protocol.list_offsets import OffsetTimestamp
from storage.checks.audit_result import AuditResult
from storage.checks.partition_check import PartitionState
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.wall_clock import wall_clock_ms
from table.driver import Tier, open_tier, shipped_storage
from table.planning.partition_view import PartitionView
from table.planning.request import TopicSelection
from table.reading.executor_storage import ShippedStorage, open_shipped_storage

EVERYTHING = ".*"
SHOWN_FINDINGS_MAX = 200
"""Rows of the table on the screen."""


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What was asked for."""

    selection: TopicSelection
    report: str | None

    def __call__(self, context: JobContext) -> int:
        """Do it; the exit code."""
        spark = context.spark
        with open_tier(context.config) as tier:
            inputs = audit_inputs(tier, shipped_storage(context.config), self.selection)
            record = None if self.report is None else AuditRecord(JobFolder(spark, self.report))
            with JobProgress(context.messages, "audit", "segments", context=spark.sparkContext) as bar:

                def on_wave(done: int, total: int, found: int) -> None:
                    bar.advance(done, total, f"{found} findings")

                result = audit(spark, inputs, record, on_wave)
        if record is not None:
            record.finish(result.as_json())
        if result.findings:
            context.output.print(findings_table(result))
        for line in result.summary():
            context.output.print(line, highlight=False, markup=False, soft_wrap=True)
        if self.report is not None:
            context.output.print(f"report: {self.report}", highlight=False, markup=False, soft_wrap=True)
        return FOUND_WRONG if result.findings else DONE


def prepare(arguments: argparse.Namespace) -> RunJob:
    """The job, if it can be done.

    Raises:
        UsageError: with every problem found.
    """
    return AuditJob(topic_selection(arguments.topics, arguments.pattern), arguments.report)


def audit_inputs(tier: Tier, shipped: ShippedStorage, selection: TopicSelection) -> AuditInputs:
    """Ask brokers and metadata.

    Raises:
        TierViewError, UpstreamError: see table.planning.tier_view.
    """
    known = [view for view in tier.view.partitions(selection, False) if view.segments or _has_segments(tier, view)]
    asked = dict.fromkeys([view.key for view in known], int(OffsetTimestamp.EARLIEST_LOCAL))
    local_starts = tier.client.list_offsets(asked) if asked else {}
    metadata_read_ms = wall_clock_ms()
    views = tier.view.partitions(selection, False)
    return AuditInputs(
        open_manager=functools.partial(open_shipped_storage, shipped),
        partitions=[_partition(tier, view, local_starts) for view in views if _has_segments(tier, view)],
        find_segment=tier.catalog.find_segment,
        refresh=tier.view.refresh,
        metadata_read_ms=metadata_read_ms,
        topics=None if selection.pattern == EVERYTHING else tuple(sorted({view.partition.topic for view in views})),
    )


def findings_table(result: AuditResult) -> Table:
    """Return what was found; more than SHOWN_FINDINGS_MAX are cut off."""
    table = Table(title="Findings")
    for name in ("kind", "partition", "object or segment", "position", "what"):
        table.add_column(name, overflow="fold", justify="right" if name == "position" else "left")
    for each in result.findings[:SHOWN_FINDINGS_MAX]:
        partition = "" if each.topic is None else f"{each.topic}-{each.partition}"
        position = "" if each.position is None else str(each.position)
        table.add_row(each.kind.value, partition, each.object_name or each.segment or "", position, each.detail)
    if len(result.findings) > SHOWN_FINDINGS_MAX:
        table.add_row("…", f"{len(result.findings) - SHOWN_FINDINGS_MAX} more", "", "", "all with --report")
    return table


def _partition(tier: Tier, view: PartitionView, local_starts: Mapping[tuple[str, int], Any]) -> AuditedPartition:
    partition = view.partition
    epochs = tier.catalog.epochs(partition.topic_id, partition.partition)
    said = tier.client.leader_epoch_ends(partition.topic, partition.partition, epochs) if epochs else None
    local = local_starts.get(view.key)
    return AuditedPartition(
        partition=partition,
        segments=tuple(tier.catalog.list_segments(partition.topic_id, partition.partition)),
        state=PartitionState(
            lineage=None if said is None else LeaderEpochLineage(said.leader_epoch, said.answers),
            log_start_offset=view.log_start_offset,
            local_log_start_offset=None if local is None or local.offset < 0 else local.offset,
        ),
    )


def _has_segments(tier: Tier, view: PartitionView) -> bool:
    return bool(tier.catalog.list_segments(view.partition.topic_id, view.partition.partition))
