"""Delta tables, through SQL and DataFrames alone: no Python package is needed.

The state is a commit's `userMetadata`. Its number is the transaction's version (`txnAppId`, `txnVersion`): Delta leaves
out a write whose version it has already, without a word, and of two at once one fails. So after each write the newest
commit of ours is looked at; if it is not this driver's, nothing of the step was written.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs.job_context import JobError, UsageError
from pipeline.jobs.table_format import OvertakenError, TableName, Written, first_line
from pipeline.jobs.table_state import PROPERTY, Commit

COORDINATES = "io.delta:delta-spark_2.13:4.0.0"
CLASS = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

_PAGES = (20, 500, None)
"""How many of the newest commits are asked for: most often one of ours is among the first."""
_OURS = '{"format":'


class DeltaTable:
    """One table that exists. What is read is as it was at the last `refresh`."""

    def __init__(self, spark: SparkSession, name: TableName, writer: str) -> None:
        self._spark, self._name = spark, name
        self._detail = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]
        self.refresh()

    def refresh(self) -> None:
        """Look at the table again."""
        self._pages: dict[int | None, list[Any]] = {}
        self._version = int(self._page(_PAGES[0])[0]["version"])

    @property
    def table_id(self) -> str:
        return str(self._detail["id"])

    @property
    def head(self) -> str | None:
        """The position of the newest commit."""
        return str(self._version)

    @property
    def sequence_floor(self) -> int:
        """No commit ever had a higher number: each has a version of its own."""
        return self._version

    def properties(self) -> Mapping[str, str]:
        told = self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        return {str(row["key"]): str(row["value"]) for row in told}

    def set_property(self, value: str) -> None:
        literal = value.replace("\\", "\\\\").replace("'", "\\'")
        self._spark.sql(f"ALTER TABLE {self._name} SET TBLPROPERTIES ('{PROPERTY}'='{literal}')")

    def commits(self) -> Iterator[Commit]:
        """The newest first, as far as the log was not cleaned."""
        told, undone_from = 0, None
        for page in _PAGES:
            entries = self._page(page)
            for entry in entries[told:]:
                version, operation = int(entry["version"]), str(entry["operation"])
                is_undone = undone_from is not None and version > undone_from
                text = entry["userMetadata"]
                yield Commit(
                    position=str(version),
                    state=text if text and text.startswith(_OURS) else None,
                    is_first=version == 0,
                    is_undone=is_undone,
                )
                if not is_undone and operation == "RESTORE":
                    undone_from = self._restored(entry)
                elif not is_undone and "REPLACE TABLE" in operation:
                    undone_from = -1
            told = len(entries)

    def clean(self) -> None:
        """Files that no commit names are VACUUM's."""

    def append(self, rows: DataFrame, state: str, sequence: int, check: Callable[[Written], None]) -> Written:
        """Add the rows with this property.

        Raises:
            OvertakenError: another driver has made the commit of this number.
        """
        options = {"userMetadata": state, "txnAppId": PROPERTY, "txnVersion": str(sequence)}
        try:
            rows.writeTo(str(self._name)).options(**options).append()
        except (PySparkException, Py4JJavaError) as error:
            # Delta's own errors are Java's to pyspark, which knows them only with Delta's Python package.
            if "ConcurrentTransactionException" in str(error):
                raise OvertakenError(first_line(error)) from error
            if "io.delta.exceptions" in str(error):
                raise JobError(
                    f"{self._name}: somebody else changed the table meanwhile, and Delta refused the commit "
                    f"({first_line(error)}); run the same command again"
                ) from error
            raise
        if (entry := self._entry_since(self._version, state)) is None:
            raise OvertakenError(f"Delta has a commit {sequence} of another driver's")
        written = _written(entry["operationMetrics"] or {})
        check(written)
        return written

    def _entry_since(self, version: int, state: str) -> Any:
        self.refresh()
        for page in _PAGES:
            entries = self._page(page)
            for entry in entries:
                if entry["userMetadata"] == state:
                    return entry
            if not entries or int(entries[-1]["version"]) <= version:
                break
        return None

    def _page(self, limit: int | None) -> list[Any]:
        if limit not in self._pages:
            words = "" if limit is None else f" LIMIT {limit}"
            self._pages[limit] = self._spark.sql(f"DESCRIBE HISTORY {self._name}{words}").collect()
        return self._pages[limit]

    def _restored(self, entry: Any) -> int:
        version = entry["operationParameters"].get("version")
        if version is None:
            raise UsageError(
                f"{self._name}: version {entry['version']} restored the table to a time, and not to a version: which "
                "offsets it has cannot be known. RESTORE it again, TO VERSION AS OF the same one"
            )
        return int(version)


def create(spark: SparkSession, name: TableName, columns: str, partition_by: tuple[str, ...]) -> None:
    """A new table."""
    if not name.is_path:
        spark.sql(f"CREATE TABLE {name} ({columns}) USING delta PARTITIONED BY ({', '.join(partition_by)})")
        return
    # To SQL a log without a commit is a table already: of a driver that was killed while it made one.
    rows = spark.createDataFrame([], columns).write.format("delta").mode("append").partitionBy(*partition_by)
    rows.save(name.parts[1])


def _written(metrics: Mapping[str, str]) -> Written:
    def number(key: str) -> int:
        return int(metrics.get(key) or 0)

    return Written(rows=number("numOutputRows"), files=number("numFiles"), bytes=number("numOutputBytes"))
