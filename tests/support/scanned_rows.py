"""Stands in for `tidegate.scan`: topics that are tables in memory, and what was asked of them.

topics = ScannedTopics({"orders": table})
monkeypatch.setattr("tidegate.commands.scan.scan", topics.scan)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from table.history.scan import ScanStats
from table.planning.tier_view import TierViewError

BATCH_ROWS = 2


@dataclass
class ScannedTopics:
    """`before_batch` is called before each batch, and may raise."""

    tables: Mapping[str, pa.Table]
    before_batch: Callable[[int], None] = lambda _: None
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The arguments of each scan."""
    read: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    """Columns and filter of each reading."""

    def scan(self, config: object, topic: str, **arguments: Any) -> "ScannedTable":
        if topic not in self.tables:
            raise TierViewError(f"topics that were named do not exist: {topic}")
        self.asked.append({"config": config, "topic": topic, **arguments})
        return ScannedTable(self, self.tables[topic], limit=arguments.get("limit"))


class ScannedTable:
    """One scan."""

    def __init__(self, topics: ScannedTopics, rows: pa.Table, filters: str = "", limit: int | None = None) -> None:
        self._topics, self._rows, self._filters, self.limit = topics, rows, filters, limit
        self.stats = ScanStats()

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def narrowed(self, where: Any) -> "ScannedTable":
        return ScannedTable(self._topics, self._rows.filter(where), str(where), self.limit)

    def with_columns(self, columns: Sequence[str]) -> "ScannedTable":
        return ScannedTable(self._topics, self._rows.select(columns), self._filters, self.limit)

    def explain(self) -> str:
        return f"reads {', '.join(self._rows.schema.names)} where {self._filters or 'true'}"

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._topics.read.append((tuple(self._rows.schema.names), self._filters))
        self.stats = ScanStats(of_segments=3, of_bytes=2_500_000, not_tiered_offsets=7)
        for number, batch in enumerate(self._rows.slice(0, self.limit).to_batches(BATCH_ROWS)):
            self._topics.before_batch(number)
            self.stats.rows += batch.num_rows
            self.stats.offsets += batch.num_rows
            self.stats.segments, self.stats.bytes_read, self.stats.gets = 1, 100_000, number + 1
            yield batch
