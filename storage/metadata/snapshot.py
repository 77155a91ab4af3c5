"""The catalog snapshot: one file from which a restart goes on where the last one was, checked as a whole before use.

    magic, format version (12 bytes) | origin, next offsets | the catalog (`CatalogContents`) | CRC-32C of all that

- `draft` writes a temporary file beside it, `keep_draft` makes that the snapshot (storage.owned_file).
- A snapshot that must not be used is set aside as `<name>.bad`, where it can be looked at; one is kept.
- Exactly the catalog comes back: no state transition is checked again, nothing is looked up elsewhere.

Synchronous, for worker threads. One process at a time, and one writer.
"""

import os
import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from storage.metadata.catalog_contents import CatalogContents
from storage.metadata.snapshot_stream import (
    ForeignSnapshotError,
    OlderSnapshotError,
    SnapshotOutOfRangeError,
    SnapshotReader,
    SnapshotWriter,
    UnreadableSnapshotError,
    checksum_of,
)
from storage.model import uuid_to_text
from storage.owned_file import NotOwnedError, OwnedFile

FORMAT_VERSION: Final = 1
"""Grows with every change of what is written. There is no reading of older ones: the topic has it all."""

SNAPSHOT_NAME: Final = "catalog.snapshot"

_MAGIC = b"TDGTCTLG"
_PREAMBLE = struct.Struct("<8sI")
_HEADER = struct.Struct("<16sqq")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """Where the records came from, and how many the catalog would take."""

    cluster_id: str
    topic_id: bytes
    partition_count: int
    segments_max: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot. `next_offsets`: by metadata partition, the first offset that is not in the contents."""

    origin: SnapshotOrigin
    next_offsets: tuple[int, ...]
    written_at_ms: int
    contents: CatalogContents

    def check_origin(self, now: SnapshotOrigin) -> None:
        """Raises ForeignSnapshotError unless this is a snapshot of that cluster's metadata topic as it is now."""
        then = self.origin
        if then.cluster_id != now.cluster_id:
            raise ForeignSnapshotError(f"it is of cluster {then.cluster_id}, this is {now.cluster_id}")
        if then.topic_id != now.topic_id:
            ids = uuid_to_text(then.topic_id), uuid_to_text(now.topic_id)
            raise ForeignSnapshotError(f"it is of metadata topic {ids[0]}, this is {ids[1]}")
        if then.partition_count != now.partition_count:
            raise ForeignSnapshotError(
                f"it is of {then.partition_count} metadata partitions, now there are {now.partition_count}"
            )
        is_too_large = self.contents.segment_count > now.segments_max
        if is_too_large or (self.contents.refused and then.segments_max != now.segments_max):
            # A limit that was raised lets partitions in that were refused, and only the topic has those.
            raise ForeignSnapshotError(
                f"it is of catalog.segments.max {then.segments_max}, which left out {len(self.contents.refused)} "
                f"partitions, now it is {now.segments_max}"
            )

    def check_range(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Raises SnapshotOutOfRangeError if one of these logs (start offset, high watermark) does not go on from it."""
        for partition, (log_start_offset, high_watermark) in ranges.items():
            next_offset = self.next_offsets[partition]
            if next_offset < log_start_offset:
                raise SnapshotOutOfRangeError(
                    f"it goes on at {next_offset} of metadata partition {partition}, which begins at "
                    f"{log_start_offset}: the records between are lost"
                )
            if next_offset > high_watermark:
                raise SnapshotOutOfRangeError(
                    f"it goes on at {next_offset} of metadata partition {partition}, which ends at "
                    f"{high_watermark}: that is not the log it was made from"
                )


class SnapshotFile:
    """The snapshot in a folder, which is made when something is written. Every method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder / SNAPSHOT_NAME
        self._file = OwnedFile(self.path)
        self._bad_path = folder / f"{SNAPSHOT_NAME}.bad"

    def draft(self, snapshot: Snapshot, keep_on: Callable[[], None] = lambda: None) -> int:
        """Write a draft, replacing an earlier one; its size in bytes. Nothing of it is on disk for sure yet.

        Args:
            keep_on: called often; what it raises ends the writing, and no draft is left.
        """
        with self._file.draft() as file:
            return _write(snapshot, SnapshotWriter(file, keep_on))

    def keep_draft(self) -> None:
        """Make the draft the snapshot, safe against a crash of the machine too."""
        self._file.keep_draft()

    def read(self) -> Snapshot | None:
        """The snapshot; None when there is none.

        Raises:
            SnapshotError: there is one, but it cannot be read.
        """
        try:
            file = self._file.open()
        except NotOwnedError as error:
            raise UnreadableSnapshotError("it is not a file of this process's user") from error
        if file is None:
            return None
        with file:
            try:
                return _read(file)
            except (ValueError, OverflowError, struct.error) as error:
                raise UnreadableSnapshotError(f"it holds what no catalog can: {error}") from error

    def origin(self) -> SnapshotOrigin | None:
        """Return where the snapshot's records came from, by its first bytes alone; None when there is none.

        Raises:
            SnapshotError: there is one, but it cannot be read.
        """
        try:
            file = self._file.open()
        except NotOwnedError as error:
            raise UnreadableSnapshotError("it is not a file of this process's user") from error
        if file is None:
            return None
        with file:
            content_bytes = os.fstat(file.fileno()).st_size - _CHECKSUM.size
            try:
                _check_preamble(file, content_bytes)
                reader = SnapshotReader(file, content_bytes - _PREAMBLE.size)
                return _read_origin(reader)[0]
            except (ValueError, OverflowError, struct.error) as error:
                raise UnreadableSnapshotError(f"it holds what no catalog can: {error}") from error

    def size_bytes(self) -> int:
        """Return how large the snapshot is."""
        return self.path.stat().st_size

    def set_aside(self) -> Path:
        """Move the snapshot out of the way, so that the next start does not look at it again; where it is now."""
        self.path.replace(self._bad_path)
        return self._bad_path


def _write(snapshot: Snapshot, writer: SnapshotWriter) -> int:
    origin = snapshot.origin
    writer.put_numbers(_PREAMBLE, _MAGIC, FORMAT_VERSION)
    writer.put_numbers(_HEADER, origin.topic_id, origin.segments_max, snapshot.written_at_ms)
    writer.put_bytes(origin.cluster_id.encode())
    writer.put_array(array("q", snapshot.next_offsets))
    snapshot.contents.write_to(writer)
    return writer.finish()


def _read(file: BinaryIO) -> Snapshot:
    content_bytes = os.fstat(file.fileno()).st_size - _CHECKSUM.size
    _check_preamble(file, content_bytes)
    # As a whole, before any of it is taken for numbers.
    file.seek(0)
    checksum = checksum_of(file, content_bytes)
    if file.read(_CHECKSUM.size) != _CHECKSUM.pack(checksum):
        raise UnreadableSnapshotError("its checksum does not hold: it is cut short or damaged")
    file.seek(_PREAMBLE.size)
    reader = SnapshotReader(file, content_bytes - _PREAMBLE.size)
    origin, next_offsets, written_at_ms = _read_origin(reader)
    contents = CatalogContents.read_from(reader)
    reader.finish()
    return Snapshot(origin, next_offsets, written_at_ms, contents)


def _read_origin(reader: SnapshotReader) -> tuple[SnapshotOrigin, tuple[int, ...], int]:
    topic_id, segments_max, written_at_ms = reader.take_numbers(_HEADER)
    cluster_id = reader.take_bytes().decode()
    next_offsets = tuple(reader.take_array("q"))
    return SnapshotOrigin(cluster_id, topic_id, len(next_offsets), segments_max), next_offsets, written_at_ms


def _check_preamble(file: BinaryIO, content_bytes: int) -> None:
    if content_bytes < _PREAMBLE.size:
        raise UnreadableSnapshotError("it is cut short")
    magic, version = _PREAMBLE.unpack(file.read(_PREAMBLE.size))
    if magic != _MAGIC:
        raise UnreadableSnapshotError("it is no catalog snapshot")
    if version < FORMAT_VERSION:
        raise OlderSnapshotError(f"it is of format {version}, and this version reads {FORMAT_VERSION}")
    if version > FORMAT_VERSION:
        raise UnreadableSnapshotError(f"it is of format {version}, which is newer than this version's {FORMAT_VERSION}")
