import itertools

import pytest

from storage.metadata.state_machine import is_legal_transition
from storage.model import RemoteLogSegmentState

LEGAL_MOVES = {(0, 1), (0, 2), (1, 2), (2, 3)}


@pytest.mark.parametrize(("current", "target"), list(itertools.product(RemoteLogSegmentState, repeat=2)))
def test_a_transition_between_two_states(current: RemoteLogSegmentState, target: RemoteLogSegmentState) -> None:
    assert is_legal_transition(current, target) is (current == target or (int(current), int(target)) in LEGAL_MOVES)


@pytest.mark.parametrize("target", RemoteLogSegmentState)
def test_a_segment_begins_by_being_copied(target: RemoteLogSegmentState) -> None:
    assert is_legal_transition(None, target) is (target is RemoteLogSegmentState.COPY_SEGMENT_STARTED)
