"""What the catalog adds to the rules of one partition: many partitions, limits, listeners, threads, memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from storage.errors import IllegalMetadataError
from storage.metadata import catalog as catalog_module
from storage.metadata.catalog import Catalog
from storage.model import (
    RemoteLogSegmentId,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
)
from tests.support.metadata_records import (
    COPY_FINISHED,
    DELETE_FINISHED,
    DELETE_STARTED,
    PARTITION,
    apply_all,
    finish,
    forget,
    moved,
    named_partition,
    named_uuid,
    started,
)

KEY = (PARTITION.topic_id, PARTITION.partition)
OTHER = named_partition("orders", 1)
THIRD = named_partition("events", 0)
SEGMENT = started("s", 0, 100)


def key(partition: TopicIdPartition) -> tuple[Uuid, int]:
    return partition.topic_id, partition.partition


def partition_delete(state: RemotePartitionDeleteState) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(PARTITION, state, 0, 1)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


def test_names_are_known_as_long_as_a_partition_of_theirs_is(catalog: Catalog) -> None:
    finish(catalog, SEGMENT, started("o", 0, 9, partition=OTHER))
    assert [catalog.knows_name(name) for name in ("orders", "events", "made-up")] == [True, False, False]
    forget(catalog, *key(OTHER))
    assert catalog.knows_name("orders")
    forget(catalog, *KEY)
    assert not catalog.knows_name("orders")


def test_a_name_with_two_ids_is_known_until_both_are_gone(catalog: Catalog) -> None:
    again = TopicIdPartition(named_uuid("created again"), 0, PARTITION.topic)
    finish(catalog, SEGMENT, started("a", 0, 9, partition=again))
    forget(catalog, *KEY)
    assert catalog.knows_name(PARTITION.topic)
    forget(catalog, *key(again))
    assert not catalog.knows_name(PARTITION.topic)


def test_epochs_begin_where_the_first_finished_segment_has_them(catalog: Catalog) -> None:
    assert (catalog.epoch_starts(*KEY), catalog.knows_topic(PARTITION.topic_id)) == ({}, False)
    first, second = started("a", 100, 299, epochs={1: 100, 2: 250}), started("b", 300, 499, epochs={2: 300, 4: 400})
    finish(catalog, second)
    assert catalog.epoch_starts(*KEY) == {2: 300, 4: 400}
    apply_all(catalog, first)
    assert catalog.epoch_starts(*KEY) == {2: 300, 4: 400}, "not while it is copied"
    finish(catalog, first)
    assert catalog.epoch_starts(*KEY) == {1: 100, 2: 250, 4: 400}
    apply_all(catalog, moved(first, DELETE_STARTED))
    assert catalog.epoch_starts(*KEY) == {2: 300, 4: 400}
    assert catalog.knows_topic(PARTITION.topic_id)
    forget(catalog, *KEY)
    assert not catalog.knows_topic(PARTITION.topic_id)


def test_segments_of_all_partitions_and_states_are_known_by_their_ids(catalog: Catalog) -> None:
    copying = started("t", 0, 100, partition=OTHER)
    finish(catalog, SEGMENT)
    apply_all(catalog, copying)
    known = {SEGMENT.segment_id.id, copying.segment_id.id}
    assert catalog.known_among(frozenset({*known, named_uuid("never heard of")})) == known
    assert catalog.known_among(frozenset()) == set()


def test_partitions_are_kept_apart_also_with_one_segment_id(catalog: Catalog) -> None:
    finish(catalog, SEGMENT, started("s", 500, 600, partition=OTHER))

    assert [metadata.start_offset for metadata in catalog.list_segments(*KEY)] == [0]
    assert [metadata.start_offset for metadata in catalog.list_segments(*key(OTHER))] == [500]
    assert catalog.segment_count == 2
    found = catalog.lookup(*key(OTHER), 0, 550)
    assert found is not None
    assert found.topic_id_partition == OTHER
    assert found.topic_id_partition.topic == "orders"


def test_each_change_of_a_partition_gives_a_generation_never_seen_before(catalog: Catalog) -> None:
    finish(catalog, started("o", 0, 9, partition=OTHER))
    others = catalog.generation(*key(OTHER))
    seen = [catalog.generation(*KEY)]
    for _ in range(2):
        for record in (SEGMENT, moved(SEGMENT, COPY_FINISHED)):
            apply_all(catalog, record)
            seen.append(catalog.generation(*KEY))
        forget(catalog, *KEY)

    assert len(set(seen)) == len(seen)
    assert catalog.generation(*key(OTHER)) == others


def test_a_deleted_partition_is_forgotten(catalog: Catalog) -> None:
    finish(catalog, SEGMENT, started("o", 0, 9, partition=OTHER))
    removed: list[RemoteLogSegmentId] = []
    catalog.on_segment_removed(removed.append)

    for state in (RemotePartitionDeleteState.DELETE_PARTITION_MARKED, RemotePartitionDeleteState(1)):
        assert not catalog.apply(partition_delete(state), initialized=True)
        assert catalog.has_segments(*KEY)
    assert catalog.apply(partition_delete(RemotePartitionDeleteState.DELETE_PARTITION_FINISHED), initialized=True)

    assert catalog.list_segments(*KEY) == []
    assert catalog.highest_offset_for_epoch(*KEY, 0) is None
    assert catalog.segment_count == 1
    assert removed == [SEGMENT.segment_id]


def test_listeners_hear_of_a_segment_as_soon_as_its_deletion_begins(catalog: Catalog) -> None:
    removed: list[tuple[RemoteLogSegmentId, bool]] = []
    catalog.on_segment_removed(lambda segment_id: removed.append((segment_id, catalog.has_segments(*KEY))))
    finish(catalog, SEGMENT)
    assert removed == []

    apply_all(catalog, moved(SEGMENT, DELETE_STARTED))
    assert removed == [(SEGMENT.segment_id, False)]

    apply_all(catalog, moved(SEGMENT, DELETE_FINISHED))
    assert removed == [(SEGMENT.segment_id, False)] * 2


def test_nobody_is_told_of_segments_that_went_before_the_metadata_was_read(catalog: Catalog) -> None:
    removed: list[RemoteLogSegmentId] = []
    catalog.on_segment_removed(removed.append)
    for record in (SEGMENT, moved(SEGMENT, COPY_FINISHED), moved(SEGMENT, DELETE_STARTED)):
        assert catalog.apply(record, initialized=False)
    apply_all(catalog, moved(SEGMENT, DELETE_FINISHED))
    assert removed == [SEGMENT.segment_id]


def test_a_listener_that_fails_is_logged_and_the_next_is_called(catalog: Catalog) -> None:
    removed: list[RemoteLogSegmentId] = []

    def fail(_: RemoteLogSegmentId) -> None:
        raise KeyError("gone")

    catalog.on_segment_removed(fail)
    catalog.on_segment_removed(removed.append)
    finish(catalog, SEGMENT)

    with capture_logs() as logs:
        apply_all(catalog, moved(SEGMENT, DELETE_STARTED))

    assert removed == [SEGMENT.segment_id]
    assert [entry["error"] for entry in logs] == ["KeyError('gone')"]


def test_a_full_catalog_refuses_new_partitions_whole_and_goes_on_with_known_ones() -> None:
    catalog = Catalog(segments_max=2)
    finish(catalog, started("a", 0, 9), started("b", 10, 19))
    with capture_logs() as logs:
        finish(catalog, started("o", 0, 9, partition=OTHER), started("o2", 10, 19, partition=OTHER))
    finish(catalog, started("c", 20, 29))

    assert catalog.is_refused(*key(OTHER))
    assert not catalog.is_refused(*KEY)
    assert catalog.refused_partitions == 1
    assert not catalog.has_segments(*key(OTHER))
    assert catalog.segment_count == 3
    assert [entry["event"] for entry in logs] == ["catalog_full"]


def test_a_refused_partition_stays_refused_until_it_is_forgotten() -> None:
    catalog = Catalog(segments_max=1)
    late = started("o", 0, 9, partition=OTHER)
    finish(catalog, SEGMENT, late)
    apply_all(catalog, moved(SEGMENT, DELETE_STARTED), moved(SEGMENT, DELETE_FINISHED))

    finish(catalog, late)
    assert catalog.is_refused(*key(OTHER))
    assert not catalog.has_segments(*key(OTHER))

    forget(catalog, *key(OTHER))
    finish(catalog, late)
    assert catalog.has_segments(*key(OTHER))


def test_an_illegal_first_segment_leaves_no_partition_behind(catalog: Catalog) -> None:
    with pytest.raises(IllegalMetadataError):
        catalog.apply(started("s", 0, 2**63), initialized=True)

    assert not catalog.contents().topics


def test_emptied_partitions_are_remembered_up_to_a_limit(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "EMPTIED_PARTITIONS_MAX", 2)
    for partition in (PARTITION, OTHER, THIRD):
        segment = started("s", 0, 9, partition=partition)
        finish(catalog, segment)
        apply_all(catalog, moved(segment, DELETE_STARTED), moved(segment, DELETE_FINISHED))

    highest = [catalog.highest_offset_for_epoch(*key(partition), 0) for partition in (PARTITION, OTHER, THIRD)]
    assert highest == [None, 9, 9]


def test_readers_see_whole_segments_while_writers_write(catalog: Catalog) -> None:
    partitions = [named_partition("orders", number) for number in range(4)]
    finished = threading.Event()

    def write(number: int) -> None:
        for start in range(0, 2_000, 10):
            segment = started(f"{number}-{start}", start, start + 9, partition=partitions[number])
            apply_all(catalog, segment, moved(segment, COPY_FINISHED, str(start).encode()))
            if start >= 500:
                old = started(f"{number}-{start - 500}", 0, 9, partition=partitions[number])
                apply_all(catalog, moved(old, DELETE_STARTED), moved(old, DELETE_FINISHED))

    def read(number: int) -> int:
        found_count = 0
        while not finished.is_set():
            for offset in range(0, 2_000, 50):
                found = catalog.lookup(*key(partitions[number]), 0, offset)
                if found is not None:
                    assert found.start_offset <= offset <= found.end_offset
                    assert found.custom_metadata == str(found.start_offset).encode()
                    found_count += 1
        return found_count

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, number) for number in range(4)]
        for writer in [pool.submit(write, number) for number in range(4)]:
            writer.result()
        finished.set()
        assert all(reader.result() >= 0 for reader in readers)
    assert catalog.segment_count == 4 * 50


def test_what_it_takes_in_memory_grows_with_what_it_holds(catalog: Catalog) -> None:
    sizes = [catalog.memory_bytes()]
    for number in range(2):
        finish(catalog, *(started(f"{number} {name}", name, name + 1) for name in range(0, 1000, 2)))
        sizes.append(catalog.memory_bytes())
    assert 50 * 500 < sizes[1] - sizes[0] < 400 * 500
    assert sizes[2] > sizes[1]


def test_a_summary_is_of_the_segments_that_can_be_read(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "SUMMARY_ROWS", 2)
    segments = [started(f"s{at}", at * 10, at * 10 + 9, size_bytes=100) for at in range(5)]
    finish(catalog, *segments)
    apply_all(catalog, moved(segments[0], DELETE_STARTED), started("copied now", 50, 59))
    finish(catalog, started("o", 0, 7, partition=OTHER))
    summary = catalog.summary(PARTITION)
    assert summary is not None
    assert (summary.segments, summary.size_bytes, summary.start_offset, summary.last_offset) == (4, 400, 10, 49)
    assert catalog.summary(THIRD) is None
    assert {*catalog.partitions()} == {PARTITION, OTHER}
    forget(catalog, *key(OTHER))
    assert catalog.partitions() == [PARTITION]


def test_a_summary_is_of_one_moment_while_the_partition_changes(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row that is released meanwhile may be another partition's by the time that it is looked at.
    monkeypatch.setattr(catalog_module, "SUMMARY_ROWS", 1)
    monkeypatch.setattr(catalog_module, "SUMMARY_TRIES", 1_000_000)
    finish(catalog, started("s0", 0, 9))

    def grow() -> None:
        for at in range(1, 300):
            finish(catalog, started(f"s{at}", at * 10, at * 10 + 9))
            finish(catalog, started(f"o{at}", at * 10**6, at * 10**6 + 9, partition=OTHER))
            forget(catalog, *key(OTHER))

    with ThreadPoolExecutor(1) as pool:
        growing = pool.submit(grow)
        while not growing.done():
            summary = catalog.summary(PARTITION)
            assert summary is not None
            assert (summary.start_offset, summary.last_offset) == (0, 10 * summary.segments - 1)
        growing.result()
    assert catalog.summary(PARTITION) == catalog_module.PartitionSummary(300, 300_000, 0, 2999)


def test_finished_segments_are_counted_and_listed_and_no_others(catalog: Catalog) -> None:
    other, deleted = started("o", 0, 9, partition=OTHER), started("d", 10, 19, partition=OTHER)
    finish(catalog, SEGMENT, other, deleted)
    apply_all(catalog, started("t", 0, 9, partition=THIRD), moved(deleted, DELETE_STARTED))
    assert (catalog.segment_count, catalog.finished_count) == (4, 2)
    assert {segment.segment_id for segment in catalog.finished_segments()} == {SEGMENT.segment_id, other.segment_id}
    assert [*catalog.finished_segments()] == [*catalog.finished_segments()]
