"""`stats`: what is in the tier, from batch headers alone. Executors walk segments, Spark SQL adds up.

| column | what |
|---|---|
| topic, partition, day | day of the batch's max timestamp (UTC); null without one (message format v0) |
| batches, records, bytes | of data; control batches (transaction markers) are counted apart |
| batch_bytes_min, batch_bytes_avg, batch_bytes_max | |
| bytes_none … bytes_zstd, bytes_other | of batches with that codec |
| producers | different producer ids, of idempotent ones |
| idempotent_batches, transactional_batches | a transactional producer is idempotent, too |
| control_batches, control_bytes | |
| first_timestamp_ms, last_timestamp_ms | of data batches' headers |

What is counted is what the tier serves: dead branches of the log, and what a later copy of a segment has again,
are not. Batches that are on brokers only are not either. An aborted transaction's records count, since
headers do not tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from pipeline.jobs.segment_stats import CODECS
from pipeline.jobs.segment_work import SegmentPiece
from pipeline.planning.partition_view import PartitionView

BY_DAY = ("topic", "partition", "day")
SHOWN_GROUPS_MAX = 200
"""Rows of the table on the screen."""


@dataclass(frozen=True, slots=True)
class Stats:
    """`rows` are of pipeline.jobs.segment_stats; the rest is added up when it is asked for."""

    rows: DataFrame

    def by(self, *keys: str) -> DataFrame:
        """The table above with other keys, in their order; without any, one row of all."""
        return self.rows.groupBy(*keys).agg(*_sums()).orderBy(*keys)

    def batch_sizes(self) -> DataFrame:
        """Data batches by size class (at most so many bytes): batches, records, bytes."""
        data = self.rows.where(~sql.col("is_control"))
        columns = [sql.sum(name).alias(name) for name in ("batches", "records", "bytes")]
        return data.groupBy("size_class").agg(*columns).orderBy("size_class")

    def by_day_and(self, key: str) -> DataFrame:
        """Data by day and topic or codec: records and bytes."""
        data = self.rows.where(~sql.col("is_control"))
        columns = [sql.sum(name).alias(name) for name in ("records", "bytes")]
        return data.groupBy("day", key).agg(*columns).orderBy("day", key)


def stats_pieces(views: Sequence[PartitionView]) -> list[SegmentPiece]:
    """What the tier serves of these partitions."""
    return [
        SegmentPiece(served.segment, served.first_offset, served.end_offset)
        for view in views
        for served in view.segments
        if served.segment.segment_size_bytes > 0
    ]


def _sums() -> list[Column]:
    data, idempotent = ~sql.col("is_control"), sql.col("producer_id") >= 0
    codecs = [_of(data & (sql.col("codec") == codec), "bytes").alias(f"bytes_{codec}") for codec in CODECS]
    return [
        _of(data, "batches").alias("batches"),
        _of(data, "records").alias("records"),
        _of(data, "bytes").alias("bytes"),
        sql.min(sql.when(data, sql.col("min_batch_bytes"))).alias("batch_bytes_min"),
        sql.round(sql.try_divide(_of(data, "bytes"), _of(data, "batches")), 1).alias("batch_bytes_avg"),
        sql.max(sql.when(data, sql.col("max_batch_bytes"))).alias("batch_bytes_max"),
        *codecs,
        _of(data & ~sql.col("codec").isin(*CODECS), "bytes").alias("bytes_other"),
        sql.count_distinct(sql.when(data & idempotent, sql.col("producer_id"))).alias("producers"),
        _of(data & idempotent, "batches").alias("idempotent_batches"),
        _of(data & sql.col("is_transactional"), "batches").alias("transactional_batches"),
        _of(~data, "batches").alias("control_batches"),
        _of(~data, "bytes").alias("control_bytes"),
        sql.min(sql.when(data & (sql.col("min_timestamp_ms") >= 0), sql.col("min_timestamp_ms"))).alias(
            "first_timestamp_ms"
        ),
        sql.max(sql.when(data & (sql.col("max_timestamp_ms") >= 0), sql.col("max_timestamp_ms"))).alias(
            "last_timestamp_ms"
        ),
    ]


def _of(which: Column, column: str) -> Column:
    return sql.sum(sql.when(which, sql.col(column)).otherwise(0))
