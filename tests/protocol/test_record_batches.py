"""Record batch headers: read from ropes of any cut, against batches built independently and against garbage."""

import itertools
import struct
import zlib
from collections.abc import Sequence

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from protocol.record_batches import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    CorruptBatchError,
    check_crc,
    first_bad_batch,
    iterate_batches,
    pass_by,
    read_header,
    scan_header,
    slice_rope,
    verify_run,
)
from tests.support.cases import case
from tests.support.for_each import for_each
from tests.support.segments import FIRST_TIMESTAMP_MS, ProducerFields, control_batch, data_batch
from tests.support.timed_batches import message

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
        (POSITIONS[0], read_header(LOG, POSITIONS[0])),
        (POSITIONS[1], read_header(LOG, POSITIONS[1])),
        (POSITIONS[2], read_header(LOG, POSITIONS[2])),
    ]
    assert [found[0] for found in iterate_batches(rope, POSITIONS[1])] == POSITIONS[1:]
    for position, batch in zip(POSITIONS, BATCHES, strict=True):
        assert check_crc(slice_rope(rope, position, position + len(batch)))


def test_neither_an_empty_rope_nor_a_tail_holds_a_batch() -> None:
    assert list(iterate_batches([])) == list(iterate_batches([b""])) == []
    for size in range(len(BATCHES[0])):
        assert len(list(iterate_batches([BATCHES[0], BATCHES[1][:size]]))) == 1, size


@given(st.lists(st.integers(0, len(LOG)), max_size=6), st.integers(0, len(LOG) + 9), st.integers(0, len(LOG) + 9))
def test_slicing_a_rope_is_slicing_its_bytes(cuts: list[int], start: int, end: int) -> None:
    views = slice_rope(cut(LOG, cuts), start, end)

    assert b"".join(views) == LOG[start:end]
    assert all(views)


def test_a_crc_is_of_exactly_one_batch_and_of_all_but_base_offset_and_leader_epoch() -> None:
    for position in range(17, len(BATCHES[0])):
        bad = bytearray(BATCHES[0])
        bad[position] ^= 1
        assert not check_crc([bytes(bad)]), position
    assert check_crc([struct.pack(">q", 999) + BATCHES[0][8:12] + struct.pack(">i", 77) + BATCHES[0][16:]])
    for size in (0, 5, 61, len(BATCHES[0]) - 1, len(BATCHES[0]) + 1):
        with case(size), pytest.raises(CorruptBatchError):
            check_crc([LOG[:size]])


@given(magic=st.sampled_from([0, 1]), cuts=st.lists(st.integers(0, 200), max_size=4))
def test_old_messages_are_walked(magic: int, cuts: list[int]) -> None:
    log = legacy_batch(magic, 3)
    size = len(log) // 3
    rope = cut(log, cuts)

    assert list(iterate_batches(rope)) == [(number * size, read_header(log, number * size)) for number in range(3)]
    assert check_crc(slice_rope(rope, size, 2 * size))
    header = read_header(log, size)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (1, 1, -1)
    assert header.max_timestamp == (FIRST_TIMESTAMP_MS if magic else -1)
    assert not check_crc([log[: size - 1] + b"?"])


def test_a_compressed_old_message_hides_its_count() -> None:
    log = legacy_batch(1, 3, gzip=True)

    assert read_header(log, 0).record_count == -1
    assert [found[0] for found in iterate_batches([log])] == [0]


def test_the_smallest_old_message_is_found() -> None:
    """26 bytes: smaller than what the fast form unpacks."""
    checked = bytes([0, 0]) + struct.pack(">ii", -1, -1)
    message = struct.pack(">qiI", 5, 14, zlib.crc32(checked)) + checked

    [(position, header)] = iterate_batches([message])
    assert (position, header.base_offset, header.size_bytes) == (0, 5, 26)
    assert check_crc([message])
    assert scan_header(message[:25], 0) is None


def broken(position: int, layout: str, value: int) -> bytes:
    bad = bytearray(BATCHES[1])
    struct.pack_into(layout, bad, position, value)
    return bytes(bad)


BAD_LENGTHS = [broken(8, ">i", length) for length in (-1, 0, 13, 14, 48, BATCH_BYTES_MAX + 1, 2**31 - 1, -(2**31))]
BAD_OFFSETS = [broken(0, ">q", -1), broken(23, ">i", -1)]


@for_each("bad", [*BAD_LENGTHS, *BAD_OFFSETS, *(broken(16, ">b", magic) for magic in (3, -1, 127))])
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


# --- the loops over many batches ---


def run_of(log: bytes, *, end: int | None = None, last_offset: int = 99, offset_max: int = 131) -> tuple[int, int, int]:
    return verify_run(memoryview(log), 0, len(log) if end is None else end, last_offset, offset_max)


def passed(log: bytes, offset: int, *, timestamp_ms: int = -1, log_end: int = len(LOG)) -> tuple[int, int, int]:
    return pass_by(memoryview(log), 0, log_end, (100, 131), offset, timestamp_ms)


def test_a_run_ends_with_the_last_whole_batch() -> None:
    starts = [(0, 0, 99), (POSITIONS[1], 0, 102), (POSITIONS[2], POSITIONS[1], 130), (len(LOG), POSITIONS[2], 131)]
    for end in range(len(LOG) + 1):
        whole = sum(position + len(batch) <= end for position, batch in zip(POSITIONS, BATCHES, strict=True))
        assert run_of(LOG, end=end) == run_of(LOG[:end]) == starts[whole]
    assert verify_run(memoryview(LOG), POSITIONS[1], len(LOG), 102, 131) == starts[3]


def test_a_run_ends_in_front_of_a_changed_byte() -> None:
    """In base offset and leader epoch, which no CRC covers, a change alone is not seen."""
    for at in range(len(LOG)):
        number = sum(position <= at for position in POSITIONS) - 1
        if at - POSITIONS[number] in range(8) or at - POSITIONS[number] in range(12, 16):
            continue
        bad = LOG[:at] + bytes([LOG[at] ^ 1]) + LOG[at + 1 :]
        assert run_of(bad)[0] == POSITIONS[number], at


@for_each(
    "last_offset, offset_max, end",
    [(99, 131, len(LOG)), (100, 131, 0), (99, 130, POSITIONS[2]), (99, 129, POSITIONS[1]), (99, 101, 0)],
)
def test_a_run_ascends_within_its_limits(last_offset: int, offset_max: int, end: int) -> None:
    assert run_of(LOG, last_offset=last_offset, offset_max=offset_max)[0] == end


@for_each("base_offset, end", [(102, POSITIONS[1]), (103, len(LOG)), (111, POSITIONS[2])])
def test_a_batch_of_a_run_begins_behind_the_one_before(base_offset: int, end: int) -> None:
    moved = LOG[: POSITIONS[1]] + struct.pack(">q", base_offset) + LOG[POSITIONS[1] + 8 :]
    assert run_of(moved)[0] == end


@for_each(
    "bad", [*BAD_LENGTHS, *BAD_OFFSETS, broken(57, ">i", -1), *(broken(16, ">b", magic) for magic in (0, 1, 3, -1))]
)
def test_the_loops_stop_in_front_of_what_is_no_sound_batch_of_v2(bad: bytes) -> None:
    (length,) = struct.unpack_from(">i", bad, 8)
    crc = crc32c(bad[21 : max(0, 12 + length)])  # a right CRC does not help it
    bad = bad[:17] + struct.pack(">I", crc) + bad[21:]
    log = BATCHES[0] + bad + BATCHES[2]
    assert run_of(log) == (POSITIONS[1], 0, 102)
    assert passed(log, 1000, log_end=2**40) == (POSITIONS[1], len(BATCHES[0]), 102)


def test_batches_are_passed_by_up_to_the_one_that_is_wanted() -> None:
    ends = [(0, 0, -1), (POSITIONS[1], len(BATCHES[0]), 102), (POSITIONS[2], len(BATCHES[1]), 130)]
    everything = (len(LOG), len(BATCHES[1]), 131)
    assert [passed(LOG, offset) for offset in (0, 100, 102)] == [ends[0]] * 3
    assert [passed(LOG, offset) for offset in (103, 130, 131, 132)] == [ends[1], ends[1], ends[2], everything]
    assert passed(LOG, 0, timestamp_ms=FIRST_TIMESTAMP_MS + 102) == ends[0]
    assert passed(LOG, 0, timestamp_ms=FIRST_TIMESTAMP_MS + 103) == ends[1]
    assert passed(LOG, 0, timestamp_ms=2**62) == everything


def test_a_batch_is_passed_by_if_its_header_is_here_and_it_ends_in_the_log() -> None:
    for size in range(len(LOG) + 1):
        headers = sum(position + HEADER_BYTES <= size for position in POSITIONS)
        assert passed(LOG[:size], 1000)[0] == [*POSITIONS, len(LOG)][headers]
        whole = sum(position + len(batch) <= size for position, batch in zip(POSITIONS, BATCHES, strict=True))
        assert passed(LOG, 1000, log_end=size)[0] == [*POSITIONS, len(LOG)][whole]


@for_each("offsets, end", [((101, 131), 0), ((100, 130), POSITIONS[2]), ((100, 101), 0)])
def test_batches_outside_the_offsets_are_not_passed_by(offsets: tuple[int, int], end: int) -> None:
    assert pass_by(memoryview(LOG), 0, len(LOG), offsets, 1000, -1)[0] == end


# --- what a broker read where the tier is damaged ---


def test_every_flip_of_a_bit_that_a_client_would_read_is_found() -> None:
    """But for leader epoch and base offset, which no CRC covers: of these what contradicts the others is found."""
    batches = [data_batch(number, value_bytes=20) for number in (5, 6, 9)]
    whole = b"".join(batches)
    assert first_bad_batch(memoryview(whole), 5, 10) is None
    for bit in range(8 * len(whole)):
        at = bit // 8
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit % 8
        starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
        begins = max(start for start in starts if start <= at)
        if 12 <= at - begins < 16 or at - begins < 8:
            continue
        bad = first_bad_batch(memoryview(bytes(flipped)), 5, 10)
        # A length that says more makes it look cut: then the next Fetch begins with it.
        is_cut = begins > 0 and 8 <= at - begins < 12 and bad is None
        assert is_cut or (bad is not None and bad[0] <= begins), (at, bit % 8)
    for other in ([0, 2], [2, 0], [1, 1]):
        assert first_bad_batch(memoryview(b"".join(batches[number] for number in other)), 6, 9) is not None
    assert first_bad_batch(memoryview(batches[0][:-1]), 5, 10) is not None, "the only one is never cut"
    assert first_bad_batch(memoryview(whole[:-1]), 5, 10) is None


@for_each("magic", [0, 1])
def test_older_messages_have_their_own_check(magic: int) -> None:
    messages = [message(magic, offset, 1000, b"value") for offset in (3, 4)]
    whole = bytearray(b"".join(messages) + data_batch(5))
    assert first_bad_batch(memoryview(bytes(whole)), 3, 6) is None
    whole[len(messages[0]) + 30] ^= 1
    assert first_bad_batch(memoryview(bytes(whole)), 3, 6) == (len(messages[0]), 4, "its CRC is wrong")
