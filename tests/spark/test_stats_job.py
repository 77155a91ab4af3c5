"""`stats` with a real Spark: its figures are those of a walk over the same files that knows nothing of ours."""

import datetime
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from tests.support.differential_known import tiered_logs
from tests.support.spark_topics import COMPRESSED, PLAIN, TOPICS, TRANSACTIONAL, TRIMMED, SparkTopics

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
V2 = struct.Struct(">qiibIhiqqqhii")
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(slots=True)
class Walked:
    """Sums of one topic, partition and day."""

    sizes: list[int] = field(default_factory=list)
    records: int = 0
    by_codec: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    producers: set[int] = field(default_factory=set)
    idempotent: int = 0
    transactional: int = 0
    control: int = 0
    control_bytes: int = 0
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None

    def as_row(self) -> dict[str, Any]:
        return {
            "batches": len(self.sizes),
            "records": self.records,
            "bytes": sum(self.sizes),
            "batch_bytes_min": min(self.sizes, default=None),
            "batch_bytes_avg": round(sum(self.sizes) / len(self.sizes), 1) if self.sizes else None,
            "batch_bytes_max": max(self.sizes, default=None),
            **{f"bytes_{codec}": self.by_codec[codec] for codec in CODECS},
            "bytes_other": 0,
            "producers": len(self.producers),
            "idempotent_batches": self.idempotent,
            "transactional_batches": self.transactional,
            "control_batches": self.control,
            "control_bytes": self.control_bytes,
            "first_timestamp_ms": self.first_timestamp_ms,
            "last_timestamp_ms": self.last_timestamp_ms,
        }


@pytest.fixture(autouse=True)
def logs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one configuration of logs, and it would outlive this test's standard error."""
    monkeypatch.setattr("pipeline.logs.configure_logs", lambda: None)


def test_figures_are_those_of_an_independent_walk(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, plot = tmp_path / "figures", tmp_path / "stats.png"
    kinds = (PLAIN, COMPRESSED, TRANSACTIONAL, TRIMMED)
    wanted = [*base_arguments(spark_topics), "--output", str(out), "--plot", str(plot)]
    assert main([*wanted, "--pattern", "|".join(kinds)]) == 0

    rows = [row.asDict() for row in spark.read.parquet(str(out / "by_day")).collect()]
    got = {(row.pop("topic"), row.pop("partition"), row.pop("day")): row for row in rows}
    expected = {key: walked.as_row() for kind in kinds for key, walked in walk(spark_topics, kind).items()}
    assert got == expected
    by_topic = read_json(out / "by_topic_json")
    assert sum(row["records"] for row in by_topic) == sum(row["records"] for row in got.values())
    assert sum(row["batches"] for row in read_json(out / "batch_sizes_json")) == sum(
        row["batches"] for row in got.values()
    )
    assert len(read_json(out / "by_day_json")) == len(got)
    assert plot.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    told = capfd.readouterr().out
    assert all(kind in told for kind in kinds)


def test_what_segments_gave_is_read_back(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given a report of two topics, when one of them is asked for, then no segment is walked, and the other's rows
    are not counted; and when the wave is not marked as done, as if the job had been killed, then it is done again."""
    wanted = [*base_arguments(spark_topics), "--report", str(tmp_path / "kept"), "--output", str(tmp_path / "out")]
    assert main([*wanted, "--topic", PLAIN, "--topic", TRIMMED]) == 0
    both = {row["topic"]: row for row in read_json(tmp_path / "out" / "by_topic_json")}
    assert both.keys() == {PLAIN, TRIMMED}
    (marker,) = (tmp_path / "kept/segments").glob("*.json")
    marked_ns = marker.stat().st_mtime_ns
    capfd.readouterr()

    assert main([*wanted, "--topic", PLAIN]) == 0

    assert "segments were done before" in capfd.readouterr().err
    assert read_json(tmp_path / "out" / "by_topic_json") == [both[PLAIN]]
    assert [(path, path.stat().st_mtime_ns) for path in marker.parent.glob("*.json")] == [(marker, marked_ns)]

    marker.unlink()
    assert main([*wanted, "--topic", PLAIN, "--topic", TRIMMED]) == 0

    assert marker.stat().st_mtime_ns > marked_ns
    assert read_json(tmp_path / "out" / "by_topic_json") == [both[PLAIN], both[TRIMMED]]


def base_arguments(topics: SparkTopics) -> list[str]:
    return ["stats", "--config", str(topics.tidegate.process.properties_path)]


def read_json(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.json")) for line in path.read_text().splitlines()]


def walk(topics: SparkTopics, topic: str) -> dict[tuple[str, int, datetime.date], Walked]:
    found: dict[tuple[str, int, datetime.date], Walked] = defaultdict(Walked)
    for partition in range(TOPICS[topic]):
        log_start = topics.topics[topic].offsets[partition].log_start_offset
        for path in tiered_logs(topics.cluster, topic, partition):
            for header in headers(path.read_bytes()):
                if header[0] + header[6] >= log_start:
                    day = datetime.date(1970, 1, 1) + datetime.timedelta(days=header[8] // DAY_MS)
                    add(found[topic, partition, day], header)
    return found


def headers(log: bytes) -> Iterator[tuple[int, ...]]:
    position = 0
    while position < len(log):
        header = V2.unpack_from(log, position)
        yield header
        position += 12 + header[1]


def add(walked: Walked, header: tuple[int, ...]) -> None:
    _, length, _, _, _, attributes, _, first_ms, last_ms, producer, _, _, records = header
    size = 12 + length
    if attributes & 0x20:
        walked.control += 1
        walked.control_bytes += size
        return
    walked.sizes.append(size)
    walked.records += records
    walked.by_codec[CODECS[attributes & 7]] += size
    if producer >= 0:
        walked.producers.add(producer)
        walked.idempotent += 1
    walked.transactional += bool(attributes & 0x10)
    walked.first_timestamp_ms = min(
        first_ms, first_ms if walked.first_timestamp_ms is None else walked.first_timestamp_ms
    )
    walked.last_timestamp_ms = max(last_ms, last_ms if walked.last_timestamp_ms is None else walked.last_timestamp_ms)
