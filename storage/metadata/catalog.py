"""All segment metadata in memory: KIP-405's RLMM cache for every partition (docs/kafka-tier.md#catalog).

- Thread-safe. One lock around every change and query; a query makes the objects that it returns and nothing else.
  `has_segments`, `generation` and `is_refused` take no lock: they are asked for every partition of every Fetch.
- Bounded by `segments_max`. At the limit, partitions that are not known yet are refused as a whole and stay refused
  until forgotten: half a partition would look like holes. Known partitions go on.
- A partition whose last segment went keeps its highest offsets (KIP-405 says so), up to EMPTIED_PARTITIONS_MAX.
- Partitions are (topic_id, partition); a topic's name is carried, never compared.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from storage.errors import RemoteResourceNotFoundError
from storage.metadata.catalog_contents import CatalogContents
from storage.metadata.event_log import call_receiver
from storage.metadata.partition_catalog import PartitionCatalog
from storage.metadata.segment_table import SegmentColumns
from storage.metadata.serde import MetadataRecord, decode_key
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
)


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What look-ups can find of one partition: its COPY_SEGMENT_FINISHED segments. Both offsets are inclusive."""

    segments: int
    size_bytes: int
    start_offset: int
    last_offset: int


SUMMARY_ROWS = 2048
"""Segments that are looked at under one hold of the lock: less than a millisecond."""

SUMMARY_TRIES = 5

SEGMENTS_MAX = 2_000_000
"""`catalog.segments.max`: about 500 MB, or 2 PB of 1 GiB segments."""

EMPTIED_PARTITIONS_MAX = 10_000
"""Partitions without segments that are remembered, about 1 KB each: topics come and go, the proxy stays."""

_FORGETTING_STATES = (RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Catalog:
    """Offsets are inclusive Kafka offsets; None means "no such segment", also for a partition never heard of."""

    def __init__(self, segments_max: int = SEGMENTS_MAX) -> None:
        self._segments_max = segments_max
        self._lock = threading.Lock()
        self._columns = SegmentColumns()
        # By topic id, then partition: a look-up without building a key.
        self._topics: dict[bytes, dict[int, PartitionCatalog]] = {}
        self._names: dict[str, set[bytes]] = {}
        self._emptied: dict[tuple[bytes, int], None] = {}
        self._refused: set[tuple[bytes, int]] = set()
        self._segment_count = 0
        self._generation = 0
        self._changes = 0
        self._removal_listeners: list[Callable[[RemoteLogSegmentId], None]] = []

    # --- asked for every partition of every Fetch: no lock ---

    def has_segments(self, topic_id: bytes, partition: int) -> bool:
        """Return whether any segment of the partition can be looked up (is COPY_SEGMENT_FINISHED)."""
        partitions = self._topics.get(topic_id)
        segments = None if partitions is None else partitions.get(partition)
        return segments is not None and segments.finished_segments > 0

    def partition_of(self, topic_id: bytes, partition: int) -> TopicIdPartition | None:
        """The partition with its topic's name, as its first record gave it, if it `has_segments`."""
        partitions = self._topics.get(topic_id)
        segments = None if partitions is None else partitions.get(partition)
        return segments.topic_id_partition if segments is not None and segments.finished_segments else None

    def knows_topic(self, topic_id: bytes) -> bool:
        """Return whether any partition of the topic is known."""
        return topic_id in self._topics

    def knows_name(self, topic: str) -> bool:
        """Return whether any partition of a topic of this name is known: a topic keeps its name as long as it has its
        id."""
        return topic in self._names

    def topic_names(self) -> set[str]:
        """The names of all topics."""
        with self._lock:
            return set(self._names)

    def generation(self, topic_id: bytes, partition: int) -> int:
        """A number that changes whenever the partition's view does and never comes back; 0 while it is unknown."""
        partitions = self._topics.get(topic_id)
        segments = None if partitions is None else partitions.get(partition)
        return 0 if segments is None else segments.generation

    def is_refused(self, topic_id: bytes, partition: int) -> bool:
        """Return whether the partition was turned away because the catalog is full: its segments are not known here."""
        return bool(self._refused) and (topic_id, partition) in self._refused

    # --- size ---

    @property
    def segment_count(self) -> int:
        """Segments of any state."""
        return self._segment_count

    @property
    def finished_count(self) -> int:
        """Segments that can be looked up (are COPY_SEGMENT_FINISHED)."""
        with self._lock:
            return sum(segments.finished_segments for topic in self._topics.values() for segments in topic.values())

    @property
    def segments_max(self) -> int:
        return self._segments_max

    @property
    def refused_partitions(self) -> int:
        """Return how many partitions were turned away."""
        return len(self._refused)

    def topic_sizes(self) -> dict[str, tuple[int, int]]:
        """Segments of any state and their bytes, by topic name."""
        sizes: dict[str, tuple[int, int]] = {}
        with self._lock:
            partitions = [segments for topic in self._topics.values() for segments in topic.values()]
        for segments in partitions:
            count, size_bytes = sizes.get(segments.topic_id_partition.topic, (0, 0))
            sizes[segments.topic_id_partition.topic] = (count + len(segments), size_bytes + segments.size_bytes)
        return sizes

    def partitions(self) -> list[TopicIdPartition]:
        """All partitions that have segments, in no order."""
        with self._lock:
            partitions = [segments for topic in self._topics.values() for segments in topic.values()]
        return [segments.topic_id_partition for segments in partitions if len(segments)]

    def summary(self, partition: TopicIdPartition) -> PartitionSummary | None:
        """Return what there is of a partition; None: nothing. The lock is held for SUMMARY_ROWS segments at a time.

        Raises:
            RuntimeError: the partition changed each time that it was looked at.
        """
        for _ in range(SUMMARY_TRIES):
            with self._lock:
                segments = self._find(partition.topic_id, partition.partition)
                if segments is None:
                    return None
                generation, rows = segments.generation, [*segments.rows()]
            found = PartitionSummary(0, 0, sys.maxsize, -1)
            for at in range(0, len(rows), SUMMARY_ROWS):
                with self._lock:
                    if segments.generation != generation:
                        break  # a row may be another partition's by now
                    found = self._summed(found, rows[at : at + SUMMARY_ROWS])
            else:
                return found if found.segments else None
        raise RuntimeError(f"{partition}: its segments changed {SUMMARY_TRIES} times while they were counted")

    def known_among(self, segment_ids: frozenset[Uuid]) -> set[Uuid]:
        """Those of the ids that are segments of any state. The lock is held for one partition at a time."""
        with self._lock:
            partitions = [segments for topic in self._topics.values() for segments in topic.values()]
        known: set[Uuid] = set()
        for segments in partitions:
            with self._lock:
                known.update(segment_ids.intersection(self._columns.segment_id(row) for row in segments.rows()))
        return known

    def memory_bytes(self) -> int:
        """About what the catalog takes in memory. The lock is held for one partition at a time."""
        with self._lock:
            contents = self.contents()
            partitions, size_bytes = contents.partitions(), contents.own_memory_bytes()
        for segments in partitions:
            with self._lock:
                size_bytes += segments.memory_bytes
        return size_bytes

    # --- as a whole, for snapshots ---

    @property
    def changes(self) -> int:
        """Grows with every record that is applied and every partition that is forgotten."""
        return self._changes

    def contents(self) -> CatalogContents:
        """The catalog's own parts: not to be changed, and whole only while no record is applied."""
        return CatalogContents(
            self._columns, self._topics, self._emptied, self._refused, self._segment_count, self._generation
        )

    def adopt(self, contents: CatalogContents) -> None:
        """Hold these contents from now on; they are the catalog's own then.

        Raises:
            ValueError: the catalog is not empty: what was looked up in it already would change unseen.
        """
        with self._lock:
            if self._changes:
                raise ValueError("only a catalog that nothing was applied to can adopt contents")
            self._changes += 1
            self._columns = contents.columns
            self._emptied, self._refused = contents.emptied, contents.refused
            self._segment_count, self._generation = contents.segment_count, contents.generation
            for topic_id, partitions in contents.topics.items():
                self._add_name(next(iter(partitions.values())).topic_id_partition.topic, topic_id)
            # Last: those who ask without the lock find everything else in its place.
            self._topics = contents.topics

    # --- changes ---

    def apply(self, record: MetadataRecord, *, initialized: bool, is_keyed: bool = False) -> bool:
        """Take one record; whether it changed anything.

        Illegal transitions are logged and dropped. `initialized` says that the partition's metadata has been read to
        its end: before that an update of an unknown segment is an old one whose beginning expired, and is dropped.
        `is_keyed` says that the record has a key, so that the log may have been compacted (KIP-1266): states may be
        missing in between, and a whole segment record in a later state stands for itself.

        Raises:
            IllegalMetadataError: a new segment not in COPY_SEGMENT_STARTED without a key, an update to that state, or
                a number out of range.
            RemoteResourceNotFoundError: an update of an unknown segment, when initialized.
        """
        removed: list[RemoteLogSegmentId] = []
        with self._lock:
            self._changes += 1
            changed = self._apply(record, initialized, is_keyed, removed)
        if initialized:
            self._notify(removed)
        return changed

    def apply_tombstone(self, key: bytes, *, initialized: bool) -> bool:
        """Take a record without a value; whether it changed anything.

        It says that its segment was deleted. DELETE_SEGMENT_FINISHED said so before, so only a reader that was away
        while the log was compacted still knows the segment. Keys that name no segment say nothing.
        """
        named = decode_key(key)
        if named is None or named.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            return False
        removed: list[RemoteLogSegmentId] = []
        with self._lock:
            segments = self._find(named.topic_id, named.partition)
            if segments is None or segments.find(named.segment_id) < 0:
                return False
            self._changes += 1
            segment_id = RemoteLogSegmentId(segments.topic_id_partition, named.segment_id)
            update = RemoteLogSegmentMetadataUpdate(segment_id, 0, named.state, broker_id=-1)
            changed = self._apply(update, initialized, True, removed)
        if initialized:
            self._notify(removed)
        return changed

    def on_segment_removed(self, callback: Callable[[RemoteLogSegmentId], None]) -> None:
        """Register a callback for each segment that begins to be deleted, is deleted, or is forgotten.

        In the thread that applied the record, after the change shows. One segment may be named more than once. Not
        while the partition's metadata is first read: nobody can have read from segments that nobody could look up,
        and most of those that a metadata topic tells of are long gone.
        """
        self._removal_listeners.append(callback)

    # --- queries ---

    def lookup(self, topic_id: bytes, partition: int, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """The FINISHED segment that holds offset in that leader epoch (docs/kafka-tier.md#queries)."""
        with self._lock:
            segments = self._find(topic_id, partition)
            return None if segments is None else self._metadata(segments, segments.lookup(epoch, offset))

    def find_segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A segment of any state by its id."""
        key = segment_id.topic_id_partition
        with self._lock:
            segments = self._find(key.topic_id, key.partition)
            return None if segments is None else self._metadata(segments, segments.find(segment_id.id))

    def some_segments(self, count_max: int) -> list[RemoteLogSegmentMetadata]:
        """Some FINISHED segments to try the object store with, no two of one partition; none while there are none."""
        found: list[RemoteLogSegmentMetadata] = []
        with self._lock:
            for partitions in self._topics.values():
                for segments in partitions.values():
                    for row in segments.rows() if segments.finished_segments else ():
                        metadata = self._columns.metadata(row, segments.topic_id_partition)
                        if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                            found.append(metadata)
                            break
                    if len(found) >= count_max:
                        return found
        return found

    def finished_segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        """All FINISHED segments, in an order that stays. The lock is held for one partition at a time."""
        with self._lock:
            partitions = [segments for topic in self._topics.values() for segments in topic.values()]
        for segments in partitions:
            with self._lock:
                rows = [row for row in segments.rows() if self._columns.is_finished(row)]
                found = [self._columns.metadata(row, segments.topic_id_partition) for row in rows]
            yield from found

    def highest_offset_for_epoch(self, topic_id: bytes, partition: int, epoch: int) -> int | None:
        """The highest offset ever FINISHED in that epoch; deletion does not lower it."""
        with self._lock:
            segments = self._find(topic_id, partition)
            highest_offset = -1 if segments is None else segments.highest_offset(epoch)
        return None if highest_offset < 0 else highest_offset

    def list_segments(
        self, topic_id: bytes, partition: int, epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Return one epoch's segments, referenced or not, by start offset; without an epoch all, in no order."""
        with self._lock:
            segments = self._find(topic_id, partition)
            if segments is None:
                return []
            rows = segments.rows() if epoch is None else segments.rows_of_epoch(epoch)
            return [self._columns.metadata(row, segments.topic_id_partition) for row in rows]

    def first_finished(
        self,
        topic_id: bytes,
        partition: int,
        epoch: int,
        *,
        end_offset_min: int,
        max_timestamp_ms_min: int,
        accepts: Callable[[RemoteLogSegmentMetadata], bool],
    ) -> RemoteLogSegmentMetadata | None:
        """The first FINISHED segment of an epoch, by start offset, that reaches such an offset and such a time.

        Args:
            accepts: asked about each of those, under the lock; must not call the catalog.
        """
        with self._lock:
            segments = self._find(topic_id, partition)
            if segments is None:
                return None
            for row in segments.finished_reaching(epoch, end_offset_min, max_timestamp_ms_min):
                found = self._columns.metadata(row, segments.topic_id_partition)
                if accepts(found):
                    return found
        return None

    def chain_end(
        self,
        topic_id: bytes,
        partition: int,
        offset: int,
        ends: Iterable[tuple[int, int]],
        accepts: Callable[[RemoteLogSegmentMetadata], bool],
    ) -> int:
        """From `offset` on, the first that no FINISHED segment of a chain holds which goes on without a hole.

        Args:
            ends: live leader epochs, ascending, and where each ends.
            accepts: whether a segment with several epochs, or where the chain begins or ends, is one of it; asked under
                the lock.
        """
        with self._lock:
            segments = self._find(topic_id, partition)
            if segments is None:
                return offset
            name, columns = segments.topic_id_partition, self._columns
            return segments.chain_end(offset, ends, lambda row: accepts(columns.metadata(row, name)))

    def epochs(self, topic_id: bytes, partition: int) -> Sequence[int]:
        """All leader epochs that a FINISHED segment has, ascending."""
        with self._lock:
            segments = self._find(topic_id, partition)
            return () if segments is None else segments.epochs()

    def epoch_starts(self, topic_id: bytes, partition: int) -> dict[int, int]:
        """The first offset that a FINISHED segment has of each leader epoch."""
        with self._lock:
            segments = self._find(topic_id, partition)
            return {} if segments is None else segments.epoch_starts()

    # --- under the lock ---

    def _summed(self, summary: PartitionSummary, rows: Sequence[int]) -> PartitionSummary:
        columns = self._columns
        finished = [row for row in rows if columns.is_finished(row)]
        if not finished:
            return summary
        return PartitionSummary(
            summary.segments + len(finished),
            summary.size_bytes + sum(columns.sizes_bytes[row] for row in finished),
            min(summary.start_offset, min(columns.start_offsets[row] for row in finished)),
            max(summary.last_offset, max(columns.end_offsets[row] for row in finished)),
        )

    def _find(self, topic_id: bytes, partition: int) -> PartitionCatalog | None:
        partitions = self._topics.get(topic_id)
        return None if partitions is None else partitions.get(partition)

    def _metadata(self, segments: PartitionCatalog, row: int) -> RemoteLogSegmentMetadata | None:
        return None if row < 0 else self._columns.metadata(row, segments.topic_id_partition)

    def _apply(
        self, record: MetadataRecord, initialized: bool, is_keyed: bool, removed: list[RemoteLogSegmentId]
    ) -> bool:
        match record:
            case RemoteLogSegmentMetadata():
                if is_keyed and record.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                    return self._apply_whole(record, removed)
                return self._add(record)
            case RemoteLogSegmentMetadataUpdate():
                changed = self._update(record, initialized, is_keyed)
                if changed and record.state in _FORGETTING_STATES:
                    removed.append(record.segment_id)
                return changed
            case RemotePartitionDeleteMetadata():
                if record.state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                    return False
                key = record.topic_id_partition
                return self._forget(key.topic_id, key.partition, removed)

    def _add(self, metadata: RemoteLogSegmentMetadata) -> bool:
        key = metadata.topic_id_partition
        segments = self._find(key.topic_id, key.partition)
        if segments is None:
            if self._refuses(key):
                return False
            segments = PartitionCatalog(key, self._columns)
        count_before = len(segments)
        if not segments.add(metadata):
            return False
        # Only now: a segment that was illegal leaves no empty partition behind.
        if key.topic_id not in self._topics:
            self._add_name(key.topic, key.topic_id)
        self._topics.setdefault(key.topic_id, {})[key.partition] = segments
        self._changed(segments, count_before)
        return True

    def _apply_whole(self, metadata: RemoteLogSegmentMetadata, removed: list[RemoteLogSegmentId]) -> bool:
        """A segment in a later state with all its fields: as if its beginning had been read just before."""
        key = metadata.topic_id_partition
        segments = self._find(key.topic_id, key.partition)
        if segments is None or segments.find(metadata.segment_id.id) < 0:
            if metadata.state in _FORGETTING_STATES:
                return False  # it is gone, and nothing was known of it
            started = replace(metadata, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, custom_metadata=None)
            if not self._add(started):
                return False
        update = RemoteLogSegmentMetadataUpdate(
            metadata.segment_id,
            metadata.event_timestamp_ms,
            metadata.state,
            metadata.broker_id,
            metadata.custom_metadata,
        )
        return self._apply(update, True, True, removed)

    def _update(self, update: RemoteLogSegmentMetadataUpdate, initialized: bool, is_keyed: bool) -> bool:
        key = update.segment_id.topic_id_partition
        segments = self._find(key.topic_id, key.partition)
        if segments is None or segments.find(update.segment_id.id) < 0:
            if initialized and not self.is_refused(key.topic_id, key.partition):
                raise RemoteResourceNotFoundError(f"{update.segment_id}: no such segment")
            return False
        count_before = len(segments)
        if not segments.update(update, is_keyed=is_keyed):
            return False
        self._changed(segments, count_before)
        return True

    def _forget(self, topic_id: bytes, partition: int, removed: list[RemoteLogSegmentId]) -> bool:
        self._refused.discard((topic_id, partition))
        self._emptied.pop((topic_id, partition), None)
        partitions = self._topics.get(topic_id, {})
        segments = partitions.pop(partition, None)
        if segments is None:
            return False
        if not partitions:
            del self._topics[topic_id]
            self._drop_name(segments.topic_id_partition.topic, topic_id)
        for row in segments.rows():
            removed.append(RemoteLogSegmentId(segments.topic_id_partition, self._columns.segment_id(row)))
        self._segment_count -= len(segments)
        segments.release_rows()
        return True

    def _add_name(self, topic: str, topic_id: bytes) -> None:
        self._names.setdefault(topic, set()).add(topic_id)

    def _drop_name(self, topic: str, topic_id: bytes) -> None:
        ids = self._names.get(topic, set())
        ids.discard(topic_id)
        if not ids:
            self._names.pop(topic, None)

    def _refuses(self, partition: TopicIdPartition) -> bool:
        key = (partition.topic_id, partition.partition)
        if key in self._refused:
            return True
        if self._segment_count < self._segments_max:
            return False
        self._refused.add(key)
        _log.error("catalog_full", partition=str(partition), segments_max=self._segments_max)
        return True

    def _changed(self, segments: PartitionCatalog, count_before: int) -> None:
        self._generation += 1
        segments.generation = self._generation
        self._segment_count += len(segments) - count_before
        key = (segments.topic_id_partition.topic_id, segments.topic_id_partition.partition)
        if len(segments):
            self._emptied.pop(key, None)
            return
        self._emptied[key] = None
        if len(self._emptied) > EMPTIED_PARTITIONS_MAX:
            oldest = next(iter(self._emptied))
            self._forget(*oldest, removed=[])

    def _notify(self, removed: list[RemoteLogSegmentId]) -> None:
        for segment_id in removed:
            for listener in tuple(self._removal_listeners):
                call_receiver(listener, segment_id)
