"""Buffers that are not zeroed."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.object_store.object_store import drop_free, unfilled

KEPT = 1024 * 1024


def test_a_buffer_has_its_size_and_takes_bytes_and_shares_nothing() -> None:
    for size_bytes in (0, 1, 511, 1000, 1024 * 1024):
        buffer, other = unfilled(size_bytes), unfilled(size_bytes)
        assert type(buffer) is bytearray
        assert len(buffer) == size_bytes
        with memoryview(buffer) as view:
            view[:] = b"x" * size_bytes
        other[:] = b"2" * size_bytes
        assert buffer == b"x" * size_bytes
        buffer += b"more"
        assert bytes(buffer[size_bytes:]) == b"more"
    with pytest.raises(ValueError, match="-1"):
        unfilled(-1)


def test_a_buffer_that_nobody_has_is_handed_out_again() -> None:
    drop_free()
    buffer = unfilled(KEPT)
    address, view = id(buffer), memoryview(buffer)[7:9]
    del buffer
    other = unfilled(KEPT)
    assert id(other) != address, "a view of it was still held"
    del view
    assert id(unfilled(KEPT)) == address


def test_what_nobody_has_is_given_back_when_asked() -> None:
    drop_free()
    held = [unfilled(KEPT) for _ in range(3)]
    view = memoryview(held.pop())
    assert drop_free() == 0
    held.clear()
    assert drop_free() == 2 * KEPT
    view.release()
    assert drop_free() == KEPT


@given(st.lists(st.integers(0, 5), max_size=60))
def test_no_buffer_has_two_owners(turns: list[int]) -> None:
    held: list[bytearray] = []
    for turn in turns:
        if turn < len(held):
            held.pop(turn)
        else:
            buffer = unfilled(KEPT)
            assert all(buffer is not other for other in held)
            held.append(buffer)


def test_threads_never_get_the_same_one() -> None:
    def work(mark: int) -> None:
        for _ in range(200):
            buffer = unfilled(KEPT)
            buffer[:8] = buffer[-8:] = mark.to_bytes(8, "big")
            assert buffer[:8] == buffer[-8:]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
