"""Rebuilding a segment's offset index from its batches (KIP-405's advice for a lost or broken index).

Synchronous: reads the log once, in order, by GETs of about SCAN_RANGE_BYTES in whole chunks, and looks at batch
headers only; a GET that would bring nothing but the inside of one batch is left out. No more than three pieces of
SCAN_PIECE_BYTES are in memory, whatever the segment's size.
"""

from collections.abc import Iterator
from contextlib import closing

from protocol.record_batches import BatchHeader
from storage.indexes.offset_index import build_offset_index
from storage.log.log_walk import Depth, LogWalk
from storage.log.segment_scan import LogWindow, OnGet
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment

SCAN_RANGE_BYTES = 8 * 1024 * 1024
"""A failure costs one such range, and a connection is not held for a whole segment."""

SCAN_PIECE_BYTES = 1024 * 1024


def rebuild_offset_index(
    opened: OpenedSegment, segment: RemoteLogSegmentMetadata, *, on_get: OnGet | None = None
) -> bytes:
    """The index as Kafka would have written it with the default interval.

    Raises:
        CorruptObjectError: a batch header that makes no sense, or a log shorter than the metadata says; names segment
            and position.
        RemoteStorageError: the log cannot be read.
    """
    headers = scan_headers(opened, segment, on_get=on_get)
    return build_offset_index(segment.start_offset, ((position, header.last_offset) for position, header in headers))


def scan_headers(
    opened: OpenedSegment, segment: RemoteLogSegmentMetadata, *, on_get: OnGet | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch of the segment's log, in order. What is inside batches is not looked at.

    Raises:
        CorruptObjectError: a header that makes no sense, or a log shorter than the metadata says.
        RemoteStorageError: the log cannot be read.
    """
    window = LogWindow(
        opened,
        segment,
        segment.segment_size_bytes,
        piece_bytes=SCAN_PIECE_BYTES,
        range_bytes=SCAN_RANGE_BYTES,
        attempts_max=1,
        on_get=on_get,
    )
    with closing(window):
        for batches in window.drive(LogWalk(segment, 0, segment.segment_size_bytes, Depth.HEADERS).steps()):
            assert isinstance(batches, list), "it does not recover"
            for batch in batches:
                yield batch.position, batch.header
