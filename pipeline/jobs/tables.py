"""A backfill into a table: Delta or Iceberg, a new one or anybody's (docs/spark.md#into-tables).

Every step is one commit of the table's, with the run's state in the commit's own properties
(pipeline.jobs.table_state). Steps of a table are written one at a time, since each commit says what all before it have
done; each step is as wide as the cluster. Others may write into the table meanwhile; of two backfills one fails.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs import table_delta, table_iceberg
from pipeline.jobs.backfill_folder import OFFSETS_PER_FOLDER
from pipeline.jobs.job_context import JobError, UsageError
from pipeline.jobs.sink import Run, RunState, Step
from pipeline.jobs.table_columns import added_columns, as_table, fit
from pipeline.jobs.table_format import OvertakenError, TableFormat, TableName, Written, first_line
from pipeline.jobs.table_state import KeptState, StateLostError, TableState, kept_state, newest_state, offsets_text

DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)

_DERIVED = {
    # In UTC, whatever the session's time zone is.
    "date": "date_from_unix_date(int((unix_millis(timestamp) - pmod(unix_millis(timestamp), 86400000)) div 86400000))",
    "hour": "int(pmod(unix_millis(timestamp), 86400000) div 3600000)",
    "offset_range": "offset - pmod(offset, {offsets})",
}
"""Columns that a table may have and a record has not. Delta is partitioned by columns; Iceberg finds them itself."""
_DERIVED_TYPES = {"date": "date", "hour": "int", "offset_range": "bigint"}
_ICEBERG_PARTITIONS = {
    "date": "days(`timestamp`)",
    "hour": "hours(`timestamp`)",
    "offsets": "truncate({offsets}, `offset`)",
}
_FORMATS = {DELTA: table_delta, ICEBERG: table_iceberg}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """What was asked for. `format`: of a new table; one that is there has its own."""

    name: TableName
    format: str | None = None
    evolves_schema: bool = False
    starts_at_offsets: bool = False
    """With --restart: the user knows what is in the table, and has said from which offsets to go on."""


class TableSink:
    """See pipeline.jobs.sink. `tell` is for sentences to the user."""

    def __init__(self, spark: SparkSession, options: TableOptions, tell: Callable[[str], None]) -> None:
        self._spark, self._options, self._tell = spark, options, tell
        self._name = options.name
        self._writer = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._state = TableState(run=None)
        self._written: list[Written] = []
        """This driver's commits of the run."""
        self._format = options.format or DELTA
        self._table = self._opened()

    @property
    def where(self) -> str:
        return f"table {self._name}"

    def last_run(self) -> RunState | None:
        """See the seam.

        Raises:
            StateLostError: rows of a backfill are there, and which is not known.
        """
        with self._lock:
            self._state = self._read()
            run, kept = self._state.run, None if self._table is None else kept_state(self._table.properties())
            if run is None:
                return None
            is_kept = kept is not None and kept.state.is_finished and kept.state.sequence == self._state.sequence
            done: dict[int, dict[str, Any]] = {number: {} for number in sorted(self._state.done)}
            return RunState(run, done, is_finished=is_kept and self._state.is_finished)

    def forget(self) -> None:
        """Begin again, without a look at what was. Rows of a table are never ours alone to delete.

        Raises:
            UsageError: the table has rows, and nobody has said which.
        """
        if self._table is None:
            return
        with self._lock:
            has_rows = self._spark.table(str(self._name)).limit(1).count() > 0
            if has_rows and not self._options.starts_at_offsets:
                raise UsageError(
                    "--restart does not delete a table's rows, which others may have added or read. Either do that "
                    f"first (TRUNCATE TABLE {self._name}), or say behind which rows to go on: "
                    '--restart --from \'{"TOPIC": {"0": OFFSET}}\''
                )
            try:
                sequence = self._read().sequence
            except StateLostError:
                sequence = self._table.sequence_floor
            self._keep(TableState(run=None, sequence=sequence, writer=self._writer))
            if has_rows:
                self._tell(f"{self._name} keeps its rows; what an earlier backfill said of them is forgotten")

    def begin(self, run: Run) -> None:
        with self._lock:
            self._state = replace(self._state, run=run, done=frozenset(), writer=self._writer)
            if self._table is not None:
                self._keep(self._state)

    def clean(self, state: RunState) -> None:
        """Nothing is there that readers see. A branch of Iceberg's goes with the next commit."""

    def append(
        self, rows: DataFrame, run: Run, step: Step, counted: Callable[[], Mapping[str, Any]]
    ) -> Mapping[str, Any]:
        with self._lock:
            table = self._table or self._created(rows, run)
            fitting = self._fitting(rows, run)
            self._check_ours(self._read())
            made = self._state.with_step(run, step, self._writer)
            report: dict[str, Any] = {}

            def check(written: Written) -> None:
                report.update(counted())
                if written.rows != report["rows"]:
                    raise JobError(
                        f"{self._name}: step {step.number} has {report['rows']} rows, and the table took {written.rows}"
                    )

            text = made.to_text(step=step.number, offsets=offsets_text(step))
            try:
                written = table.append(fitting, text, made.sequence, check)
            except OvertakenError as error:
                raise self._overtaken(str(error)) from error
            self._state = made
            self._written.append(written)
            return {**report, "files": written.files, "bytes": written.bytes}

    def finish(self, state: RunState, report: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            if self._table is not None:
                self._check_ours(self._read())
                self._keep(self._state)
                self._table.clean()
            written, self._written = self._written, []
            if len(written) < report["steps"]:
                return report  # the rest was another driver's
            files, size = sum(each.files for each in written), sum(each.bytes for each in written)
            return {**report, "files": files, "bytes": size}

    def _read(self) -> TableState:
        if self._table is None:
            return TableState(run=None)
        try:
            self._table.refresh()
        except OvertakenError as error:
            raise self._overtaken(str(error)) from error
        kept = kept_state(self._table.properties())
        return newest_state(str(self._name), self._table.table_id, kept, self._table.commits())

    def _keep(self, state: TableState) -> None:
        """Into the table's property."""
        if self._table is None:
            raise JobError(f"{self._name}: there is no table")
        self._table.refresh()
        self._table.set_property(KeptState(state, self._table.table_id, self._table.head).to_text())

    def _check_ours(self, found: TableState) -> None:
        ours = self._state
        numbers = [state.run.number if state.run else 0 for state in (found, ours)]
        if (found.sequence, found.done) != (ours.sequence, ours.done) or numbers[0] != numbers[1]:
            raise self._overtaken(f"commit {found.sequence} of a backfill's is there, and {ours.sequence} was the last")

    def _overtaken(self, why: str) -> OvertakenError:
        return OvertakenError(
            f"{self._name}: another backfill writes into the table, or the table was dropped or rolled back meanwhile "
            f"({why}). Nothing was written twice; when the other has ended, run the same command again"
        )

    def _opened(self) -> TableFormat | None:
        """The table, None when there is none yet.

        Raises:
            UsageError: it is no table, or of another format, or what reads it is not there.
        """
        asked, lacks = self._options.format, _lacking(self._spark, self._name, self._options.format)
        if lacks:
            raise UsageError(_advice(self._options, lacks))
        try:
            found = provider(self._spark, self._name)
        except (PySparkException, Py4JJavaError) as error:
            raise UsageError(_advice(self._options, first_line(error))) from error
        if found is None:
            if asked is None and not self._name.is_path:
                raise UsageError(f"--table {self._name}: there is none; --table-format delta or iceberg makes one")
            return None
        if found not in FORMATS:
            raise UsageError(f"--table {self._name} is {found}: Delta and Iceberg have commits of all or nothing")
        if asked is not None and asked != found:
            raise UsageError(f"--table {self._name} is there already, as {found}: --table-format {asked} is for new")
        return self._open(found)

    def _open(self, provider: str) -> TableFormat:
        kind = table_delta.DeltaTable if provider == DELTA else table_iceberg.IcebergTable
        try:
            return kind(self._spark, self._name, self._writer)
        except (PySparkException, Py4JJavaError) as error:
            raise UsageError(_advice(self._options, first_line(error))) from error

    def _created(self, rows: DataFrame, run: Run) -> TableFormat:
        """A new table with the rows' columns."""
        parts = run.options.get("partition_by") or ["date"]
        if self._format == DELTA:
            by = tuple("offset_range" if part == "offsets" else part for part in parts)
            rows = rows.selectExpr("*", *(f"{_derived(name, run)} AS {name}" for name in by if name in _DERIVED))
        else:
            offsets = _offsets_per_folder(run)
            parts = [part for part in parts if part != "date" or "hour" not in parts]  # Iceberg wants one of them
            by = tuple(_ICEBERG_PARTITIONS.get(part, f"`{part}`").format(offsets=offsets) for part in parts)
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema.fields)
        try:
            _FORMATS[self._format].create(self._spark, self._name, columns, by)
        except (PySparkException, Py4JJavaError) as error:
            if provider(self._spark, self._name) != self._format:
                raise UsageError(_advice(self._options, first_line(error))) from error
            # Another driver has made it meanwhile.
        else:
            self._tell(f"created {self._name}, {self._format}, partitioned by {', '.join(by).replace('`', '')}")
        self._table = self._open(self._format)
        self._keep(self._state)
        return self._table

    def _fitting(self, rows: DataFrame, run: Run) -> DataFrame:
        """As the table has its columns.

        Raises:
            UsageError: they do not fit.
        """
        is_case_sensitive = self._spark.conf.get("spark.sql.caseSensitive") == "true"
        there = self._spark.table(str(self._name)).schema
        wanted = {field.name: field.dataType.simpleString() for field in there.fields}
        derived = [
            name for name, kind in _DERIVED_TYPES.items() if wanted.get(name) == kind and name not in rows.columns
        ]
        rows = rows.selectExpr("*", *(f"{_derived(name, run)} AS {name}" for name in derived))
        found = fit(rows.schema, there, is_case_sensitive=is_case_sensitive)
        problems = [f"{self._name}: {problem}" for problem in found.problems]
        statement = f"ALTER TABLE {self._name} ADD COLUMNS ({added_columns(found.missing)})"
        if found.missing and not self._options.evolves_schema:
            names = ", ".join(each.name for each in found.missing)
            problems.append(f"{self._name} lacks {names}: {statement}, or --evolve-schema, which does just that")
        if problems:
            raise UsageError(*problems)
        if found.missing:
            self._spark.sql(statement)
            for added in found.missing:
                self._tell(f"{self._name}: added column {added.name} {added.type.simpleString()}")
            there = self._spark.table(str(self._name)).schema
        fills = isinstance(self._table, table_iceberg.IcebergTable)
        return as_table(rows, there, is_case_sensitive=is_case_sensitive, fills_nulls=fills)


def _derived(name: str, run: Run) -> str:
    return _DERIVED[name].format(offsets=_offsets_per_folder(run))


def _offsets_per_folder(run: Run) -> int:
    return int(run.options.get("offsets_per_folder") or OFFSETS_PER_FOLDER)


def provider(spark: SparkSession, name: TableName) -> str | None:
    """Return what the table is of, None without one. Asked so that pyspark logs no trace where there is none."""
    if name.is_path:
        jvm: Any = spark.sparkContext._jvm
        # Commits and checkpoints. A driver that was killed while it made the table leaves a log without any.
        versions = jvm.org.apache.hadoop.fs.Path(name.parts[1], "_delta_log/[0-9]*")
        files = versions.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        return DELTA if files.globStatus(versions) else None
    if not spark.catalog.tableExists(str(name)):
        return None
    told = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    found = {row["col_name"]: row["data_type"] for row in told}
    return str(found.get("Provider") or "a view").lower()


def _lacking(spark: SparkSession, name: TableName, table_format: str | None) -> str | None:
    """Return what of the session's settings the table wants and does not find."""
    catalog = name.parts[0] if len(name.parts) > 2 else "spark_catalog"
    if catalog != "spark_catalog" and spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
        return f"spark.sql.catalog.{catalog} is not set"
    if name.is_path or table_format == DELTA:
        if table_delta.EXTENSION not in (spark.conf.get("spark.sql.extensions", None) or ""):
            return f"spark.sql.extensions has no {table_delta.EXTENSION}"
        if catalog == "spark_catalog" and spark.conf.get("spark.sql.catalog.spark_catalog", None) is None:
            return "spark.sql.catalog.spark_catalog is not set"
    return None


def _advice(options: TableOptions, problem: str) -> str:
    """Return what is the matter, and what a session needs for the format."""
    catalog = options.name.parts[0] if len(options.name.parts) > 2 else "spark_catalog"
    delta = (
        f"for Delta --packages {table_delta.COORDINATES} --conf spark.sql.extensions={table_delta.EXTENSION} "
        f"--conf spark.sql.catalog.spark_catalog={table_delta.CLASS}"
    )
    iceberg = (
        f"for Iceberg --packages {table_iceberg.COORDINATES} --conf spark.sql.catalog.{catalog}={table_iceberg.CLASS} "
        f"--conf spark.sql.catalog.{catalog}.type=… and what that type needs"
    )
    wanted = {DELTA: [delta], ICEBERG: [iceberg]}.get(options.format or "", [delta, iceberg])
    return f"--table {options.name}: {problem}. Spark needs {'; '.join(wanted)} (docs/spark.md#into-tables)"
