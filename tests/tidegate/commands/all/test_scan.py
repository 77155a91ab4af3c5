"""`tidegate scan` over rows in memory: where they go, what is said last, and how it ends."""

import datetime
import json
import signal
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from table.planning.value_options import VALUE_OPTION_NAMES
from tests.support.for_each import for_each
from tests.support.scanned_rows import ScannedTopics
from tidegate import cli
from tidegate.commands import row_output
from tidegate.commands.scan import ScannedRows
from tidegate.commands.table_options import VALUE_OPTIONS, flag_of

Captured = pytest.CaptureFixture[str]

ROWS = pa.table(
    {
        "partition": pa.array([0, 0, 0, 1, 1], pa.int32()),
        "offset": pa.array([5, 6, 7, 1, 2], pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000 + 1000 * n for n in range(5)], pa.timestamp("us", tz="UTC")),
        "value": pa.array([b"a", b"b", None, b"\xff", b""]),
    }
)
LAST = "tidegate: 5 rows of 5 offsets; 1 of 3 segments, 0.1 of 2.5 MB, 3 GETs; 7 offsets are not in the tier yet\n"


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> ScannedTopics:
    topics = ScannedTopics({"orders": ROWS, "orders:1": ROWS.slice(3)})
    monkeypatch.setattr("tidegate.commands.scan.scan", topics.scan)
    return topics


def test_rows_are_json_lines_in_a_pipe_and_the_last_line_says_what_it_took(
    topics: ScannedTopics, capsys: Captured
) -> None:
    assert cli.main(["scan", "f.properties", "orders"]) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [(line["partition"], line["offset"]) for line in lines] == [(0, 5), (0, 6), (0, 7), (1, 1), (1, 2)]
    assert lines[3]["value_encoding"] == "base64"
    assert said.err == LAST


def test_arguments_are_those_of_the_library(topics: ScannedTopics, capsys: Captured) -> None:
    words = [
        "orders:1",
        "--where",
        "offset > 1",
        "--columns",
        "offset, value",
        "--limit",
        "3",
        "--tail",
        "broker",
        "--disorder",
        "10m",
        "--catalog",
        "dump.jsonl",
    ]
    values = ["--value-format", "avro", "--value-schema-file", "order.avsc", "--dead-letter", "fail"]
    assert cli.main(["scan", "f.properties", *words, *values, "--isolation", "read_committed"]) == 0
    assert topics.asked == [
        {
            "config": Path("f.properties"),
            "topic": "orders:1",
            "where": "offset > 1",
            "columns": ("offset", "value"),
            "values": {"valueFormat": "avro", "valueSchemaFile": "order.avsc", "deadLetter": "fail"},
            "isolation": "read_committed",
            "tail": "broker",
            "disorder": datetime.timedelta(minutes=10),
            "limit": 3,
            "catalog": Path("dump.jsonl"),
        }
    ]


def test_every_option_of_values_can_be_given() -> None:
    """But for a folder of dead letters, which are a column here."""
    assert {*VALUE_OPTIONS} == {*VALUE_OPTION_NAMES} - {"deadLetterPath"}
    assert flag_of("valueSchemaFile") == "--value-schema-file"


@for_each("name, first", [("rows.csv", b'"partition"'), ("rows.jsonl", b"{"), ("rows", b"{"), ("rows.arrow", b"\xff")])
def test_a_files_ending_says_its_format(
    name: str, first: bytes, topics: ScannedTopics, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / name
    assert cli.main(["scan", "f.properties", "orders", "--output", str(path)]) == 0
    assert path.read_bytes().startswith(first)
    assert not (tmp_path / f"{name}.partial").exists()
    assert capsys.readouterr() == ("", LAST)


def test_parquet_and_arrow_go_through_a_pipe(topics: ScannedTopics, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert cli.main(["scan", "f.properties", "orders", "--format", "parquet"]) == 0
    assert parquet.read_table(pa.BufferReader(capfdbinary.readouterr().out)) == ROWS
    assert cli.main(["scan", "f.properties", "orders", "--format", "arrow"]) == 0
    assert pa.ipc.open_stream(capfdbinary.readouterr().out).read_all() == ROWS


def test_explaining_reads_nothing(topics: ScannedTopics, capsys: Captured) -> None:
    assert cli.main(["scan", "f.properties", "orders", "--explain"]) == 0
    assert capsys.readouterr() == ("reads partition, offset, timestamp, value where true\n", "")
    assert topics.read == []


def test_what_is_wrong_is_a_line_and_a_code(topics: ScannedTopics, tmp_path: Path, capsys: Captured) -> None:
    assert cli.main(["scan", "f.properties", "ordres"]) == 1
    assert capsys.readouterr() == ("", "tidegate: topics that were named do not exist: ordres\n")
    missing = tmp_path / "no" / "rows.csv"
    assert cli.main(["scan", "f.properties", "orders", "--output", str(missing)]) == 1
    assert "see to that file, or name another" in capsys.readouterr().err.splitlines()[-1]


@for_each("command", ["scan", "sql"])
def test_every_problem_of_the_configuration_is_a_line(command: str, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "bad.properties"
    path.write_text("upstream.bootstrap.servers=broker:9092\nmode=x\n")
    query = "orders" if command == "scan" else "FROM orders"
    assert cli.main([command, str(path), query]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "tidegate: bad.properties:2: mode = x: must be one of replica, standalone" in said.err.splitlines()
    assert all(line.startswith("tidegate: ") for line in said.err.splitlines())


def test_a_failure_leaves_no_file_and_says_what_was_read_before_it(
    topics: ScannedTopics, tmp_path: Path, capsys: Captured
) -> None:
    def fail(batch: int) -> None:
        if batch == 1:
            raise OSError("the store is gone")

    topics.before_batch = fail
    path = tmp_path / "rows.jsonl"
    path.write_text("of before")
    assert cli.main(["scan", "f.properties", "orders", "--output", str(path)]) == 1
    counts, cause = capsys.readouterr().err.splitlines()
    assert counts.startswith("tidegate: 2 rows of 2 offsets;")
    assert cause == "tidegate: the store is gone"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("rows.jsonl", "of before")]


def test_ctrl_c_ends_it_with_a_line(
    topics: ScannedTopics, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_output, "PROGRESS_S", 0.01)
    stopped = threading.Event()
    monkeypatch.setattr(ScannedRows, "stop", lambda self: stopped.set())

    def interrupt(batch: int) -> None:
        signal.raise_signal(signal.SIGINT)
        assert stopped.wait(60)

    topics.before_batch = interrupt
    # A shell that starts something behind itself has it ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli.main(["scan", "f.properties", "orders", "--output", str(tmp_path / "rows.csv")]) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.splitlines()[-1] == "tidegate: interrupted"
    assert [*tmp_path.iterdir()] == []


def test_ctrl_c_before_the_main_thread_waits_leaves_no_file(
    topics: ScannedTopics, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, stopped = threading.Event(), threading.Event()
    monkeypatch.setattr(ScannedRows, "stop", lambda self: stopped.set())

    def go_on_when_stopped(batch: int) -> None:
        reading.set()
        assert stopped.wait(60)

    def start(thread: threading.Thread) -> None:
        begin(thread)
        assert reading.wait(60)
        raise KeyboardInterrupt

    topics.before_batch = go_on_when_stopped
    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    assert cli.main(["scan", "f.properties", "orders", "--output", str(tmp_path / "rows.csv")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "tidegate: interrupted"
    assert [*tmp_path.iterdir()] == []
