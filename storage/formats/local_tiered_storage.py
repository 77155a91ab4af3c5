"""Kafka's LocalTieredStorage: a tier of plain files, read and written in Kafka's own layout
(docs/formats.md#local-tiered-storage).

    <dir>/kafka-tiered-storage/<topic>-<partition>-<topic id>/<start offset>-<segment id>.<suffix>

Behaviour:
- Reads open, read and close; a stream holds a handle of its own until it is closed. None is shared, so no call can
  disturb another. Safe from any thread.
- A copy writes each object under a temporary name, syncs it and renames it, the log last: a log's name implies its
  indexes, and a crash leaves no half object under a final name. A repeat overwrites.
- A delete removes the segment's objects and leaves the partition's folder, as Kafka does.
- Nothing is created before the first copy: a reader writes nothing.
- There is no custom metadata.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from storage.buffers import unfilled
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
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
from storage.remote_storage_manager import (
    ObjectContent,
    OpenedSegment,
    SegmentInspection,
    SegmentObject,
    SegmentStream,
    StoredObject,
)

ROOT_DIRECTORY_NAME = "kafka-tiered-storage"

INDEX_BYTES_MAX = 128 * 1024 * 1024
"""A whole index is read into memory. The largest that Kafka writes by default has 10 MiB (`segment.index.bytes`)."""

IGNORED_KEYS = {
    "delete.on.close": "it would wipe a tier that outlives this process",
    "transferer.class": "a Java class for fault injection in Kafka's own tests",
    "broker.id": "the broker adds it; file names do not hold it",
}
"""Kafka's other keys of this format, each with the reason why it has no effect here."""

_OPENED_SEGMENT_BYTES = 512
"""What an opened segment costs: a small object, and a path that is its own."""

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LocalTieredStorage:
    """A RemoteStorageManager over one directory.

    Args:
        config: the manager's own keys, prefix stripped: `dir` (required), `delete.enable` (true); others of
            Kafka's are ignored (`IGNORED_KEYS`).

    Raises:
        StorageConfigError: `dir` is missing or empty, or `delete.enable` is not a boolean.
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        directory = config.get("dir", "").strip()
        if not directory:
            # Kafka would make a temporary directory here; a reader has nothing to gain from an empty tier.
            raise StorageConfigError("dir (with the default prefix: rsm.config.dir) of LocalTieredStorage is not set")
        self._root = Path(directory).absolute() / ROOT_DIRECTORY_NAME
        self._delete_enabled = _boolean(config, "delete.enable", default=True)

    @property
    def identity(self) -> str:
        """Format and folder; see RemoteStorageManager.identity."""
        return f"local-tiered-storage {self._root}"

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Copy a segment's files; see RemoteStorageManager.copy_log_segment_data."""
        sources = sources_by_suffix(data)
        directory = self._directory(metadata)
        with _storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        for suffix, source in sources.items():
            target = directory / segment_object_name(metadata, suffix)
            if source is None:
                with _storage_errors(target):
                    target.unlink(missing_ok=True)
            else:
                _write_object(source, target)
        with _storage_errors(directory):
            _sync(directory)

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedSegment:
        """What reads the segment. Touches no file: an absent log is found out by its first stream."""
        return _OpenedFile(self, metadata, self._path(metadata, LOG_SUFFIX))

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int | None = None
    ) -> bytes:
        """A range of a segment's log, both ends inclusive; see RemoteStorageManager.fetch_log_segment."""
        if start_position < 0 or (end_position is not None and end_position < start_position):
            raise ValueError(f"{start_position} to {end_position} is not a range of positions")
        path = self._path(metadata, LOG_SUFFIX)
        with _storage_errors(path), path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            end_bytes = size_bytes if end_position is None else min(end_position + 1, size_bytes)
            return _read_range(file.fileno(), start_position, end_bytes)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """One whole index; see RemoteStorageManager.fetch_index."""
        path = self._path(metadata, index_type.value)
        with _storage_errors(path), path.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > INDEX_BYTES_MAX:
                raise CorruptObjectError(f"{path}: {size_bytes} bytes is more than an index may have")
            return _read_range(file.fileno(), 0, size_bytes)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove a segment's objects, or nothing while `delete.enable` is false."""
        if not self._delete_enabled:
            return
        for suffix in OBJECT_SUFFIXES:
            path = self._path(metadata, suffix)
            with _storage_errors(path):
                path.unlink(missing_ok=True)

    def inspect_segment(self, metadata: RemoteLogSegmentMetadata) -> SegmentInspection:
        """Looks at the files' sizes; see RemoteStorageManager.inspect_segment."""
        with _storage_errors(self._directory(metadata)):
            objects = inspect_folder(self._directory(metadata), metadata)
        return SegmentInspection(objects, self.open_log_segment(metadata))

    def list_objects(self, topic: str | None = None) -> Iterator[StoredObject]:
        """All files below the root; see RemoteStorageManager.list_objects."""
        with _storage_errors(self._root):
            yield from list_folder(self._root, topic)

    @property
    def has_manifests(self) -> bool:
        return False

    def warm_up(self) -> None:
        """Nothing to load."""

    def ask(self) -> None:
        """Look into the folder; see RemoteStorageManager.ask. A broker makes it when it starts."""
        if not self._root.is_dir():
            raise RemoteStoreNotFoundError(f"{self._root}: there is no such folder; brokers make it when they start")
        with _storage_errors(self._root), os.scandir(self._root) as entries:
            next(entries, None)

    def close(self) -> None:
        """Nothing is held."""

    def _directory(self, metadata: RemoteLogSegmentMetadata) -> Path:
        return self._root / partition_directory_name(metadata.topic_id_partition)

    def _path(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> Path:
        return self._directory(metadata) / segment_object_name(metadata, suffix)


class _OpenedFile:
    """An OpenedSegment: where the file is."""

    chunk_bytes = 1
    memory_bytes = _OPENED_SEGMENT_BYTES

    def __init__(self, manager: LocalTieredStorage, metadata: RemoteLogSegmentMetadata, path: Path) -> None:
        self._manager = manager
        self._metadata = metadata
        self._path = path

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return end_position - start_position

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        if not 0 <= start_position < end_position <= self._metadata.segment_size_bytes:
            raise ValueError(f"{start_position} to {end_position} is not a range of {self._metadata.segment_id}")
        return _FileStream(self._path, self._metadata, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        return self._manager.fetch_index(self._metadata, index_type)


class _FileStream:
    """A SegmentStream: an open file and how far it was read."""

    def __init__(self, path: Path, metadata: RemoteLogSegmentMetadata, position: int, end_position: int) -> None:
        self._path = path
        self._metadata = metadata
        self._position = position
        self._end_position = end_position
        with _storage_errors(path):
            self._file = path.open("rb", buffering=0)

    def read(self, size_bytes: int) -> bytearray:
        if not 0 <= size_bytes <= self._end_position - self._position:
            raise ValueError(f"{size_bytes} bytes at {self._position} of a stream that ends at {self._end_position}")
        data = unfilled(size_bytes)
        with _storage_errors(self._path), memoryview(data) as view:
            filled_bytes = _fill(self._file.fileno(), view, self._position)
        if filled_bytes < size_bytes:
            raise CorruptObjectError(
                f"segment {self._metadata.segment_id} is truncated: bytes {self._position} to "
                f"{self._position + size_bytes - 1} of {self._metadata.segment_size_bytes} wanted, {filled_bytes} there"
            )
        self._position += size_bytes
        return data

    def close(self) -> None:
        self._file.close()


def _boolean(config: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = config.get(key)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise StorageConfigError(f"{key} of LocalTieredStorage is {text!r}, not true or false")
    return text.strip().lower() == "true"


def _read_range(file_descriptor: int, start_bytes: int, end_bytes: int) -> bytes:
    """The bytes [start, end) of a file; fewer when the file ends first."""
    parts: list[bytes] = []
    position = start_bytes
    while position < end_bytes:
        part = os.pread(file_descriptor, end_bytes - position, position)
        if not part:
            break
        parts.append(part)
        position += len(part)
    # One pread is the rule (Linux reads up to 2 GiB at once), and joining one part does not copy it.
    return b"".join(parts)


def _fill(file_descriptor: int, view: memoryview, start_bytes: int) -> int:
    """Read the bytes from `start_bytes` on into the buffer; how many there were before the file ended."""
    filled_bytes = 0
    while filled_bytes < len(view):
        part_bytes = os.preadv(file_descriptor, [view[filled_bytes:]], start_bytes + filled_bytes)
        if not part_bytes:
            break
        filled_bytes += part_bytes
    return filled_bytes


def _write_object(source: Path | bytes, target: Path) -> None:
    # Random, because two copies of one segment may run at once; in the same folder, because rename needs one device.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        if isinstance(source, Path):
            _copy_file(source, temporary)
        else:
            with _storage_errors(temporary):
                temporary.write_bytes(source)
        with _storage_errors(target):
            _sync(temporary)
            temporary.replace(target)
    finally:
        with _storage_errors(temporary):
            temporary.unlink(missing_ok=True)


def _copy_file(source: Path, target: Path) -> None:
    try:
        source_file = source.open("rb")
    except OSError as error:
        # Not the tier's fault, and a later attempt finds the same: the caller has to look.
        raise RemoteStorageError(f"cannot read the local file {source}: {error.strerror}") from error
    with source_file, _storage_errors(target), target.open("wb") as target_file:
        shutil.copyfileobj(source_file, target_file, 1024 * 1024)


def _sync(path: Path) -> None:
    file_descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file_descriptor)
    finally:
        os.close(file_descriptor)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Translate the operating system's errors at the edge, by what the caller can do about them."""
    try:
        yield
    except OSError as error:
        message = f"{path}: {error.strerror}"
        if error.errno in _ABSENT:
            raise RemoteResourceNotFoundError(message) from error
        if error.errno in _DENIED:
            raise RemoteAccessDeniedError(f"local tiered storage: {message}") from error
        if error.errno == errno.ENAMETOOLONG:
            raise RemoteStorageError(message) from error  # no retry makes a name shorter
        raise RetriableRemoteStorageError(message) from error


def inspect_folder(folder: Path, metadata: RemoteLogSegmentMetadata) -> tuple[SegmentObject, ...]:
    """A segment's files in its partition's folder, the log first. Only the log's size is known beforehand."""
    log = folder / segment_object_name(metadata, LOG_SUFFIX)
    objects = [SegmentObject(str(log), ObjectContent.LOG, _size_bytes(log), metadata.segment_size_bytes)]
    for index_type in IndexType:
        path = folder / segment_object_name(metadata, index_type.value)
        is_required = index_type not in OPTIONAL_INDEX_TYPES
        objects.append(
            SegmentObject(str(path), ObjectContent.INDEXES, _size_bytes(path), None, is_required, (index_type,))
        )
    return tuple(objects)


def list_folder(root: Path, topic: str | None) -> Iterator[StoredObject]:
    """All files below the root; of one topic only when it is given."""
    for folder in _entries(root):
        partition = partition_of_directory(folder.name)
        if topic is not None and (partition is None or partition.topic != topic):
            continue
        if not folder.is_dir(follow_symlinks=False):
            yield from _stored(folder, None)
            continue
        for entry in _entries(Path(folder.path)):
            segment_id = None if partition is None else segment_of_object(entry.name, partition)
            if topic is None or segment_id is not None:
                yield from _stored(entry, segment_id)


def _stored(entry: "os.DirEntry[str]", segment_id: RemoteLogSegmentId | None) -> Iterator[StoredObject]:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # deleted since its folder was read
    yield StoredObject(entry.path, status.st_size, status.st_mtime_ns // 1_000_000, segment_id)


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as scan:
            return sorted(scan, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _size_bytes(path: Path) -> int | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
