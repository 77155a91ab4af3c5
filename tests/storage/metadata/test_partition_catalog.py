"""The rules of docs/kafka-tier.md#states on one partition, through the catalog; and which segments and offsets are on
the upstream leader's history."""

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import structlog

from storage.errors import RemoteResourceNotFoundError
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage, filter_epochs
from storage.metadata.segment_states import is_legal_transition, is_possible_when_compacted
from storage.model import RemoteLogSegmentMetadata
from storage.model import RemoteLogSegmentState as State
from tests.storage.metadata.catalog_sizes import KEY, a_look_up_by_time_looks_at_few_segments, first_reaching
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
    name_of,
    started,
)
from tests.support.segments import filled_segment, metadata_of

S0 = started("s0", 0, 100, {0: 0, 1: 20, 2: 80})
S1 = started("s1", 101, 200, {2: 101})
S2 = started("s2", 201, 300, {2: 201, 3: 240})
S3 = started("s3", 250, 400, {3: 250, 4: 370})
LIFECYCLE = (S0, S1, S2, S3)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


def listed(catalog: Catalog, epoch: int | None = None) -> list[State]:
    return [metadata.state for metadata in catalog.list_segments(*KEY, epoch)]


@for_each(
    "epoch, offset, segment",
    [
        (1, 40, 0),
        (2, 110, 1),
        (3, 240, 2),
        (3, 250, 3),
        (4, 375, 3),
        (0, 0, 0),
        (0, 19, 0),
        (0, 20, None),
        (1, 110, None),
        (4, 401, None),
        (5, 301, None),
        (2, 79, None),
        (2, 80, 0),
    ],
)
def test_lookups_of_the_lifecycle(epoch: int, offset: int, segment: int | None) -> None:
    catalog = Catalog()
    finish(catalog, *LIFECYCLE)

    assert name_of(catalog.lookup(*KEY, epoch, offset), *LIFECYCLE) == segment


def test_a_segment_being_copied_is_listed_and_not_looked_up(catalog: Catalog) -> None:
    apply_all(catalog, S0)

    assert catalog.lookup(*KEY, 1, 40) is None
    assert catalog.highest_offset_for_epoch(*KEY, 1) is None
    assert catalog.epochs(*KEY) == ()
    assert listed(catalog, 1) == listed(catalog) == [COPY_STARTED]
    assert not catalog.has_segments(*KEY)


def test_deletion_hides_then_forgets_and_keeps_the_highest_offsets(catalog: Catalog) -> None:
    finish(catalog, S0)

    apply_all(catalog, moved(S0, DELETE_STARTED))
    assert catalog.lookup(*KEY, 0, 10) is None
    assert listed(catalog, 0) == listed(catalog) == [DELETE_STARTED]
    assert catalog.epochs(*KEY) == ()

    apply_all(catalog, moved(S0, DELETE_FINISHED))
    assert listed(catalog, 0) == listed(catalog) == []
    assert [catalog.highest_offset_for_epoch(*KEY, epoch) for epoch in range(3)] == [19, 79, 100]
    assert catalog.segment_count == 0


@for_each("deletion", [(DELETE_STARTED,), (DELETE_STARTED, DELETE_FINISHED)])
def test_an_epoch_is_known_once_a_copy_given_up_is_repeated(deletion: tuple[State, ...]) -> None:
    """A copy that never finished must not be taken off those that did: its epoch would never be asked for."""
    catalog = Catalog()
    apply_all(catalog, S0, *(moved(S0, state) for state in deletion))
    assert catalog.epochs(*KEY) == ()

    repeated = started("s0-again", 0, 100, {0: 0, 1: 20, 2: 80})
    finish(catalog, repeated)

    assert catalog.epochs(*KEY) == (0, 1, 2)
    assert name_of(catalog.lookup(*KEY, 1, 40), repeated) == 0


@for_each(
    "path, target",
    [
        ((), DELETE_FINISHED),
        ((COPY_FINISHED,), DELETE_FINISHED),
        ((DELETE_STARTED,), COPY_FINISHED),
        ((COPY_FINISHED, DELETE_STARTED), COPY_FINISHED),
    ],
)
def test_an_illegal_transition_is_dropped(path: tuple[State, ...], target: State) -> None:
    catalog = Catalog()
    apply_all(catalog, S0, *(moved(S0, state) for state in path))
    before = catalog.list_segments(*KEY)
    generation = catalog.generation(*KEY)

    assert not catalog.apply(moved(S0, target, b"late"), initialized=True)

    assert catalog.list_segments(*KEY) == before
    assert catalog.generation(*KEY) == generation


def test_illegal_transitions_are_told_once_for_each_partition() -> None:
    """How it failed: an error line for each record of a topic that was read back twice."""
    catalog = Catalog()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            apply_all(catalog, S0, moved(S0, DELETE_FINISHED))
    assert [line["event"] for line in lines] == ["illegal_segment_transition"]


@for_each("path", [(), (COPY_FINISHED,), (COPY_FINISHED, DELETE_STARTED), (DELETE_STARTED,)])
def test_of_a_compacted_log_a_segments_end_is_believed_in_any_state(path: tuple[State, ...]) -> None:
    catalog = Catalog()
    finish(catalog, S1)
    apply_all(catalog, S0, *(moved(S0, state) for state in path))
    assert catalog.apply(moved(S0, DELETE_FINISHED), initialized=True, is_keyed=True)
    assert [metadata.segment_id for metadata in catalog.list_segments(*KEY)] == [S1.segment_id]
    assert catalog.epochs(*KEY) == (2,)
    assert catalog.segment_count == 1
    assert catalog.lookup(*KEY, 0, 10) is None
    assert not catalog.apply(S1, initialized=True, is_keyed=True), "it does not begin again"


def test_of_a_compacted_log_a_whole_record_stands_for_itself(catalog: Catalog) -> None:
    whole = [replace(segment, state=COPY_FINISHED) for segment in (S0, S1)]
    for metadata in (*whole, replace(S2, state=DELETE_STARTED)):
        catalog.apply(metadata, initialized=True, is_keyed=True)
    assert sorted(catalog.list_segments(*KEY), key=lambda each: each.start_offset) == whole
    finish(catalog, S3)
    assert catalog.apply(replace(S3, state=DELETE_STARTED), initialized=True, is_keyed=True)
    assert catalog.lookup(*KEY, 3, 260) is None
    assert catalog.lookup(*KEY, 1, 40) == whole[0]
    assert catalog.highest_offset_for_epoch(*KEY, 2) == 200


@for_each("path", [(COPY_FINISHED,), (DELETE_STARTED,)])
def test_a_segment_cannot_begin_again(path: tuple[State, ...]) -> None:
    catalog = Catalog()
    apply_all(catalog, S0, *(moved(S0, state) for state in path))

    assert not catalog.apply(S0, initialized=True)
    assert listed(catalog) == list(path)


def test_a_first_record_again_replaces_the_first(catalog: Catalog) -> None:
    longer = replace(S0, end_offset=150, segment_leader_epochs={0: 0, 3: 90})
    apply_all(catalog, S0, longer)

    assert catalog.list_segments(*KEY) == [longer]
    assert catalog.list_segments(*KEY, 3) == [longer]
    assert catalog.list_segments(*KEY, 1) == []
    assert catalog.segment_count == 1


@for_each("others", [(), (S1,)])
def test_once_initialized_it_must_be_known(others: tuple[RemoteLogSegmentMetadata, ...]) -> None:
    catalog = Catalog()
    finish(catalog, *others)

    assert not catalog.apply(moved(S0, COPY_FINISHED), initialized=False)
    with pytest.raises(RemoteResourceNotFoundError):
        catalog.apply(moved(S0, COPY_FINISHED), initialized=True)


@for_each("end_offset", [90, 100])
def test_a_segment_that_covers_an_earlier_one_takes_over(end_offset: int) -> None:
    catalog = Catalog()
    inner, outer, after = started("inner", 10, 90), started("outer", 5, end_offset), started("after", 101, 200)
    finish(catalog, inner, outer, after)

    found = [name_of(catalog.lookup(*KEY, 0, offset), inner, outer, after) for offset in (5, 50, end_offset, 150)]
    assert found == [1, 1, 1, 2]
    assert [metadata.start_offset for metadata in catalog.list_segments(*KEY, 0)] == [5, 10, 101]


def test_a_shorter_segment_inside_a_longer_hides_its_rest(catalog: Catalog) -> None:
    long, short = started("long", 0, 200), started("short", 50, 100)
    finish(catalog, long, short)

    found = [name_of(catalog.lookup(*KEY, 0, offset), long, short) for offset in (60, 120, 40)]
    assert found == [1, None, 0]
    assert catalog.highest_offset_for_epoch(*KEY, 0) == 200


def test_a_shorter_segment_with_the_same_start_overwrites(catalog: Catalog) -> None:
    long, short = started("long", 0, 200), started("short", 0, 100)
    finish(catalog, long, short)

    assert [name_of(catalog.lookup(*KEY, 0, offset), long, short) for offset in (60, 150)] == [1, None]
    assert [metadata.segment_id for metadata in catalog.list_segments(*KEY, 0)] == [short.segment_id]
    assert len(catalog.list_segments(*KEY)) == 2

    apply_all(catalog, moved(long, DELETE_STARTED))
    assert name_of(catalog.lookup(*KEY, 0, 60), long, short) == 1


def test_a_look_up_by_time_looks_at_few_segments() -> None:
    """Failed before: each one sorted all segments of the epoch, in the event loop."""
    a_look_up_by_time_looks_at_few_segments(4_000)


def test_look_ups_by_time_find_what_a_search_of_all_finds(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.metadata.epoch_state.BLOCK_ROWS", 4)
    chance = random.Random(20)
    known: list[RemoteLogSegmentMetadata] = []
    for number in range(600):
        if known and chance.random() < 0.4:
            # Mostly the oldest, as retention does it.
            gone = known.pop(0 if chance.random() < 0.8 else chance.randrange(len(known)))
            apply_all(catalog, moved(gone, DELETE_STARTED), moved(gone, DELETE_FINISHED))
        else:
            start = chance.choice((number * 10, chance.randrange(number * 10 + 1)))
            segment = started(f"{number}", start, start + chance.choice((9, 9, 9, 40)), {0: start})
            known.append(replace(segment, max_timestamp_ms=number + chance.randrange(-5, 50)))
            finish(catalog, known[-1])
        listed_now = catalog.list_segments(*KEY, 0)
        for _ in range(3):
            end_offset, time_ms = chance.randrange(number * 10 + 10), chance.randrange(number + 60)
            expected = next(
                (one for one in listed_now if one.end_offset >= end_offset and one.max_timestamp_ms >= time_ms), None
            )
            assert first_reaching(catalog, end_offset, time_ms) == expected, f"{number}: {end_offset}, {time_ms}"


def test_a_chain_ends_where_a_look_up_finds_nothing(catalog: Catalog) -> None:
    """While segments come, overlap, and go anywhere."""
    chance = random.Random(42)
    known: list[RemoteLogSegmentMetadata] = []
    for number in range(300):
        if known and chance.random() < 0.45:
            gone = known.pop(0 if chance.random() < 0.7 else chance.randrange(len(known)))
            apply_all(catalog, moved(gone, DELETE_STARTED), moved(gone, DELETE_FINISHED))
        else:
            start = chance.choice((number * 5, number * 5, chance.randrange(number * 5 + 1)))
            epochs = {0: start} if chance.random() < 0.8 else {0: start, 1: start + 3}
            known.append(started(f"{number}", start, start + chance.choice((4, 4, 5, 19)), epochs))
            finish(catalog, known[-1])
        for _ in range(3):
            first, end = chance.randrange(number * 5 + 5), number * 5 + chance.randrange(30)
            expected = first
            while expected < end and catalog.lookup(*KEY, 0, expected) is not None:
                expected += 1
            assert catalog.chain_end(*KEY, first, [(0, end)], lambda _: True) == expected, number


@for_each("current, target", list(itertools.product(State, repeat=2)))
def test_compaction_leaves_out_moves_but_never_turns_them_round(current: State, target: State) -> None:
    assert is_possible_when_compacted(current, target) is (int(current) <= int(target))
    if is_legal_transition(current, target):
        assert is_possible_when_compacted(current, target)


LINEAGE = LeaderEpochLineage(7, {0: (0, 10), 1: (1, 20), 2: (2, 30), 3: (3, 40), 4: (4, 50), 5: (5, 70), 7: (7, 90)})

"""Starts {0:0, 1:10, 2:20, 3:30, 4:40, 5:50, 7:70}."""


TEMPLATE = metadata_of(PARTITION, filled_segment())


def segment(start_offset: int, end_offset: int, epochs: Mapping[int, int]) -> RemoteLogSegmentMetadata:
    return replace(TEMPLATE, start_offset=start_offset, end_offset=end_offset, segment_leader_epochs=epochs)


@for_each(
    "start_offset, end_offset, epochs, is_held",
    [
        (15, 35, {1: 15, 2: 20, 3: 30}, True),
        (15, 19, {1: 15}, True),
        (0, 5, {0: 0}, True),
        (70, 75, {7: 70}, True),
        (15, 29, {1: 15, 2: 20}, True),
        (55, 85, {5: 55, 6: 60, 7: 70}, False),  # epoch 6 is not known upstream
        (15, 45, {1: 15, 2: 20, 4: 40}, False),  # it lacks epoch 3
        (15, 35, {1: 15, 2: 20}, False),  # epoch 2 ended at 30
        (15, 20, {1: 15}, False),  # epoch 1 ended at 20
        (15, 35, {1: 15, 2: 21, 3: 30}, False),  # another border
    ],
)
def test_borders_decide_what_is_held(start_offset: int, end_offset: int, epochs: dict[int, int], is_held: bool) -> None:
    assert LINEAGE.holds(segment(start_offset, end_offset, epochs)) is is_held
    assert LINEAGE.holds(segment(start_offset, end_offset, epochs), start_offset) is is_held


@for_each(
    "offset, epoch", [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (69, 5), (70, 7), (89, 7), (90, None), (2**62, None)]
)
def test_an_offset_has_the_epoch_that_ends_behind_it(offset: int, epoch: int | None) -> None:
    assert LINEAGE.epoch_for(offset) == epoch


def test_the_current_epoch_ends_where_the_log_did_when_upstream_was_asked() -> None:
    assert (LINEAGE.end_offset(7), LINEAGE.end_offset(5), LINEAGE.end_offset(6)) == (90, 70, None)
    assert LINEAGE.holds(segment(70, 89, {7: 70}))
    assert not LINEAGE.holds(segment(70, 90, {7: 70}))


def test_an_epoch_that_upstream_does_not_know_is_not_live() -> None:
    lineage = LeaderEpochLineage(9, {3: (2, 30), 4: (4, 40), 5: (-1, -1)})
    assert list(lineage.epochs) == [4]
    assert (lineage.end_offset(3), lineage.end_offset(5)) == (None, None)
    assert not lineage.holds(segment(25, 29, {3: 25}))


def test_offsets_behind_the_last_live_epoch_have_none() -> None:
    lineage = LeaderEpochLineage(9, {4: (4, 40)})
    assert (lineage.epoch_for(39), lineage.epoch_for(40)) == (4, None)
    assert not lineage.holds(segment(30, 39, {4: 30}), 40)


def test_epochs_without_records_do_not_count() -> None:
    """Epochs 0 and 1 began at the offset where 2 did; upstream has forgotten them and answers for neither."""
    lineage = LeaderEpochLineage(3, {0: (-1, -1), 1: (-1, -1), 2: (2, 30), 3: (3, 99)})
    assert lineage.holds(segment(0, 40, {0: 0, 1: 0, 2: 0, 3: 30}))


def test_epochs_below_the_log_start_are_not_looked_at() -> None:
    """The log start moved to 25, inside epoch 2: upstream answers 25 for every older epoch it is asked about."""
    lineage = LeaderEpochLineage(3, {0: (0, 25), 1: (1, 25), 2: (2, 30), 3: (3, 99)})
    partly_below = segment(5, 40, {0: 5, 1: 10, 2: 20, 3: 30})
    assert lineage.epoch_for(25) == 2
    assert lineage.holds(partly_below, 25)
    assert lineage.holds(partly_below, 35)
    assert not lineage.holds(partly_below)


@for_each(
    "epochs, filtered",
    [
        ({0: 0, 1: 0, 2: 0, 3: 30, 4: 40, 5: 60, 6: 60, 7: 70, 8: 70}, {2: 0, 3: 30, 4: 40, 6: 60, 8: 70}),
        ({0: 0, 1: 0, 2: 0}, {2: 0}),
        ({3: 7}, {3: 7}),
        ({}, {}),
        ({5: 60, 0: 0, 4: 60}, {0: 0, 5: 60}),
    ],
)
def test_epochs_without_records_are_left_out(epochs: dict[int, int], filtered: dict[int, int]) -> None:
    assert filter_epochs(epochs) == filtered


# --- lineages of a tier of our own: the broker has forgotten what only the tier has ---

LOCAL_START = 1000


@for_each(
    "answers, starts, ends",
    [
        # Forgotten epochs end where the next one begins in the tier.
        ({0: (0, LOCAL_START), 1: (1, LOCAL_START)}, {0: 0, 1: 400}, {0: 400, 1: LOCAL_START}),
        # What the broker knows counts: it is never above what the tier has of the next one.
        ({3: (3, 1200), 4: (4, 1500)}, {3: 700, 4: 1200}, {3: 1200, 4: 1500}),
        ({3: (3, 1100), 4: (4, 1500)}, {3: 700, 4: 1200}, {3: 1100, 4: 1500}),
        # Dead ones, as the broker says, cut nothing.
        ({0: (0, LOCAL_START), 1: (0, 900), 2: (2, 1500)}, {0: 0, 1: 300, 2: 900}, {0: 900, 2: 1500}),
        # A branch that was cut at its beginning, or below it.
        ({0: (0, LOCAL_START), 1: (1, LOCAL_START), 2: (2, 1500)}, {0: 0, 1: 500, 2: 500}, {0: 500, 2: 1500}),
        ({0: (0, LOCAL_START), 1: (1, LOCAL_START), 2: (2, 1500)}, {0: 0, 1: 500, 2: 350}, {0: 350, 2: 1500}),
        # For an epoch whose segments went meanwhile, the broker's answer is all there is.
        ({0: (0, LOCAL_START), 1: (1, 1500)}, {0: 0}, {0: LOCAL_START, 1: 1500}),
        ({}, {}, {}),
    ],
)
def test_epochs_of_a_tier_of_our_own_end_where_the_next_begins_in_it(
    answers: dict[int, tuple[int, int]], starts: dict[int, int], ends: dict[int, int]
) -> None:
    lineage = LeaderEpochLineage(9, answers, starts)
    assert {epoch: lineage.end_offset(epoch) for epoch in lineage.epochs} == ends
    assert lineage.knows(list(answers))


def test_what_is_told_of_an_epoch_is_of_the_highest_live_one_up_to_it() -> None:
    assert [LINEAGE.told(epoch, 0) for epoch in (-1, 0, 6, 7, 8)] == [(-1, 0), (0, 10), (5, 70), (7, 90), (7, 90)]
    assert [LINEAGE.told(epoch, 25) for epoch in (0, 1, 2, 6)] == [(0, 25), (1, 25), (2, 30), (5, 70)]
