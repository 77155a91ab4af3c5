"""What is wrong with a header where it stands."""

import re

import pytest

from protocol.record_batches import read_header
from storage.log.batch_placement import order_fault, placement_fault
from tests.support.segments import data_batch, filled_segment, metadata_of, topic_partition

SEGMENT = metadata_of(topic_partition(), filled_segment(5000))  # 20 batches of 10 records


@pytest.mark.parametrize(
    ("base_offset", "from_end_bytes", "fault"),
    [
        (5000, 0, None),
        (5190, 0, None),
        (5190, -1, "its 1[0-9]{3} bytes reach beyond the segment's 24620"),
        (4999, 0, "offsets 4999 to 5008 in a segment of 5000 to 5199"),
        (5191, 0, "offsets 5191 to 5200 in a segment of 5000 to 5199"),
    ],
)
def test_a_batch_lies_inside_its_segment_in_bytes_and_offsets(
    base_offset: int, from_end_bytes: int, fault: str | None
) -> None:
    batch = data_batch(base_offset, record_count=10)
    position = SEGMENT.segment_size_bytes - len(batch) - from_end_bytes

    found = placement_fault(read_header(batch, 0), position, SEGMENT)

    assert (found is None) == (fault is None)
    assert re.fullmatch(fault or "", found or "")


def test_offsets_ascend_from_batch_to_batch() -> None:
    assert order_fault(10, 9) is None
    assert order_fault(9, 9) == "offset 9 follows offset 9"
