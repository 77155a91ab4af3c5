"""A segment's files as they are, in any object store, under the names that Kafka gives them: what LocalTieredStorage
(docs/formats.md#local-tiered-storage) and plain objects (docs/formats.md#plain-objects) have in common.

    <prefix><topic>-<partition>-<topic id>/<start offset>-<segment id>.<suffix>

Behaviour:
- Nothing is encoded: a range of a log is that range of its object. There is no manifest and no custom metadata.
- A copy puts the log last: a log implies its indexes. A repeat overwrites, and deletes what the segment no longer has.
"""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

from storage.errors import InvalidRangeError, RemoteResourceNotFoundError, RemoteStorageError, TruncatedObjectError
from storage.formats.file_sources import put_segment_files
from storage.formats.tier_folder import TierFolder
from storage.model import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    check_partition,
    id_text,
    is_topic_name,
    uuid_from_text,
)
from storage.object_store.local_file import LocalFile
from storage.object_store.object_store import ObjectStore, PlainStream, ask_store, read_whole
from storage.object_store.upload_rate import UploadRate
from storage.remote_storage_manager import (
    ObjectContent,
    OpenedSegment,
    SegmentInspection,
    SegmentObject,
    SegmentStream,
    StoredObject,
)

LOG_SUFFIX = "log"
OBJECT_SUFFIXES = (LOG_SUFFIX, *(index_type.value for index_type in IndexType))
"""Every suffix that a segment's object may have."""

OPTIONAL_INDEX_TYPES = frozenset({IndexType.TRANSACTION})
"""Kafka's broker hands its storage manager every other file of a segment."""

_PARTITION_MAX = 2**31 - 1
_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})-(?P<topic_id>[A-Za-z0-9_-]{22})", re.ASCII)
_OBJECT = re.compile(r"[0-9]{20}-(?P<segment_id>[A-Za-z0-9_-]{22})\.(?P<suffix>[a-z_]+)", re.ASCII)

INDEX_BYTES_MAX = 128 * 1024 * 1024
"""A whole index is read into memory. The largest that Kafka writes by default has 10 MiB (`segment.index.bytes`)."""

SEGMENT_BYTES_MAX = 2**31 - 1
"""Kafka's limit (`segment.bytes`): positions in a segment are of 32 bits."""

_OPENED_SEGMENT_BYTES = 512
"""What an opened segment costs: a small object, and a key that is its own."""


class SegmentFiles:
    """A RemoteStorageManager over an object store, but for `identity`, which is each format's own.

    Args:
        prefix: in front of every key, as it is: no separator is added.
        shown_prefix: in front of a key where messages and listings show it.
        upload_bytes_per_s: what all copies together send at most; None: no limit.
    """

    def __init__(
        self, store: ObjectStore, *, prefix: str = "", shown_prefix: str = "", upload_bytes_per_s: int | None = None
    ) -> None:
        self.store = store
        self._closed = threading.Event()
        self._rate = None if upload_bytes_per_s is None else UploadRate(upload_bytes_per_s, wait=self._closed.wait)
        self._prefix = prefix
        self._shown_prefix = shown_prefix

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Put a segment's files; see RemoteStorageManager.copy_log_segment_data."""
        sources = {self._key(metadata, suffix): source for suffix, source in sources_by_suffix(data).items()}
        found_bytes = LocalFile(data.log_segment).size_bytes()
        if found_bytes != metadata.segment_size_bytes:
            expected = f"its metadata says {metadata.segment_size_bytes}"
            raise RemoteStorageError(f"{metadata.segment_id}: the local log has {found_bytes} bytes, {expected}")
        put_segment_files(self.store, sources, self._rate)

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        """Return what reads the segment. Asks the store nothing: an absent log is found out by its first stream."""
        key = self._key(metadata, LOG_SUFFIX)
        return _OpenedFiles(self, self.store, metadata, key, self._name(key))

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        """A range of a segment's log, both ends inclusive; see RemoteStorageManager.fetch_log_segment."""
        if start_position < 0 or (end_position is not None and end_position < start_position):
            raise ValueError(f"{start_position} to {end_position} is not a range of positions")
        key = self._key(metadata, LOG_SUFFIX)
        # One more than there can be, so that a larger object is noticed and not cut.
        whole_end = start_position + SEGMENT_BYTES_MAX + 1
        end = whole_end if end_position is None else min(end_position + 1, whole_end)
        return self._fetch(key, start_position, end, SEGMENT_BYTES_MAX)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """One whole index; see RemoteStorageManager.fetch_index."""
        return self._fetch(self._key(metadata, index_type.value), 0, INDEX_BYTES_MAX + 1, INDEX_BYTES_MAX)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete a segment's objects, whichever there are."""
        self.store.delete_many([self._key(metadata, suffix) for suffix in OBJECT_SUFFIXES])

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        """One HEAD for each object; see RemoteStorageManager.inspect_segment."""
        log = self._key(metadata, LOG_SUFFIX)
        size_bytes = self._size_bytes(log)
        objects = [SegmentObject(self._name(log), ObjectContent.LOG, size_bytes, metadata.segment_size_bytes)]
        for index_type in IndexType:
            key = self._key(metadata, index_type.value)
            is_required = index_type not in OPTIONAL_INDEX_TYPES
            size_bytes = self._size_bytes(key)
            objects.append(
                SegmentObject(self._name(key), ObjectContent.INDEXES, size_bytes, None, is_required, (index_type,))
            )
        return SegmentInspection(tuple(objects), self.open_log_segment(metadata))

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        """All objects below the prefix; see RemoteStorageManager.list_objects."""
        for head in self.store.list(self._prefix if topic is None else f"{self._prefix}{topic}-"):
            segment_id = _segment_of(head.key[len(self._prefix) :])
            if topic is None or (segment_id is not None and segment_id.topic_id_partition.topic == topic):
                yield StoredObject(self._name(head.key), head.size_bytes, head.modified_ms, segment_id)

    def folder(self) -> TierFolder:
        """All below the prefix, for upkeep."""
        return TierFolder(self.store, self._prefix, self._name(self._prefix), _segment_of)

    @property
    def has_manifests(self) -> bool:
        return False

    def clock_offset_ms(self) -> int | None:
        """See RemoteStorageManager.clock_offset_ms."""
        return self.store.clock_offset_ms()

    def warm_up(self) -> None:
        """Warm up the store."""
        self.store.warm_up()

    def ask(self) -> None:
        """One GET; see RemoteStorageManager.ask."""
        ask_store(self.store, self._prefix)

    def close(self) -> None:
        """Close the store, and end what waits for its turn to upload."""
        self._closed.set()
        self.store.close()

    def _key(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
        directory = partition_directory_name(metadata.topic_id_partition)
        return f"{self._prefix}{directory}/{segment_object_name(metadata, suffix)}"

    def _name(self, key: str) -> str:
        return f"{self._shown_prefix}{key}"

    def _fetch(self, key: str, start: int, end: int, bytes_max: int) -> bytes:
        """Bytes [start, end) of an object, fewer when it ends first; CorruptObjectError beyond `bytes_max`."""
        try:
            stream = self.store.get(key, start, end)
        except InvalidRangeError:
            return b""
        return bytes(read_whole(stream, self._name(key), bytes_max))

    def _size_bytes(self, key: str) -> int | None:
        try:
            return self.store.head(key).size_bytes
        except RemoteResourceNotFoundError:
            return None


class _OpenedFiles:
    """An OpenedSegment: where the log is."""

    chunk_bytes = 1
    memory_bytes = _OPENED_SEGMENT_BYTES

    def __init__(
        self, manager: SegmentFiles, store: ObjectStore, metadata: RemoteLogSegmentMetadata, log_key: str, log_name: str
    ) -> None:
        self._manager = manager
        self._store = store
        self._metadata = metadata
        self._log_key = log_key
        self._log_name = log_name

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return end_position - start_position

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        if not 0 <= start_position < end_position <= self._metadata.segment_size_bytes:
            raise ValueError(f"{start_position} to {end_position} is not a range of {self._metadata.segment_id}")
        try:
            stream = self._store.get(self._log_key, start_position, end_position)
        except InvalidRangeError as error:
            raise self._truncated(start_position, end_position, None) from error
        if stream.size_bytes < end_position - start_position:
            stream.close()
            raise self._truncated(start_position, end_position, start_position + stream.size_bytes)
        return PlainStream(stream)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return self._manager.fetch_index(self._metadata, index_type)

    def _truncated(self, start: int, end: int, size_bytes: int | None) -> TruncatedObjectError:
        ends = f"at or before {start}" if size_bytes is None else f"at {size_bytes}"
        wanted = f"bytes {start} to {end - 1} of {self._metadata.segment_size_bytes} wanted"
        message = f"{self._log_name}: {wanted}, and the object ends {ends}"
        return TruncatedObjectError(message, start if size_bytes is None else size_bytes)


def _segment_of(name: str) -> RemoteLogSegmentId | None:
    """Whose object has this key, the prefix taken away."""
    directory, separator, object_name = name.partition("/")
    partition = partition_of_directory(directory) if separator else None
    return None if partition is None else segment_of_object(object_name, partition)


# Names of a segment's objects. Ids are in the 22-character form, which may begin with or contain `-`, as topic names
# may: take a name apart from the right, by fixed widths.


def partition_directory_name(partition: TopicIdPartition) -> str:
    """The folder of a partition's objects.

    Raises:
        IllegalMetadataError: the topic name is not one that Kafka would accept, or the partition is negative.
    """
    check_partition(partition)
    return f"{partition.topic}-{partition.partition}-{id_text(partition.topic_id)}"


def segment_object_name(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    """An object's name inside its partition's folder; `suffix` without the dot."""
    return f"{metadata.start_offset:020d}-{id_text(metadata.segment_id.id)}.{suffix}"


def sources_by_suffix(data: LogSegmentData) -> dict[str, Path | bytes | None]:
    """Return what each object of a segment is copied from; None for those that it has not.

    In the order in which they are to be written: the log comes last, so that a log implies its indexes.
    """
    return {
        IndexType.OFFSET.value: data.offset_index,
        IndexType.TIMESTAMP.value: data.time_index,
        IndexType.TRANSACTION.value: data.transaction_index,
        IndexType.PRODUCER_SNAPSHOT.value: data.producer_snapshot_index,
        IndexType.LEADER_EPOCH.value: data.leader_epoch_index,
        LOG_SUFFIX: data.log_segment,
    }


def partition_of_directory(name: str) -> TopicIdPartition | None:
    """The inverse of `partition_directory_name`; None for a name that it does not give."""
    matched = _DIRECTORY.fullmatch(name)
    if matched is None or not is_topic_name(matched["topic"]) or int(matched["partition"]) > _PARTITION_MAX:
        return None
    return TopicIdPartition(uuid_from_text(matched["topic_id"]), int(matched["partition"]), matched["topic"])


def segment_of_object(name: str, partition: TopicIdPartition) -> RemoteLogSegmentId | None:
    """Whose object has this name in a partition's folder; None for a name that `segment_object_name` does not give."""
    matched = _OBJECT.fullmatch(name)
    if matched is None or matched["suffix"] not in OBJECT_SUFFIXES:
        return None
    return RemoteLogSegmentId(partition, uuid_from_text(matched["segment_id"]))
