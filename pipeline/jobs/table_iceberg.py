"""Iceberg tables, through Iceberg's own Java API in Spark's JVM: no Python package is needed.

An append of Iceberg's knows no condition: two drivers' appends would both be taken. So a step is written onto a branch
of the driver's own, which readers do not see, and is then published by a cherry-pick. A snapshot with a `wap.id` is
published once in the history of a table, however many try and whatever was committed meanwhile (Iceberg's WapUtil,
looked at again in each retry of the commit). The number of the commit is that id. The rows are counted before it.

Where nothing was committed meanwhile the branch's snapshot itself becomes the table's. Else Iceberg makes another with
the same files, which has `source-snapshot-id` in our property's place. The branch keeps its source from expiring, until
a later step, of another driver too, or the end of the run, when the table's property says the same.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs.job_context import JobError
from pipeline.jobs.table_format import OvertakenError, TableName, Written, first_line
from pipeline.jobs.table_state import PROPERTY, Commit

COORDINATES = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
CLASS = "org.apache.iceberg.spark.SparkCatalog"

_BRANCH = "tidegate_backfill_"
_WAP_ID = "tidegate.backfill-"
_SOURCE, _PUBLISHED = "source-snapshot-id", "published-wap-id"


class IcebergTable:
    """One table that exists. What is read is as it was at the last `refresh`."""

    def __init__(self, spark: SparkSession, name: TableName, writer: str) -> None:
        self._spark, self._name = spark, name
        self._branch = _BRANCH + writer
        self._table = _java(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, str(name))
        self.refresh()

    def refresh(self) -> None:
        """Look at the table again.

        Raises:
            OvertakenError: it is not there any more, or another has its name.
        """
        try:
            self._table.refresh()
        except Py4JJavaError as error:
            raise OvertakenError(first_line(error)) from error
        current = self._table.currentSnapshot()
        self._head: int | None = None if current is None else int(current.snapshotId())

    @property
    def table_id(self) -> str:
        return str(self._table.uuid().toString())

    @property
    def head(self) -> str | None:
        """The position of the newest commit."""
        return None if self._head is None else str(self._head)

    @property
    def sequence_floor(self) -> int:
        """No commit ever had a higher number."""
        return int(self._table.operations().current().lastSequenceNumber())

    def properties(self) -> Mapping[str, str]:
        properties = self._table.properties()
        text = properties.get(PROPERTY)
        return {} if text is None else {PROPERTY: str(text)}

    def set_property(self, value: str) -> None:
        self._table.updateProperties().set(PROPERTY, value).commit()

    def commits(self) -> Iterator[Commit]:
        """The newest first, as far as they have not expired."""
        snapshot = None if self._head is None else self._table.snapshot(self._head)
        while snapshot is not None:
            summary, parent = snapshot.summary(), snapshot.parentId()
            text, is_lost = summary.get(PROPERTY), False
            if text is None and str(summary.get(_PUBLISHED)).startswith(_WAP_ID):
                source = self._table.snapshot(int(summary.get(_SOURCE)))
                is_lost = source is None
                text = None if source is None else source.summary().get(PROPERTY)
            yield Commit(
                position=str(snapshot.snapshotId()),
                state=None if text is None else str(text),
                is_first=parent is None,
                is_lost=is_lost,
            )
            snapshot = None if parent is None else self._table.snapshot(parent)

    def clean(self, *, keeps_own: bool = False) -> None:
        """Remove the branches of drivers, those of killed ones too."""
        for name in [str(name) for name in self._table.refs().keySet() if str(name).startswith(_BRANCH)]:
            if not keeps_own or name != self._branch:
                self._table.manageSnapshots().removeBranch(name).commit()

    def append(self, rows: DataFrame, state: str, sequence: int, check: Callable[[Written], None]) -> Written:
        """Add the rows with this property, on top of the head that was looked at.

        Raises:
            OvertakenError: another driver has made the commit of this number.
        """
        base = self._begin_branch()
        options = {f"snapshot-property.{PROPERTY}": state, "snapshot-property.wap.id": f"{_WAP_ID}{sequence}"}
        rows.writeTo(str(self._with_branch())).options(**options).append()
        self._table.refresh()
        reference = self._table.refs().get(self._branch)
        made = None if reference is None else self._table.snapshot(reference.snapshotId())
        if made is None or made.summary().get(PROPERTY) != state or made.parentId() != base:
            raise OvertakenError(f"another driver has touched the branch {self._branch}")
        written = _written(made.summary())
        check(written)
        self._publish(int(made.snapshotId()))
        self.clean(keeps_own=True)
        return written

    def _with_branch(self) -> TableName:
        """Iceberg takes a branch as one more part, behind a name that is whole."""
        parts, catalog = self._name.parts, self._spark.catalog
        if len(parts) == 1:
            parts = (catalog.currentCatalog(), catalog.currentDatabase(), *parts)
        elif len(parts) == 2 and self._spark.conf.get(f"spark.sql.catalog.{parts[0]}", None) is None:
            parts = (catalog.currentCatalog(), *parts)
        return TableName((*parts, f"branch_{self._branch}"))

    def _begin_branch(self) -> int:
        """The driver's branch as the table's head is; its snapshot, which is empty where the table has none yet."""
        changes = self._table.manageSnapshots()
        if self._table.refs().containsKey(self._branch):
            if self._head is None:
                changes = changes.removeBranch(self._branch).createBranch(self._branch)
            else:
                changes = changes.replaceBranch(self._branch, self._head)
        elif self._head is None:
            changes = changes.createBranch(self._branch)
        else:
            changes = changes.createBranch(self._branch, self._head)
        changes.commit()
        return int(self._table.refs().get(self._branch).snapshotId())

    def _publish(self, snapshot_id: int) -> None:
        try:
            self._table.manageSnapshots().cherrypick(snapshot_id).commit()
        except Py4JJavaError as error:
            if "DuplicateWAPCommitException" in str(error.java_exception):
                raise OvertakenError(str(error.java_exception.getMessage())) from error
            raise JobError(f"{self._name}: Iceberg refused the commit: {first_line(error)}") from error


def create(spark: SparkSession, name: TableName, columns: str, partition_by: tuple[str, ...]) -> None:
    """A new table. A task's rows are of few days, so no shuffle sorts them: `none` and fanout."""
    spark.sql(
        f"CREATE TABLE {name} ({columns}) USING iceberg PARTITIONED BY ({', '.join(partition_by)}) "
        "TBLPROPERTIES ('write.distribution-mode'='none', 'write.spark.fanout.enabled'='true')"
    )


def _written(summary: Any) -> Written:
    def number(key: str) -> int:
        return int(summary.get(key) or 0)

    return Written(rows=number("added-records"), files=number("added-data-files"), bytes=number("added-files-size"))


def _java(spark: SparkSession) -> Any:
    jvm = spark.sparkContext._jvm
    if jvm is None:
        raise PySparkException("Spark has ended")
    return jvm
