"""What of the tier is meant: the notation, and what a catalog makes of it."""

from dataclasses import replace

import pytest

from storage.errors import TierError
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition, uuid_to_text
from tests.support.segments import filled_segment, metadata_of, topic_partition, uuid_of
from tests.support.tier import catalog_of
from tidegate.commands.ls import Summary
from tidegate.commands.selection import Place, find_segment, holes, matching, one_partition, parse_place, parse_segment

ORDERS = topic_partition("orders", 0)
ORDERS_1 = topic_partition("orders", 1)
MADE_ANEW = TopicIdPartition(uuid_of("another"), 0, "orders")


def segment(
    start: int, end: int, *, partition: TopicIdPartition = ORDERS, epochs: dict[int, int] | None = None
) -> RemoteLogSegmentMetadata:
    some = metadata_of(partition, filled_segment(start))
    return replace(some, end_offset=end, segment_leader_epochs=epochs or {0: start})


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """Two partitions, and a hole in one; epoch 1 begins at an offset that a segment of epoch 0 has, too."""
    return catalog_of(
        [
            segment(0, 9),
            segment(10, 29),
            segment(20, 39, epochs={1: 20}),
            segment(50, 59, epochs={1: 50}),
            segment(0, 9, partition=ORDERS_1),
        ]
    )


def test_a_place_is_a_topic_and_perhaps_a_partition() -> None:
    for place in (Place("orders"), Place("orders.v2_x-1", 0), Place("orders", 2147483647)):
        assert parse_place(str(place)) == place
    assert str(Place("orders.v2_x-1", 0)) == "orders.v2_x-1:0"
    for text in ("", ":", "orders:", "orders:x", "orders:-1", "orders:2147483648", "a b", "o:1:2", "o:٣"):
        with pytest.raises(ValueError, match="is not TOPIC or TOPIC:PARTITION"):
            pytest.fail(f"{text} was taken as {parse_place(text)}")


def test_a_segment_is_an_id_or_an_offset_within_it() -> None:
    assert parse_segment("orders:0:17") == Place("orders", 0, 17)
    assert parse_segment(uuid_to_text(ORDERS.topic_id)) == ORDERS.topic_id
    for text in ("orders:0", "orders", "orders:0:x"):
        with pytest.raises(ValueError, match=r"not a Kafka uuid|neither|is not TOPIC:PARTITION:OFFSET"):
            parse_segment(text)


def test_partitions_are_found_by_place_and_topic_id(catalog: Catalog) -> None:
    assert matching(catalog, None) == matching(catalog, Place("orders")) == [ORDERS, ORDERS_1]
    assert matching(catalog, Place("orders", 1), ORDERS.topic_id) == [ORDERS_1]
    assert matching(Catalog(), None) == []
    for place, said in ((Place("payments"), "topic payments"), (Place("orders", 2), "partition orders:2")):
        with pytest.raises(TierError, match=f"has no {said}: `tidegate ls FILE`"):
            matching(catalog, place)


def test_one_partition_of_two_topics_of_a_name_is_asked_for_by_id() -> None:
    twice = catalog_of([segment(0, 9), segment(0, 9, partition=MADE_ANEW)])
    with pytest.raises(TierError, match="--topic-id"):
        one_partition(twice, Place("orders", 0))
    assert one_partition(twice, Place("orders", 0), MADE_ANEW.topic_id) == MADE_ANEW
    with pytest.raises(TierError, match="orders:PARTITION"):
        one_partition(twice, Place("orders"))


def test_a_segment_is_found_by_id_and_by_offset_in_the_newest_epoch(catalog: Catalog) -> None:
    def found(offset: int) -> tuple[int, int]:
        each = find_segment(catalog, Place("orders", 0, offset))
        assert find_segment(catalog, each.segment_id.id) == each
        return each.start_offset, each.end_offset

    assert [found(offset) for offset in (9, 15, 25, 59)] == [(0, 9), (10, 29), (20, 39), (50, 59)]
    for wanted in (Place("orders", 0, 45), uuid_of("none")):
        with pytest.raises(TierError, match="tidegate ls FILE"):
            find_segment(catalog, wanted)


def test_holes_lie_between_finished_segments_only() -> None:
    unfinished = replace(segment(10, 19), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    segments = [segment(30, 39), segment(0, 9), unfinished, segment(35, 44), segment(50, 59), segment(100, 109)]
    assert holes(segments) == [(10, 29), (45, 49), (60, 99)]
    assert holes([]) == holes(segments[:1]) == []
    summary = Summary.of(segments)
    assert (summary.start_offset, summary.end_offset, summary.segments, summary.hole_count) == (0, 109, 6, 3)
    assert summary.shown_states() == "1 copying"
