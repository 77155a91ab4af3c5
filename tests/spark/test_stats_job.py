"""`stats` with a real Spark: its figures are those of a walk over the same files that knows nothing of ours."""

import datetime
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs.command_line import main
from tests.support.differential_known import tiered_logs
from tests.support.spark_topics import COMPRESSED, PLAIN, TOPICS, TRANSACTIONAL, TRIMMED, SparkTopics

pytestmark = pytest.mark.usefixtures("logs_stay_as_they_are")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
V2 = struct.Struct(">qi9xhiqqq6xi")
DAY_MS = 24 * 60 * 60 * 1000


class Header(NamedTuple):
    """Of a batch."""

    base_offset: int
    length: int
    attributes: int
    last_offset_delta: int
    first_ms: int
    last_ms: int
    producer_id: int
    records: int

    @property
    def size(self) -> int:
        return 12 + self.length

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]


def test_figures_are_those_of_an_independent_walk(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, plot = tmp_path / "figures", tmp_path / "stats.png"
    kinds = (PLAIN, COMPRESSED, TRANSACTIONAL, TRIMMED)
    wanted = [*base_arguments(spark_topics), "--output", str(out), "--plot", str(plot)]
    assert main([*wanted, "--pattern", "|".join(kinds)]) == 0

    rows = [row.asDict() for row in spark.read.parquet(str(out / "by_day")).collect()]
    got = {(row.pop("topic"), row.pop("partition"), row.pop("day")): row for row in rows}
    expected = {key: row for kind in kinds for key, row in walk(spark_topics, kind).items()}
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


def walk(topics: SparkTopics, topic: str) -> dict[tuple[str, int, datetime.date], dict[str, Any]]:
    found: dict[tuple[str, int, datetime.date], list[Header]] = defaultdict(list)
    for partition in range(TOPICS[topic]):
        log_start = topics.topics[topic].offsets[partition].log_start_offset
        for path in tiered_logs(topics.cluster, topic, partition):
            for header in headers(path.read_bytes()):
                if header.base_offset + header.last_offset_delta >= log_start:
                    day = datetime.date(1970, 1, 1) + datetime.timedelta(days=header.last_ms // DAY_MS)
                    found[topic, partition, day].append(header)
    return {key: as_row(batches) for key, batches in found.items()}


def as_row(batches: list[Header]) -> dict[str, Any]:
    """Sums of one topic, partition and day."""
    data = [each for each in batches if not each.attributes & 0x20]
    control = [each for each in batches if each.attributes & 0x20]
    sizes = [each.size for each in data]
    return {
        "batches": len(data),
        "records": sum(each.records for each in data),
        "bytes": sum(sizes),
        "batch_bytes_min": min(sizes, default=None),
        "batch_bytes_avg": round(sum(sizes) / len(sizes), 1) if sizes else None,
        "batch_bytes_max": max(sizes, default=None),
        **{f"bytes_{codec}": sum(each.size for each in data if each.codec == codec) for codec in CODECS},
        "bytes_other": 0,
        "producers": len({each.producer_id for each in data} - {-1}),
        "idempotent_batches": sum(each.producer_id >= 0 for each in data),
        "transactional_batches": sum(bool(each.attributes & 0x10) for each in data),
        "control_batches": len(control),
        "control_bytes": sum(each.size for each in control),
        "first_timestamp_ms": min((each.first_ms for each in data), default=None),
        "last_timestamp_ms": max((each.last_ms for each in data), default=None),
    }


def headers(log: bytes) -> Iterator[Header]:
    position = 0
    while position < len(log):
        header = Header(*V2.unpack_from(log, position))
        yield header
        position += header.size
