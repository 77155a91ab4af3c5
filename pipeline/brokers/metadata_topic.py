"""The metadata topic, read by the driver into a catalog: as far as it goes now, and on from there the next time.

Rules:
- One pass samples each metadata partition's range (one question per leader), then reads those that have something new
  up to the sampled end, FETCH_BYTES at a time. What comes behind that end belongs to the next pass.
- A record is applied as a broker's manager does it (storage.metadata.manager): `initialized` once its metadata
  partition has been read to the end that the first pass sampled.
- Retention may pass us: an offset below the log's start moves up to it. Records that cannot be decoded, or that the
  catalog does not take, are counted; the first of each kind is logged.
- A topic that was truncated, recreated or has grown is one MetadataTopicError: the catalog cannot be trusted any more,
  and its follower begins again with an empty one.
"""

from collections.abc import Callable, Mapping, Sequence

import structlog

from pipeline.brokers.client import BrokerClient
from protocol.client.errors import OffsetOutOfRangeError, TopicReplacedError, UpstreamError
from protocol.list_offsets import OffsetTimestamp
from storage.errors import MetadataBatchError, MetadataOffsetOutOfRange, MetadataRecordError, RemoteStorageError
from storage.metadata.catalog import Catalog
from storage.metadata.event_log import MetadataEvent
from storage.metadata.record_batches import TopicDescription, changed, parse_batches, position_within
from storage.metadata.serde import decode

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


class MetadataFollower:
    """Keeps positions between passes. One thread, the client's."""

    def __init__(
        self, client: BrokerClient, catalog: Catalog, topic: str = METADATA_TOPIC, *, progress: Progress | None = None
    ) -> None:
        self.undecodable_records = 0
        """Records that are no metadata records, skipped."""
        self.rejected_records = 0
        """Records that the catalog would not take: unknown segments, illegal first states."""
        self._client = client
        self._catalog = catalog
        self._topic = topic
        self._progress = progress
        self._description: TopicDescription | None = None
        self._positions: dict[int, int] = {}
        self._caught_up: set[int] = set()

    @property
    def positions(self) -> Mapping[int, int]:
        """By metadata partition: the next offset to be read. Empty before the first pass."""
        return dict(self._positions)

    def catch_up(self) -> int:
        """Read every metadata partition to its end as of now and apply the records; returns how many were read.

        After an error the next call goes on where this one ended.

        Raises:
            MetadataTopicError: there is no metadata topic, it cannot be read, or it is not the one read so far.
            UpstreamError: the brokers do not answer, or do not let us read.
        """
        ranges = self._ranges(self._describe())
        for partition, (log_start_offset, end_offset) in ranges.items():
            self._move_into(partition, log_start_offset, end_offset)
        todo_records = sum(end - self._positions[partition] for partition, (_, end) in ranges.items())
        read_records = 0
        for partition, (_, end_offset) in ranges.items():
            empty_answers = 0
            while self._positions[partition] < end_offset:
                before_offset = self._positions[partition]
                read_records += self._read_some(partition, end_offset)
                empty_answers = 0 if self._positions[partition] > before_offset else empty_answers + 1
                if empty_answers == EMPTY_ANSWERS_MAX:
                    raise MetadataTopicError(
                        f"{self._topic}-{partition} ends at {end_offset}, but gives no records from {before_offset} on"
                    )
                if self._progress is not None:
                    self._progress(read_records, todo_records)
            self._caught_up.add(partition)
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

    def _move_into(self, partition: int, log_start_offset: int, end_offset: int) -> None:
        position = self._positions.get(partition, 0)
        try:
            self._positions[partition] = position_within(partition, position, log_start_offset, end_offset)
        except MetadataOffsetOutOfRange as error:
            raise MetadataTopicError(f"{self._topic}-{partition}: {error}") from error

    def _read_some(self, partition: int, end_offset: int) -> int:
        """One fetch; the position moves behind what it gave."""
        position = self._positions[partition]
        try:
            fetched = self._client.fetch(
                self._topic, partition, position, max_bytes=FETCH_BYTES, read_committed=False, max_wait_ms=FETCH_WAIT_MS
            )
            parsed = parse_batches(fetched.data, partition)
        except OffsetOutOfRangeError:
            # retention or truncation since the range was sampled
            self._move_into(partition, *self._ranges([partition])[partition])
            return 0
        except (MetadataBatchError, TopicReplacedError) as error:
            raise MetadataTopicError(f"{self._topic}-{partition}: {error}") from error
        records = [record for record in parsed.records if position <= record.offset < end_offset]
        self._apply(records, partition in self._caught_up)
        self._positions[partition] = max(position, min(parsed.next_offset, end_offset))
        return len(records)

    def _apply(self, records: Sequence[MetadataEvent], initialized: bool) -> None:
        for event in records:
            if event.value is None:
                if event.key is not None:
                    self._catalog.apply_tombstone(event.key, initialized=initialized)
                continue
            try:
                record = decode(event.value)
            except MetadataRecordError as error:
                self.undecodable_records += 1
                if self.undecodable_records == 1:
                    _log.warning("metadata_record_skipped", **_place(event, error))
                continue
            try:
                self._catalog.apply(record, initialized=initialized, is_keyed=event.key is not None)
            except RemoteStorageError as error:
                self.rejected_records += 1
                if self.rejected_records == 1:
                    _log.warning("metadata_record_rejected", **_place(event, error))


def _place(event: MetadataEvent, error: RemoteStorageError) -> dict[str, int | str]:
    return {"metadata_partition": event.partition, "offset": event.offset, "reason": str(error)}
