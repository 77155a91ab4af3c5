"""Cases of docs/kafka-tier.md#overlap, docs/kafka-tier.md#cases on one epoch; rows are plain numbers here."""

from storage.metadata.epoch_state import EpochState


def test_an_empty_epoch_has_nothing() -> None:
    state = EpochState()

    assert list(state.rows()) == []
    assert state.floor(0) == -1
    assert state.highest_offset == -1


def test_a_segment_is_seen_once_it_is_finished() -> None:
    state = EpochState()
    state.copy_started(7)
    assert state.floor(50) == -1
    assert list(state.rows()) == [7]

    state.copy_finished(7, 10, 90)

    assert [state.floor(offset) for offset in (9, 10, 90, 1_000)] == [-1, 7, 7, 7]
    assert list(state.rows()) == [7]
    assert state.highest_offset == 90


def test_a_longer_segment_takes_the_place_of_those_it_covers() -> None:
    state = EpochState()
    state.copy_finished(0, 10, 90)
    state.copy_finished(1, 5, 100)

    assert state.floor(95) == 1
    assert sorted(state.rows()) == [0, 1]
    assert state.highest_offset == 100


def test_a_segment_with_an_earlier_start_and_the_same_end_takes_the_place_too() -> None:
    state = EpochState()
    state.copy_finished(0, 10, 90)
    state.copy_finished(1, 5, 90)

    assert [state.floor(offset) for offset in (5, 50, 90)] == [1, 1, 1]
    assert list(state.rows()) == [1, 0]
    assert state.highest_offset == 90


def test_a_shorter_segment_does_not_evict_but_wins_from_its_start_on() -> None:
    state = EpochState()
    state.copy_finished(0, 0, 200)
    state.copy_finished(1, 50, 100)

    assert state.floor(40) == 0
    assert state.floor(60) == state.floor(120) == 1
    assert state.highest_offset == 200


def test_a_shorter_segment_with_the_same_start_leaves_the_longer_in_neither_collection() -> None:
    state = EpochState()
    state.copy_finished(0, 0, 200)
    state.copy_finished(1, 0, 100)

    assert state.floor(0) == 1
    assert list(state.rows()) == [1]


def test_deletion_hides_a_segment_then_forgets_it_and_keeps_the_highest_offset() -> None:
    state = EpochState()
    state.copy_finished(0, 0, 100)

    state.delete_started(0, 0)
    assert state.floor(50) == -1
    assert list(state.rows()) == [0]

    state.forget(0)
    assert list(state.rows()) == []
    assert state.highest_offset == 100


def test_deleting_a_replaced_segment_leaves_its_successor_alone() -> None:
    state = EpochState()
    state.copy_finished(0, 0, 200)
    state.copy_finished(1, 0, 100)

    state.delete_started(0, 0)

    assert state.floor(50) == 1
    assert sorted(state.rows()) == [0, 1]


def test_finishing_twice_changes_nothing() -> None:
    state = EpochState()
    for _ in range(2):
        state.copy_finished(0, 0, 100)

    assert list(state.rows()) == [0]
