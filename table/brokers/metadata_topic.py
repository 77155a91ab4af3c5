"""The metadata topic, read by the driver into a catalog: as far as it goes now, and on from there the next time.

Rules:
- One pass samples each metadata partition's range (one question per leader), then reads those that have something new
  up to the sampled end, FETCH_BYTES at a time. What comes behind that end belongs to the next pass.
- storage.metadata.reading says how far a partition was read, and what of it counts. The first record that cannot be
  decoded is logged, and the first that the catalog does not take.
- A topic that was truncated, recreated or has grown is one MetadataTopicError: the catalog cannot be trusted any more,
  and its follower begins again with an empty one.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog

from protocol.client.errors import OffsetOutOfRangeError, TopicReplacedError, UpstreamError
from protocol.list_offsets import OffsetTimestamp
from storage.errors import MetadataBatchError, MetadataOffsetOutOfRange
from storage.metadata.catalog import Catalog
from storage.metadata.follower import CatalogReading
from storage.metadata.reading import PartitionReading, TopicDescription, changed
from storage.metadata.record_batches import parse_batches
from table.brokers.client import BrokerClient

METADATA_TOPIC = "__remote_log_metadata"

FETCH_BYTES = 4 * 1024 * 1024
"""Some ten thousand records: one round trip for each, and little to hold."""

FETCH_WAIT_MS = 500
EMPTY_ANSWERS_MAX = 20
"""Ten seconds without a record below the end that the leader itself has named."""

Progress = Callable[[int, int], None]
"""Takes (records read in this pass, records in it at most), after each answer."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class MetadataTopicError(UpstreamError):
    """The metadata topic cannot be followed (any more): truncated, created again, grown, or unreadable."""


class MetadataFollower(CatalogReading):
    """Keeps positions between passes. One thread, the client's."""

    def __init__(
        self, client: BrokerClient, catalog: Catalog, topic: str = METADATA_TOPIC, *, progress: Progress | None = None
    ) -> None:
        super().__init__(catalog, logs_each=False)
        self._client = client
        self._topic = topic
        self._progress = progress
        self._description: TopicDescription | None = None

    @property
    def positions(self) -> Mapping[int, int]:
        """By metadata partition: the next offset to be read. Empty before the first pass."""
        return {number: reading.position for number, reading in self.readings.items()}

    def catch_up(self) -> int:
        """Read every metadata partition to its end as of now and apply the records; returns how many were read.

        After an error the next call goes on where this one ended.

        Raises:
            MetadataTopicError: there is no metadata topic, it cannot be read, or it is not the one read so far.
            UpstreamError: the brokers do not answer, or do not let us read.
        """
        todo = [
            (self._moved_into(partition, *found), found[1])
            for partition, found in self._ranges(self._describe()).items()
        ]
        todo_records = sum(end_offset - reading.position for reading, end_offset in todo)
        read_records = 0
        for reading, end_offset in todo:
            empty_answers = 0
            while reading.position < end_offset:
                before_offset = reading.position
                read_records += self._read_some(reading, end_offset)
                empty_answers = 0 if reading.position > before_offset else empty_answers + 1
                if empty_answers == EMPTY_ANSWERS_MAX:
                    raise MetadataTopicError(
                        f"{self._topic}-{reading.number} ends at {end_offset}, but gives no records from"
                        f" {before_offset} on"
                    )
                if self._progress is not None:
                    self._progress(read_records, todo_records)
        _log.debug("metadata_topic_read", topic=self._topic, records=read_records)
        return read_records

    def _describe(self) -> Sequence[int]:
        """The partitions of the topic, which must be what it was."""
        topic = self._client.topics([self._topic]).get(self._topic)
        if topic is None:
            raise MetadataTopicError(
                f"topic {self._topic} does not exist: no broker has made it yet, or we may not describe it"
                f" (ACL Describe on Topic {self._topic})"
            )
        now = TopicDescription(topic.topic_id, len(topic.partitions))
        reason = changed(self._description or now, now)
        if reason is not None:
            raise MetadataTopicError(f"topic {self._topic} {reason}: start again to read it")
        self._description = now
        return sorted(topic.partitions)

    def _ranges(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Per partition (log start offset, high watermark)."""
        starts, ends = (
            self._client.list_offsets({(self._topic, partition): int(stamp) for partition in partitions})
            for stamp in (OffsetTimestamp.EARLIEST, OffsetTimestamp.LATEST)
        )
        return {
            partition: (starts[self._topic, partition].offset, ends[self._topic, partition].offset)
            for partition in partitions
        }

    def _moved_into(self, partition: int, log_start_offset: int, end_offset: int) -> PartitionReading:
        reading = self.readings.setdefault(partition, PartitionReading(partition))
        try:
            reading.move_into(log_start_offset, end_offset)
        except MetadataOffsetOutOfRange as error:
            raise MetadataTopicError(f"{self._topic}-{partition}: {error}") from error
        return reading

    def _read_some(self, reading: PartitionReading, end_offset: int) -> int:
        """One fetch; the position moves behind what it gave."""
        partition, position = reading.number, reading.position
        try:
            fetched = self._client.fetch(
                self._topic, partition, position, max_bytes=FETCH_BYTES, read_committed=False, max_wait_ms=FETCH_WAIT_MS
            )
            parsed = parse_batches(fetched.data, partition)
        except OffsetOutOfRangeError:
            # retention or truncation since the range was sampled
            self._moved_into(partition, *self._ranges([partition])[partition])
            return 0
        except (MetadataBatchError, TopicReplacedError) as error:
            raise MetadataTopicError(f"{self._topic}-{partition}: {error}") from error
        records = [record for record in reading.unread(parsed.records) if record.offset < end_offset]
        for record in records:
            self.take(record)
        reading.advance(min(parsed.next_offset, end_offset))
        return len(records)
