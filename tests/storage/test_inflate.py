"""Inflating: every codec in pieces of bounded size, whatever the rope's cuts, and nothing that claims too much."""

import contextlib
import gzip
import itertools
import random
import struct
from collections.abc import Sequence

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships neither types nor stubs
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.log.batch_records import PIECE_BYTES, SNAPPY_BLOCK_BYTES_MAX, inflated
from tests.support.timed_batches import CODECS, GZIP, LZ4, SNAPPY, XERIAL_HEADER, ZSTD, compressed

PLAIN = random.Random(1).randbytes(100_000) + b"x" * 500_000


def rope(data: bytes, size: int) -> list[memoryview]:
    return [memoryview(data)[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 777, 10**9])
@pytest.mark.parametrize("codec", CODECS)
def test_what_is_compressed_comes_out_in_pieces(codec: int, size: int) -> None:
    plain = PLAIN if size > 1 else PLAIN[:5000]
    pieces = list(inflated(codec, rope(compressed(codec, plain), size)))
    assert b"".join(pieces) == plain
    assert max(map(len, pieces)) <= PIECE_BYTES


@given(st.sampled_from(CODECS), st.binary(max_size=3000), st.integers(1, 500))
def test_any_bytes_come_out_as_they_were(codec: int, plain: bytes, size: int) -> None:
    assert b"".join(inflated(codec, rope(compressed(codec, plain), size))) == plain


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (GZIP, gzip.compress(PLAIN[:5000]) + gzip.compress(PLAIN[5000:])),
        (ZSTD, zstandard.compress(PLAIN[:5000]) + zstandard.compress(PLAIN[5000:])),
        (SNAPPY, compressed(SNAPPY, PLAIN[:5000]) + compressed(SNAPPY, PLAIN[5000:])),
        (SNAPPY, compressed(SNAPPY, PLAIN, raw_snappy=True)),
        (LZ4, lz4.frame.compress(PLAIN, content_checksum=True, block_checksum=True, store_size=True)),
    ],
    ids=["gzip members", "zstd frames", "snappy streams", "raw snappy", "lz4 with checksums"],
)
def test_joined_streams_and_other_framings_are_read(codec: int, data: bytes) -> None:
    assert b"".join(inflated(codec, rope(data, 4096))) == PLAIN


@pytest.mark.parametrize(
    ("block_size", "linked", "options"),
    list(itertools.product((4, 7), (False, True), ({}, {"content_checksum": True, "block_checksum": True}))),
)
def test_an_lz4_header_with_kafkas_own_checksum_is_read(
    block_size: int, linked: bool, options: dict[str, bool]
) -> None:
    frame = bytearray(lz4.frame.compress(PLAIN, block_size=block_size, block_linked=linked, **options))
    checksum_at = 14 if frame[4] & 0x08 else 6
    frame[checksum_at] ^= 0x5A
    assert b"".join(inflated(LZ4, [bytes(frame)], legacy_lz4=True)) == PLAIN
    with pytest.raises(CorruptObjectError, match="lz4"):
        list(inflated(LZ4, [bytes(frame)]))


def pulled(codec: int, parts: Sequence[bytes], pieces: int) -> int:
    """The bytes of the first so many pieces; nothing beyond is asked for."""
    return sum(map(len, itertools.islice(inflated(codec, parts), pieces)))


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (GZIP, gzip.compress(bytes(50_000_000))),
        (LZ4, lz4.frame.compress(bytes(50_000_000), block_linked=False)),
        (ZSTD, zstandard.compress(bytes(50_000_000))),
    ],
    ids=["gzip", "lz4", "zstd"],
)
def test_a_bomb_is_inflated_only_as_far_as_it_is_read(codec: int, bomb: bytes) -> None:
    assert pulled(codec, [bomb], 10) <= 10 * PIECE_BYTES


@pytest.mark.parametrize(
    "claimed", [SNAPPY_BLOCK_BYTES_MAX + 1, 2**32 - 1, 10_000], ids=["too large", "largest", "more than snappy can"]
)
@pytest.mark.parametrize("framed", [False, True])
def test_a_snappy_block_that_claims_too_much_is_refused_before_it_is_inflated(
    claimed: int, framed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = bytearray()
    while claimed > 0x7F:
        size.append(claimed & 0x7F | 0x80)
        claimed >>= 7
    block = bytes([*size, claimed]) + bytes(100)
    monkeypatch.setattr(cramjam.snappy, "decompress_raw", lambda _: pytest.fail("inflated"))
    with pytest.raises(CorruptObjectError, match="claim"):
        list(inflated(SNAPPY, [XERIAL_HEADER + struct.pack(">i", len(block)) + block if framed else block]))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_garbage_is_corrupt(codec: int) -> None:
    with pytest.raises(CorruptObjectError):
        list(inflated(codec, [b"\xff" * 100]))


@pytest.mark.parametrize("size", [-5, 10**6])
def test_a_snappy_block_that_reaches_beyond_the_data_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptObjectError, match=f"a block of {size}"):
        list(inflated(SNAPPY, [XERIAL_HEADER + struct.pack(">i", size) + bytes(50)]))
    with pytest.raises(CorruptObjectError, match="cut"):
        list(inflated(SNAPPY, [XERIAL_HEADER + b"\x00"]))


def test_an_lz4_frame_with_a_dictionary_is_not_kafkas() -> None:
    frame = bytearray(lz4.frame.compress(b"abc"))
    frame[4] |= 0x01
    with pytest.raises(CorruptObjectError, match="frame"):
        list(inflated(LZ4, [bytes(frame)], legacy_lz4=True))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_corrupt(codec: int) -> None:
    with pytest.raises(CorruptObjectError, match=f"codec {codec}"):
        inflated(codec, [])


@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.binary(min_size=1, max_size=200), st.data())
def test_damage_is_corrupt_or_gives_other_bytes_and_nothing_else(codec: int, plain: bytes, data: st.DataObject) -> None:
    bad = bytearray(compressed(codec, plain))
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bad[: data.draw(st.integers(0, len(bad)))]
    for damaged in (bad, cut):
        with contextlib.suppress(CorruptObjectError):
            list(inflated(codec, [bytes(damaged)], legacy_lz4=data.draw(st.booleans())))
