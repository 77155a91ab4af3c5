"""Buffers that are not zeroed."""

import pytest

from storage.buffers import unfilled


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
