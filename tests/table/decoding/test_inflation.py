"""Inflating into room that is there: all of it, or nothing; never a byte behind the room."""

import random
from itertools import product

import lz4.frame  # type: ignore[import-untyped]  # it ships neither types nor stubs
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from table.decoding.inflation import Inflater, RecordTooLargeError, inflate_pieces, refuse_large
from tests.support.for_each import for_each
from tests.support.timed_batches import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD, compressed

PLAIN = random.Random(1).randbytes(100_000) + b"x" * 200_000
GUARD = 100


def inflated(codec: int, data: bytes, room_bytes: int, inflater: Inflater | None = None) -> bytes | None:
    whole = np.full(room_bytes + GUARD, 0xA5, np.uint8)
    size = (inflater or Inflater()).inflate_into(codec, memoryview(data), whole[:room_bytes])
    assert (whole[room_bytes:] == 0xA5).all()
    return None if size is None else whole[:size].tobytes()


@for_each("codec, raw_snappy", [*product(CODECS[1:], (False,)), (SNAPPY, True)])
def test_what_fits_is_inflated_and_what_does_not_is_no_answer(codec: int, raw_snappy: bool) -> None:
    for plain in (b"", b"short", PLAIN):
        for room_bytes in (len(plain) + 1, 2 * len(plain) + 1):
            assert inflated(codec, compressed(codec, plain, raw_snappy=raw_snappy), room_bytes) == plain
    for room_bytes in (0, 1, 1000, 65_536, len(PLAIN) - 1, len(PLAIN)):
        assert inflated(codec, compressed(codec, PLAIN, raw_snappy=raw_snappy), room_bytes) is None


@for_each(
    "codec, data, is_read",
    [
        (GZIP, compressed(GZIP, PLAIN[:5000]) + compressed(GZIP, PLAIN[5000:]), False),
        (ZSTD, zstandard.compress(PLAIN[:5000]) + zstandard.compress(PLAIN[5000:]), True),
        (ZSTD, zstandard.compress(b"x" * 100) + zstandard.compress(b"y" * 100), True),
        (SNAPPY, compressed(SNAPPY, PLAIN[:5000]) + compressed(SNAPPY, PLAIN[5000:]), False),
        (LZ4, lz4.frame.compress(PLAIN, content_checksum=True, block_checksum=True, store_size=True), True),
        (LZ4, lz4.frame.compress(PLAIN) + b"something else", False),
    ],
)
def test_other_framings_are_read_as_the_bounded_reader_does_or_left_to_it(
    codec: int, data: bytes, is_read: bool
) -> None:
    expected = b"".join(inflate_pieces(codec, memoryview(data)))
    assert inflated(codec, data, 10**6) == (expected if is_read else None)


@given(st.sampled_from(CODECS[1:]), st.binary(max_size=2000), st.data())
def test_damaged_bytes_are_never_more_than_the_bounded_reader_gives(
    codec: int, plain: bytes, data: st.DataObject
) -> None:
    blob, inflater = bytearray(compressed(codec, plain)), Inflater()
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    found = inflated(codec, bytes(blob), 10**5, inflater)
    if found is not None:
        assert found == b"".join(inflate_pieces(codec, memoryview(bytes(blob))))
    # And the next batch is read whatever the one before was.
    assert inflated(codec, compressed(codec, plain), 10**5, inflater) == plain


def test_pieces_are_never_empty_and_end_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in CODECS:
        pieces = list(inflate_pieces(codec, memoryview(compressed(codec, PLAIN))))
        assert b"".join(pieces) == PLAIN
        assert all(pieces)
    monkeypatch.setattr("storage.log.batch_records.INFLATED_BYTES_MAX", len(PLAIN) - 1)
    with pytest.raises(CorruptObjectError, match="more than"):
        list(inflate_pieces(NONE, memoryview(PLAIN)))


def test_bytes_that_are_there_make_a_record_too_large_and_others_corrupt() -> None:
    with pytest.raises(RecordTooLargeError):
        refuse_large(10, 4, iter([b"abc", b"def"]))
    with pytest.raises(RecordTooLargeError):
        refuse_large(10, 10, iter([]))
    with pytest.raises(CorruptObjectError):
        refuse_large(11, 4, iter([b"abc", b"def"]))
