"""Whether a batch's header fits the place where it stands in its segment. Pure; shared by all who walk a log.

A batch's CRC covers neither its base offset nor its length, so these are checked against what the metadata says.
"""

from protocol.record_batches import BatchHeader
from storage.model import RemoteLogSegmentMetadata


def placement_fault(header: BatchHeader, position: int, segment: RemoteLogSegmentMetadata) -> str | None:
    """What is wrong with a batch of this header at this position of the segment's log; None: nothing."""
    if position + header.size_bytes > segment.segment_size_bytes:
        return f"its {header.size_bytes} bytes reach beyond the segment's {segment.segment_size_bytes}"
    if not segment.start_offset <= header.base_offset <= header.last_offset <= segment.end_offset:
        return (
            f"offsets {header.base_offset} to {header.last_offset} in a segment of "
            f"{segment.start_offset} to {segment.end_offset}"
        )
    return None


def order_fault(base_offset: int, last_offset: int) -> str | None:
    """What is wrong with a batch that begins at `base_offset` behind one that ends at `last_offset`; None: nothing."""
    return f"offset {base_offset} follows offset {last_offset}" if base_offset <= last_offset else None
