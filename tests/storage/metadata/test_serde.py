"""Invariants: what Kafka wrote decodes and encodes to the same bytes; any bytes give a record or a
MetadataRecordError, never another error. Then the record batches that the topic has them in."""

import contextlib
import gzip
import struct
from typing import Any

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import (
    CorruptMetadataBatchError,
    IllegalMetadataError,
    MetadataBatchError,
    MetadataRecordError,
    UnsupportedMetadataCompressionError,
)
from storage.metadata import record_batches
from storage.metadata.encoding import encode, encode_for_caller
from storage.metadata.reading import MetadataEvent
from storage.metadata.record_batches import ParsedBatches, parse_batches
from storage.metadata.serde import MetadataRecord, decode, decode_key
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
    uuid_from_text,
)
from tests.support.for_each import for_each
from tests.support.metadata_records import batch_of, started

TOPIC = "07 746965726564"
TOPIC_ID = "f7d51ad3dd414037b20c0aad0c2a386d"
SEGMENT_ID = "7ca0c20a86d44ed29999abe3ab96aa5d"
IDENTITY = f"{TOPIC} {TOPIC_ID} 00000000 00 {SEGMENT_ID} 00"
RANGE = "0000000000000000 00000000000007bf 00000001 0000018bcfe56fbf 000001a1fc7a9293"
EPOCHS = "02 00000000 0000000000000000 00"
SEGMENT = bytes.fromhex(f"01 00 00 {IDENTITY} {RANGE} {EPOCHS} 000febba 00 00 01 00 01 01")
UPDATE = bytes.fromhex(f"01 01 00 {IDENTITY} 00000001 000001a1fc7a92ea 00 01 00")
PARTITION_DELETE = bytes.fromhex(f"01 02 00 {TOPIC} {TOPIC_ID} 00000000 00 00000001 000001a1fc7a92ea 02 00")
SNAPSHOT = bytes.fromhex(f"01 03 00 {SEGMENT_ID} {RANGE} {EPOCHS} 000febba 04 010203 01 00")
ALL_KINDS = [SEGMENT, UPDATE, PARTITION_DELETE]
PARTITION = TopicIdPartition(uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"), 0, "tiered")
ID = RemoteLogSegmentId(PARTITION, uuid_from_text("fKDCCobUTtKZmavjq5aqXQ"))


def test_the_worked_example_of_the_specification() -> None:
    record = decode(SEGMENT)

    assert record == RemoteLogSegmentMetadata(
        segment_id=ID,
        start_offset=0,
        end_offset=1983,
        max_timestamp_ms=1_700_000_001_983,
        broker_id=1,
        event_timestamp_ms=1795237253779,
        segment_size_bytes=1043386,
        segment_leader_epochs={0: 0},
        txn_index_empty=True,
    )
    assert isinstance(record, RemoteLogSegmentMetadata)
    assert record.topic_id_partition.topic == "tiered"
    assert encode(record) == SEGMENT


def test_more_epochs_than_fit_are_refused_before_they_are_read() -> None:
    value = bytes.fromhex(f"01 00 00 {IDENTITY} {RANGE} 7f {EPOCHS[3:]} 000febba 00 00 01 00 01 01")
    with pytest.raises(MetadataRecordError, match="claims 126 leader epochs in 23 bytes"):
        decode(value)


@for_each("value", ALL_KINDS)
def test_a_record_cut_anywhere_is_an_error(value: bytes) -> None:
    for length in range(len(value)):
        with pytest.raises(MetadataRecordError):
            decode(value[:length])


@for_each("value", ALL_KINDS)
@for_each("tail", [b"\0", b"\1\0\0", bytes(100)])
def test_trailing_bytes_are_an_error(value: bytes, tail: bytes) -> None:
    with pytest.raises(MetadataRecordError, match="after its end"):
        decode(value + tail)


@for_each("value", ALL_KINDS)
def test_version_1_is_read_and_version_2_is_not(value: bytes) -> None:
    assert decode(value[:2] + b"\1" + value[3:]) == decode(value)
    with pytest.raises(MetadataRecordError, match="version 2"):
        decode(value[:2] + b"\2" + value[3:])


def test_unknown_tagged_fields_are_kept_for_whoever_writes_the_record_again() -> None:
    update = UPDATE[:2] + b"\1" + UPDATE[3:-1] + bytes.fromhex("02 00 04 00000007 01 08 00000000000007bf")
    segment = SEGMENT[:-4] + bytes.fromhex("02 00 01 01 8001 02 abcd")

    assert decode(update) == decode(UPDATE)
    assert decode(segment) == decode(SEGMENT)
    assert encode(decode(update)) == update
    assert encode(decode(segment)) == segment[:2] + b"\1" + segment[3:]
    assert encode(decode(segment[:2] + b"\1" + segment[3:])) == segment[:2] + b"\1" + segment[3:]


def test_a_key_names_a_segment_and_a_state_or_nothing() -> None:
    key = bytes(range(16)) + bytes.fromhex("00000007") + bytes(range(16, 32)) + b"\3"
    assert decode_key(key) == (bytes(range(16)), 7, bytes(range(16, 32)), RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    for other in (b"", key[:-1], key + b"\0", key[:-1] + b"\4", b"99Ua091BQDeyDAqtDCo4bQ:orders:0:1983:0"):
        assert decode_key(other) is None


@for_each(
    "value, message",
    [
        (b"\0" + SEGMENT[1:], "frame version 0"),
        (b"\2" + SEGMENT[1:], "frame version 2"),
        (b"\1\4" + SEGMENT[2:], "api key 4"),
        (SNAPSHOT, "snapshot record is not an event"),
        (b"\1\3\0", "snapshot record is not an event"),
        (SEGMENT[:-5] + b"\4" + SEGMENT[-4:], "segment state 4"),
        (SEGMENT[:-5] + b"\xff" + SEGMENT[-4:], "segment state -1"),
        (PARTITION_DELETE[:-2] + b"\3\0", "delete state 3"),
        (SEGMENT.replace(b"tiered", b"tier\xff\xfe"), "UTF-8"),
        (SEGMENT[:3] + b"\0" + SEGMENT[4:], "null topic"),
        (SEGMENT[:3] + b"\xff\xff\xff\xff\x0f" + SEGMENT[4:], "ends at"),
        (SEGMENT[:3] + b"\xff\xff\xff\xff\xff" + SEGMENT[4:], "varint"),
        (SEGMENT[:3] + b"\xff\xff\xff\xff\x1f" + SEGMENT[4:], "varint"),
        (SEGMENT[:-4] + bytes.fromhex("01 00 02 0101"), "TxnIndexEmpty"),
        (bytes.fromhex(f"01 00 00 {IDENTITY} {RANGE} 00 000febba 00 00 00"), "null list"),
        (bytes.fromhex(f"01 00 00 {IDENTITY} {RANGE} 01 000febba 00 00 00"), "no leader epochs"),
        (bytes.fromhex(f"01 00 00 {IDENTITY} {RANGE} ffffff7f {EPOCHS}"), "claims"),
        (SEGMENT.replace(bytes.fromhex(RANGE), b"\xff" * 8 + bytes.fromhex(RANGE[16:])), "negative"),
    ],
)
def test_a_record_that_breaks_the_format(value: bytes, message: str) -> None:
    with pytest.raises(MetadataRecordError, match=message):
        decode(value)


def test_epochs_out_of_order_are_sorted() -> None:
    epochs = "03 00000002 0000000000000005 00 00000001 0000000000000000 00"
    record = decode(bytes.fromhex(f"01 00 00 {IDENTITY} {RANGE} {epochs} 000febba 00 00 00"))

    assert isinstance(record, RemoteLogSegmentMetadata)
    assert list(record.segment_leader_epochs.items()) == [(1, 0), (2, 5)]


@for_each(
    "record",
    [
        started("s", 0, 1, {2**31: 0}),
        started("s", 0, 2**63),
        started("s", 0, 1, size_bytes=2**31),
        started("s", 0, 1, partition=TopicIdPartition(Uuid(b"short"), 0, "t")),
        started("s", 0, 1, partition=TopicIdPartition(Uuid(bytes(16)), 2**31, "t")),
        started("s", 0, 1, partition=TopicIdPartition(Uuid(bytes(16)), 0, "\ud800")),
    ],
)
def test_what_does_not_fit_its_field_cannot_be_written(record: RemoteLogSegmentMetadata) -> None:
    with pytest.raises(MetadataRecordError):
        encode(record)


int32 = st.integers(-(2**31), 2**31 - 1)

int64 = st.integers(-(2**63), 2**63 - 1)

uuids = st.binary(min_size=16, max_size=16).map(Uuid)

partitions = st.builds(TopicIdPartition, uuids, int32, st.text(st.characters(exclude_categories=["Cs"])))

custom = st.none() | st.binary(max_size=200).map(CustomMetadata)

segment_fields: dict[str, st.SearchStrategy[Any]] = {
    "max_timestamp_ms": int64,
    "broker_id": int32,
    "event_timestamp_ms": int64,
    "segment_size_bytes": int32,
    "segment_leader_epochs": st.dictionaries(int32, int64, min_size=1, max_size=5),
    "state": st.sampled_from(RemoteLogSegmentState),
    "custom_metadata": custom,
    "txn_index_empty": st.booleans(),
}

segment_ids = st.builds(RemoteLogSegmentId, partitions, uuids)

records: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(
        RemoteLogSegmentMetadata,
        segment_id=segment_ids,
        start_offset=st.integers(0, 2**62),
        end_offset=st.integers(2**62, 2**63 - 1),
        **segment_fields,
    ),
    st.builds(
        RemoteLogSegmentMetadataUpdate, segment_ids, int64, st.sampled_from(RemoteLogSegmentState), int32, custom
    ),
    st.builds(RemotePartitionDeleteMetadata, partitions, st.sampled_from(RemotePartitionDeleteState), int64, int32),
)


@given(records)
def test_a_record_survives_the_wire(record: MetadataRecord) -> None:
    decoded = decode(encode(record))

    assert decoded == record
    if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
        assert isinstance(decoded, type(record))
        assert decoded.segment_id.topic_id_partition.topic == record.segment_id.topic_id_partition.topic


@given(st.sampled_from(ALL_KINDS), st.integers(0, 200), st.binary(min_size=1, max_size=20))
def test_a_valid_beginning_and_a_random_rest_too(value: bytes, cut: int, tail: bytes) -> None:
    _decode_or_refuse(value[:cut] + tail)
    _decode_or_refuse(value[:cut] + tail + value[cut + len(tail) :])


def _decode_or_refuse(value: bytes) -> None:
    try:
        record = decode(value)
    except MetadataRecordError:
        return
    assert decode(encode(record)) == record


def rebased(batch: bytes, base_offset: int) -> bytes:
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
    batch = batch_of(b"value", 1_700_000_000_000)
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
    data = b"".join(rebased(batch_of(value, stamp), 10 + at) for at, (value, stamp) in enumerate(values))
    events = [MetadataEvent(3, 10 + at, stamp, None, value) for at, (value, stamp) in enumerate(values)]
    assert parse_batches(data, 3) == ParsedBatches(events, 10 + len(values) if values else -1)


def test_a_batch_cut_at_the_end_is_left_out_at_every_length() -> None:
    first, second = rebased(batch_of(b"one", 1), 5), rebased(batch_of(b"two", 2), 6)
    for kept in range(len(second)):
        parsed = parse_batches(first + second[:kept], 0)
        assert [event.value for event in parsed.records] == [b"one"]
        assert parsed.next_offset == 6


def test_control_batches_give_no_record_but_move_the_next_offset() -> None:
    control = rebuilt(rebased(batch_of(b"marker", 1), 7), attributes=0x30)
    assert parse_batches(control, 0) == ParsedBatches([], 8)


def test_a_compacted_batch_without_records_moves_the_next_offset() -> None:
    emptied = rebuilt(rebased(batch_of(b"gone", 1), 9), attributes=0, body=b"", records=0)
    assert parse_batches(emptied, 0) == ParsedBatches([], 10)


def test_log_append_time_is_the_batchs_maximum() -> None:
    batch = batch_of(b"v", 5)
    appended = rebuilt(batch[:35] + struct.pack(">q", 99) + batch[43:], attributes=0x08)
    assert parse_batches(appended, 0).records[0].timestamp_ms == 99


@for_each(
    "attributes, compress", [(1, gzip.compress), (4, zstandard.ZstdCompressor(write_content_size=False).compress)]
)
def test_gzip_and_zstd_are_read(attributes: int, compress: "object") -> None:
    assert callable(compress)
    batch = batch_of(b"value" * 50, 1)
    compressed = rebuilt(batch, attributes=attributes, body=compress(batch[61:]))
    assert parse_batches(compressed, 0) == parse_batches(batch, 0)


@for_each("attributes, name", [(2, "snappy"), (3, "lz4"), (7, "7")])
def test_other_compression_is_refused_by_name(attributes: int, name: str) -> None:
    with pytest.raises(UnsupportedMetadataCompressionError, match=f"offset 4: compression {name}"):
        parse_batches(rebuilt(rebased(batch_of(b"v", 1), 4), attributes=attributes), 0)


@for_each("attributes", [1, 4])
def test_a_decompression_bomb_stops_at_the_limit(attributes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "DECOMPRESSED_BYTES_MAX", 1000)
    bomb = bytes(1_000_000)
    body = gzip.compress(bomb) if attributes == 1 else zstandard.compress(bomb)
    with pytest.raises(CorruptMetadataBatchError, match="more than 1000 bytes"):
        parse_batches(rebuilt(batch_of(b"v", 1), attributes=attributes, body=body), 0)


@for_each("bit", range(21 * 8, len(batch_of(b"v", 1)) * 8, 5))
def test_every_flipped_bit_behind_the_crc_is_noticed(bit: int) -> None:
    damaged = bytearray(batch_of(b"v", 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptMetadataBatchError, match=r"CRC|-[0-9]+ records|last offset delta -"):
        parse_batches(bytes(damaged), 0)


def test_what_the_topic_could_not_hold_is_the_callers_fault() -> None:
    with pytest.raises(IllegalMetadataError):
        encode_for_caller(started("s", 0, 2**63))


def test_wrong_magic_and_length_are_corrupt() -> None:
    batch = batch_of(b"v", 1)
    with pytest.raises(CorruptMetadataBatchError, match="magic 1"):
        parse_batches(batch[:16] + b"\x01" + batch[17:], 0)
    for length in (-1, 0, 48):
        with pytest.raises(CorruptMetadataBatchError, match=f"length {length}"):
            parse_batches(batch[:8] + struct.pack(">i", length) + batch[12:], 0)


@for_each(
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
        parse_batches(rebuilt(batch_of(b"v", 1), attributes=0, body=body), 0)


@given(st.binary(max_size=200), st.integers(0, 5), st.integers(-1, 2**31 - 1))
def test_any_body_parses_or_is_a_batch_error(body: bytes, attributes: int, records: int) -> None:
    with contextlib.suppress(MetadataBatchError):
        parse_batches(rebuilt(batch_of(b"v", 1), attributes=attributes, body=body, records=records), 0)
