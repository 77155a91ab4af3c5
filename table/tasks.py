"""What one Spark task reads, and how: plain values that are pickled on the driver and used on executors.

Offsets are Kafka offsets, ends exclusive; positions are bytes in a segment's log. Nothing here holds a credential:
these values may show up in a log.
"""

from dataclasses import dataclass
from typing import TypeAlias

from storage.model import RemoteLogSegmentMetadata

MIB = 1024 * 1024

TASK_BYTES_MAX = 64 * MIB
"""What a task holds at most: windows of the log, inflated records and the Arrow batch being made, all together."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One producer's transactional batches from first_offset up to its abort marker at last_offset."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """The batches of one segment that begin at byte positions [start_position, end_position), cut to the offsets
    [first_offset, end_offset).

    The positions are the planner's, not a batch's: a batch belongs to the task in whose range it begins, so that
    neighbours give each batch once, whatever the offset index says (table.reading.segment_task).
    """

    segment: RemoteLogSegmentMetadata
    start_position: int
    end_position: int
    first_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """Those that touch these offsets, by first offset; empty unless the read is READ_COMMITTED."""

    @property
    def estimated_bytes(self) -> int:
        """About how much of the log is read for it."""
        start, end = self.segment.start_offset, self.segment.end_offset + 1
        wanted = min(self.end_offset, end) - max(self.first_offset, start)
        return (self.end_position - self.start_position) * wanted // (end - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTask:
    """One Spark partition: ranges of one topic partition's segments, in order of offset."""

    topic: str
    partition: int
    parts: tuple[SegmentTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailTask:
    """One Spark partition of what is not in the tier yet: offsets that are read through Kafka."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int


Task: TypeAlias = TierTask | TailTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How every task of one read reads. Timestamps are milliseconds; None is without that bound."""

    columns: tuple[str, ...]
    """Names out of table.schema.COLUMNS, in the order in which they are wanted."""
    read_committed: bool = False
    skips_bad_records: bool = False
    """`badRecords=skip`: a corrupt batch is counted and left out; otherwise it fails the task."""
    bad_records_path: str | None = None
    """Where a task that has skipped something writes what, one JSON file a task."""
    timestamp_min_ms: int | None = None
    timestamp_max_ms: int | None = None
    """Inclusive, both: what the rows' timestamps must be."""
    task_bytes_max: int = TASK_BYTES_MAX
    fails_on_data_loss: bool = True
    """What retention deletes while a task reads fails it; otherwise it is left out, and said."""
