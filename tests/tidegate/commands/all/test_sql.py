"""`tidegate sql` over topics in memory: which of them a query reads, what is asked of them, what is out of reach."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.for_each import for_each
from tests.support.scanned_rows import ScannedTopics
from tidegate import cli

Captured = pytest.CaptureFixture[str]

ORDERS = pa.table(
    {
        "partition": pa.array([0, 0, 0, 1, 1], pa.int32()),
        "offset": pa.array([5, 6, 7, 1, 2], pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000 + 1000 * n for n in range(5)], pa.timestamp("us", tz="UTC")),
        "value": pa.array([b"a", b"b", None, b"\xff", b""]),
    }
)
NAMES = pa.table({"offset": pa.array([1, 5], pa.int64()), "name": ["one", "five"]})


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> ScannedTopics:
    topics = ScannedTopics({"orders": ORDERS, "orders:1": ORDERS.slice(3), "eu.names": NAMES})
    monkeypatch.setattr("tidegate.commands.sql.scan", topics.scan)
    return topics


def rows(capsys: Captured, query: str, *words: str) -> list[dict[str, object]]:
    assert cli.main(["sql", "f.properties", query, *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refusal(capsys: Captured, query: str, *words: str, code: int = 2) -> str:
    assert cli.main(["sql", "f.properties", query, *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_filters_and_columns_reach_the_scan(topics: ScannedTopics, capsys: Captured) -> None:
    assert rows(capsys, """SELECT value FROM orders WHERE "offset" BETWEEN 6 AND 7 ORDER BY "offset" """) == [
        {"value": "b"},
        {"value": None},
    ]
    [(columns, condition)] = topics.read
    assert (sorted(columns), condition) == (["offset", "value"], "((offset >= 6) and (offset <= 7))")


def test_the_last_line_sums_the_scans(topics: ScannedTopics, capsys: Captured) -> None:
    query = """SELECT name FROM orders JOIN "eu.names" USING ("offset") ORDER BY name"""
    assert cli.main(["sql", "f.properties", query]) == 0
    said = capsys.readouterr()
    assert said.out == '{"name":"five"}\n{"name":"one"}\n'
    assert said.err.startswith("tidegate: 7 rows of 7 offsets; 2 of 6 segments, 0.2 of 5.0 MB, 4 GETs; 14 offsets are")


@for_each(
    "query, expected",
    [
        ("FROM orders", {"orders"}),
        ('SELECT 1 FROM "orders:1" x, orders y', {"orders:1", "orders"}),
        ('WITH late AS (FROM orders) SELECT * FROM late, "eu.names"', {"orders", "eu.names"}),
        ('SELECT (SELECT max(x."offset") FROM "orders:1" x)', {"orders:1"}),
        ('SELECT 1 FROM orders WHERE "offset" IN (SELECT "offset" FROM "eu.names")', {"orders", "eu.names"}),
        ("DESCRIBE orders", {"orders"}),
        ("SELECT 1 FROM range(3)", set()),
        ("SELECT 1 FROM information_schema.tables", set()),
    ],
)
def test_a_querys_tables_are_its_topics(
    query: str, expected: set[str], topics: ScannedTopics, capsys: Captured
) -> None:
    topics.asked.clear()
    rows(capsys, query)
    assert {each["topic"] for each in topics.asked} == expected


@for_each(
    "query, code, said",
    [
        ("SELECT 1 FRM orders", 2, 'syntax error at or near "orders"'),
        ("SELECT 1; SELECT 2", 2, "sql takes one SELECT"),
        ("COPY orders TO 'x.csv'", 2, "sql takes one SELECT"),
        ("INSTALL httpfs", 2, "sql takes one SELECT"),
        ("SELECT nothing FROM orders", 2, '"nothing" not found'),
        ("SELECT * FROM eu.names", 2, 'a topic with a dot is written "eu.names"'),
        ("SELECT 1 FROM orders, Orders", 2, "SQL takes orders and Orders for one table"),
        ("SELECT 1 FROM ordres", 1, "topics that were named do not exist: ordres"),
        ("SELECT * FROM read_csv('rows.csv')", 2, "file system operations are disabled"),
        ("SELECT * FROM 'folder/rows.csv'", 2, "file system operations are disabled"),
    ],
)
def test_what_cannot_be_is_said(query: str, code: int, said: str, topics: ScannedTopics, capsys: Captured) -> None:
    assert said in refusal(capsys, query, code=code)


def test_files_are_read_where_it_is_allowed(topics: ScannedTopics, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("offset,name\n6,six\n")
    query = f"""SELECT name, value FROM orders JOIN '{path}' USING ("offset")"""
    assert rows(capsys, query, "--files") == [{"name": "six", "value": "b"}]


def test_a_scans_own_failure_is_what_is_said(topics: ScannedTopics, capsys: Captured) -> None:
    """DuckDB's error would be a traceback."""

    def fail(batch: int) -> None:
        if batch == 1:
            raise OSError("the store is gone")

    topics.before_batch = fail
    assert refusal(capsys, "SELECT count(value) FROM orders", code=1).splitlines()[-1] == "tidegate: the store is gone"


def test_columns_of_one_name_get_numbers(topics: ScannedTopics, capsys: Captured) -> None:
    query = """SELECT x."offset", y."offset", 1 AS offset_1 FROM orders x, "orders:1" y LIMIT 1"""
    assert [*rows(capsys, query)[0]] == ["offset", "offset_2", "offset_1"]


def test_explaining_tells_of_each_scan_and_reads_nothing(topics: ScannedTopics, capsys: Captured) -> None:
    query = """SELECT max("offset") FROM orders WHERE "offset" > 6"""
    assert cli.main(["sql", "f.properties", query, "--explain"]) == 0
    assert capsys.readouterr() == ("orders: reads offset where (offset > 6)\n", "")
    assert topics.read == []


def test_times_are_utc_whatever_the_machines_are(
    topics: ScannedTopics, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    [row] = rows(capsys, """SELECT min("timestamp") AS at, hour(min("timestamp")) AS hour FROM orders""")
    assert row == {"at": "2023-11-14T22:13:20.000Z", "hour": 22}
