from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.segment_table import SegmentTable

IDS = [bytes([number]) * 16 for number in range(40)]
COLUMN = bytearray(b"".join(IDS))


def test_rows_are_found_by_id() -> None:
    table = SegmentTable(COLUMN)
    for row, segment_id in enumerate(IDS[:30]):
        table.add(segment_id, row)

    assert [table.find(segment_id) for segment_id in IDS] == [*range(30), *[-1] * 10]
    assert sorted(table) == list(range(30))


def test_a_table_that_is_filled_and_emptied_for_ever_does_not_grow() -> None:
    table = SegmentTable(COLUMN)
    for number in range(10_000):
        table.add(IDS[number % 40], number % 40)
        table.remove(IDS[number % 40])

    assert len(table) == 0
    assert len(table._slots) == 8


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 39)), max_size=200))
def test_it_behaves_as_a_dict(steps: list[tuple[bool, int]]) -> None:
    table = SegmentTable(COLUMN)
    model: dict[bytes, int] = {}
    for is_added, row in steps:
        if is_added and IDS[row] not in model:
            table.add(IDS[row], row)
            model[IDS[row]] = row
        elif not is_added:
            table.remove(IDS[row])
            model.pop(IDS[row], None)

    assert {segment_id: table.find(segment_id) for segment_id in IDS if table.find(segment_id) >= 0} == model
    assert sorted(table) == sorted(model.values())
    assert len(table) == len(model)
