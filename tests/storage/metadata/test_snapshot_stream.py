"""The bytes of a snapshot: what was put is taken, in pieces, and no length is believed."""

import io
import struct
import sys
from array import array

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata import snapshot_stream
from storage.metadata.snapshot_stream import (
    PIECE_BYTES,
    SnapshotReader,
    SnapshotWriter,
    UnreadableSnapshotError,
    checksum_of,
)

PAIR = struct.Struct("<iq")


def written(*, blob: bytes = b"", values: "array[int] | None" = None) -> bytes:
    file = io.BytesIO()
    writer = SnapshotWriter(file, lambda: None)
    writer.put_numbers(PAIR, 7, -1)
    writer.put_bytes(blob)
    writer.put_array(array("q") if values is None else values)
    assert writer.finish() == len(file.getvalue())
    return file.getvalue()


def reader_of(content: bytes, left_bytes: int | None = None) -> SnapshotReader:
    return SnapshotReader(io.BytesIO(content), len(content) - 4 if left_bytes is None else left_bytes)


@given(st.binary(max_size=100), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_what_was_put_is_taken(blob: bytes, values: list[int]) -> None:
    reader = reader_of(written(blob=blob, values=array("q", values)))
    assert reader.take_numbers(PAIR) == (7, -1)
    assert reader.take_bytes() == blob
    assert reader.take_array("q") == array("q", values)
    reader.finish()


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5])
def test_large_parts_go_in_pieces_and_come_back_whole(size: int) -> None:
    blob, values = bytes(range(251)) * (size // 251), array("i", range(size // 4))
    reader = reader_of(written(blob=blob, values=values))
    reader.take_numbers(PAIR)
    assert reader.take_buffer() == blob
    assert reader.take_array("i") == values
    reader.finish()


def test_nothing_is_written_in_larger_pieces_than_the_limit_twice() -> None:
    sizes: list[int] = []

    class Counting(io.BytesIO):
        def write(self, content: object) -> int:
            sizes.append(len(content))  # type: ignore[arg-type]  # bytes or bytearray
            return sizes[-1]

    writer = SnapshotWriter(Counting(), lambda: None)
    writer.put_array(array("q", [1]) * (PIECE_BYTES // 2))
    writer.finish()
    assert max(sizes) < 2 * PIECE_BYTES
    assert sum(sizes) == PIECE_BYTES * 4 + 8 + 4


def test_the_end_is_the_checksum_of_all_before() -> None:
    content = written(blob=bytes(2 * PIECE_BYTES))
    assert struct.unpack("<I", content[-4:]) == (crc32c(content[:-4]),)
    assert checksum_of(io.BytesIO(content), len(content) - 4) == crc32c(content[:-4])
    assert checksum_of(io.BytesIO(b"abc"), 100) == crc32c(b"abc")


def test_writing_ends_when_it_may_not_go_on() -> None:
    def stop() -> None:
        raise OSError("enough")

    writer = SnapshotWriter(io.BytesIO(), stop)
    with pytest.raises(OSError, match="enough"):
        writer.put_bytes(bytes(PIECE_BYTES))


def test_numbers_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(values=array("q", [1]))[-12:-4] == (1).to_bytes(8, "little")
    monkeypatch.setattr(snapshot_stream, "_IS_BIG_ENDIAN", sys.byteorder == "little")
    content = written(values=array("q", [1]))
    assert content[-12:-4] == (1).to_bytes(8, "big")
    reader = reader_of(content)
    reader.take_numbers(PAIR)
    reader.take_bytes()
    assert reader.take_array("q") == array("q", [1])


@pytest.mark.parametrize("take", ["take_bytes", "take_buffer"])
def test_a_length_beyond_the_file_is_refused_before_room_is_made(take: str) -> None:
    content = struct.pack("<Q", 2**62) + bytes(100)
    with pytest.raises(UnreadableSnapshotError, match="left"):
        getattr(reader_of(content), take)()
    with pytest.raises(UnreadableSnapshotError, match="left"):
        reader_of(content).take_array("q")


def test_a_file_that_shrinks_meanwhile_is_cut_short() -> None:
    content = struct.pack("<Q", 100) + bytes(10)
    with pytest.raises(UnreadableSnapshotError, match="cut short"):
        reader_of(content, 1000).take_bytes()
    with pytest.raises(UnreadableSnapshotError, match="cut short"):
        reader_of(content, 1000).take_buffer()
    with pytest.raises(UnreadableSnapshotError, match="cut short"):
        reader_of(content, 7).take_bytes()


def test_nothing_may_be_left() -> None:
    with pytest.raises(UnreadableSnapshotError, match="too many"):
        reader_of(bytes(10)).finish()
