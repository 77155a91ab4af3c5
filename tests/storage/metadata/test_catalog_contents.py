"""A catalog that went through a snapshot is the same catalog, now and whatever comes after; the columns and the arena
that it consists of."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import IllegalMetadataError, RemoteStorageError
from storage.metadata import catalog as catalog_module
from storage.metadata.catalog import Catalog
from storage.metadata.catalog_contents import CatalogContents
from storage.metadata.segment_table import Arena, SegmentColumns
from storage.metadata.serde import MetadataRecord
from storage.metadata.snapshot_stream import UnreadableSnapshotError
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    Uuid,
)
from tests.support.catalog_answers import answers, contents_of, round_trip, snapshot_bytes
from tests.support.for_each import for_each
from tests.support.metadata_records import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_FINISHED,
    DELETE_STARTED,
    PARTITION,
    apply_all,
    finish,
    moved,
    named_partition,
    started,
)

PARTITIONS = (PARTITION, named_partition("orders", 1), named_partition("events", 0), named_partition("zürich", 7))
SEGMENTS_MAX = 9
EMPTIED_MAX = 2
NAMES = "abcdef"


@st.composite
def records(draw: st.DrawFn) -> MetadataRecord:
    """Any record, legal or not; few ids and offsets, so that they meet."""
    partition = draw(st.sampled_from(PARTITIONS))
    if draw(st.integers(0, 19)) == 0:
        state = draw(st.sampled_from(RemotePartitionDeleteState))
        return RemotePartitionDeleteMetadata(partition, state, 0, 1)
    start_offset = draw(st.integers(0, 3)) * 10
    epochs = {0: start_offset} if draw(st.booleans()) else {1: start_offset, 2: start_offset + 5}
    segment = started(
        draw(st.sampled_from(NAMES)),
        start_offset,
        start_offset + draw(st.integers(5, 14)),
        epochs,
        partition=partition,
        txn_index_empty=draw(st.booleans()),
        state=COPY_STARTED if draw(st.integers(0, 9)) else COPY_FINISHED,
    )
    if draw(st.integers(0, 2)) == 0:
        return segment
    state = draw(st.sampled_from([COPY_FINISHED, COPY_FINISHED, *RemoteLogSegmentState]))
    return moved(segment, state, draw(st.none() | st.binary(max_size=40)))


def applied(catalog: Catalog, new_records: Sequence[MetadataRecord]) -> list[object]:
    """Return what each record did."""
    results: list[object] = []
    for record in new_records:
        try:
            results.append(catalog.apply(record, initialized=len(results) % 2 == 0))
        except RemoteStorageError as error:
            results.append(str(error))
    return results


@given(before=st.lists(records(), max_size=60), after=st.lists(records(), max_size=30))
def test_the_catalog_goes_on_as_if_never_restarted(before: list[MetadataRecord], after: list[MetadataRecord]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_module, "EMPTIED_PARTITIONS_MAX", EMPTIED_MAX)
        catalog = Catalog(SEGMENTS_MAX)
        applied(catalog, before)
        other = round_trip(catalog)

        assert answers(other, PARTITIONS) == answers(catalog, PARTITIONS)
        assert snapshot_bytes(other.contents()) == snapshot_bytes(catalog.contents())
        assert applied(other, after) == applied(catalog, after)
        assert answers(other, PARTITIONS) == answers(catalog, PARTITIONS)


def filled() -> Catalog:
    catalog = Catalog(SEGMENTS_MAX)
    gone = started("g", 0, 9, partition=PARTITIONS[1])
    finish(catalog, started("s", 0, 9), started("t", 10, 19, {0: 10, 1: 15}), gone)
    apply_all(catalog, started("u", 20, 29), moved(gone, DELETE_STARTED), moved(gone, DELETE_FINISHED))
    return catalog


def test_the_format_is_the_one_that_its_version_number_stands_for() -> None:
    """Another length here means another format: raise storage.metadata.snapshot.FORMAT_VERSION."""
    content = snapshot_bytes(filled().contents())
    assert (len(content), hashlib.sha256(content).hexdigest()) == (
        920,
        "041b6da2e7171d90a06713352ddbb35692ddc8f0b1686291ead1f42a0d19985f",
    )


@given(st.data())
def test_contents_that_are_cut_short_are_unreadable(data: st.DataObject) -> None:
    content = snapshot_bytes(filled().contents())
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(UnreadableSnapshotError):
        contents_of(content[:length])


@given(st.data())
def test_changed_bytes_cost_no_more_than_the_file_is_long(data: st.DataObject) -> None:
    """The checksum finds them first; should it not, they are refused or are other numbers, inside of the columns."""
    content = bytearray(snapshot_bytes(filled().contents()))
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    try:
        contents = contents_of(bytes(content))
    except (UnreadableSnapshotError, UnicodeDecodeError):
        return
    for partition in contents.partitions():
        for row in partition.rows():
            with contextlib.suppress(IllegalMetadataError):
                contents.columns.metadata(row, partition.topic_id_partition)


def lose_a_column_end(contents: CatalogContents) -> None:
    contents.columns.end_offsets.pop()


def make_up_a_state(contents: CatalogContents) -> None:
    contents.columns.states[0] = 9


def free_a_used_row(contents: CatalogContents) -> None:
    contents.columns.free_rows.append(0)


def lose_a_free_row(contents: CatalogContents) -> None:
    contents.columns.free_rows.pop()


def free_a_row_beyond_the_end(contents: CatalogContents) -> None:
    contents.columns.free_rows[0] = 99


def forget_a_partition(contents: CatalogContents) -> None:
    contents.topics[PARTITION.topic_id].pop(PARTITION.partition)


def name_two_segments_alike(contents: CatalogContents) -> None:
    partition = next(iter(contents.partitions()))
    first, second = sorted(partition.rows())[:2]
    contents.columns.ids[16 * second : 16 * second + 16] = contents.columns.segment_id(first)


def lose_all_rows(contents: CatalogContents) -> None:
    for column in ("start_offsets", "end_offsets", "sizes_bytes", "states", "txn_index_empty", "max_timestamps_ms"):
        del getattr(contents.columns, column)[:]


@for_each(
    "spoil, reason",
    [
        (lose_a_column_end, "different lengths"),
        (make_up_a_state, "unknown state"),
        (free_a_used_row, "free segment that is none"),
        (lose_a_free_row, "without a partition"),
        (free_a_row_beyond_the_end, "free segment that is none"),
        (forget_a_partition, "without a partition"),
        (name_two_segments_alike, "one segment twice"),
        (lose_all_rows, "different lengths"),
    ],
)
def test_contents_that_do_not_fit_are_unreadable(spoil: Callable[[CatalogContents], None], reason: str) -> None:
    contents = filled().contents()
    spoil(contents)
    with pytest.raises(UnreadableSnapshotError, match=reason):
        contents_of(snapshot_bytes(contents))


THREE_EPOCHS = replace(
    started("s", 10, 99, {1: 10, 4: 50, 7: 80}, txn_index_empty=True), custom_metadata=CustomMetadata(b"where")
)


@for_each("metadata", [started("s", 0, 9), THREE_EPOCHS, replace(THREE_EPOCHS, custom_metadata=CustomMetadata(b""))])
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


@for_each(
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


@given(st.lists(st.binary(max_size=70) | st.none(), max_size=60))
def test_strings_never_overlap(steps: list[bytes | None]) -> None:
    """A None gives the oldest string back."""
    arena = Arena()
    kept: list[tuple[int, bytes]] = []
    for blob in steps:
        if blob is not None:
            kept.append((arena.put(blob), blob))
        elif kept:
            position, oldest = kept.pop(0)
            arena.release(position, len(oldest))

        assert [arena.get(position, len(content)) for position, content in kept] == [content for _, content in kept]
