"""Reading the metadata topic without I/O: what ends it for good, how far a partition has been read, its hand-over."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from storage.errors import MetadataOffsetOutOfRange
from storage.metadata.event_log import Deliver, MetadataEvent, Progress, call_receiver
from storage.model import ZERO_UUID

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The metadata topic as Metadata names it. `topic_id`: 16 bytes, zero from brokers that know no topic ids."""

    topic_id: bytes
    partition_count: int


def changed(before: TopicDescription, now: TopicDescription) -> str | None:
    """Why what was read so far is of no use any more, as the rest of a sentence about the topic, or None."""
    if now.topic_id == ZERO_UUID:
        is_old = before.topic_id == ZERO_UUID
        return "has no topic id: the cluster is too old for remote storage" if is_old else "has lost its topic id"
    if now.topic_id != before.topic_id:
        return "was deleted and made anew"
    if now.partition_count != before.partition_count:
        counts = f"{before.partition_count} to {now.partition_count}"
        return f"went from {counts} partitions, which maps user partitions anew"
    return None


def position_within(partition: int, position: int, log_start_offset: int, high_watermark: int) -> int:
    """Where to go on in a log that has this range now: retention may have passed us.

    Raises:
        MetadataOffsetOutOfRange: the log ends before the position; going backwards would deliver twice.
    """
    if position > high_watermark:
        raise MetadataOffsetOutOfRange(
            f"read up to {position}, but the log ends at {high_watermark}: it was truncated or made anew"
        )
    if 0 < position < log_start_offset:
        _log.warning(
            "metadata_records_lost_to_retention",
            metadata_partition=partition,
            position=position,
            log_start_offset=log_start_offset,
        )
    return max(position, log_start_offset)


class PartitionReader:
    """One assignment of one partition. `_delivery` makes `stop` a barrier; re-entrant, so a receiver may stop it."""

    def __init__(self, partition: int, start_offset: int, deliver: Deliver, progress: Progress | None) -> None:
        self.partition = partition
        self.position = max(start_offset, 0)
        self._deliver = deliver
        self._progress = progress
        self._end_offset: int | None = None
        self._delivery = threading.RLock()
        self._stopped = False

    def assign(self, log_start_offset: int, high_watermark: int) -> None:
        """The log's range is known. The first end offset stays: readiness is measured against it."""
        with self._delivery:
            if self._end_offset is None:
                self._end_offset = high_watermark
            self.position = max(self.position, log_start_offset)
            self._report()

    def hand_over(self, records: Sequence[MetadataEvent]) -> None:
        """Deliver one slice and move behind it."""
        with self._delivery:
            if not self._stopped:
                call_receiver(self._deliver, records)
                self.position = records[-1].offset + 1
                self._report()

    def advance(self, next_offset: int) -> None:
        """Move over offsets that hold no records."""
        with self._delivery:
            if next_offset > self.position:
                self.position = next_offset
                self._report()

    def stop(self) -> None:
        """Deliver nothing more, once this returned."""
        with self._delivery:
            self._stopped = True

    def _report(self) -> None:
        if self._progress is not None and self._end_offset is not None and not self._stopped:
            call_receiver(self._progress, self.partition, self.position, self._end_offset)
