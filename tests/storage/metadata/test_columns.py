from dataclasses import replace

import pytest

from storage.errors import IllegalMetadataError
from storage.metadata.epoch_state import SegmentColumns
from storage.model import CustomMetadata, RemoteLogSegmentId, RemoteLogSegmentMetadata, Uuid
from tests.support.metadata_records import COPY_FINISHED, PARTITION, moved, started

THREE_EPOCHS = replace(
    started("s", 10, 99, {1: 10, 4: 50, 7: 80}, txn_index_empty=True),
    custom_metadata=CustomMetadata(b"where"),
)


@pytest.mark.parametrize(
    "metadata", [started("s", 0, 9), THREE_EPOCHS, replace(THREE_EPOCHS, custom_metadata=CustomMetadata(b""))]
)
def test_a_row_gives_back_what_was_put_in(metadata: RemoteLogSegmentMetadata) -> None:
    columns = SegmentColumns()
    columns.insert(started("other", 5, 6))
    row = columns.insert(metadata)

    assert columns.metadata(row, PARTITION) == metadata


def test_ranges_of_the_epochs_in_a_segment() -> None:
    columns = SegmentColumns()
    row = columns.insert(THREE_EPOCHS)

    assert columns.epoch_ranges(row) == [(1, 10, 49), (4, 50, 79), (7, 80, 99)]
    assert [columns.last_offset_of_epoch(row, epoch) for epoch in (1, 4, 7)] == [49, 79, 99]


@pytest.mark.parametrize(
    "metadata",
    [
        started("s", 0, 2**63),
        started("s", 0, 1, {2**31: 0}),
        started("s", 0, 1, {0: 2**63}),
        replace(started("s", 0, 1), broker_id=2**31),
        replace(started("s", 0, 1), segment_id=RemoteLogSegmentId(PARTITION, Uuid(b"short"))),
    ],
)
def test_a_number_out_of_range_leaves_no_row_behind(metadata: RemoteLogSegmentMetadata) -> None:
    columns = SegmentColumns()
    with pytest.raises(IllegalMetadataError):
        columns.insert(metadata)

    assert columns.insert(started("good", 0, 1)) == 0
    assert columns.metadata(0, PARTITION) == started("good", 0, 1)


def test_an_update_out_of_range_changes_nothing_that_is_looked_up() -> None:
    columns = SegmentColumns()
    row = columns.insert(started("s", 0, 1))
    with pytest.raises(IllegalMetadataError):
        columns.update(row, replace(moved(started("s", 0, 1), COPY_FINISHED), broker_id=2**31))

    assert not columns.is_finished(row)
