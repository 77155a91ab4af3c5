"""Which segments and offsets are on the upstream leader's history."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from storage.metadata.partition_catalog import LeaderEpochLineage, filter_epochs
from storage.model import RemoteLogSegmentMetadata
from tests.support.segments import filled_segment, metadata_of
from tests.support.tier import PARTITION

LINEAGE = LeaderEpochLineage(7, {0: (0, 10), 1: (1, 20), 2: (2, 30), 3: (3, 40), 4: (4, 50), 5: (5, 70), 7: (7, 90)})
"""Starts {0:0, 1:10, 2:20, 3:30, 4:40, 5:50, 7:70}: the lineage of docs/kafka-tier.md#cases."""

TEMPLATE = metadata_of(PARTITION, filled_segment())


def segment(start_offset: int, end_offset: int, epochs: Mapping[int, int]) -> RemoteLogSegmentMetadata:
    return replace(TEMPLATE, start_offset=start_offset, end_offset=end_offset, segment_leader_epochs=epochs)


@pytest.mark.parametrize(
    ("start_offset", "end_offset", "epochs", "is_held"),
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
def test_a_segment_is_held_if_its_borders_are_upstreams(
    start_offset: int, end_offset: int, epochs: Mapping[int, int], is_held: bool
) -> None:
    assert LINEAGE.holds(segment(start_offset, end_offset, epochs)) is is_held
    assert LINEAGE.holds(segment(start_offset, end_offset, epochs), start_offset) is is_held


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, 0), (9, 0), (10, 1), (29, 2), (30, 3), (69, 5), (70, 7), (89, 7), (90, None), (2**62, None)],
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


def test_without_answers_nothing_is_held() -> None:
    lineage = LeaderEpochLineage(0, {})
    assert (list(lineage.epochs), lineage.epoch_for(0)) == ([], None)
    assert not lineage.holds(segment(0, 5, {0: 0}))


def test_it_knows_what_was_asked_also_where_the_answer_was_no() -> None:
    lineage = LeaderEpochLineage(9, {3: (2, 30), 4: (4, 40)})
    assert lineage.knows([3, 4])
    assert lineage.knows([])
    assert not lineage.knows([4, 5])


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


def test_a_segment_that_ended_before_the_offsets_epoch_is_not_held() -> None:
    assert not LINEAGE.holds(segment(15, 19, {1: 15}), 25)


@pytest.mark.parametrize(
    ("epochs", "filtered"),
    [
        (
            {0: 0, 1: 0, 2: 0, 3: 30, 4: 40, 5: 60, 6: 60, 7: 70, 8: 70},
            {2: 0, 3: 30, 4: 40, 6: 60, 8: 70},
        ),
        ({0: 0, 1: 0, 2: 0}, {2: 0}),
        ({3: 7}, {3: 7}),
        ({}, {}),
        ({5: 60, 0: 0, 4: 60}, {0: 0, 5: 60}),
    ],
)
def test_epochs_without_records_are_left_out(epochs: dict[int, int], filtered: dict[int, int]) -> None:
    assert filter_epochs(epochs) == filtered
