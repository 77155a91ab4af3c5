"""Logs for the walks over batches: random ones with random damage, and a slow model that says what a walk finds.

The model sees one buffer and nothing but `header_of` and `check_crc`, one batch at a time; it remembers nothing.
"""

import struct
from dataclasses import dataclass, replace

import pytest
from crc32c import crc32c
from hypothesis import strategies as st

from protocol import record_batches
from protocol.record_batches import HEADER_BYTES, BatchHeader, CorruptBatchError, check_crc, scan_header
from storage.log.block import Block
from storage.log.log_walk import CorruptLogError, header_of, order_fault
from storage.model import RemoteLogSegmentMetadata
from tests.support.segments import Record, control_batch, data_batch, filled_segment, metadata_of
from tests.support.tier import PARTITION
from tests.support.timed_batches import timed_messages

FIRST_OFFSET = 20
BLOCK_SIZES = (1, 7, 61, 100, 109, 300, 1000)

_SOME_SEGMENT = metadata_of(PARTITION, filled_segment(0))


@dataclass(frozen=True)
class Log:
    """A log, perhaps damaged since. `positions` are where its batches began, `inner` where batches in values did."""

    data: bytes
    segment: RemoteLogSegmentMetadata
    positions: tuple[int, ...]
    inner: tuple[int, ...]

    def blocks(self, block_bytes: int) -> list[Block]:
        view = memoryview(self.data)
        return [Block(view[start : start + block_bytes]) for start in range(0, len(view), block_bytes)]


@dataclass(frozen=True)
class Passed:
    """A batch that a walk finds whole and sound."""

    position: int
    end: int
    last_offset: int


@dataclass(frozen=True)
class Fault:
    """What a walk ends at; as `CorruptLogError`."""

    position: int
    end: int
    reason: str
    follows_verified: bool


def model_walk(log: Log, start: int, end: int) -> tuple[list[Passed], Fault | None]:
    """The whole batches in [start, end), and why no more, unless it is for the want of whole ones."""
    passed: list[Passed] = []
    position, previous, last_offset = start, start, -1
    while position < end:
        header_end = min(position + HEADER_BYTES, len(log.data))
        if header_end > end:
            try:
                found = scan_header(log.data[position:end], 0)
            except CorruptBatchError as error:
                return passed, Fault(position, end, str(error), position > start)
            if found is None or found[1] > end - position:
                break
        header = _header(log, position, header_end)
        if isinstance(header, str):
            return passed, Fault(position, header_end, header, position > start)
        batch_end = position + header.size_bytes
        if batch_end > end:
            break
        if not check_crc([log.data[position:batch_end]]):
            return passed, Fault(position, batch_end, "its CRC is wrong", position > start)
        reason = order_fault(header.base_offset, last_offset)
        if reason is not None:
            return passed, Fault(previous, position + HEADER_BYTES, reason, previous > start)
        passed.append(Passed(position, batch_end, header.last_offset))
        position, previous, last_offset = batch_end, position, header.last_offset
    return passed, None


def model_find(log: Log, position: int, timestamp_ms: int, offset: int) -> int | Fault:
    """The position of the first batch that may hold it, or the log's end."""
    while position < len(log.data):
        header_end = min(position + HEADER_BYTES, len(log.data))
        header = _header(log, position, header_end)
        if isinstance(header, str):
            return Fault(position, header_end, header, False)
        if header.last_offset >= offset and header.max_timestamp >= timestamp_ms:
            break
        position += header.size_bytes
    return position


def _header(log: Log, position: int, header_end: int) -> BatchHeader | str:
    try:
        return header_of(log.data[position:header_end], position, log.segment)
    except CorruptLogError as error:
        return error.reason


def count_crcs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each batch whose CRC-32C is computed, from here on: the size of what is counted in it first."""
    counted: list[int] = []

    def count(data: memoryview, before: int = 0) -> int:
        if data and not before:  # in several blocks a batch's CRC goes on from the one before
            counted.append(len(data))
        return crc32c(data, before)

    monkeypatch.setattr(record_batches, "crc32c", count)
    return counted


@st.composite
def logs(draw: st.DrawFn, *, damaged: bool = True) -> Log:
    """Batches of any size and format with holes between their offsets; some values hold batches themselves."""
    batches: list[bytes] = []
    inner: list[int] = []
    offset, size = FIRST_OFFSET, 0
    kinds = st.sampled_from(["v2", "v2", "v2", "large", "nested", "control", "v0", "v1", "wrapper"])
    for kind in draw(st.lists(kinds, min_size=1, max_size=9)):
        offset += draw(st.sampled_from([0, 0, 0, 1, 5]))
        batch = _batch(kind, offset, draw(st.integers(0, 200)))
        if kind == "nested":
            inner.append(size + batch.index(_nested(offset)))
        batches.append(batch)
        size += len(batch)
        offset += 3
    positions = tuple(sum(map(len, batches[:number])) for number in range(len(batches)))
    data = bytearray(b"".join(batches))
    for _ in range(draw(st.integers(0, 3)) if damaged else 0):
        _damage(draw, data, positions)
    segment = replace(_SOME_SEGMENT, start_offset=FIRST_OFFSET, end_offset=offset + 5, segment_size_bytes=len(data))
    return Log(bytes(data), segment, positions, tuple(inner))


def _nested(offset: int) -> bytes:
    return data_batch(offset, value_bytes=10) + data_batch(offset + 1, value_bytes=10)


def _batch(kind: str, offset: int, value_bytes: int) -> bytes:
    """Return a batch of three offsets at most."""
    if kind == "control":
        return control_batch(offset, producer_id=1)
    if kind in ("v0", "v1"):
        return timed_messages(int(kind[1]), [(offset, 9), (offset + 1, 11)])
    if kind == "wrapper":
        return timed_messages(1, [(offset, 9), (offset + 2, 11)], codec=1)
    if kind == "nested":
        return data_batch(offset, records=[Record(value=_nested(offset))])
    return data_batch(offset, record_count=3, value_bytes=value_bytes * (8 if kind == "large" else 1))


def _damage(draw: st.DrawFn, data: bytearray, positions: tuple[int, ...]) -> None:
    position = draw(st.sampled_from(positions))
    left = len(data) - position
    kind = draw(st.sampled_from(["byte", "header", "base offset", "length", "cut", "junk"]))
    if left < HEADER_BYTES:
        return
    if kind in ("byte", "header"):
        at = position + draw(st.integers(0, HEADER_BYTES - 1 if kind == "header" else left - 1))
        data[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "base offset":
        struct.pack_into(">q", data, position, draw(st.integers(-1, FIRST_OFFSET + 60)))
    elif kind == "length":
        struct.pack_into(">i", data, position + 8, draw(st.sampled_from([-1, 13, 48, 49, left - 12, left, 2**31 - 1])))
    elif kind == "cut":
        del data[position + draw(st.integers(HEADER_BYTES, left)) :]
    else:
        data += draw(st.binary(max_size=70))
