"""A folder of Parquet as a backfill's sink, in any file system that Spark's Hadoop client reaches.

| path | what |
|---|---|
| `date=2026-11-21/run-000002-step-000003-00007-….parquet` | rows, in the folders that `--partition-by` names |
| `_tidegate/runs/run-000002.json` | a run: its ranges and options, written before its first step |
| `_tidegate/steps/run-000002-step-000003.json` | a step that is done, of a run that is not: rows, digest |
| `_tidegate/reports/run-000002.json` | a run that is done; then its steps' files are gone |
| `_tidegate/report.json` | the same, of the last run |
| `_tidegate/driver.json` | the job that writes here now (pipeline.jobs.folder_claim) |

Rules:
1. Spark's own committer writes straight into the folder: the driver renames no file of rows. Each file's name begins
   with its step's, so what a killed run left of a step that is not done is found by name, and deleted.
2. A step is done when its own small file says so. Until then readers of the folder may see some of its rows.
3. Jobs side by side share the folder, so each has an attempt of its own in Hadoop's `_temporary`, and none deletes
   that: it goes when the run ends. Tasks move their own files (version 2 of the algorithm).
4. Other files in the folder are nobody's business: neither counted nor deleted.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pipeline.jobs.backfill import BackfillError, digest
from pipeline.jobs.backfill_range import BackfillRefusedError
from pipeline.jobs.folder_claim import FolderClaim
from pipeline.jobs.job_folder import JobFolder
from pipeline.jobs.sink import Run, RunState, Step, steps

OURS: Final = "_tidegate"
REPORT: Final = f"{OURS}/report.json"
OFFSETS_PER_FOLDER: Final = 1_000_000
PARTITION_BY: Final = ("topic", "partition", "date", "hour", "offsets")
"""What `--partition-by` takes, in any order. `offsets` is by partition too."""

DELETES_AT_ONCE: Final = 16

_RUN = re.compile(r"/run-(\d{6,})\.json$", re.ASCII)
_STEP = re.compile(r"run-\d{6,}-step-(\d{6,})[.-]", re.ASCII)


class FolderSink:
    """One folder.

    Args:
        writer_options: of Spark's writer, for this file system (pipeline.jobs.backfill_s3a).
        verifies: read back what a run wrote before it is done.
        say: where a message to the user goes.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        *,
        writer_options: Mapping[str, str] | None = None,
        verifies: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._folder = JobFolder(spark, root)
        self._writer_options = dict(writer_options or {})
        self._verifies = verifies
        self._claim = FolderClaim(self._folder, say)

    def held(self) -> AbstractContextManager[None]:
        """Nobody else may write here until the block ends.

        Raises:
            BackfillRefusedError: the folder is somebody else's.
            FolderClaimError: another job does.
        """
        self.last_run()  # nothing is written into a folder that is refused
        return self._claim.held()

    @property
    def where(self) -> str:
        return self._folder.root

    def last_run(self) -> RunState | None:
        """See Sink.

        Raises:
            BackfillRefusedError: the folder has files, and no backfill was begun there.
        """
        numbers = [int(match[1]) for name in self._folder.names(f"{OURS}/runs/*") if (match := _RUN.search(f"/{name}"))]
        if not numbers:
            self._refuse_others()
            return None
        run = Run.from_json(self._folder.read_json(_run_name(max(numbers))))
        if self._folder.exists(_report_name(run.number)):
            return RunState(run, {step.number: {} for step in steps(run)}, is_finished=True)
        done = {
            int(match[1]): self._folder.read_json(name)
            for name in self._folder.names(f"{OURS}/steps/run-{run.number:06d}-step-*")
            if (match := _STEP.search(name))
        }
        return RunState(run, done)

    def forget(self) -> None:
        """See Sink. Without a backfill nothing is deleted."""
        if not any(self._folder.names(f"{OURS}/runs/*")):
            return
        names = [self._folder.relative(name) for name, _ in self._files("run-*-step-*") if _STEP.search(name)]
        self._delete(names)
        for folder in sorted({name.rpartition("/")[0] for name in names}):
            while folder:
                self._folder.delete_if_empty(folder)
                folder = folder.rpartition("/")[0]
        self._delete_temporary()
        for name in ("steps", "reports", "report.json", "runs"):  # runs last: until then it is a backfill's folder
            self._folder.delete(f"{OURS}/{name}")
        self._folder.write_json(f"{OURS}/forgotten.json", {})

    def begin(self, run: Run) -> None:
        """See Sink."""
        self._folder.write_json(_run_name(run.number), run.to_json())

    def clean(self, state: RunState) -> None:
        """See Sink."""
        left = {step.number for step in state.left}
        files = self._files(f"run-{state.run.number:06d}-step-*")
        self._delete([name for name, _ in files if (match := _STEP.search(name)) and int(match[1]) in left])
        self._delete_temporary()

    def append(
        self, rows: DataFrame, run: Run, step: Step, counted: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        """See Sink."""
        name = run.step_name(step.number)
        rows, columns = with_folders(rows, run.options)
        options = {
            "mapreduce.output.basename": name,
            "mapreduce.job.application.attempt.id": str(step.number),
            "mapreduce.fileoutputcommitter.cleanup.skipped": "true",
            "mapreduce.fileoutputcommitter.algorithm.version": "2",
            # One step's success is not the folder's.
            "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
            **self._writer_options,
        }
        rows.write.mode("append").partitionBy(*columns).options(**options).parquet(self._folder.root)
        report = counted()
        self._claim.check()
        self._folder.write_json(f"{OURS}/steps/{name}.json", report)
        return report

    def finish(self, state: RunState, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Sink.

        Raises:
            BackfillError: what was read back is not what was written.
        """
        run = state.run
        files = self._files(f"run-{run.number:06d}-step-*")
        whole = {**report, "files": len(files), "bytes": sum(size for _, size in files), "verified": self._verifies}
        if self._verifies:
            whole["partitions"] = self._read_back(state, has_files=bool(files))
        self._delete_temporary()
        self._folder.write_json(REPORT, whole)
        self._folder.write_json(_report_name(run.number), whole)
        self._delete(self._folder.names(f"{OURS}/steps/run-{run.number:06d}-step-*"))
        return whole

    def _refuse_others(self) -> None:
        if self._folder.exists(f"{OURS}/forgotten.json"):
            return
        if self._folder.exists(f"{OURS}/plan.json"):
            raise BackfillRefusedError(f"{self.where} holds a backfill of an earlier version: take another folder")
        if others := [name for name in self._folder.names("*") if not name.startswith(("_", "."))]:
            raise BackfillRefusedError(
                f"{self.where} holds {', '.join(others[:3])}, and no backfill was begun there: take an empty folder"
            )

    def _files(self, pattern: str) -> list[tuple[str, int]]:
        """Full names and sizes of files of rows whose own names match a glob: Spark lists folders side by side."""
        files = self._spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        found = files.option("pathGlobFilter", pattern).load(self._folder.root).select("path", "length")
        return [(row.path, row.length) for row in found.collect()]

    def _delete(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(DELETES_AT_ONCE) as pool:
            list(pool.map(self._folder.delete, names))

    def _delete_temporary(self) -> None:
        """Delete what committers leave: Hadoop's folder, and those of the magic committer."""
        self._delete(["_temporary", *self._folder.names("__magic*")])

    def _read_back(self, state: RunState, *, has_files: bool) -> list[dict[str, Any]]:
        found = self._written(state.run) if has_files else []
        by_step: dict[int, tuple[int, int]] = {}
        for row in found:
            rows, total = by_step.get(row["step"], (0, 0))
            by_step[row["step"]] = rows + row["rows"], total + int(row["digest"])
        problems = [
            f"{state.run.step_name(number)}: {report['rows']} rows were written, {by_step.get(number, (0, 0))[0]} are "
            f"read back{'' if report['rows'] != by_step.get(number, (0, 0))[0] else ', and not the same ones'}"
            for number, report in sorted(state.done.items())
            if (report["rows"], int(report["digest"])) != by_step.get(number, (0, 0))
        ]
        asked = {(step.number, each.topic, each.partition): each for step in steps(state.run) for each in step.ranges}
        totals: dict[tuple[str, int], tuple[int, int]] = {}
        for row in found:
            each = asked.get((row["step"], row["topic"], row["partition"]))
            name = f"{state.run.step_name(row['step'])}: {row['topic']}-{row['partition']}"
            if each is None:
                problems.append(f"{name} was not asked for")
            elif row["first_offset"] < each.start or row["last_offset"] >= each.end or row["rows"] != row["offsets"]:
                problems.append(
                    f"{name} was read from {each.start} to {each.end - 1}, but has {row['rows']} rows of "
                    f"{row['offsets']} offsets from {row['first_offset']} to {row['last_offset']}"
                )
            rows, total = totals.get((row["topic"], row["partition"]), (0, 0))
            totals[row["topic"], row["partition"]] = rows + row["rows"], total + int(row["digest"])
        if problems:
            raise BackfillError("\n".join(f"{self.where}: {problem}" for problem in sorted(problems)))
        return [_part(each, *totals.get((each.topic, each.partition), (0, 0))) for each in state.run.ranges]

    def _written(self, run: Run) -> list[Any]:
        """Return what each step wrote of each partition, from the files themselves."""
        # Without Spark's look at the folders' names: it would take a topic called 007 for the number 7.
        files = self._spark.read.option("recursiveFileLookup", "true")
        rows = files.option("pathGlobFilter", f"run-{run.number:06d}-step-*").parquet(self._folder.root)
        path = sql.col("_metadata.file_path")
        number = sql.regexp_extract(path, r"-step-(\d+)-[^/]*$", 1).cast("int")
        for name, kind in (("topic", "string"), ("partition", "int")):
            if name not in rows.columns:
                rows = rows.withColumn(name, sql.regexp_extract(path, rf"/{name}=([^/]*)/", 1).cast(kind))
        grouped = rows.groupBy(number.alias("step"), "topic", "partition").agg(
            sql.count("*").alias("rows"),
            sql.count_distinct("offset").alias("offsets"),
            sql.min("offset").alias("first_offset"),
            sql.max("offset").alias("last_offset"),
            digest(rows).alias("digest"),
        )
        return grouped.orderBy("step", "topic", "partition").collect()


def with_folders(rows: DataFrame, options: Mapping[str, Any]) -> tuple[DataFrame, Sequence[str]]:
    """The rows with the columns that name their folders, and those columns in order."""
    columns: list[str] = []
    for name in options["partition_by"]:
        if name == "date":
            rows = rows.withColumn("date", sql.to_date("timestamp"))
        elif name == "hour":
            rows = rows.withColumn("hour", sql.lpad(sql.hour("timestamp").cast("string"), 2, "0"))
        elif name == "offsets":
            size = options.get("offsets_per_folder") or OFFSETS_PER_FOLDER
            first = sql.floor(sql.col("offset") / size) * size
            rows = rows.withColumn("offset_range", sql.lpad(first.cast("string"), 20, "0"))
        columns += [*(["partition"] if name == "offsets" and "partition" not in columns else [])]
        columns.append("offset_range" if name == "offsets" else name)
    return rows, columns


def _part(each: Any, rows: int, total: int) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.start,
        "end_offset": each.end,
        "rows": rows,
        "offsets_without_row": each.offsets - rows,
        "digest": str(total),
    }


def _run_name(number: int) -> str:
    return f"{OURS}/runs/run-{number:06d}.json"


def _report_name(number: int) -> str:
    return f"{OURS}/reports/run-{number:06d}.json"
