"""`stats` from its command line: which topics, the work on executors, and the figures as table, files and picture.

| in `--output` | what |
|---|---|
| by_day | pipeline.jobs.stats' table, Parquet |
| by_day_json, by_topic_json, batch_sizes_json | the same, by topic, and by size class, one JSON object a line |
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from rich.table import Table

from pipeline.driver import open_tier, shipped_storage
from pipeline.jobs.job_context import DONE, JobContext, RunJob, UsageError
from pipeline.jobs.job_folder import JobFolder
from pipeline.jobs.progress import JobProgress, size
from pipeline.jobs.segment_stats import CODECS, STATS
from pipeline.jobs.segment_work import SegmentPiece, run_segment_work
from pipeline.jobs.stats import BY_DAY, SHOWN_GROUPS_MAX, Stats, stats_pieces
from pipeline.jobs.topics import topic_selection
from pipeline.planning.options import TopicSelection

PLOTTED_ROWS_MAX = 1_000_000
"""Days times topics: what a picture is made of is on the driver."""


@dataclass(frozen=True, slots=True)
class StatsJob:
    """What was asked for."""

    selection: TopicSelection
    report: str | None
    output: str | None
    plot: Path | None

    def __call__(self, context: JobContext) -> int:
        """Do it; the exit code."""
        spark = context.spark
        with open_tier(context.config) as tier:
            pieces = stats_pieces(tier.view.partitions(self.selection, False))
        shipped = shipped_storage(context.config)
        folder = None if self.report is None else JobFolder(spark, self.report)
        total_bytes = sum(piece.segment.segment_size_bytes for piece in pieces)
        with JobProgress(context.messages, "stats", "segments", context=spark.sparkContext) as bar:

            def on_wave(done: int, total: int) -> None:
                bar.advance(done, total, f"of {size(total_bytes)}")

            rows = run_segment_work(spark, shipped, STATS, pieces, folder, on_wave)
            self._show(context, Stats(rows), pieces)
        rows.unpersist()
        return DONE

    def _show(self, context: JobContext, stats: Stats, pieces: Sequence[SegmentPiece]) -> None:
        by_day, by_topic = stats.by(*BY_DAY).persist(), stats.by("topic").persist()
        context.output.print(stats_table(_rows(by_day.limit(SHOWN_GROUPS_MAX + 1)), _rows(by_topic)))
        context.output.print(f"{len(pieces):,} segments", highlight=False)
        if self.output is not None:
            sizes = stats.batch_sizes()
            by_day.coalesce(1).write.mode("overwrite").parquet(f"{self.output}/by_day")
            for name, rows in (("by_day", by_day), ("by_topic", by_topic), ("batch_sizes", sizes)):
                rows.coalesce(1).write.mode("overwrite").json(f"{self.output}/{name}_json")
            context.output.print(f"figures: {self.output}", soft_wrap=True, highlight=False)
        if self.plot is not None:
            # Only now: it takes a second, and no other job needs it.
            from pipeline.jobs.stats_plot import plot_stats

            plot_stats(
                self.plot,
                topics=_rows(stats.by_day_and("topic").limit(PLOTTED_ROWS_MAX)),
                codecs=_rows(stats.by_day_and("codec").limit(PLOTTED_ROWS_MAX)),
                sizes=_rows(stats.batch_sizes()),
            )
            context.output.print(f"picture: {self.plot}", soft_wrap=True, highlight=False)
        by_day.unpersist()
        by_topic.unpersist()


def prepare(arguments: argparse.Namespace) -> RunJob:
    """The job, if it can be done.

    Raises:
        UsageError: with every problem found.
    """
    plot = None if arguments.plot is None else Path(arguments.plot)
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"--plot {plot}: the name of a picture ends with .png")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise UsageError(f"--plot {plot}: there is no such folder")
    return StatsJob(topic_selection(arguments.topics, arguments.pattern), arguments.report, arguments.output, plot)


def stats_table(by_day: Sequence[Mapping[str, Any]], by_topic: Sequence[Mapping[str, Any]]) -> Table:
    """Of Stats' rows; more than SHOWN_GROUPS_MAX are cut off."""
    table = Table(title="What the tier serves")
    for name in ("topic", "partition", "day"):
        table.add_column(name, no_wrap=name == "day", overflow="fold")
    for name in ("batches", "records", "bytes", "batch min / avg / max", "codecs", "producers", "transactional"):
        table.add_column(name, justify="right")
    for row in by_day[:SHOWN_GROUPS_MAX]:
        day = "no time" if row["day"] is None else str(row["day"])
        table.add_row(row["topic"], str(row["partition"]), day, *_figures(row))
    if len(by_day) > SHOWN_GROUPS_MAX:
        table.add_row("…", "", "", "more with --output")
    table.add_section()
    for row in by_topic:
        table.add_row(row["topic"], "all", "all", *_figures(row), style="bold")
    return table


def _figures(row: Mapping[str, Any]) -> list[str]:
    batches = row["batches"]
    sizes = " / ".join(size(round(row[f"batch_bytes_{which}"])) for which in ("min", "avg", "max")) if batches else ""
    return [
        f"{batches:,}",
        f"{row['records']:,}",
        size(row["bytes"]),
        sizes,
        codec_shares(row),
        f"{row['producers']:,}",
        f"{row['transactional_batches'] / batches:.0%}" if batches else "",
    ]


def codec_shares(row: Mapping[str, Any]) -> str:
    """For example "zstd 80%, none 20%", of the bytes; the largest first."""
    found = {codec: row[f"bytes_{codec}"] for codec in (*CODECS, "other") if row[f"bytes_{codec}"]}
    ordered = sorted(found.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{codec} {part / row['bytes']:.0%}" if len(found) > 1 else codec for codec, part in ordered)


def _rows(rows: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in rows.collect()]
