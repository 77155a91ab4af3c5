"""`tidegate scan` and `tidegate sql` against a real broker and its tier. What is right is what was produced."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.support.kafka import TIERED, Record, fresh_name, produce, small_segments, wait_settled
from tests.support.program import run_command, tidegate_python
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import properties_text

Captured = pytest.CaptureFixture[str]

FIRST_TIMESTAMP_MS = 1_700_000_000_000
RECORDS = 200
LOCAL = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


def records() -> Iterator[Record]:
    """One a second; the fourth value is no text."""
    for number in range(RECORDS):
        value = b"\xff" if number == 3 else b"value %d" % number
        yield Record(0, b"key-%d" % (number % 10), value, (), FIRST_TIMESTAMP_MS + 1000 * number)


@dataclass(frozen=True, slots=True)
class Stage:
    """`tiered`: how many of the records are in the tier."""

    file: str
    topic: str
    tiered: int


@pytest.fixture(scope="module")
def stage(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    topic = fresh_name("tables")
    kafka.create_topic(topic, 1, {**TIERED, **small_segments(batches=6)})
    produce(kafka, topic, records(), batch_num_messages=5)
    tiered = wait_settled(kafka, topic)[0].latest_tiered_offset + 1
    assert 0 < tiered < RECORDS
    lines = {
        "upstream.bootstrap.servers": kafka.bootstrap_servers,
        "remote.log.storage.manager.class.name": LOCAL,
        "rsm.config.dir": str(kafka.tier_dir),
    }
    file = tmp_path_factory.mktemp("tables") / "tidegate.properties"
    file.write_text(properties_text(lines))
    return Stage(str(file), topic, tiered)


def test_scan_gives_what_was_produced(stage: Stage, capsys: Captured) -> None:
    code, out, err = run_command(capsys, "scan", stage.file, stage.topic)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0, err
    assert [row["offset"] for row in rows] == list(range(stage.tiered))
    assert rows[5] == {
        "topic": stage.topic,
        "partition": 0,
        "offset": 5,
        "timestamp": "2023-11-14T22:13:25.000Z",
        "timestamp_type": 0,
        "key": "key-5",
        "value": "value 5",
        "headers": None,
    }
    assert (rows[3]["value"], rows[3]["value_encoding"]) == ("/w==", "base64")
    assert err.startswith(f"tidegate: {stage.tiered:,} rows of {stage.tiered:,} offsets; ")
    assert err.endswith(f" GETs; {RECORDS - stage.tiered} offsets are not in the tier yet\n")


def test_a_condition_saves_reading_as_is_explained_before(stage: Stage, capsys: Captured, tmp_path: Path) -> None:
    asked = [stage.file, f"{stage.topic}:0", "--where", "offset between 50 and 54", "--columns", "offset,value"]
    code, explained, _ = run_command(capsys, "scan", *asked, "--explain")
    assert code == 0
    assert explained.startswith("1 of ")
    path = tmp_path / "rows.csv"
    code, out, err = run_command(capsys, "scan", *asked, "--output", str(path))
    assert (code, out) == (0, "")
    assert path.read_text().splitlines() == [
        '"offset","value","value_encoding"',
        *(f'{offset},"value {offset}",' for offset in range(50, 55)),
    ]
    assert "5 rows of " in err
    assert "; 1 of " in err


def test_the_tail_is_the_brokers(stage: Stage) -> None:
    command = [tidegate_python(), "-m", "tidegate", "scan", stage.file, stage.topic]
    command += ["--tail", "broker", "--columns", "offset", "--format", "arrow"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert sorted(pa.ipc.open_stream(done.stdout).read_all()["offset"].to_pylist()) == list(range(RECORDS))


def test_parquet_is_a_file_or_a_folder_that_is_done_once(stage: Stage, capsys: Captured, tmp_path: Path) -> None:
    words = ["scan", stage.file, stage.topic, "--format", "parquet", "--output"]
    for path in (tmp_path / "rows", tmp_path / "rows.parquet"):
        code, _, err = run_command(capsys, *words, str(path))
        assert code == 0, err
        assert err.startswith(f"tidegate: {stage.tiered:,} rows")
        assert path.is_dir() == (path.suffix == "")
        assert parquet.read_table(path)["offset"].to_pylist() == list(range(stage.tiered))
    code, _, err = run_command(capsys, *words, str(tmp_path / "rows"))
    assert (code, "holds a finished export" in err) == (2, True)


def test_a_reader_of_the_pipe_that_has_enough_ends_it_quietly(stage: Stage) -> None:
    for command in (["scan", stage.file, stage.topic], ["sql", stage.file, f'FROM "{stage.topic}" ORDER BY "offset"']):
        started = subprocess.Popen(
            [tidegate_python(), "-m", "tidegate", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert started.stdout is not None
        started.stdout.close()
        _, err = started.communicate(timeout=120)
        assert (started.returncode, err) == (0, b""), err


def test_sql_gives_what_was_produced(stage: Stage, capsys: Captured) -> None:
    query = f'SELECT count(*) AS n, max("offset") AS last, min("timestamp") AS first FROM "{stage.topic}"'
    code, out, err = run_command(capsys, "sql", stage.file, query)
    assert code == 0, err
    assert json.loads(out) == {"n": stage.tiered, "last": stage.tiered - 1, "first": "2023-11-14T22:13:20.000Z"}
    assert err.startswith(f"tidegate: {stage.tiered:,} rows of {stage.tiered:,} offsets; ")


def test_sqls_conditions_save_reading(stage: Stage, capsys: Captured) -> None:
    within = f"""FROM "{stage.topic}:0" WHERE "timestamp" >= '2023-11-14T22:14:10Z' AND "offset" IN (50, 51, 52)"""
    code, out, err = run_command(capsys, "sql", stage.file, f"SELECT key, value {within} ORDER BY value")
    assert code == 0, err
    assert [json.loads(line) for line in out.splitlines()] == [
        {"key": f"key-{offset % 10}", "value": f"value {offset}"} for offset in (50, 51, 52)
    ]
    assert "; 1 of " in err
    code, out, _ = run_command(capsys, "sql", stage.file, f"SELECT value {within}", "--explain")
    assert (code, out.startswith(f"{stage.topic}:0: 1 of ")) == (0, True)
