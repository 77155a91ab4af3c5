"""The files of a LocalTieredStorage directory: those that a segment should have, and those that are there.

Names are taken apart from the right, by fixed widths (storage/formats/object_names.py). OSError is the caller's to
translate.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from storage.formats.object_names import (
    LOG_SUFFIX,
    OPTIONAL_INDEX_TYPES,
    partition_of_directory,
    segment_object_name,
    segment_of_object,
)
from storage.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata
from storage.remote_storage_manager import ObjectContent, SegmentObject, StoredObject


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
