"""Record batch headers: walking a log without looking at the records in it.

Contract (docs/kafka-tier.md#batch-framing; KIP-98 for the v2 format):
- A batch is 12 bytes of log overhead (base offset, length) and `length` bytes after them. Magic is byte 16.
- v2: 61 bytes of header, CRC-32C over everything from byte 21 on. v0 and v1 (a message set entry, still to be found
  in old segments): CRC-32 from byte 16 on; the offset is the last one in it, the first is only known by
  decompressing, so `base_offset` is that last offset there and `record_count` unknown (−1) when compressed.
- A length below 14, the smallest v0 message, is corrupt (Kafka's own rule); so is one above BATCH_BYTES_MAX, an
  unknown magic, or a negative count, delta or base offset. Lengths are trusted before the CRC is, hence the limits.
- The data may be a rope: buffers whose concatenation is the log. They are never joined; at most one header is
  copied, where it straddles two buffers.
- An incomplete batch at the end is not an error: a broker cuts answers at any byte (docs/kafka-tier.md#batch-framing).
  It is the tail.
- `iterate_batches` is the walk of all who hold whole batches; those who follow a segment's log block by block or as a
  stream walk by `storage.log`.
- `verify_run` and `pass_by` are the loops that see every batch of a log: one unpack a batch and nothing created but
  numbers and the view that the CRC is computed over. They stop without a word in front of the first batch that is not a
  whole and sound one of v2; `read_header` and `batch_crc` then say what it is.

CRC-32C is the `crc32c` package's: it takes memoryviews as they are and releases the lock. google-crc32c is as fast
(28 GiB/s) but takes bytes only, so that every block would be copied first (18 GiB/s with the copy).
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from crc32c import crc32c

from protocol.wire.errors import ProtocolError

Buffer: TypeAlias = bytes | memoryview
"""Bytes that are passed on as they are. Memoryviews are of single bytes (format B), so len() is the size."""

LOG_OVERHEAD = 12
"""Base offset and length, which `length` does not count."""
HEADER_BYTES = 61
"""Header of a v2 batch, log overhead included."""
LENGTH_MIN = 14
"""For a v0 message: crc, magic, attributes and two null lengths."""
_LENGTH_MIN_V2 = HEADER_BYTES - LOG_OVERHEAD
BATCH_BYTES_MAX = 1 << 30
"""Ten times the largest request a broker takes (socket.request.max.bytes, 100 MiB), and segment.bytes' default."""

MAGIC_POSITION = 16
CRC_START = 21
"""Where a v2 batch's CRC begins to count: after the CRC itself; leader epoch and magic are outside."""
LEGACY_CRC_START = 16

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20

_HEADER = struct.Struct(">qiibIhiqqqhii")
_SCAN = struct.Struct(">qi4xb6xi")  # base offset, length, magic, last offset delta
_CHECKED = struct.Struct(">qi4xbI2xi30xi")  # base offset, length, magic, crc, last offset delta, record count
_PASSED = struct.Struct(
    ">qi4xb6xi8xq14xi"
)  # base offset, length, magic, last offset delta, max timestamp, record count
_LEGACY = struct.Struct(">qiIbb")  # offset, length, crc, magic, attributes
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_LEGACY_TIMESTAMP_POSITION = 18


class CorruptBatchError(ProtocolError):
    """The bytes at a batch's place cannot be a batch, or its CRC does not match; the message names the position."""


@dataclass(slots=True)
class BatchHeader:
    """A batch's header. Fields that v0 and v1 lack are −1; `crc` is CRC-32C for v2 and CRC-32 below."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def has_append_time(self) -> bool:
        """Return whether the broker's clock has told its times (LogAppendTime)."""
        return self.magic >= 1 and bool(self.attributes & LOG_APPEND_TIME_MASK)

    @property
    def is_transactional(self) -> bool:
        return self.magic >= 2 and bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return self.magic >= 2 and bool(self.attributes & CONTROL_MASK)


def read_header(view: Buffer, position: int) -> BatchHeader:
    """The header of the batch that begins at `position`; the whole batch need not be there.

    Raises:
        CorruptBatchError: it cannot be a batch, or the view ends inside the header.
    """
    size_left = len(view) - position
    if size_left <= MAGIC_POSITION:
        raise CorruptBatchError(f"{size_left} bytes at {position} do not hold a batch header")
    magic = view[position + MAGIC_POSITION]
    if magic < 2:
        return _read_legacy_header(view, position)
    if size_left < HEADER_BYTES:
        raise CorruptBatchError(f"{size_left} bytes at {position} do not hold a batch header")
    header = BatchHeader(*_HEADER.unpack_from(view, position))
    _check(position, header.base_offset, header.batch_length, header.magic, header.last_offset_delta)
    if header.record_count < 0:
        raise CorruptBatchError(f"batch at {position}: {header.record_count} records")
    return header


def scan_header(view: Buffer, position: int) -> tuple[int, int, int, int] | None:
    """Base offset, size in bytes, magic and last offset delta of the batch at `position`: the fast form.

    None when the view ends before these are known: the tail, or the rest is in the next buffer. One unpack; a v0
    or v1 message has delta 0.

    Raises:
        CorruptBatchError: it cannot be a batch.
    """
    size_left = len(view) - position
    if size_left < _SCAN.size:
        return _scan_short(view, position)
    base_offset, length, magic, delta = _SCAN.unpack_from(view, position)
    if magic != 2:
        if magic not in (0, 1):
            raise CorruptBatchError(f"batch at {position}: magic {magic}")
        delta = 0
    if (
        base_offset < 0
        or delta < 0
        or not LENGTH_MIN <= length <= BATCH_BYTES_MAX
        or (magic == 2 and length < _LENGTH_MIN_V2)
    ):
        _check(position, base_offset, length, magic, delta)
    return base_offset, LOG_OVERHEAD + length, magic, delta


def iterate_batches(buffers: Sequence[Buffer], position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """The walk of all who have whole batches before them: where each begins in a rope, from `position` on, and its
    header. No CRC is checked.

    Stops before the tail: bytes from the last batch's end on are no complete batch.

    Raises:
        CorruptBatchError: at a position counted from the rope's start.
    """
    end = sum(map(len, buffers))
    index, start = 0, 0  # the buffer that holds `position`, and where in the rope it begins
    while position < end:
        while position >= start + len(buffers[index]):
            start += len(buffers[index])
            index += 1
        view, at = buffers[index], position - start
        if len(view) - at < HEADER_BYTES and index + 1 < len(buffers):
            view, at = _join_header(buffers, index, at), 0
        try:
            found = scan_header(view, at)
            if found is None or position + found[1] > end:
                return
            header = read_header(view, at)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"in the batch at {position} of {end}: {error}") from error
        yield position, header
        position += found[1]


def slice_rope(buffers: Sequence[Buffer], start: int, end: int) -> list[memoryview]:
    """`rope[start:end]` as views, without copying; cut at the rope's end."""
    views = []
    for buffer in buffers:
        if end <= 0:
            break
        if start < len(buffer):
            view = memoryview(buffer)[max(start, 0) : end]
            if view:
                views.append(view)
        start -= len(buffer)
        end -= len(buffer)
    return views


def check_crc(batch: Sequence[Buffer]) -> bool:
    """Return whether the CRC of exactly one batch, as a rope from its first byte to its last, is right.

    Raises:
        CorruptBatchError: the rope does not hold one whole batch.
    """
    header = read_header(_join_header(batch, 0, 0), 0)
    size = sum(map(len, batch))
    if size != header.size_bytes:
        raise CorruptBatchError(f"a batch of {header.size_bytes} bytes in {size}")
    return batch_crc(batch, header.magic) == header.crc


def batch_crc(batch: Sequence[Buffer], magic: int) -> int:
    """The CRC of one whole batch, a rope from its first byte to its last: CRC-32C for v2, CRC-32 below."""
    skip = CRC_START if magic >= 2 else LEGACY_CRC_START
    checksum = 0
    for buffer in batch:
        counted = memoryview(buffer)[skip:] if skip else buffer
        skip = max(0, skip - len(buffer))
        checksum = crc32c(counted, checksum) if magic >= 2 else zlib.crc32(counted, checksum)
    return checksum


def verify_run(view: memoryview, start: int, end: int, last_offset: int, offset_max: int) -> tuple[int, int, int]:
    """Check the whole v2 batches of view[start:end] one behind the other, the first of which begins at `start`.

    Stops in front of the first that is not whole, older than v2 or malformed, whose CRC is wrong, or whose offsets do
    not ascend or go beyond `offset_max`. `last_offset` is that of the batch before `start`.

    Returns:
        Where the last good batch ends, where it begins, and its last offset; (start, start, last_offset) without one.
    """
    unpack_from, position, header_start_max = _CHECKED.unpack_from, start, end - HEADER_BYTES
    while position <= header_start_max:
        base_offset, length, magic, crc, delta, record_count = unpack_from(view, position)
        batch_end = position + LOG_OVERHEAD + length
        if (
            magic != 2
            or length < _LENGTH_MIN_V2
            or batch_end > end
            or base_offset <= last_offset
            or delta < 0
            or base_offset + delta > offset_max
            or record_count < 0
            or crc32c(view[position + CRC_START : batch_end]) != crc
        ):
            break
        start, position, last_offset = position, batch_end, base_offset + delta
    return position, start, last_offset


def first_bad_batch(view: memoryview, offset: int, end_offset: int) -> tuple[int, int, str] | None:
    """Find the first batch that is not as it was written, in what answers a Fetch at `offset`.

    Returns where it begins, the offset that it is reached by, and why; None if there is none. The last batch may be
    cut, unless it is the only one.

    Args:
        end_offset: no record has this offset or a higher one.
    """
    position, last_offset, end = 0, -1, len(view)
    while position < end:
        next_offset = max(offset, last_offset + 1)
        try:
            header = read_header(view, position) if end - position > MAGIC_POSITION else None
        except CorruptBatchError as error:
            is_cut = position > 0 and end - position < HEADER_BYTES
            return None if is_cut else (position, next_offset, str(error))
        if header is None or position + header.size_bytes > end:
            return None if position else (0, offset, "it is not whole")
        if batch_crc((view[position : position + header.size_bytes],), header.magic) != header.crc:
            return position, next_offset, "its CRC is wrong"
        first_offset, last = header.base_offset, header.last_offset
        if first_offset <= last_offset or last >= end_offset or (position == 0 and last < offset):
            return position, next_offset, f"its offsets are {first_offset} to {last}"
        position, _, last_offset = verify_run(view, position + header.size_bytes, end, last, end_offset - 1)
    return None


def pass_by(
    view: memoryview, position: int, log_end: int, offsets: tuple[int, int], offset: int, timestamp_ms: int
) -> tuple[int, int, int]:
    """Go over the v2 batches from `position` on of which no record has both this offset or a higher one, and this
    time or a later one. Only a batch's header must lie in the view, and no CRC is checked.

    Stops in front of the first other batch: one that is wanted, older than v2, malformed, or does not end by `log_end`,
    or whose offsets are not within `offsets` (first and last).

    Returns:
        Where the last batch gone over ends; the size in bytes of the largest; the last one's last offset, −1: none.
    """
    unpack_from, header_start_max = _PASSED.unpack_from, len(view) - HEADER_BYTES
    offset_min, offset_max = offsets
    largest_bytes, passed_offset = 0, -1
    while position <= header_start_max:
        base_offset, length, magic, delta, max_timestamp, record_count = unpack_from(view, position)
        batch_end, last_offset = position + LOG_OVERHEAD + length, base_offset + delta
        if (
            (last_offset >= offset and max_timestamp >= timestamp_ms)
            or magic != 2
            or not _LENGTH_MIN_V2 <= length <= BATCH_BYTES_MAX
            or batch_end > log_end
            or not offset_min <= base_offset <= last_offset <= offset_max
            or record_count < 0
        ):
            break
        if batch_end - position > largest_bytes:
            largest_bytes = batch_end - position
        position, passed_offset = batch_end, last_offset
    return position, largest_bytes, passed_offset


def _check(position: int, base_offset: int, length: int, magic: int, delta: int) -> None:
    length_min = _LENGTH_MIN_V2 if magic >= 2 else LENGTH_MIN
    if not length_min <= length <= BATCH_BYTES_MAX:
        raise CorruptBatchError(f"batch at {position}: length {length}")
    if not 0 <= magic <= 2:
        raise CorruptBatchError(f"batch at {position}: magic {magic}")
    if base_offset < 0 or delta < 0:
        raise CorruptBatchError(f"batch at {position}: base offset {base_offset}, last offset delta {delta}")


def _scan_short(view: Buffer, position: int) -> tuple[int, int, int, int] | None:
    """`scan_header` where fewer bytes are left than it unpacks: only a v0 message is as small as that."""
    size_left = len(view) - position
    if size_left < LOG_OVERHEAD:
        return None
    length = int(_LENGTH.unpack_from(view, position + 8)[0])
    _check(position, 0, length, 0, 0)
    if size_left < LOG_OVERHEAD + length or view[position + MAGIC_POSITION] >= 2:
        return None
    header = _read_legacy_header(view, position)
    return header.base_offset, header.size_bytes, header.magic, 0


def _read_legacy_header(view: Buffer, position: int) -> BatchHeader:
    size_left = len(view) - position
    if size_left < LOG_OVERHEAD + LENGTH_MIN:
        raise CorruptBatchError(f"{size_left} bytes at {position} do not hold a message")
    offset, length, crc, magic, attributes = _LEGACY.unpack_from(view, position)
    _check(position, offset, length, magic, 0)
    timestamp = int(_TIMESTAMP.unpack_from(view, position + _LEGACY_TIMESTAMP_POSITION)[0]) if magic else -1
    record_count = -1 if attributes & COMPRESSION_MASK else 1
    return BatchHeader(offset, length, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, record_count)


def _join_header(buffers: Sequence[Buffer], index: int, position: int) -> bytes:
    """As much of a header as there is, beginning at `position` in `buffers[index]`: at most HEADER_BYTES copied."""
    joined = bytearray()
    while len(joined) < HEADER_BYTES and index < len(buffers):
        joined += buffers[index][position : position + HEADER_BYTES - len(joined)]
        position = 0
        index += 1
    return bytes(joined)
