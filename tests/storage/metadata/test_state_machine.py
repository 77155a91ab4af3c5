import itertools

import pytest

from storage.metadata.partition_catalog import is_legal_transition, is_possible_when_compacted
from storage.model import RemoteLogSegmentState

LEGAL_MOVES = {(0, 1), (0, 2), (1, 2), (2, 3)}


@pytest.mark.parametrize(("current", "target"), list(itertools.product(RemoteLogSegmentState, repeat=2)))
def test_a_transition_between_two_states(current: RemoteLogSegmentState, target: RemoteLogSegmentState) -> None:
    assert is_legal_transition(current, target) is (current == target or (int(current), int(target)) in LEGAL_MOVES)


@pytest.mark.parametrize("target", RemoteLogSegmentState)
def test_a_segment_begins_by_being_copied(target: RemoteLogSegmentState) -> None:
    assert is_legal_transition(None, target) is (target is RemoteLogSegmentState.COPY_SEGMENT_STARTED)


@pytest.mark.parametrize(("current", "target"), list(itertools.product(RemoteLogSegmentState, repeat=2)))
def test_compaction_leaves_out_moves_but_never_turns_them_round(
    current: RemoteLogSegmentState, target: RemoteLogSegmentState
) -> None:
    assert is_possible_when_compacted(current, target) is (int(current) <= int(target))
    if is_legal_transition(current, target):
        assert is_possible_when_compacted(current, target)
