"""The files of a LocalTieredStorage directory: those that a segment should have, and those that are there.

Names are taken apart from the right, by fixed widths (storage/object_names.py). OSError is the caller's to translate.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from storage.model import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    uuid_from_text,
)
from storage.object_names import LOG_SUFFIX, OBJECT_SUFFIXES, is_topic_name, segment_object_name
from storage.remote_storage_manager import ObjectContent, SegmentObject, StoredObject

_OPTIONAL = frozenset({IndexType.TRANSACTION})
"""Kafka's broker hands its storage manager every other file of a segment."""

_PARTITION_MAX = 2**31 - 1
_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})-(?P<topic_id>[A-Za-z0-9_-]{22})", re.ASCII)
_FILE = re.compile(r"[0-9]{20}-(?P<segment_id>[A-Za-z0-9_-]{22})\.(?P<suffix>[a-z_]+)", re.ASCII)


def inspect_folder(folder: Path, metadata: RemoteLogSegmentMetadata) -> tuple[SegmentObject, ...]:
    """A segment's files in its partition's folder, the log first. Only the log's size is known beforehand."""
    log = folder / segment_object_name(metadata, LOG_SUFFIX)
    objects = [SegmentObject(str(log), ObjectContent.LOG, _size_bytes(log), metadata.segment_size_bytes)]
    for index_type in IndexType:
        path = folder / segment_object_name(metadata, index_type.value)
        is_required = index_type not in _OPTIONAL
        objects.append(
            SegmentObject(str(path), ObjectContent.INDEXES, _size_bytes(path), None, is_required, (index_type,))
        )
    return tuple(objects)


def list_folder(root: Path, topic: str | None) -> Iterator[StoredObject]:
    """All files below the root; of one topic only when it is given."""
    for folder in _entries(root):
        partition = _partition_of(folder.name)
        if topic is not None and (partition is None or partition.topic != topic):
            continue
        if not folder.is_dir(follow_symlinks=False):
            yield from _stored(folder, None)
            continue
        for entry in _entries(Path(folder.path)):
            segment_id = None if partition is None else _segment_of(entry.name, partition)
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


def _partition_of(name: str) -> TopicIdPartition | None:
    matched = _FOLDER.fullmatch(name)
    if matched is None or not is_topic_name(matched["topic"]) or int(matched["partition"]) > _PARTITION_MAX:
        return None
    return TopicIdPartition(uuid_from_text(matched["topic_id"]), int(matched["partition"]), matched["topic"])


def _segment_of(name: str, partition: TopicIdPartition) -> RemoteLogSegmentId | None:
    matched = _FILE.fullmatch(name)
    if matched is None or matched["suffix"] not in OBJECT_SUFFIXES:
        return None
    return RemoteLogSegmentId(partition, uuid_from_text(matched["segment_id"]))


def _size_bytes(path: Path) -> int | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
