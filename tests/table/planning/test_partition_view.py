"""The chain of segments: what is served from where, on the lineage alone."""

from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata
from table.planning.partition_view import PartitionView, ServedSegment, partition_view
from tests.support.metadata_records import DELETE_STARTED, PARTITION, apply_all, finish, moved, started

LOG_END = 1_000
ONE_EPOCH = LeaderEpochLineage(0, {0: (0, LOG_END)})


def chain_of(view: PartitionView) -> list[tuple[int, int, int]]:
    """(start offset of the segment, first offset, end offset) of each link."""
    return [(link.segment.start_offset, link.first_offset, link.end_offset) for link in view.segments]


def test_a_segment_that_is_still_copied_or_being_deleted_is_not_served() -> None:
    catalog = Catalog()
    gone, kept, coming = started("a", 0, 99), started("b", 100, 199), started("c", 200, 299)
    finish(catalog, gone, kept)
    apply_all(catalog, coming, moved(gone, DELETE_STARTED))

    view = partition_view(catalog, PARTITION, ONE_EPOCH, log_start_offset=100, end_offset=LOG_END)

    assert chain_of(view) == [(100, 100, 200)]
    assert view.holes == ()


def test_bytes_are_estimated_in_proportion_to_the_offsets() -> None:
    link = ServedSegment(started("a", 100, 199, size_bytes=5_000), 120, 200)

    assert link.estimated_bytes(0, 1_000) == 4_000
    assert link.estimated_bytes(190, 200) == 500
    assert link.estimated_bytes(300, 400) == 0


@st.composite
def _tiers(draw: st.DrawFn) -> tuple[list[RemoteLogSegmentMetadata], LeaderEpochLineage, int]:
    """Segments anywhere, some overlapping, some of dead epochs, and a lineage of up to three epochs."""
    borders = sorted(draw(st.lists(st.integers(0, 60), min_size=2, max_size=2)))
    ends = {0: (0, borders[0]), 1: (1, borders[1]), 2: (2, LOG_END)}
    dead = draw(st.sets(st.integers(0, 1)))
    answers = {epoch: ((-1, -1) if epoch in dead else end) for epoch, end in ends.items()}
    segments = []
    for number in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, 80))
        end = start + draw(st.integers(0, 30))
        first = draw(st.integers(0, 2))
        epochs = {first: start}
        if first < 2 and end > start and draw(st.booleans()):
            epochs[first + 1] = draw(st.integers(start + 1, end))
        segments.append(started(f"s{number}", start, end, epochs))
    return segments, LeaderEpochLineage(2, answers), draw(st.integers(0, 40))


@given(_tiers())
def test_each_offset_is_served_where_the_reader_would_find_it(
    tier: tuple[list[RemoteLogSegmentMetadata], LeaderEpochLineage, int],
) -> None:
    segments, lineage, log_start_offset = tier
    catalog = Catalog()
    finish(catalog, *segments)

    view = partition_view(catalog, PARTITION, lineage, log_start_offset=log_start_offset, end_offset=LOG_END)

    served = {o: link.segment for link in view.segments for o in range(link.first_offset, link.end_offset)}
    gone = {offset for hole in view.holes for offset in range(hole.first_offset, hole.end_offset)}
    assert sum(link.end_offset - link.first_offset for link in view.segments) == len(served)
    assert served.keys() | gone == set(range(log_start_offset, view.tier_end_offset))
    assert not served.keys() & gone
    for offset in range(log_start_offset, 130):
        epoch = lineage.epoch_for(offset)
        found = None if epoch is None else catalog.lookup(PARTITION.topic_id, PARTITION.partition, epoch, offset)
        is_found = found is not None and lineage.holds(found, offset)
        # From its first offset on a link is read to its end; the reader asks again only at its answer's end.
        if offset in {link.first_offset for link in view.segments}:
            assert is_found
            assert served[offset] == found
        if offset in gone or offset >= view.tier_end_offset:
            assert not is_found
