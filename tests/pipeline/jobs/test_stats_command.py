"""The figures of `stats` on the screen, and what of its command line is refused."""

import datetime
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.jobs.arguments import parser
from pipeline.jobs.job_context import UsageError
from pipeline.jobs.stats import SHOWN_GROUPS_MAX
from pipeline.jobs.stats_command import StatsJob, codec_shares, prepare, stats_table
from tests.support.for_each import for_each


def figures(**more: Any) -> dict[str, Any]:
    codecs = {f"bytes_{codec}": 0 for codec in ("none", "gzip", "snappy", "lz4", "zstd", "other")}
    row = {"topic": "orders", "partition": 3, "day": datetime.date(2026, 11, 21), **codecs}
    row |= {"batches": 4, "records": 4000, "bytes": 1000, "bytes_zstd": 800, "bytes_none": 200}
    row |= {"batch_bytes_min": 100, "batch_bytes_avg": 250.0, "batch_bytes_max": 400}
    return {**row, "producers": 2, "transactional_batches": 1, **more}


def shown(by_day: list[dict[str, Any]]) -> str:
    told = io.StringIO()
    Console(file=told, width=180).print(stats_table(by_day, [figures()]))
    return told.getvalue()


def test_a_row_says_it_all() -> None:
    told = shown([figures()])
    for expected in ("orders", "2026-11-21", "4,000", "1.0 kB", "100 bytes / 250 bytes / 400 bytes", "25%"):
        assert expected in told
    assert "zstd 80%, none 20%" in told
    assert codec_shares(figures(bytes_none=0, bytes_zstd=1000)) == "zstd"

    # And what has no day or no data.
    nothing = dict.fromkeys(("batches", "bytes", "bytes_zstd", "bytes_none"), 0)
    assert "no time" in shown([figures(**nothing, **dict.fromkeys(("day", "batch_bytes_min", "batch_bytes_max")))])


def test_a_long_table_is_cut_off_and_says_so() -> None:
    told = shown([figures(partition=number) for number in range(SHOWN_GROUPS_MAX + 1)])
    assert "more with --output" in told
    assert f" {SHOWN_GROUPS_MAX} " not in told


def test_all_topics_are_looked_at_unless_some_are_named(tmp_path: Path) -> None:
    job = prepare(parser().parse_args(["stats", "--config", "f", "--plot", str(tmp_path / "a.png")]))
    assert isinstance(job, StatsJob)
    assert job.selection.matches("anything")
    named = prepare(parser().parse_args(["stats", "--config", "f", "--topic", "a", "--topic", "b", "--topic", "a"]))
    assert isinstance(named, StatsJob)
    assert named.selection.topics == ("a", "b")


@for_each(
    "more, told",
    [
        (["--pattern", "("], "--pattern is not a pattern"),
        (["--plot", "stats.pdf"], "ends with .png"),
        (["--plot", "no-such-folder/stats.png"], "no such folder"),
    ],
)
def test_what_cannot_be_is_refused_by_name(more: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        prepare(parser().parse_args(["stats", "--config", "f", *more]))
