import pytest

from storage.metadata.lineage import filter_epochs, within_lineage

LINEAGE = {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}
OVERLAPPING_LINEAGE = {7: 51, 9: 100}


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


@pytest.mark.parametrize(
    ("end_offset", "segment_epochs", "is_within"),
    [
        (35, {1: 15, 2: 20, 3: 30}, True),
        (19, {1: 15}, True),
        (5, {0: 0}, True),
        (75, {7: 70}, True),
        (29, {1: 15, 2: 20}, True),
        pytest.param(85, {5: 55, 6: 60, 7: 70}, False, id="an epoch that the lineage does not know"),
        pytest.param(45, {1: 15, 2: 20, 4: 40}, False, id="an epoch of the lineage is missing"),
        pytest.param(95, {5: 55, 7: 70}, False, id="beyond the log's end"),
        pytest.param(90, {5: 55, 7: 70}, False, id="at the log's end"),
        pytest.param(25, {1: 5, 2: 20}, False, id="begins before its first epoch does"),
        pytest.param(35, {1: 15, 2: 20}, False, id="ends beyond its last epoch"),
    ],
)
def test_a_segment_within_a_lineage(end_offset: int, segment_epochs: dict[int, int], is_within: bool) -> None:
    assert within_lineage(segment_epochs, end_offset, 90, LINEAGE) is is_within


@pytest.mark.parametrize(
    ("end_offset", "segment_epochs", "is_within"),
    [
        pytest.param(150, {5: 14, 7: 15, 9: 100}, True, id="partly below a moved log start"),
        pytest.param(7, {2: 5, 3: 6}, False, id="wholly below the lineage"),
        pytest.param(250, {7: 15, 9: 100, 10: 200}, False, id="an epoch above the lineage"),
        pytest.param(100, {8: 75}, False, id="an epoch between two of the lineage"),
        pytest.param(150, {7: 15, 9: 101}, False, id="a border elsewhere"),
        pytest.param(150, {9: 99}, False, id="begins before its epoch does"),
    ],
)
def test_a_segment_that_overlaps_the_lineage(end_offset: int, segment_epochs: dict[int, int], is_within: bool) -> None:
    assert within_lineage(segment_epochs, end_offset, 210, OVERLAPPING_LINEAGE) is is_within


def test_both_maps_are_filtered_first() -> None:
    assert within_lineage({1: 10, 2: 10, 3: 20}, 25, 100, {0: 0, 1: 10, 2: 10, 3: 20})
    assert within_lineage({2: 10, 3: 20}, 25, 100, {0: 0, 1: 10, 2: 10, 3: 20})


@pytest.mark.parametrize(("segment_epochs", "lineage"), [({}, {0: 0}), ({0: 0}, {})])
def test_nothing_is_within_an_unknown_history(segment_epochs: dict[int, int], lineage: dict[int, int]) -> None:
    assert not within_lineage(segment_epochs, 5, 10, lineage)
