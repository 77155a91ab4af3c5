"""A catalog that metadata records fill, and one that follows the metadata event log: KIP-405's topic-based manager,
as far as it reads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from storage.metadata.catalog import Catalog
from storage.metadata.event_log import MetadataEventLog, call_receiver, metadata_partition
from storage.metadata.reading import MetadataEvent, PartitionReading, RecordTaker, partition_of, place
from storage.metadata.serde import MetadataRecord
from storage.model import TopicIdPartition
from storage.wall_clock import wall_clock_ms

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """Where a record was, and when it was taken, in milliseconds since 1970."""

    metadata_partition: int
    offset: int
    applied_ms: int


class CatalogReading(RecordTaker):
    """Records go into the catalog as a broker's manager applies them. `readings`: by metadata partition."""

    def __init__(self, catalog: Catalog, *, logs_each: bool = True) -> None:
        super().__init__(logs_each=logs_each)
        self.catalog = catalog
        self.readings: dict[int, PartitionReading] = {}

    def position(self, number: int) -> int:
        """Return the next offset to be read of a metadata partition; 0 while nothing is known."""
        reading = self.readings.get(number)
        return 0 if reading is None else reading.position

    def is_caught_up(self, number: int) -> bool:
        """Return whether a metadata partition was read to the end that was sampled first."""
        reading = self.readings.get(number)
        return reading is not None and reading.is_caught_up

    def take(self, event: MetadataEvent) -> None:
        """As RecordTaker.take; a tombstone, too, may say something."""
        if event.value is None and event.key is not None:
            self.catalog.apply_tombstone(event.key, initialized=self.is_caught_up(event.partition))
        super().take(event)

    def apply(self, event: MetadataEvent, record: MetadataRecord) -> None:
        """As RecordTaker.apply."""
        is_caught_up = self.is_caught_up(event.partition)
        self.catalog.apply(record, initialized=is_caught_up, is_keyed=event.key is not None)


class CatalogFollower(CatalogReading):
    """Follows every partition of the log into the catalog. Owned by the trio thread."""

    def __init__(self, event_log: MetadataEventLog, catalog: Catalog) -> None:
        super().__init__(catalog)
        self.misplaced_records = 0
        """Records in another metadata partition than the topic's partition count leads to; applied all the same."""
        self.last_applied: AppliedRecord | None = None
        """The last record of the slice that came last; None: none came yet."""
        self._event_log = event_log
        self._follows = False
        self._caught_up: set[int] = set()
        self._progress_listeners: list[Callable[[], None]] = []

    def follow(self, start_offsets: Mapping[int, int]) -> None:
        """Follow every metadata partition, from its beginning or these offsets. A second call has no effect.

        Args:
            start_offsets: of a catalog that holds everything before them already.

        Raises:
            MetadataNotReadyError: the event log does not know its partition count yet.
            MetadataLogError: the event log cannot be followed.
        """
        if self._follows:
            return
        numbers = range(self._event_log.partition_count())
        starts = {number: start_offsets.get(number, 0) for number in numbers}
        self._event_log.subscribe(starts, self._deliver, self._advance)
        self._follows = True

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Return whether the catalog holds all there is to know of the partition. Never raises."""
        return (
            self._follows
            and self._event_log.failure() is None
            and self.is_caught_up(self._number(partition))
            and not self.catalog.is_refused(partition.topic_id, partition.partition)
        )

    def on_progress(self, callback: Callable[[], None]) -> None:
        """Register a callback for each slice that was applied, and each time that positions move."""
        self._progress_listeners.append(callback)

    def apply(self, event: MetadataEvent, record: MetadataRecord) -> None:
        """As RecordTaker.apply."""
        self.misplaced_records += self._number(partition_of(record)) != event.partition
        super().apply(event, record)

    def _deliver(self, reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        self.readings[reading.number] = reading
        for event in events:
            try:
                self.take(event)
            except Exception as error:
                self.rejected_records += 1
                _log.exception("metadata_record_failed", reason=repr(error), **place(event))
        last = events[-1]
        self.last_applied = AppliedRecord(last.partition, last.offset, wall_clock_ms())

    def _advance(self, reading: PartitionReading) -> None:
        number = reading.number
        self.readings[number] = reading
        if reading.is_caught_up and number not in self._caught_up:
            self._caught_up.add(number)
            _log.debug("metadata_partition_caught_up", metadata_partition=number, position=reading.position)
        for listener in tuple(self._progress_listeners):
            call_receiver(listener)

    def _number(self, partition: TopicIdPartition) -> int:
        return metadata_partition(partition.topic_id, partition.partition, self._event_log.partition_count())
