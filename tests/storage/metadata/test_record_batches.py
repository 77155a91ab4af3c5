"""Record batches: a batch built by Kafka's own layout, hostile bytes, compression."""

import contextlib
import gzip
import struct

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptMetadataBatchError, MetadataBatchError, UnsupportedMetadataCompressionError
from storage.metadata import record_batches
from storage.metadata.event_log import MetadataEvent
from storage.metadata.record_batches import (
    ParsedBatches,
    build_batch,
    parse_batches,
)


def moved(batch: bytes, base_offset: int) -> bytes:
    """A batch at another offset, as the broker does it: outside of the CRC."""
    return struct.pack(">q", base_offset) + batch[8:]


def rebuilt(batch: bytes, *, attributes: int, body: bytes | None = None, records: int | None = None) -> bytes:
    """The batch with other attributes and body, its CRC and length right again."""
    covered = struct.pack(">h", attributes) + batch[23:57]
    covered += batch[57:61] if records is None else struct.pack(">i", records)
    covered += batch[61:] if body is None else body
    head = batch[:8] + struct.pack(">i", 9 + len(covered)) + batch[12:17]
    return head + struct.pack(">I", crc32c(covered)) + covered


def test_a_built_batch_has_kafkas_layout_byte_by_byte() -> None:
    batch = build_batch(b"value", 1_700_000_000_000)
    assert (
        batch[:21]
        == (
            bytes(8)  # base offset
            + struct.pack(">i", len(batch) - 12)
            + b"\xff\xff\xff\xff"  # partition leader epoch -1
            + b"\x02"  # magic
            + struct.pack(">I", crc32c(batch[21:]))
        )
    )
    assert batch[21:61] == struct.pack(">hiqqqhii", 0, 0, 1_700_000_000_000, 1_700_000_000_000, -1, -1, -1, 1)
    # record: length 11, attributes, timestamp delta, offset delta, null key, value length 5, value, no headers
    assert batch[61:] == b"\x16\x00\x00\x00\x01\x0avalue\x00"


@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 2**50)), max_size=5))
def test_batches_that_were_built_are_parsed_again(values: list[tuple[bytes, int]]) -> None:
    data = b"".join(moved(build_batch(value, stamp), 10 + at) for at, (value, stamp) in enumerate(values))
    events = [MetadataEvent(3, 10 + at, stamp, None, value) for at, (value, stamp) in enumerate(values)]
    assert parse_batches(data, 3) == ParsedBatches(events, 10 + len(values) if values else -1)


def test_a_batch_cut_at_the_end_is_left_out_at_every_length() -> None:
    first, second = moved(build_batch(b"one", 1), 5), moved(build_batch(b"two", 2), 6)
    for kept in range(len(second)):
        parsed = parse_batches(first + second[:kept], 0)
        assert [event.value for event in parsed.records] == [b"one"]
        assert parsed.next_offset == 6


def test_control_batches_give_no_record_but_move_the_next_offset() -> None:
    control = rebuilt(moved(build_batch(b"marker", 1), 7), attributes=0x30)
    assert parse_batches(control, 0) == ParsedBatches([], 8)


def test_a_compacted_batch_without_records_moves_the_next_offset() -> None:
    emptied = rebuilt(moved(build_batch(b"gone", 1), 9), attributes=0, body=b"", records=0)
    assert parse_batches(emptied, 0) == ParsedBatches([], 10)


def test_log_append_time_is_the_batchs_maximum() -> None:
    batch = build_batch(b"v", 5)
    appended = rebuilt(batch[:35] + struct.pack(">q", 99) + batch[43:], attributes=0x08)
    assert parse_batches(appended, 0).records[0].timestamp_ms == 99


@pytest.mark.parametrize(
    ("attributes", "compress"), [(1, gzip.compress), (4, zstandard.ZstdCompressor(write_content_size=False).compress)]
)
def test_gzip_and_zstd_are_read(attributes: int, compress: "object") -> None:
    assert callable(compress)
    batch = build_batch(b"value" * 50, 1)
    compressed = rebuilt(batch, attributes=attributes, body=compress(batch[61:]))
    assert parse_batches(compressed, 0) == parse_batches(batch, 0)


@pytest.mark.parametrize(("attributes", "name"), [(2, "snappy"), (3, "lz4"), (7, "7")])
def test_other_compression_is_refused_by_name(attributes: int, name: str) -> None:
    with pytest.raises(UnsupportedMetadataCompressionError, match=f"offset 4: compression {name}"):
        parse_batches(rebuilt(moved(build_batch(b"v", 1), 4), attributes=attributes), 0)


@pytest.mark.parametrize("attributes", [1, 4])
def test_a_decompression_bomb_stops_at_the_limit(attributes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "DECOMPRESSED_BYTES_MAX", 1000)
    bomb = bytes(1_000_000)
    body = gzip.compress(bomb) if attributes == 1 else zstandard.compress(bomb)
    with pytest.raises(CorruptMetadataBatchError, match="more than 1000 bytes"):
        parse_batches(rebuilt(build_batch(b"v", 1), attributes=attributes, body=body), 0)


@pytest.mark.parametrize("attributes", [1, 4])
def test_damaged_compressed_bytes_are_corrupt(attributes: int) -> None:
    for body in (b"", b"\0\1\2\3", gzip.compress(bytes(100))[:-9]):
        with pytest.raises(CorruptMetadataBatchError):
            parse_batches(rebuilt(build_batch(b"v", 1), attributes=attributes, body=body), 0)


@pytest.mark.parametrize("bit", range(21 * 8, len(build_batch(b"v", 1)) * 8, 5))
def test_every_flipped_bit_behind_the_crc_is_noticed(bit: int) -> None:
    damaged = bytearray(build_batch(b"v", 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptMetadataBatchError, match="CRC"):
        parse_batches(bytes(damaged), 0)


def test_wrong_magic_and_length_are_corrupt() -> None:
    batch = build_batch(b"v", 1)
    with pytest.raises(CorruptMetadataBatchError, match="magic 1"):
        parse_batches(batch[:16] + b"\x01" + batch[17:], 0)
    for length in (-1, 0, 48):
        with pytest.raises(CorruptMetadataBatchError, match=f"length {length}"):
            parse_batches(batch[:8] + struct.pack(">i", length) + batch[12:], 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",  # no record at all
        b"\x01\x00",  # length -1
        b"\x7e\x00",  # longer than the body
        b"\x80" * 11,  # a number without end
        b"\x08\x00\x00\x00\x7e",  # a key longer than the record
        b"\x08\x00\x00\x01\x01\x01",  # offset delta -1
        b"\x02\x00\x00\x00\x01\x01\x00",  # fields beyond the record's length
        b"\x0c\x00\x00\x00\x01\x01\x00rest",  # bytes behind the last record
    ],
)
def test_hostile_records_are_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptMetadataBatchError):
        parse_batches(rebuilt(build_batch(b"v", 1), attributes=0, body=body), 0)


@given(st.binary(max_size=200), st.integers(0, 5), st.integers(-1, 2**31 - 1))
def test_any_body_parses_or_is_a_batch_error(body: bytes, attributes: int, records: int) -> None:
    with contextlib.suppress(MetadataBatchError):
        parse_batches(rebuilt(build_batch(b"v", 1), attributes=attributes, body=body, records=records), 0)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_a_batch_error(data: bytes) -> None:
    with contextlib.suppress(MetadataBatchError):
        parse_batches(data, 0)
