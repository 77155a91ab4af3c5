"""The RemoteLogMetadataManager over a metadata event log: KIP-405's topic-based manager.

Two ways to follow the log:

- `follow_all`: every metadata partition, every user partition. What a proxy does.
- `on_partition_leadership_changes`: the metadata partitions of these user partitions, as a broker does. A user
  partition that comes to a metadata partition which is followed already has it read again from the beginning; those
  loaded before skip what they have seen.

A change is published, then waited for until the own subscription has applied it: the caller's next lookup sees it.
Threads: one lock for assignments, never held while a record is applied; one around each record, so that a partition
which was stopped is not filled again by a record under way.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from storage.errors import (
    IllegalMetadataError,
    MetadataNotReadyError,
    MetadataRecordError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.metadata.catalog import Catalog
from storage.metadata.encoding import encode_for_caller
from storage.metadata.event_log import MetadataEvent, MetadataEventLog, Subscription, call_receiver, metadata_partition
from storage.metadata.in_memory import CatalogMetadataManager
from storage.metadata.partition_catalog import is_legal_transition
from storage.metadata.serde import MetadataRecord, decode
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

PUBLISH_TIMEOUT_S = 30.0
"""How long a caller waits for its own record to come back. Kafka's wait.ms for the same is two minutes by default;
a copier does better to try again."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AppliedRecord:
    """Where a record was, and when it was taken, in milliseconds since 1970."""

    metadata_partition: int
    offset: int
    applied_ms: int


@dataclass(slots=True)
class _FollowedPartition:
    """One user partition that is followed by name."""

    metadata_partition: int
    processed_offset: int = -1
    is_loaded: bool = False


class TopicBasedRemoteLogMetadataManager(CatalogMetadataManager):
    """Implements storage.remote_log_metadata_manager.RemoteLogMetadataManager.

    The event log stays the caller's: `close` ends the subscription only.
    """

    def __init__(
        self,
        event_log: MetadataEventLog,
        catalog: Catalog | None = None,
        *,
        publish_timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        super().__init__(catalog)
        self.undecodable_records = 0
        """Records that are no metadata records, skipped."""
        self.rejected_records = 0
        """Records that the catalog would not take: unknown segments, illegal first states."""
        self.misplaced_records = 0
        """Records in another metadata partition than the topic's partition count leads to; applied all the same."""
        self.last_applied: AppliedRecord | None = None
        """The last record of the slice that came last; None: none came yet."""
        self._event_log = event_log
        self._publish_timeout_s = publish_timeout_s
        self._readiness = MetadataReadiness()
        self._assignment_lock = threading.RLock()
        self._apply_lock = threading.RLock()
        self._subscription: Subscription | None = None
        self._follows_all = False
        self._followed: dict[TopicIdPartition, _FollowedPartition] = {}
        self._progress_listeners: list[Callable[[int, int], None]] = []

    # --- following ---

    def follow_all(self, start_offsets: Mapping[int, int] | None = None) -> None:
        """Follow every metadata partition, from its beginning or these offsets. A second call has no effect.

        Args:
            start_offsets: of a catalog that holds everything before them already.

        Raises:
            MetadataNotReadyError: closed, or the event log does not know its partition count yet.
            MetadataLogError: the event log cannot be followed.
        """
        with self._assignment_lock:
            self._require_open()
            if self._follows_all:
                return
            given_offsets = {} if start_offsets is None else start_offsets
            numbers = range(self._event_log.partition_count())
            self.on_stop_partitions(tuple(self._followed))
            self._follows_all = True
            if self._subscription is not None:
                self._subscription.close()
            self._subscribe({number: given_offsets.get(number, 0) for number in numbers})

    def on_partition_leadership_changes(
        self, leader_partitions: Iterable[TopicIdPartition], follower_partitions: Iterable[TopicIdPartition]
    ) -> None:
        with self._assignment_lock:
            self._require_open()
            partitions = dict.fromkeys((*leader_partitions, *follower_partitions))
            new = [partition for partition in partitions if partition not in self._followed]
            if self._follows_all or not new:
                return
            subscription = self._subscription or self._subscribe({})
            followed = {partition: _FollowedPartition(self._metadata_partition(partition)) for partition in new}
            metadata_partitions = sorted({state.metadata_partition for state in followed.values()})
            for number in metadata_partitions:
                # Before the new ones are known: the reading under way must not be taken for theirs.
                self._unfollow(number)
            self._followed |= followed
            for number in metadata_partitions:
                subscription.add(number, 0)

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        with self._assignment_lock:
            self._require_open()
            stopped = [
                (partition, self._followed[partition]) for partition in partitions if partition in self._followed
            ]
            with self._apply_lock:
                for partition, _ in stopped:
                    self._followed.pop(partition, None)
                    self._catalog.forget(partition.topic_id, partition.partition)
            still_needed = {state.metadata_partition for state in self._followed.values()}
            for number in {state.metadata_partition for _, state in stopped} - still_needed:
                self._unfollow(number)

    def close(self) -> None:
        # Not under the lock: it may be held for as long as a slice of records takes.
        self._closed = True
        self._readiness.close()
        subscription = self._subscription
        if subscription is not None:
            subscription.close()

    # --- readiness, for /readyz and for those who wait for the tail ---

    def position(self, metadata_partition: int) -> int:
        """The next offset to be read of a metadata partition: every record below it was applied."""
        return self._readiness.position(metadata_partition)

    def is_caught_up(self, metadata_partition: int) -> bool:
        """Return whether a metadata partition was read to the end offset sampled when it was assigned."""
        return self._readiness.is_caught_up(metadata_partition)

    def on_progress(self, callback: Callable[[int, int], None]) -> None:
        """Register callback(metadata partition, position), called after each slice, in the delivering thread."""
        self._progress_listeners.append(callback)

    # --- changes ---

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._require_ready(metadata.topic_id_partition)
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise IllegalMetadataError(f"{metadata.segment_id}: a new segment in state {metadata.state.name}")
        self._publish(metadata.topic_id_partition, metadata)

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self._require_ready(update.segment_id.topic_id_partition)
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise IllegalMetadataError(f"{update.segment_id}: an update to COPY_SEGMENT_STARTED")
        known = self._catalog.find_segment(update.segment_id)
        if known is None:
            raise RemoteResourceNotFoundError(f"{update.segment_id}: no such segment")
        if not is_legal_transition(known.state, update.state):
            # Every reader would drop it: not worth a record.
            _log.error(
                "illegal_segment_transition",
                segment=str(update.segment_id),
                current=known.state.name,
                target=update.state.name,
            )
            return
        self._publish(update.segment_id.topic_id_partition, update)

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        self._require_ready(metadata.topic_id_partition)
        self._publish(metadata.topic_id_partition, metadata)

    def _publish(self, partition: TopicIdPartition, record: MetadataRecord) -> None:
        number = self._metadata_partition(partition)
        offset = self._event_log.publish(number, encode_for_caller(record))
        if self._readiness.wait_until_past(number, offset, self._publish_timeout_s):
            return
        if self._closed:
            raise MetadataNotReadyError("the metadata manager was closed while a record was under way")
        raise RetriableRemoteStorageError(
            f"{partition}: the record at {number}/{offset} was published but not read back "
            f"within {self._publish_timeout_s} s"
        )

    # --- the subscription's side ---

    def _deliver(self, events: Sequence[MetadataEvent]) -> None:
        for event in events:
            if event.value is not None:
                self._take(event, event.value)
            elif event.key is not None:
                with self._apply_lock:
                    is_caught_up = self._readiness.is_caught_up(event.partition)
                    self._catalog.apply_tombstone(event.key, initialized=is_caught_up)
        if events:
            last = events[-1]
            self.last_applied = AppliedRecord(last.partition, last.offset, time.time_ns() // 1_000_000)

    def _take(self, event: MetadataEvent, value: bytes) -> None:
        """One record. Whatever is wrong with it, it is counted and logged, and the next one is read."""
        try:
            record = decode(value)
        except MetadataRecordError as error:
            self.undecodable_records += 1
            _log.warning("metadata_record_skipped", reason=str(error), **_place(event))
            return
        try:
            self._apply(event, record)
        except RemoteStorageError as error:
            self.rejected_records += 1
            _log.warning("metadata_record_rejected", reason=str(error), **_place(event))
        except Exception as error:
            self.rejected_records += 1
            _log.exception("metadata_record_failed", reason=repr(error), **_place(event))

    def _apply(self, event: MetadataEvent, record: MetadataRecord) -> None:
        is_keyed = event.key is not None
        partition = (
            record.segment_id.topic_id_partition
            if isinstance(record, RemoteLogSegmentMetadataUpdate)
            else record.topic_id_partition
        )
        self.misplaced_records += self._metadata_partition(partition) != event.partition
        if self._follows_all:
            self._catalog.apply(record, initialized=self._readiness.is_caught_up(event.partition), is_keyed=is_keyed)
            return
        with self._apply_lock:
            followed = self._followed.get(partition)
            if followed is None or event.offset <= followed.processed_offset:
                return
            followed.processed_offset = event.offset
            self._catalog.apply(record, initialized=followed.is_loaded, is_keyed=is_keyed)

    def _advance(self, number: int, position: int, end_offset: int) -> None:
        if self._readiness.advance(number, position, end_offset):
            _log.debug("metadata_partition_caught_up", metadata_partition=number, position=position)
            for followed in tuple(self._followed.values()):
                if followed.metadata_partition == number:
                    followed.is_loaded = True
        for listener in tuple(self._progress_listeners):
            call_receiver(listener, number, position)

    def _subscribe(self, start_offsets: Mapping[int, int]) -> Subscription:
        self._subscription = subscription = self._event_log.subscribe(start_offsets, self._deliver, self._advance)
        if self._closed:
            # `close` came meanwhile and saw no subscription yet.
            subscription.close()
            self._require_open()
        return subscription

    def _unfollow(self, number: int) -> None:
        """Stop the delivery of a metadata partition."""
        if self._subscription is not None:
            self._subscription.remove(number)
        self._readiness.remove(number)

    def _metadata_partition(self, partition: TopicIdPartition) -> int:
        return metadata_partition(partition.topic_id, partition.partition, self._event_log.partition_count())

    def _is_loaded(self, partition: TopicIdPartition) -> bool:
        if self._event_log.failure() is not None:
            return False
        if self._follows_all:
            return self._readiness.is_caught_up(self._metadata_partition(partition))
        followed = self._followed.get(partition)
        return followed is not None and followed.is_loaded


def _place(event: MetadataEvent) -> dict[str, int]:
    return {"metadata_partition": event.partition, "offset": event.offset}


class MetadataReadiness:
    """How far each metadata partition has been read, and whether that is far enough.

    A partition is caught up once the position reached the end offset that was sampled when it was assigned (at once
    when it was empty), and stays so: later records are the ordinary tail. Taking it away makes it not caught up again.
    Thread-safe; `position` and `is_caught_up` take no lock.

    Positions are the next offset to be read.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._positions: dict[int, int] = {}
        self._caught_up: set[int] = set()
        self._closed = False

    def advance(self, partition: int, position: int, end_offset: int) -> bool:
        """Everything below position was applied. Whether this is what made the partition caught up."""
        with self._condition:
            self._positions[partition] = position
            became_caught_up = position >= end_offset and partition not in self._caught_up
            if became_caught_up:
                self._caught_up.add(partition)
            self._condition.notify_all()
        return became_caught_up

    def remove(self, partition: int) -> None:
        """Stop following the partition, for good or to read it from the start again."""
        with self._condition:
            self._positions.pop(partition, None)
            self._caught_up.discard(partition)

    def close(self) -> None:
        """Nothing is caught up any more, and nobody waits."""
        with self._condition:
            self._closed = True
            self._positions.clear()
            self._caught_up.clear()
            self._condition.notify_all()

    def position(self, partition: int) -> int:
        """The next offset to be read; 0 while nothing is known."""
        return self._positions.get(partition, 0)

    def is_caught_up(self, partition: int) -> bool:
        return partition in self._caught_up

    def wait_until_past(self, partition: int, offset: int, timeout_s: float) -> bool:
        """Block until the record at offset was applied; False after timeout_s, or when closed meanwhile."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self.position(partition) > offset, timeout_s)
            return self.position(partition) > offset
