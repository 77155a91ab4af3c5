"""`backfill`: a range of a topic's history into Parquet, through the tier source or through Spark's Kafka source.

What is in the output folder:

| path | what |
|---|---|
| `date=2026-11-21/step-000003-00007.parquet` | rows, by the record's date (UTC); or in `partition=0/offset_range=…/` |
| `_tidegate/plan.json` | the range as it was when the job first ran, its options, its steps |
| `_tidegate/steps/step-000003.json` | a step that is done: offsets, rows, checks |
| `_tidegate/report.json` | all of it together, once the last step is done |
| `_tidegate/staging/` | the step under way |

Rules:
1. The range is settled by the first run and kept: what comes later is another backfill's. A run with other options is
   refused; `--restart` begins anew.
2. A step's files are written into staging, counted there, and moved under names that its number gives. A step is done
   when its own file says so: a run that was killed leaves at most one that is not, and the next one does that again.
3. Readers see whole files only; names that begin with `_` are none of theirs.
"""

import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pipeline.jobs.backfill_plan import OffsetRange, Step, from_json, offsets_json, steps, to_json
from pipeline.jobs.job_context import JobError, UsageError
from pipeline.jobs.job_folder import JobFolder

PLAN = "_tidegate/plan.json"
REPORT = "_tidegate/report.json"
STAGING = "_tidegate/staging"

BY_DATE, BY_OFFSETS = "date", "offsets"


_FORGOTTEN = "forgotten"
_STEP_FILE = re.compile(r"/(step-\d{6})-\d{5}\.parquet$", re.ASCII)


class BackfillError(JobError):
    """What was written does not add up; the message is for the user."""


class BackfillRefusedError(UsageError):
    """The job cannot go on as it was asked to; nothing was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """What the user asked for. `reader`: options of the source; no credentials, they are kept beside the data.

    `addresses`: options that say where to read, not what. They may be others in another run.
    """

    topic: str
    output: str
    source: str
    reader: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    """As they were asked for; the plan has what they came to."""
    partition_by: str = BY_DATE
    offsets_per_folder: int = 1_000_000
    bytes_per_step: int = 4 * 1024**3

    def as_json(self) -> dict[str, Any]:
        """What must be the same in every run of one backfill."""
        return {
            "topic": self.topic,
            "source": self.source,
            "reader": dict(sorted(self.reader.items())),
            "bounds": dict(sorted(self.bounds.items())),
            "partition_by": self.partition_by,
            "offsets_per_folder": self.offsets_per_folder,
        }


@dataclass(frozen=True, slots=True)
class BackfillRange:
    """What there is to read when the job begins."""

    ranges: tuple[OffsetRange, ...]
    bytes_estimated: int


OnStep = Callable[[Step, Mapping[str, Any], int, int], None]
"""Told of every step that is done: it, its report, how many are done, how many there are."""
OnPlan = Callable[[int, int], None]
"""Told before the first step how many are done already, and how many there are."""


def run_backfill(
    spark: SparkSession,
    options: BackfillOptions,
    find_range: Callable[[], BackfillRange],
    on_step: OnStep,
    on_plan: OnPlan = lambda done, steps: None,
    find_topic_id: Callable[[], str] = str,
) -> dict[str, Any]:
    """Do what is left to do; the report of the whole.

    Args:
        find_range: asked once in the life of a backfill.
        on_plan: told how many steps are done already, and how many there are.
        find_topic_id: what the topic's name means now, asked when there is something left to do: offsets of a topic
            that was deleted and made anew would be other records.

    Raises:
        BackfillRefusedError: the folder holds another backfill, or something else; or the topic is another.
        BackfillError: a step's rows do not add up.
    """
    folder = JobFolder(spark, options.output)
    plan, topic_id = _plan(folder, options, find_range, find_topic_id)
    done = {step.name: report for step in plan if (report := folder.read_json(_done_name(step))) is not None}
    on_plan(len(done), len(plan))
    left = [step for step in plan if step.name not in done]
    if left:
        if topic_id != find_topic_id():
            raise BackfillRefusedError(
                f"{options.topic} was deleted and made anew since the backfill in {folder.root} began: take another "
                "folder, or --restart"
            )
        _remove_files(folder, kept=done.keys())  # what a run that was killed has moved already
    for step in left:
        report = _do(spark, folder, options, step)
        done[step.name] = report
        on_step(step, report, len(done), len(plan))
    folder.delete(STAGING)
    report = _summary(options, plan, done)
    if left or not folder.exists(REPORT):
        folder.write_json(REPORT, report)
    return report


def forget_backfill(spark: SparkSession, output: str) -> None:
    """Delete what a backfill has written into a folder, and nothing else. Without one nothing is deleted.

    The plan becomes one that says just this: whatever is in the folder, a backfill may begin there.
    """
    folder = JobFolder(spark, output)
    if folder.read_json(PLAN) is None:
        return
    folder.write_json(PLAN, {_FORGOTTEN: True})
    for name in (REPORT, "_tidegate/steps", STAGING):
        folder.delete(name)
    _remove_files(folder, kept=())
    for pattern in ("date=*", "partition=*/offset_range=*", "partition=*"):
        for name in list(folder.names(pattern)):
            folder.delete_if_empty(name)


def _plan(
    folder: JobFolder,
    options: BackfillOptions,
    find_range: Callable[[], BackfillRange],
    find_topic_id: Callable[[], str],
) -> tuple[tuple[Step, ...], str]:
    """The steps, and the topic's id when they were made."""
    known = folder.read_json(PLAN)
    if known is None:
        if others := [name for name in folder.names("*") if not name.startswith(("_", "."))]:
            raise BackfillRefusedError(
                f"{folder.root} holds {', '.join(others[:3])}, and no backfill was begun there: take an empty folder"
            )
    elif _FORGOTTEN not in known:
        _refuse_another(folder, options.as_json(), known["options"])
        return from_json(known["steps"]), str(known["topic_id"])
    # First, so that a topic that is made anew right now is found out before the first step.
    topic_id = find_topic_id()
    found = find_range()
    try:
        made = steps(found.ranges, bytes_estimated=found.bytes_estimated, bytes_per_step=options.bytes_per_step)
    except ValueError as error:
        raise BackfillRefusedError(f"{options.topic}: {error}") from error
    plan = {
        "options": options.as_json(),
        "topic_id": topic_id,
        "bytes_per_step": options.bytes_per_step,
        "steps": to_json(made),
    }
    folder.write_json(PLAN, plan)
    return made, topic_id


def _refuse_another(folder: JobFolder, asked: Mapping[str, Any], was: Mapping[str, Any]) -> None:
    if other := sorted(name for name in asked if was.get(name) != asked[name]):
        told = ", ".join(f"{name} was {was.get(name)}, is {asked[name]}" for name in other)
        raise BackfillRefusedError(f"{folder.root} holds another backfill ({told}): take another folder, or --restart")


def _do(spark: SparkSession, folder: JobFolder, options: BackfillOptions, step: Step) -> dict[str, Any]:
    started_s = time.monotonic()
    staging = f"{STAGING}/{step.name}"
    folder.delete(staging)
    rows = with_folders(read_step(spark, options, step), options)
    rows.write.mode("overwrite").partitionBy(*_folders(options)).parquet(f"{folder.root}/{staging}")
    found = count_written(spark, folder, staging, step)
    files, size_bytes = _move(folder, staging, step)
    report = {
        "step": step.number,
        "partitions": found,
        "rows": sum(each["rows"] for each in found),
        "files": files,
        "bytes": size_bytes,
        "seconds": round(time.monotonic() - started_s, 3),
    }
    folder.write_json(_done_name(step), report)
    return report


def read_step(spark: SparkSession, options: BackfillOptions, step: Step) -> DataFrame:
    """The rows of a step, from either source: both take the same three options."""
    starts = offsets_json(options.topic, {each.partition: each.start for each in step.ranges})
    ends = offsets_json(options.topic, {each.partition: each.end for each in step.ranges})
    partitions = {options.topic: [each.partition for each in step.ranges]}
    reader = spark.read.format(options.source).options(**options.reader, **options.addresses)
    return (
        reader.option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )


def with_folders(rows: DataFrame, options: BackfillOptions) -> DataFrame:
    """The rows with the columns that name their folders."""
    if options.partition_by == BY_DATE:
        return rows.withColumn("date", sql.to_date("timestamp"))
    first = sql.floor(sql.col("offset") / options.offsets_per_folder) * options.offsets_per_folder
    return rows.withColumn("offset_range", sql.lpad(first.cast("string"), 20, "0"))


def _folders(options: BackfillOptions) -> tuple[str, ...]:
    return ("date",) if options.partition_by == BY_DATE else ("partition", "offset_range")


def count_written(spark: SparkSession, folder: JobFolder, staging: str, step: Step) -> list[dict[str, Any]]:
    """What was written, from the files themselves, against what was asked for.

    Raises:
        BackfillError: rows of other partitions or offsets, or an offset twice.
    """
    has_rows = any(file.name.endswith(".parquet") for file in folder.files_under(staging))
    grouped = _grouped(spark.read.parquet(f"{folder.root}/{staging}")).collect() if has_rows else []
    by_partition = {row["partition"]: row for row in grouped}
    if unknown := sorted(set(by_partition) - {each.partition for each in step.ranges}):
        raise BackfillError(f"{step.name}: rows of partitions {unknown}, which were not asked for")
    return [_checked(step, each, by_partition.get(each.partition)) for each in step.ranges]


def _checked(step: Step, asked: OffsetRange, row: Any) -> dict[str, Any]:
    rows = 0
    if row is not None:
        rows = int(row["rows"])
        if row["first_offset"] < asked.start or row["last_offset"] >= asked.end or rows != row["offsets"]:
            raise BackfillError(
                f"{step.name}: partition {asked.partition} was read from {asked.start} to {asked.end - 1}, but has"
                f" {rows} rows of {row['offsets']} offsets from {row['first_offset']} to {row['last_offset']}"
            )
    return {
        "partition": asked.partition,
        "start_offset": asked.start,
        "end_offset": asked.end,
        "rows": rows,
        # Control records, aborted transactions, and what compaction took.
        "offsets_without_row": asked.offsets - rows,
        "digest": "0" if row is None else str(row["digest"]),
    }


def _grouped(written: DataFrame) -> DataFrame:
    # Sorted: a column that names folders is read back as the last.
    columns = sorted(name for name in written.columns if name not in ("date", "offset_range", "headers"))
    return written.groupBy("partition").agg(
        sql.count("*").alias("rows"),
        sql.count_distinct("offset").alias("offsets"),
        sql.min("offset").alias("first_offset"),
        sql.max("offset").alias("last_offset"),
        # The sum does not depend on the order of rows.
        sql.sum(sql.xxhash64(*columns).cast("decimal(38,0)")).alias("digest"),
    )


def _move(folder: JobFolder, staging: str, step: Step) -> tuple[int, int]:
    """From staging to where readers look, under names of the step's; how many files, and their bytes."""
    files = [file for file in folder.files_under(staging) if file.name.endswith(".parquet")]
    for number, file in enumerate(files):
        subfolder = file.name.removeprefix(staging + "/").rpartition("/")[0]
        folder.rename(file.name, f"{subfolder}/{step.name}-{number:05d}.parquet")
    return len(files), sum(file.size_bytes for file in files)


def _remove_files(folder: JobFolder, *, kept: Collection[str]) -> None:
    """Files of steps, but for the steps that are kept."""
    for name in [*folder.names("*/step-*.parquet"), *folder.names("*/*/step-*.parquet")]:
        match = _STEP_FILE.search(name)
        if match and match[1] not in kept:
            folder.delete(name)


def _summary(options: BackfillOptions, plan: tuple[Step, ...], done: Mapping[str, Any]) -> dict[str, Any]:
    partitions: dict[int, dict[str, Any]] = {}
    for step in plan:
        for part in done[step.name]["partitions"]:
            known = partitions.setdefault(
                part["partition"], {**part, "rows": 0, "offsets_without_row": 0, "digest": "0"}
            )
            known["start_offset"] = min(known["start_offset"], part["start_offset"])
            known["end_offset"] = max(known["end_offset"], part["end_offset"])
            known["rows"] += part["rows"]
            known["offsets_without_row"] += part["offsets_without_row"]
            known["digest"] = str(int(known["digest"]) + int(part["digest"]))
    return {
        **options.as_json(),
        "steps": len(plan),
        "files": sum(report["files"] for report in done.values()),
        "bytes": sum(report["bytes"] for report in done.values()),
        "rows": sum(report["rows"] for report in done.values()),
        "seconds": round(sum(report["seconds"] for report in done.values()), 3),
        "partitions": [partitions[number] for number in sorted(partitions)],
    }


def _done_name(step: Step) -> str:
    return f"_tidegate/steps/{step.name}.json"
