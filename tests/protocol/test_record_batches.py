"""Record batch headers: read from ropes of any cut, against batches built independently and against garbage."""

import itertools
import struct
import zlib
from collections.abc import Sequence

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from protocol.record_batches import (
    BATCH_BYTES_MAX,
    CorruptBatchError,
    RecordCount,
    check_crc,
    count_records,
    iterate_batches,
    read_header,
    scan_header,
    slice_rope,
    verify_crcs,
)
from tests.support.segments import FIRST_TIMESTAMP_MS, ProducerFields, control_batch, data_batch

PRODUCER = ProducerFields(producer_id=9, producer_epoch=2, base_sequence=5, transactional=True)
BATCHES = [
    data_batch(100, record_count=3, leader_epoch=4),
    data_batch(110, record_count=1, value_bytes=5000, producer=PRODUCER, last_offset_delta=20),
    control_batch(131, producer_id=9),
]
LOG = b"".join(BATCHES)
POSITIONS = [0, len(BATCHES[0]), len(BATCHES[0]) + len(BATCHES[1])]


def legacy_batch(magic: int, messages: int, *, gzip: bool = False) -> bytes:
    """v0 or v1 messages of aiokafka's making, offsets from 0."""
    builder = LegacyRecordBatchBuilder(magic, 1 if gzip else 0, 1 << 20)
    for offset in range(messages):
        builder.append(offset, FIRST_TIMESTAMP_MS, b"key", b"value")
    return bytes(builder.build())


def cut(data: bytes, cuts: Sequence[int]) -> list[memoryview]:
    """The data as a rope cut at these positions; some of its buffers may be empty."""
    borders = [0, *sorted(min(each, len(data)) for each in cuts), len(data)]
    return [memoryview(data)[start:end] for start, end in itertools.pairwise(borders)]


def test_a_header_is_read() -> None:
    header = read_header(memoryview(LOG), POSITIONS[1])

    assert (header.base_offset, header.last_offset, header.record_count) == (110, 130, 1)
    assert (header.size_bytes, header.batch_length) == (len(BATCHES[1]), len(BATCHES[1]) - 12)
    assert (header.magic, header.partition_leader_epoch) == (2, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
    assert (header.base_timestamp, header.max_timestamp) == (FIRST_TIMESTAMP_MS + 110, FIRST_TIMESTAMP_MS + 110)
    assert (header.is_transactional, header.is_control) == (True, False)
    assert read_header(LOG, 0).partition_leader_epoch == 4
    assert not read_header(LOG, 0).is_transactional
    assert read_header(LOG, POSITIONS[2]).is_control


def test_scanning_gives_plain_numbers() -> None:
    assert scan_header(LOG, POSITIONS[1]) == (110, len(BATCHES[1]), 2, 20)
    assert scan_header(LOG[:27], 0) == (100, len(BATCHES[0]), 2, 2)
    for size in range(27):
        assert scan_header(LOG[:size], 0) is None


@given(st.lists(st.integers(0, len(LOG)), max_size=8))
def test_batches_are_found_however_the_rope_is_cut(cuts: list[int]) -> None:
    rope = cut(LOG, cuts)

    assert list(iterate_batches(rope)) == [
        (POSITIONS[0], 100, len(BATCHES[0]), 2, 2),
        (POSITIONS[1], 110, len(BATCHES[1]), 2, 20),
        (POSITIONS[2], 131, len(BATCHES[2]), 2, 0),
    ]
    assert [found[0] for found in iterate_batches(rope, POSITIONS[1])] == POSITIONS[1:]
    assert verify_crcs(rope) == len(LOG)
    assert count_records(rope) == RecordCount(batches=3, records=5, complete_bytes=len(LOG), tail_bytes=0)


def test_batches_are_found_with_a_cut_at_every_byte() -> None:
    rope = cut(LOG, range(len(LOG)))

    assert [found[0] for found in iterate_batches(rope)] == POSITIONS
    assert verify_crcs(rope) == len(LOG)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 16, 26, 60, 61, len(BATCHES[0]) - 1])
def test_the_tail_is_no_batch(size: int) -> None:
    rope = [BATCHES[0], BATCHES[1][:size]]

    assert len(list(iterate_batches(rope))) == 1
    assert verify_crcs(rope) == len(BATCHES[0])
    assert count_records(rope) == RecordCount(1, 3, len(BATCHES[0]), size)


def test_an_empty_rope_holds_nothing() -> None:
    assert count_records([]) == count_records([b""]) == RecordCount(0, 0, 0, 0)


@given(
    st.lists(st.integers(0, len(LOG)), max_size=6),
    st.integers(0, len(LOG) + 9),
    st.integers(0, len(LOG) + 9),
)
def test_slicing_a_rope_is_slicing_its_bytes(cuts: list[int], start: int, end: int) -> None:
    views = slice_rope(cut(LOG, cuts), start, end)

    assert b"".join(views) == LOG[start:end]
    assert all(views)


@pytest.mark.parametrize("position", [17, 20, 21, 22, 60, 61, len(BATCHES[0]) - 1])
def test_a_changed_byte_fails_the_crc(position: int) -> None:
    bad = bytearray(BATCHES[0])
    bad[position] ^= 1
    assert not check_crc([bytes(bad)])
    with pytest.raises(CorruptBatchError, match=f"batch at {len(BATCHES[2])}: wrong CRC"):
        verify_crcs([BATCHES[2], bytes(bad)])


def test_leader_epoch_and_base_offset_are_outside_the_crc() -> None:
    moved = struct.pack(">q", 999) + BATCHES[0][8:12] + struct.pack(">i", 77) + BATCHES[0][16:]
    assert check_crc([moved])


@pytest.mark.parametrize("size", [0, 5, 61, len(BATCHES[0]) - 1, len(BATCHES[0]) + 1])
def test_a_crc_is_of_exactly_one_batch(size: int) -> None:
    with pytest.raises(CorruptBatchError):
        check_crc([LOG[:size]])


@pytest.mark.parametrize("magic", [0, 1])
@given(cuts=st.lists(st.integers(0, 200), max_size=4))
def test_old_messages_are_walked(magic: int, cuts: list[int]) -> None:
    log = legacy_batch(magic, 3)
    size = len(log) // 3
    rope = cut(log, cuts)

    assert list(iterate_batches(rope)) == [(number * size, number, size, magic, 0) for number in range(3)]
    assert verify_crcs(rope) == len(log)
    assert count_records(rope) == RecordCount(3, 3, len(log), 0)
    header = read_header(log, size)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (1, 1, -1)
    assert header.max_timestamp == (FIRST_TIMESTAMP_MS if magic else -1)
    assert not check_crc([log[: size - 1] + b"?"])


def test_a_compressed_old_message_hides_its_count() -> None:
    log = legacy_batch(1, 3, gzip=True)

    assert read_header(log, 0).record_count == -1
    assert count_records([log]) == RecordCount(1, 0, len(log), 0)


def test_the_smallest_old_message_is_found() -> None:
    """26 bytes: smaller than what the fast form unpacks."""
    checked = bytes([0, 0]) + struct.pack(">ii", -1, -1)
    message = struct.pack(">qiI", 5, 14, zlib.crc32(checked)) + checked

    assert list(iterate_batches([message])) == [(0, 5, 26, 0, 0)]
    assert verify_crcs([message]) == 26
    assert scan_header(message[:25], 0) is None


def broken(position: int, layout: str, value: int) -> bytes:
    bad = bytearray(BATCHES[1])
    struct.pack_into(layout, bad, position, value)
    return bytes(bad)


@pytest.mark.parametrize(
    "bad",
    [
        *(broken(8, ">i", length) for length in (-1, 0, 13, 14, 48, BATCH_BYTES_MAX + 1, 2**31 - 1, -(2**31))),
        *(broken(16, ">b", magic) for magic in (3, -1, 127)),
        broken(0, ">q", -1),
        broken(23, ">i", -1),
    ],
)
def test_what_cannot_be_a_batch_is_corrupt(bad: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        read_header(bad, 0)
    with pytest.raises(CorruptBatchError):
        scan_header(bad, 0)
    with pytest.raises(CorruptBatchError, match=f"batch at {len(BATCHES[0])} of"):
        list(iterate_batches([BATCHES[0], bad]))


def test_a_negative_count_of_records_is_corrupt() -> None:
    with pytest.raises(CorruptBatchError, match="-1 records"):
        read_header(broken(57, ">i", -1), 0)


@given(st.binary(max_size=200))
def test_garbage_is_walked_or_corrupt(garbage: bytes) -> None:
    try:
        verify_crcs([garbage[:50], garbage[50:]])
        read_header(garbage, 0)
    except CorruptBatchError:
        pass
