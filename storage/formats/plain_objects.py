"""Plain objects: a segment's files as they are, in any object store, under the names that Kafka's LocalTieredStorage
gives them (docs/formats.md#plain-objects).

    <key.prefix><topic>-<partition>-<topic id>/<start offset>-<segment id>.<suffix>

Behaviour:
- A folder that LocalTieredStorage wrote is such a store as soon as something serves it as a bucket.
- Nothing is encoded: a range of a log is that range of its object. There is no manifest and no custom metadata.
- A copy puts the log last: a log implies its indexes. A repeat overwrites, and deletes what the segment no longer has.
- The prefix is put in front as it is: no separator is added.
- Absent objects have to be answered as such: in S3 that takes the right to list the bucket.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from storage.buffers import unfilled
from storage.errors import CorruptObjectError, InvalidRangeError, RemoteResourceNotFoundError, StorageConfigError
from storage.formats.local_tiered_storage import IGNORED_KEYS, INDEX_BYTES_MAX
from storage.formats.object_names import (
    LOG_SUFFIX,
    OBJECT_SUFFIXES,
    OPTIONAL_INDEX_TYPES,
    partition_directory_name,
    partition_of_directory,
    segment_object_name,
    segment_of_object,
    sources_by_suffix,
)
from storage.model import IndexType, LogSegmentData, RemoteLogSegmentId, RemoteLogSegmentMetadata
from storage.object_store.object_store import LocalFile, ObjectStore, ObjectStream, ask_store
from storage.object_store.registry import STORE_KEYS, open_object_store
from storage.object_store.s3_config import DEFAULT_PREFIX, MULTIPART_THRESHOLD_KEY, PART_SIZE_KEY
from storage.remote_storage_manager import (
    ObjectContent,
    OpenedSegment,
    SegmentInspection,
    SegmentObject,
    SegmentStream,
    StoredObject,
)

KEY_PREFIX_KEY: Final = "key.prefix"
KEYS: Final = (*STORE_KEYS, KEY_PREFIX_KEY)
INHERITED_KEYS: Final = frozenset({"dir", "delete.enable", *IGNORED_KEYS})
"""LocalTieredStorage's own: where the broker uses it, its file holds them. They are without effect here."""

UPLOAD_DEFAULTS: Final = {PART_SIZE_KEY: str(16 * 1024 * 1024), MULTIPART_THRESHOLD_KEY: str(100 * 1024 * 1024)}

KEY_BYTES_MAX = 1024
"""S3's limit for a key, in UTF-8; Google's and Azure's are the same."""

SEGMENT_BYTES_MAX = 2**31 - 1
"""Kafka's limit (`segment.bytes`): positions in a segment are of 32 bits."""

# The longest name: topic 249, partition 10, topic id 22, offset 20, segment id 22, the longest suffix, 5 separators.
_NAME_BYTES_MAX = 249 + 10 + 22 + 20 + 22 + max(map(len, OBJECT_SUFFIXES)) + 5
_OPENED_SEGMENT_BYTES = 512
"""What an opened segment costs: a small object, and a key that is its own."""


class PlainObjects:
    """A RemoteStorageManager over any object store.

    Args:
        config: the manager's own keys (`KEYS`), prefix stripped: those of the object store, and `key.prefix`.
        store: in place of the one that `config` names.

    Raises:
        StorageConfigError: a key is unknown, missing or wrong.
    """

    def __init__(self, config: Mapping[str, str], *, store: ObjectStore | None = None) -> None:
        _check_keys(config)
        self._prefix = config.get(KEY_PREFIX_KEY, "")
        if len(self._prefix.encode()) > KEY_BYTES_MAX - _NAME_BYTES_MAX:
            limit = f"longer than {KEY_BYTES_MAX - _NAME_BYTES_MAX} bytes: keys may have {KEY_BYTES_MAX} in all"
            raise StorageConfigError(f"{DEFAULT_PREFIX}{KEY_PREFIX_KEY} is {limit}")
        if store is None:
            unset = {key: value for key, value in UPLOAD_DEFAULTS.items() if not config.get(key, "").strip()}
            store = open_object_store({**config, **unset})
        self._store = store

    @property
    def identity(self) -> str:
        """Format, store and prefix; see RemoteStorageManager.identity."""
        return f"plain-objects {self._store.identity} {self._prefix}"

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Put a segment's files; see RemoteStorageManager.copy_log_segment_data."""
        sources = sources_by_suffix(data)
        if absent := [self._key(metadata, suffix) for suffix, source in sources.items() if source is None]:
            self._store.delete_many(absent)
        for suffix, source in sources.items():
            if source is not None:
                self._store.put(self._key(metadata, suffix), LocalFile(source) if isinstance(source, Path) else source)

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        """What reads the segment. Asks the store nothing: an absent log is found out by its first stream."""
        return _OpenedObjects(self, self._store, metadata, self._key(metadata, LOG_SUFFIX))

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
        self._store.delete_many([self._key(metadata, suffix) for suffix in OBJECT_SUFFIXES])

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        """One HEAD for each object; see RemoteStorageManager.inspect_segment."""
        log = self._key(metadata, LOG_SUFFIX)
        objects = [SegmentObject(log, ObjectContent.LOG, self._size_bytes(log), metadata.segment_size_bytes)]
        for index_type in IndexType:
            key = self._key(metadata, index_type.value)
            is_required = index_type not in OPTIONAL_INDEX_TYPES
            size_bytes = self._size_bytes(key)
            objects.append(SegmentObject(key, ObjectContent.INDEXES, size_bytes, None, is_required, (index_type,)))
        return SegmentInspection(tuple(objects), self.open_log_segment(metadata))

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        """All objects below the prefix; see RemoteStorageManager.list_objects."""
        try:
            for head in self._store.list(self._prefix if topic is None else f"{self._prefix}{topic}-"):
                segment_id = _segment_of(head.key[len(self._prefix) :])
                if topic is None or (segment_id is not None and segment_id.topic_id_partition.topic == topic):
                    yield StoredObject(head.key, head.size_bytes, head.modified_ms, segment_id)
        except RemoteResourceNotFoundError:
            return  # the file system's root comes into being with the first object

    @property
    def has_manifests(self) -> bool:
        return False

    def warm_up(self) -> None:
        """Warm up the store."""
        self._store.warm_up()

    def ask(self) -> None:
        """One GET; see RemoteStorageManager.ask."""
        ask_store(self._store, self._prefix)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _key(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
        directory = partition_directory_name(metadata.topic_id_partition)
        return f"{self._prefix}{directory}/{segment_object_name(metadata, suffix)}"

    def _fetch(self, key: str, start: int, end: int, bytes_max: int) -> bytes:
        """Bytes [start, end) of an object, fewer when it ends first; CorruptObjectError beyond `bytes_max`."""
        try:
            stream = self._store.get(key, start, end)
        except InvalidRangeError:
            return b""
        try:
            if stream.size_bytes > bytes_max:
                raise CorruptObjectError(f"{key}: more than {bytes_max} bytes")
            data = unfilled(stream.size_bytes)
            with memoryview(data) as view:
                stream.readinto(view)
            return bytes(data)
        finally:
            stream.close()

    def _size_bytes(self, key: str) -> int | None:
        try:
            return self._store.head(key).size_bytes
        except RemoteResourceNotFoundError:
            return None


class _OpenedObjects:
    """An OpenedSegment: where the log is."""

    chunk_bytes = 1
    memory_bytes = _OPENED_SEGMENT_BYTES

    def __init__(
        self, manager: PlainObjects, store: ObjectStore, metadata: RemoteLogSegmentMetadata, log_key: str
    ) -> None:
        self._manager = manager
        self._store = store
        self._metadata = metadata
        self._log_key = log_key

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return end_position - start_position

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        if not 0 <= start_position < end_position <= self._metadata.segment_size_bytes:
            raise ValueError(f"{start_position} to {end_position} is not a range of {self._metadata.segment_id}")
        try:
            stream = self._store.get(self._log_key, start_position, end_position)
        except InvalidRangeError as error:
            raise self._truncated(start_position, end_position, f"at or before {start_position}") from error
        if stream.size_bytes < end_position - start_position:
            stream.close()
            raise self._truncated(start_position, end_position, f"at {start_position + stream.size_bytes}")
        return _LogStream(stream)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return self._manager.fetch_index(self._metadata, index_type)

    def _truncated(self, start_position: int, end_position: int, ends: str) -> CorruptObjectError:
        return CorruptObjectError(
            f"{self._log_key}: bytes {start_position} to {end_position - 1} of {self._metadata.segment_size_bytes} "
            f"wanted, and the object ends {ends}"
        )


class _LogStream:
    """A SegmentStream: the body of one GET."""

    def __init__(self, stream: ObjectStream) -> None:
        self._stream = stream
        self._left_bytes = stream.size_bytes

    def read(self, size_bytes: int) -> bytearray:
        if not 0 <= size_bytes <= self._left_bytes:
            raise ValueError(f"{size_bytes} bytes of a stream with {self._left_bytes} left")
        data = unfilled(size_bytes)
        with memoryview(data) as view:
            self._stream.readinto(view)
        self._left_bytes -= size_bytes
        return data

    def close(self) -> None:
        self._stream.close()


def _segment_of(name: str) -> RemoteLogSegmentId | None:
    """Whose object has this key, the prefix taken away."""
    directory, separator, object_name = name.partition("/")
    partition = partition_of_directory(directory) if separator else None
    return None if partition is None else segment_of_object(object_name, partition)


def _check_keys(config: Mapping[str, str]) -> None:
    unknown: Sequence[str] = sorted(set(config) - {*KEYS, *INHERITED_KEYS})
    if not unknown:
        return
    named = []
    for key in unknown:
        nearest = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.0)[0]
        named.append(f"{DEFAULT_PREFIX}{key} is not a key of tidegate.PlainObjects; the nearest is {nearest}")
    raise StorageConfigError("; ".join(named))
