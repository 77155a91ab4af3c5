"""Parts of an upload whose length nobody knows."""

from hypothesis import given
from hypothesis import strategies as st

from storage.object_store.multipart import (
    OBJECT_BYTES_MAX,
    PART_BYTES_MAX,
    PART_BYTES_MIN,
    PARTS_MAX,
    part_size_bytes,
    parts,
)


@given(pieces=st.lists(st.binary(max_size=50)), first_part_bytes=st.integers(1, 60))
def test_parts_are_the_source_and_all_full_but_the_last(pieces: list[bytes], first_part_bytes: int) -> None:
    found = list(parts(iter(pieces), first_part_bytes))
    assert b"".join(found) == b"".join(pieces)
    sizes = [len(part) for part in found]
    full = [part_size_bytes(number, first_part_bytes) for number in range(1, len(found) + 1)]
    assert sizes[:-1] == full[:-1]
    assert 0 < sizes[-1] <= full[-1] or sizes == [0]


@given(content=st.binary(max_size=500), first_part_bytes=st.integers(1, 60))
def test_bytes_are_cut_as_pieces_are(content: bytes, first_part_bytes: int) -> None:
    assert list(parts(content, first_part_bytes)) == list(parts(iter([content]), first_part_bytes))


def test_the_smallest_parts_reach_the_largest_object() -> None:
    sizes = [part_size_bytes(number, PART_BYTES_MIN) for number in range(1, PARTS_MAX + 1)]
    assert sum(sizes) >= OBJECT_BYTES_MAX
    assert sizes[:900] == [PART_BYTES_MIN] * 900
    assert sizes[900] == 2 * PART_BYTES_MIN
    assert max(sizes) <= PART_BYTES_MAX
    assert part_size_bytes(PARTS_MAX, PART_BYTES_MAX) == PART_BYTES_MAX
