"""A backfill's steps into Delta and Iceberg tables, each record once, also beside other writers.

The rows are made by Spark, so that what is tested is the table's side alone.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.jobs.job_context import JobError, UsageError
from pipeline.jobs.sink import RunState
from pipeline.jobs.table_format import OvertakenError
from pipeline.jobs.table_state import StateLostError
from tests.support.waiting import HANG_S_MAX, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("spark"), pytest.mark.needs("tables")]
both = pytest.mark.parametrize("table_format", ["delta", "iceberg"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def session(spark: "SparkSession", folder: Path) -> "SparkSession":
    """One with catalogs for both formats, beside the one that all tests share."""
    from tests.support.table_runs import table_settings

    made = spark.newSession()
    for name, value in table_settings(folder).items():
        made.conf.set(name, value)
    return made


@pytest.fixture
def table_format() -> str:
    """Delta's statements on its log are slow: long/test_table_sink.py runs these tests with it."""
    return "iceberg"


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in request.node.name)


@pytest.fixture
def name(table_format: str, folder: Path, plain: str) -> str:
    """Return the name of a table that nobody has made."""
    from tests.support.table_runs import table_name

    return table_name(table_format, folder, plain)


def test_runs_follow_each_other(session: "SparkSession", name: str, table_format: str) -> None:
    """Given a table made by a first run, when a second run is done, then both are there and the newest is known."""
    from tests.support.table_runs import contents, do, expected, run_of, sink_of

    told: list[str] = []
    do(session, sink_of(session, name, told, format=table_format), run_of(1, steps=2))
    do(session, sink_of(session, name, told), run_of(2, steps=2))
    state = sink_of(session, name).last_run()
    assert state == RunState(run_of(2, steps=2), {0: {}, 1: {}}, is_finished=True)
    assert contents(session.table(name)) == expected(session, run_of(1), run_of(2))
    assert [line.partition(",")[0] for line in told] == [f"created {name}"]


def test_a_killed_driver_is_followed(
    session: "SparkSession", name: str, table_format: str, folder: Path, plain: str
) -> None:
    """Given a driver that is killed while it writes, when the run is repeated, then every record is there once."""
    # After the first commits of a run of six, and before the last ones.
    _kill_and_repeat(session, name, table_format, folder, plain, files=45, kill=os.killpg)


def _kill_and_repeat(
    session: "SparkSession",
    name: str,
    table_format: str,
    folder: Path,
    plain: str,
    *,
    files: int,
    kill: Callable[[int, int], None],
) -> None:
    from tests.support.table_runs import contents, do, driver, expected, run_of, sink_of, table_folder, wait_for_files

    with driver(table_format, folder, plain) as process:
        wait_for_files(table_folder(table_format, folder, plain), files, process)
        if process.poll() is None:
            kill(process.pid, signal.SIGKILL)
        process.wait()
        state = None
        while state is None:  # a JVM that lives on a little is another driver, which this one may fail on
            with contextlib.suppress(OvertakenError):
                state = do(session, sink_of(session, name, format=_if_new(session, name, table_format)), run_of(1))
    assert contents(session.table(name)) == expected(session, run_of(1))


def _if_new(session: "SparkSession", name: str, table_format: str) -> str | None:
    from pipeline.jobs.table_format import TableName
    from pipeline.jobs.tables import provider

    return table_format if provider(session, TableName.parse(name)) is None else None


def test_a_table_that_somebody_else_made(session: "SparkSession", name: str, table_format: str) -> None:
    """Given another column order, a column of its own, and appends between ours, then nothing of either is lost."""
    from tests.support.table_runs import append, begun, contents, expected, run_of, sink_of

    session.sql(
        f"CREATE TABLE {name} (note string, timestamp timestamp, Offset bigint, partition bigint, "
        "topic string NOT NULL, `date` date, timestampType int, value binary, key binary) "
        f"USING {table_format}"
    )
    others = f"INSERT INTO {name} VALUES ('theirs', NULL, NULL, NULL, 'none', NULL, NULL, NULL, NULL)"
    session.sql(others)
    sink, run = sink_of(session, name), run_of(1, steps=2)
    for step in begun(sink, run).left:
        append(session, sink, run, step)
        session.sql(others)
    report = sink.finish(RunState(run, {0: {}, 1: {}}), {"steps": 2})
    assert (report["files"] > 0, report["bytes"] > 0) == (True, True)
    assert sink_of(session, name).last_run() == RunState(run, {0: {}, 1: {}}, is_finished=True)
    rows = session.table(name)
    ours = rows.where("note IS NULL").selectExpr("*", "int(partition) AS number").drop("partition")
    assert contents(ours.withColumnRenamed("number", "partition")) == expected(session, run)
    assert rows.where("note = 'theirs'").count() == 3
    days = rows.where("note IS NULL").selectExpr("string(date)").distinct().collect()
    assert sorted(row[0] for row in days) == ["1970-01-01", "1970-01-02", "1970-01-03"]


@both
def test_two_drivers_at_once(session: "SparkSession", name: str, table_format: str, tmp_path: Path) -> None:
    """Given a step that is being written, when another driver commits it first, then the later one adds nothing."""
    from pyspark.sql import functions as sql

    from tests.support.table_runs import append, begun, contents, do, expected, rows_of, run_of, sink_of

    run, failed = run_of(1, steps=1), []
    session.sql(f"CREATE TABLE {name} ({_COLUMNS}) USING {table_format}")
    slow, quick = sink_of(session, name), sink_of(session, name)
    (step,) = begun(slow, run).left
    assert begun(quick, run).left == (step,)
    started, may_end = tmp_path / "started", tmp_path / "may-end"

    def waits(made: Iterable[Any]) -> Iterable[Any]:
        started.touch()
        wait_until(may_end.exists, "the step may end", timeout_s=HANG_S_MAX)
        yield from made

    rows = rows_of(session, step.ranges)
    rows = session.createDataFrame(rows.coalesce(1).rdd.mapPartitions(waits), rows.schema)

    def write() -> None:
        try:
            slow.append(rows, run, step, lambda: {"rows": step.offsets})
        except JobError as error:
            failed.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_until(started.exists, "the step to begin", timeout_s=HANG_S_MAX)
        append(session, quick, run, step)
    finally:
        may_end.touch()
        writer.join()
    assert [message.partition(",")[0] for message in failed] == [f"{name}: another backfill writes into the table"]
    with pytest.raises(JobError, match="another backfill writes into the table"):
        append(session, slow, run, step)
    do(session, sink_of(session, name), run)
    assert contents(session.table(name)) == expected(session, run)
    assert session.table(name).where(sql.col("offset").isNull()).count() == 0


_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)


def test_columns_that_do_not_fit(session: "SparkSession", name: str, table_format: str) -> None:
    """Given a table that lacks a column and has another of another type, then an error names both, or one is added."""
    from tests.support.table_runs import append, begun, contents, expected, run_of, sink_of

    session.sql(f"CREATE TABLE {name} ({_COLUMNS.replace('value binary', 'value string')}) USING {table_format}")
    run = run_of(1, steps=1)
    sink = sink_of(session, name)
    (step,) = begun(sink, run).left
    with pytest.raises(UsageError, match="column value is string, and the rows have binary"):
        append(session, sink, run, step)
    _drop(session, name)
    session.sql(f"CREATE TABLE {name} ({_COLUMNS.replace(', timestampType int', '')}) USING {table_format}")
    sink = sink_of(session, name)
    assert begun(sink, run).left == (step,)
    statement = r"lacks timestampType: ALTER TABLE .* ADD COLUMNS \(`timestampType` int\), or --evolve-schema"
    with pytest.raises(UsageError, match=statement):
        append(session, sink, run, step)
    told: list[str] = []
    evolving = sink_of(session, name, told, evolves_schema=True)
    assert begun(evolving, run).left == (step,)
    append(session, evolving, run, step)
    assert told == [f"{name}: added column timestampType int"]
    assert contents(session.table(name)) == expected(session, run)


DAYS = ("id bigint", "id bigint, zip string", "id bigint")
"""One field more on the second day, and without it again on the third."""


@both
def test_a_nested_field_comes_and_goes(session: "SparkSession", name: str, table_format: str) -> None:
    """One Avro field more ended the daily backfill. Given structs in a struct, a list and a map, whose fields change
    from day to day, when each day is appended with --evolve-schema, then all rows are there, with null where there is
    no such field; without it, a sentence names the fields."""
    from pipeline.jobs.sink import OffsetRange, Run, in_order
    from tests.support.table_runs import begun, run_of, sink_of

    told: list[str] = []
    for day, fields in enumerate(DAYS):
        columns = f"topic string, partition int, offset bigint, timestamp timestamp, value struct<a: struct<{fields}>, "
        columns += f"l: array<struct<{fields}>>, m: map<string, struct<{fields}>>>"
        inner = (day,) if "zip" not in fields else (day, f"zip-{day}")
        rows = session.createDataFrame([("orders", 0, day, None, (inner, [inner], {"k": inner}))], columns)
        run = Run(
            number=day + 1,
            topics={"orders": "id"},
            ranges=in_order([OffsetRange("orders", 0, day, day + 1)]),
            steps_count=1,
            options=run_of(1).options,
        )
        if day == 1:
            refusing = sink_of(session, name)
            (step,) = begun(refusing, run).left
            with pytest.raises(UsageError, match=r"lacks value.a.zip, value.l.element.zip, value.m.value.zip: ALTER"):
                refusing.append(rows, run, step, lambda: {"rows": 1})
        sink = sink_of(session, name, told, format=None if day else table_format, evolves_schema=True)
        state = begun(sink, run)
        sink.append(rows, run, state.left[0], lambda: {"rows": 1})
        sink.finish(state, {"steps": 1})
    assert [line.rpartition(": ")[2] for line in told if "added column" in line] == [
        f"added column value.{path}.zip string" for path in ("a", "l.element", "m.value")
    ]
    found = session.table(name).orderBy("offset").select("value.a", "value.l", "value.m").collect()
    assert [[tuple(row.a), tuple(row.l[0]), tuple(row.m["k"])] for row in found] == [
        [inner] * 3 for inner in ((0, None), (1, "zip-1"), (2, None))
    ]


def test_a_table_is_rolled_back(session: "SparkSession", name: str, table_format: str) -> None:
    """Given a table that its owner sets back behind a step's commit, then that step is left, and no other."""
    from tests.support.table_runs import contents, do, expected, run_of, sink_of

    run = run_of(1, steps=3)
    do(session, sink_of(session, name, format=table_format), run)
    if table_format == "delta":
        session.sql(f"RESTORE TABLE {name} TO VERSION AS OF 3")  # made, its property, and two steps
    else:
        jvm: Any = session.sparkContext._jvm
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
        table.manageSnapshots().rollbackTo(table.currentSnapshot().parentId()).commit()
    state = sink_of(session, name).last_run()
    assert state is not None
    assert [step.number for step in state.left] == [2]
    do(session, sink_of(session, name), run)
    assert contents(session.table(name)) == expected(session, run)


def test_commits_that_are_gone(session: "SparkSession", name: str, table_format: str, folder: Path, plain: str) -> None:
    """Given no history left, then a run's end is known, its midst is an error, and --restart --from goes on."""
    from tests.support.table_runs import append, begun, contents, do, expected, run_of, sink_of, table_folder

    others = f"INSERT INTO {name} SELECT * FROM {name} LIMIT 0"
    if table_format == "delta":  # which makes no commit of nothing
        others = f"ALTER TABLE {name} SET TBLPROPERTIES ('others'='1')"
    do(session, sink_of(session, name, format=table_format), run_of(1, steps=2))
    session.sql(others)
    _forget_history(session, name, table_folder(table_format, folder, plain))
    state = sink_of(session, name).last_run()
    assert state == RunState(run_of(1, steps=2), {0: {}, 1: {}}, is_finished=True)

    run = run_of(2, steps=2)
    sink = sink_of(session, name)
    first, second = begun(sink, run).left
    append(session, sink, run, first)
    session.sql(others)
    _forget_history(session, name, table_folder(table_format, folder, plain))
    with pytest.raises(StateLostError, match="which offsets are in the table cannot be known"):
        sink_of(session, name).last_run()
    with pytest.raises(UsageError, match="--restart does not delete a table's rows"):
        sink_of(session, name).forget()

    told: list[str] = []
    again = sink_of(session, name, told, starts_at_offsets=True)
    again.forget()
    assert again.last_run() is None
    assert told == [f"{name} keeps its rows; what an earlier backfill said of them is forgotten"]
    again.begin(run)
    append(session, again, run, second)
    assert contents(session.table(name)) == expected(session, run_of(1), run)


def _forget_history(session: "SparkSession", name: str, files: Path) -> None:
    """As owners do: old snapshots expire, a log is cleaned behind its checkpoint."""
    jvm: Any = session.sparkContext._jvm
    if name.startswith("delta."):
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, str(files))
        log.checkpoint()
        for path in sorted((files / "_delta_log").glob("*.json"))[:-1]:
            path.unlink()
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)
    table.refresh()
    for branch in [str(reference) for reference in table.refs().keySet() if str(reference) != "main"]:
        table.manageSnapshots().removeBranch(branch).commit()  # it keeps a run's last commit from expiring
    newest = table.currentSnapshot().timestampMillis()
    table.expireSnapshots().expireOlderThan(newest).retainLast(1).commit()


def test_a_table_is_dropped_and_made_anew(session: "SparkSession", name: str, table_format: str) -> None:
    """Given another table under the name, then nothing of ours is there; a driver that goes on gets an error."""
    from tests.support.table_runs import append, begun, run_of, sink_of

    run = run_of(1, steps=2)
    statement = f"CREATE TABLE {name} ({_COLUMNS}) USING {table_format}"
    session.sql(statement)
    sink = sink_of(session, name)
    first, second = begun(sink, run).left
    append(session, sink, run, first)
    _drop(session, name)
    session.sql(statement)
    with pytest.raises(JobError, match="the table was dropped or rolled back meanwhile"):
        append(session, sink, run, second)
    assert sink_of(session, name).last_run() is None
    assert session.table(name).count() == 0


def _drop(session: "SparkSession", name: str) -> None:
    if name.startswith("delta."):
        import shutil

        shutil.rmtree(name.split("`")[1])
    else:
        session.sql(f"DROP TABLE {name}")
