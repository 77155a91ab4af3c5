"""Rebuilding a segment's offset index from its batches (KIP-405's advice for a lost or broken index).

Synchronous: reads the log in ranges of SCAN_RANGE_BYTES and looks at batch headers only, so that memory stays
bounded whatever the segment's size.
"""

from collections.abc import Iterator

from protocol.record_batches import HEADER_BYTES, CorruptBatchError, read_header
from storage.errors import CorruptObjectError
from storage.indexes.offset_index import build_offset_index
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager

SCAN_RANGE_BYTES = 8 * 1024 * 1024


def rebuild_offset_index(storage_manager: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> bytes:
    """The index as Kafka would have written it with the default interval.

    Raises:
        CorruptObjectError: a batch header that makes no sense; names segment and position.
        RemoteStorageError: the log cannot be read.
    """
    return build_offset_index(segment.start_offset, scan_batches(storage_manager, segment))


def scan_batches(storage_manager: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Iterator[tuple[int, int]]:
    """(position, last offset) of every batch of the segment's log, in order."""
    range_start, data = 0, memoryview(b"")
    position, size = 0, segment.segment_size_bytes
    while position < size:
        at = position - range_start
        if at + min(HEADER_BYTES, size - position) > len(data):
            range_start = position
            data = memoryview(storage_manager.fetch_log_segment(segment, position, position + SCAN_RANGE_BYTES - 1))
            at = 0
        try:
            header = read_header(data, at)
        except CorruptBatchError as error:
            raise CorruptObjectError(f"segment {segment.segment_id}, batch at {position}: {error}") from error
        if position + header.size_bytes > size:
            raise CorruptObjectError(f"segment {segment.segment_id}: the batch at {position} reaches beyond its end")
        yield position, header.last_offset
        position += header.size_bytes
