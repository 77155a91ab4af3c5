"""The metadata topic as its readers see it, without I/O: records, how far a partition was read, what is skipped.

Drivers read it: `storage.metadata.topic_log` for ever, in trio, and `table.brokers.metadata_topic` pass by pass.
What they read is taken into a catalog (`storage.metadata.follower`), or into a copier's ledgers.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from storage.errors import MetadataOffsetOutOfRange, MetadataRecordError, RemoteStorageError
from storage.metadata.serde import MetadataRecord, decode
from storage.model import ZERO_UUID, RemoteLogSegmentMetadataUpdate, TopicIdPartition

NO_TOPIC_ID = "has no topic id: the cluster, or its inter.broker.protocol.version, is older than Kafka 2.8; upgrade it"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataEvent:
    """One record of the log. A value of None carries no information (a tombstone of a compacted topic)."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The metadata topic as Metadata names it. `topic_id`: 16 bytes, zero from brokers that know no topic ids."""

    topic_id: bytes
    partition_count: int


def changed(before: TopicDescription, now: TopicDescription) -> str | None:
    """Return why what was read so far is of no use any more, as the rest of a sentence about the topic, or None."""
    if now.topic_id == ZERO_UUID:
        is_old = before.topic_id == ZERO_UUID
        return NO_TOPIC_ID if is_old else "has lost its topic id"
    if now.topic_id != before.topic_id:
        return "was deleted and created again"
    if now.partition_count != before.partition_count:
        counts = f"{before.partition_count} to {now.partition_count}"
        return f"went from {counts} partitions, which maps user partitions to others"
    return None


@dataclass(slots=True, eq=False)
class PartitionReading:
    """How far one metadata partition has been read.

    `position`: the next offset to be read. `end_offset`: where the log ended when it was first asked; None: not yet.
    """

    number: int
    position: int = 0
    end_offset: int | None = None

    @property
    def is_caught_up(self) -> bool:
        """Return whether all was read that the log held when it was first asked. It stays so: what comes later is the
        ordinary tail."""
        return self.end_offset is not None and self.position >= self.end_offset

    def move_into(self, log_start_offset: int, high_watermark: int) -> None:
        """Go on in a log that has this range now: retention may have passed us.

        Raises:
            MetadataOffsetOutOfRange: the log ends before the position; going backwards would deliver twice.
        """
        if self.position > high_watermark:
            raise MetadataOffsetOutOfRange(
                f"read up to {self.position}, but the log ends at {high_watermark}: it was truncated or created again"
            )
        if 0 < self.position < log_start_offset:
            _log.warning(
                "metadata_records_lost_to_retention",
                metadata_partition=self.number,
                position=self.position,
                log_start_offset=log_start_offset,
            )
        self.position = max(self.position, log_start_offset)
        if self.end_offset is None:
            self.end_offset = high_watermark

    def unread(self, records: Sequence[MetadataEvent]) -> Sequence[MetadataEvent]:
        """Return those from the position on: a broker's answer holds whole batches."""
        return [record for record in records if record.offset >= self.position]

    def advance(self, next_offset: int) -> bool:
        """Everything below the offset was delivered, or holds no records; return whether that is news."""
        is_news = next_offset > self.position
        self.position = max(self.position, next_offset)
        return is_news


class RecordTaker(abc.ABC):
    """Takes records one after another. Whatever is wrong with one, it is counted and logged, and the next one is read.

    Args:
        logs_each: False: only the first of each kind is logged.
    """

    def __init__(self, *, logs_each: bool = True) -> None:
        self.undecodable_records = 0
        """Records that are no metadata records."""
        self.rejected_records = 0
        """Records that break KIP-405's rules: unknown segments, illegal first states."""
        self._logs_each = logs_each

    @abc.abstractmethod
    def apply(self, event: MetadataEvent, record: MetadataRecord) -> None:
        """Take a record in. Raises RemoteStorageError for one that cannot be."""

    def take(self, event: MetadataEvent) -> None:
        """Apply what the event says, if it says anything."""
        if event.value is None:
            return
        try:
            record = decode(event.value)
        except MetadataRecordError as error:
            self.undecodable_records += 1
            self._skipped("metadata_record_skipped", self.undecodable_records, event, error)
            return
        try:
            self.apply(event, record)
        except RemoteStorageError as error:
            self.rejected_records += 1
            self._skipped("metadata_record_rejected", self.rejected_records, event, error)

    def _skipped(self, what: str, count: int, event: MetadataEvent, error: RemoteStorageError) -> None:
        if self._logs_each or count == 1:
            _log.warning(what, reason=str(error), **place(event))


def place(event: MetadataEvent) -> dict[str, int]:
    """Return where a record is, for a log line."""
    return {"metadata_partition": event.partition, "offset": event.offset}


def partition_of(record: MetadataRecord) -> TopicIdPartition:
    """Return the partition that the record is about."""
    if isinstance(record, RemoteLogSegmentMetadataUpdate):
        return record.segment_id.topic_id_partition
    return record.topic_id_partition
