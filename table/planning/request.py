"""What a read is to do: which topic partitions, from where to where, which rows and columns. Plain values."""

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from table.planning.value_options import ValueOptions
from table.schema import DEFAULT_COLUMNS, raw_columns
from table.tasks import MIB, TASK_BYTES_MAX, ReadOptions

TopicPartition: TypeAlias = tuple[str, int]

EARLIEST_OFFSET = -2

LATEST_OFFSET = -1
"""In the JSON of startingOffsets and endingOffsets."""

BYTES_PER_PARTITION = 128 * MIB


class OptionsError(ValueError):
    """Options that are missing, wrong or not known. `problems` has one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type["OptionsError"], tuple[tuple[str, ...]]]:
        return OptionsError, (self.problems,)


class OffsetEdge(enum.Enum):
    """A bound that is the same for all partitions. TIERED: where what can be read from the tier ends."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Offsets by partition; EARLIEST_OFFSET and LATEST_OFFSET among them."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SameTimestamp:
    """In every partition the first record at or after this time (milliseconds)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class PartitionTimestamps:
    """By partition: the first record at or after that time (milliseconds)."""

    timestamps_ms: Mapping[TopicPartition, int]


OffsetBound: TypeAlias = OffsetEdge | PartitionOffsets | SameTimestamp | PartitionTimestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Which topic partitions are read: just one of the three is not None."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics that are named; None for a pattern, which has to be tried on all."""
        return self.topics if self.assigned is None else tuple(self.assigned)

    def matches(self, topic: str) -> bool:
        """Return whether a topic is wanted, of those that may be."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.names or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What a read is to do. Bytes are bytes, timestamps milliseconds; None: without that bound."""

    selection: TopicSelection
    starting: OffsetBound = OffsetEdge.EARLIEST
    ending: OffsetBound = OffsetEdge.TIERED
    starts_at_latest_without_match: bool = False
    """`startingOffsetsByTimestampStrategy=latest`; otherwise a start without a match is an error."""
    read_committed: bool = False
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    bytes_per_partition: int = BYTES_PER_PARTITION
    skips_bad_records: bool = False
    bad_records_path: str | None = None
    fails_on_data_loss: bool = True
    reads_tail: bool = False
    """`tail=kafka`: what is not in the tier is read through Kafka."""
    timestamp_min_ms: int | None = None
    timestamp_max_ms: int | None = None
    """Inclusive, both: rows with other timestamps are not wanted."""
    timestamp_disorder_ms: int | None = None
    """`timestampDisorder`: no record is older by more than that than one before it (table.planning.time_bounds)."""
    task_bytes_max: int = TASK_BYTES_MAX
    values: ValueOptions = field(default_factory=ValueOptions)

    @property
    def read_options(self) -> ReadOptions:
        """Return what every task gets."""
        return ReadOptions(
            columns=raw_columns(self.columns, [column.column for column in self.values.columns]),
            read_committed=self.read_committed,
            skips_bad_records=self.skips_bad_records,
            bad_records_path=self.bad_records_path,
            timestamp_min_ms=self.timestamp_min_ms,
            timestamp_max_ms=self.timestamp_max_ms,
            task_bytes_max=self.task_bytes_max,
            fails_on_data_loss=self.fails_on_data_loss,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ReadRequest):
    """What a read of Spark's is to do, and where the tier is."""

    config: Path
    """The properties file of `tidegate serve`."""
    tail_bootstrap_servers: str | None = None
    """`kafka.bootstrap.servers`: where the tail is read."""
    bytes_per_trigger_max: int | None = None
    commit_group: str | None = None
    """`commitGroup`: for which group a stream's offsets are committed, for Kafka's tools to see."""
