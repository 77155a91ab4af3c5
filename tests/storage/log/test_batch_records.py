"""Offsets and timestamps of records: every format and codec, as another decoder has them, and nothing from garbage.
Inflating: in pieces of bounded size, whatever the rope's cuts, and nothing that claims too much."""

import contextlib
import gzip
import itertools
import random
import struct
from collections.abc import Sequence
from typing import Any

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships neither types nor stubs
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.log import batch_records
from storage.log.batch_records import iterate_records
from storage.log.inflating import PIECE_BYTES, SNAPPY_BLOCK_BYTES_MAX, inflated
from tests.support.cases import case
from tests.support.segments import control_batch, data_batch
from tests.support.timed_batches import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    XERIAL_HEADER,
    ZSTD,
    compressed,
    framed_batch,
    message,
    timed_batch,
    timed_messages,
)

RECORDS = [(0, 1700), (1, 1600), (4, 2500), (5, 0)]
AT_100 = [(100 + delta, timestamp) for delta, timestamp in RECORDS]


def decoded(batch: bytes, size: int = 10**9) -> list[tuple[int, int]]:
    items = iterate_records([memoryview(batch)[at : at + size] for at in range(0, len(batch), size)])
    return [record for record in items if record is not None]


def test_records_of_a_batch() -> None:
    for codec in CODECS:
        for size in (1, 13, 10**9):
            assert decoded(timed_batch(100, RECORDS, codec=codec), size) == AT_100, (codec, size)
        append_time = timed_batch(100, RECORDS, codec=codec, append_time_ms=9999)
        assert decoded(append_time) == [(offset, 9999) for offset, _ in AT_100], codec
    assert decoded(timed_batch(100, RECORDS, codec=SNAPPY, raw_snappy=True)) == AT_100
    assert decoded(control_batch(7, producer_id=1, timestamp_ms=55)) == [(7, 55)], "a marker is a record"
    assert decoded(timed_batch(7, [], last_offset_delta=5)) == [], "compaction emptied it"
    # Large values are passed over.
    assert len(decoded(data_batch(0, record_count=3, value_bytes=300_000), 4096)) == 3
    assert decoded(timed_batch(0, [(0, 1), (1, 2)], codec=ZSTD, value_bytes=5_000_000)) == [(0, 1), (1, 2)]


def test_records_of_a_wrapper_and_of_plain_messages() -> None:
    for codec, size in itertools.product((GZIP, SNAPPY, LZ4), (1, 10**9)):
        assert decoded(timed_messages(1, AT_100, codec=codec), size) == AT_100, codec
        assert decoded(timed_messages(0, AT_100, codec=codec), size) == [(offset, -1) for offset, _ in AT_100], codec
    append_time = timed_messages(1, AT_100, codec=GZIP, append_time_ms=77)
    assert decoded(append_time) == [(offset, 77) for offset, _ in AT_100]
    assert decoded(timed_messages(0, [(100, 1700)])) == [(100, -1)]
    assert decoded(timed_messages(1, [(100, 1700)])) == [(100, 1700)]


def test_the_way_to_a_wrappers_last_message_is_no_single_stretch() -> None:
    """Failed before: all of it was decoded before the first record came out."""
    items = list(iterate_records([timed_messages(1, [(100 + n, n) for n in range(50)], codec=GZIP)]))
    assert items[:50] == [None] * 50
    assert items[50:] == [(100 + n, n) for n in range(50)]


# --- another encoder ---


def test_batches_of_aiokafkas_making() -> None:
    for codec in CODECS:
        with case(codec):
            builder: Any = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, 0, 1 << 20)
            for number in range(200):
                builder.append(number, 5000 - number, b"key", b"value" * 20, [("header", b"x")])
            assert decoded(bytes(builder.build()), 500) == [(number, 5000 - number) for number in range(200)]


def test_wrappers_of_aiokafkas_making() -> None:
    for magic, codec in [(0, GZIP), (0, SNAPPY), (1, GZIP), (1, SNAPPY), (1, LZ4)]:
        with case(magic, codec):
            builder: Any = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
            for number in range(50):
                builder.append(number, 5000 - number, b"key", b"value" * 20)
            batch = bytearray(builder.build())
            # A broker gives the wrapper its last offset.
            struct.pack_into(">q", batch, 0, 149 if magic else 49)
            shift = 100 if magic else 0
            expected = [(number + shift, 5000 - number if magic else -1) for number in range(50)]
            assert decoded(bytes(batch)) == expected


# --- what cannot be ---


def with_body(body: bytes, codec: int = NONE, record_count: int = 1) -> bytes:
    return framed_batch(0, body, flags=codec, record_count=record_count)


def test_bytes_that_are_not_the_records_are_corrupt() -> None:
    for batch, reason in [
        (with_body(b""), "cut"),
        (with_body(b"\xff" * 30), "does not end"),
        (with_body(b"\x02\x00\x00\x00"), "length 1"),
        (with_body(b"\x10\x00\x00\x02\x00\x00\x00\x00\x00"), "offset delta 1"),
        (with_body(b"\x10\x00\x00\x01\x00\x00\x00\x00\x00"), "offset delta -1"),
        (with_body(b"\x40\x00\x00\x00\x00"), "before its last record"),
        (with_body(b"\x0c\x00\x00\x00\x01\x01\x00", record_count=2), "cut"),
        (with_body(b"nothing", codec=5), "codec 5"),
        (with_body(b"nothing", codec=ZSTD), "zstd"),
        (message(1, 0, 0, b"not gzip", GZIP), "gzip"),
        (message(1, 0, 0, compressed(GZIP, b"short"), GZIP), "cut"),
        (message(1, 0, 0, compressed(GZIP, message(0, 0, 0, b"")), GZIP), "magic 0"),
        (message(1, 0, 0, compressed(GZIP, message(1, 0, 0, b"", GZIP)), GZIP), "attributes 1"),
        (message(1, 0, 0, compressed(GZIP, message(1, 0, 0, b"")[:-2]), GZIP), "before its last record"),
    ]:
        with pytest.raises(CorruptObjectError, match=reason):
            decoded(batch)


def test_a_wrapper_whose_fields_reach_beyond_it_is_corrupt() -> None:
    for at, length in itertools.product([26, 26 + 4 + 3], [-1, 1000, 2**31 - 1]):
        batch = bytearray(timed_messages(1, AT_100, codec=GZIP))
        struct.pack_into(">i", batch, at, length)
        with case(at, length), pytest.raises(CorruptObjectError):
            decoded(bytes(batch))


def test_half_a_header_is_corrupt() -> None:
    with pytest.raises(CorruptObjectError):
        decoded(timed_batch(0, RECORDS)[:40])


def test_a_bomb_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in [GZIP, LZ4, ZSTD]:
        monkeypatch.setattr(batch_records, "INFLATED_BYTES_MAX", 1_000_000)
        bomb = with_body(compressed(codec, b"\xfe\xff\xff\x07" + bytes(8_000_000)), codec)
        with case(codec), pytest.raises(CorruptObjectError, match="inflates to more than 1000000 bytes"):
            decoded(bomb)


@given(st.sampled_from(CODECS), st.data())
def test_damage_is_corrupt_or_gives_other_records_and_nothing_else(codec: int, data: st.DataObject) -> None:
    batch = draw_batch(codec, data)
    bad = bytearray(batch)
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(16, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptObjectError):
        list(itertools.islice(iterate_records([bytes(bad)]), 1000))


def draw_batch(codec: int, data: st.DataObject) -> bytes:
    if codec == ZSTD or data.draw(st.booleans()):
        return timed_batch(100, RECORDS, codec=codec)
    return timed_messages(data.draw(st.integers(0, 1)), AT_100[:1] if codec == NONE else AT_100, codec=codec)


PLAIN = random.Random(1).randbytes(100_000) + b"x" * 500_000


def rope(data: bytes, size: int) -> list[memoryview]:
    return [memoryview(data)[at : at + size] for at in range(0, len(data), size)]


def test_what_is_compressed_comes_out_in_pieces() -> None:
    for size, codec in itertools.product([1, 777, 10**9], CODECS):
        with case(size, codec):
            plain = PLAIN if size > 1 else PLAIN[:5000]
            pieces = list(inflated(codec, rope(compressed(codec, plain), size)))
            assert b"".join(pieces) == plain
            assert max(map(len, pieces)) <= PIECE_BYTES


def test_joined_streams_and_other_framings_are_read() -> None:
    for codec, data in [
        (GZIP, gzip.compress(PLAIN[:5000]) + gzip.compress(PLAIN[5000:])),
        (ZSTD, zstandard.compress(PLAIN[:5000]) + zstandard.compress(PLAIN[5000:])),
        (SNAPPY, compressed(SNAPPY, PLAIN[:5000]) + compressed(SNAPPY, PLAIN[5000:])),
        (SNAPPY, compressed(SNAPPY, PLAIN, raw_snappy=True)),
        (LZ4, lz4.frame.compress(PLAIN, content_checksum=True, block_checksum=True, store_size=True)),
    ]:
        assert b"".join(inflated(codec, rope(data, 4096))) == PLAIN


def test_an_lz4_header_with_kafkas_checksum_is_read() -> None:
    for block_size, linked, options in list(
        itertools.product((4, 7), (False, True), ({}, {"content_checksum": True, "block_checksum": True}))
    ):
        frame = bytearray(lz4.frame.compress(PLAIN, block_size=block_size, block_linked=linked, **options))
        checksum_at = 14 if frame[4] & 0x08 else 6
        frame[checksum_at] ^= 0x5A
        assert b"".join(inflated(LZ4, [bytes(frame)], legacy_lz4=True)) == PLAIN
        with case(block_size, linked, options), pytest.raises(CorruptObjectError, match="lz4"):
            list(inflated(LZ4, [bytes(frame)]))


def pulled(codec: int, parts: Sequence[bytes], pieces: int) -> int:
    """The bytes of the first so many pieces; nothing beyond is asked for."""
    return sum(map(len, itertools.islice(inflated(codec, parts), pieces)))


def test_a_bomb_is_inflated_only_as_far_as_it_is_read() -> None:
    for codec, bomb in [
        (GZIP, gzip.compress(bytes(50_000_000))),
        (LZ4, lz4.frame.compress(bytes(50_000_000), block_linked=False)),
        (ZSTD, zstandard.compress(bytes(50_000_000))),
    ]:
        assert pulled(codec, [bomb], 10) <= 10 * PIECE_BYTES


def test_snappy_that_claims_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for claimed, framed in itertools.product([SNAPPY_BLOCK_BYTES_MAX + 1, 2**32 - 1, 10_000], [False, True]):
        size = bytearray()
        while claimed > 0x7F:
            size.append(claimed & 0x7F | 0x80)
            claimed >>= 7
        block = bytes([*size, claimed]) + bytes(100)
        monkeypatch.setattr(cramjam.snappy, "decompress_raw", lambda _: pytest.fail("inflated"))
        with case(claimed, framed), pytest.raises(CorruptObjectError, match="claim"):
            list(inflated(SNAPPY, [XERIAL_HEADER + struct.pack(">i", len(block)) + block if framed else block]))


def test_what_is_no_compressed_data_of_kafkas_is_corrupt() -> None:
    dictionary = bytearray(lz4.frame.compress(b"abc"))
    dictionary[4] |= 0x01
    for codec, data, told in (
        *((codec, b"\xff" * 100, None) for codec in (GZIP, SNAPPY, LZ4, ZSTD)),
        *((SNAPPY, XERIAL_HEADER + struct.pack(">i", at) + bytes(50), f"a block of {at}") for at in (-5, 10**6)),
        (SNAPPY, XERIAL_HEADER + b"\x00", "cut"),
        (LZ4, bytes(dictionary), "frame"),
        *((codec, b"", f"codec {codec}") for codec in (5, 6, 7)),
    ):
        with case(codec, data), pytest.raises(CorruptObjectError, match=told):
            list(inflated(codec, [data], legacy_lz4=told == "frame"))
