"""Buffers that are not zeroed."""

import pytest

from storage.buffers import unfilled


@pytest.mark.parametrize("size_bytes", [0, 1, 511, 1024 * 1024])
def test_a_buffer_has_its_size_and_takes_bytes(size_bytes: int) -> None:
    buffer = unfilled(size_bytes)
    assert type(buffer) is bytearray
    assert len(buffer) == size_bytes
    with memoryview(buffer) as view:
        view[:] = b"x" * size_bytes
    assert buffer == b"x" * size_bytes
    buffer += b"more"
    assert bytes(buffer[size_bytes:]) == b"more"


def test_two_buffers_share_nothing() -> None:
    first, second = unfilled(1000), unfilled(1000)
    first[:] = b"1" * 1000
    second[:] = b"2" * 1000
    assert first == b"1" * 1000


def test_memory_is_as_it_was_found() -> None:
    """Zeros in all of them would be the work that is to be saved."""
    size_bytes = 50_000
    for _ in range(20):
        buffer = unfilled(size_bytes)
        buffer[:] = b"x" * size_bytes
        del buffer
        if unfilled(size_bytes).count(0) < size_bytes:
            return
    pytest.fail("20 buffers in memory that was written to just before, and all were zeroed")


def test_a_negative_size_is_the_callers_bug() -> None:
    with pytest.raises(ValueError, match="-1"):
        unfilled(-1)
