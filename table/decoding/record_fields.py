"""The fields of many records at once, as numpy arrays; and every check that records must pass.

Rules:
1. A column that is not wanted is not decoded, nor is anything behind the last one that is. Lengths, counts, offsets
   and ends are checked as far as was decoded.
2. A batch's records fill it exactly, their offset deltas grow and stay within [0, last offset delta], a key and a
   value have a length of −1 (null) or more, a header's key one of 0 or more. Anything else makes the batch corrupt:
   it is named with a reason, and its arrays mean nothing.
3. LogAppendTime gives every record the batch's largest timestamp (KIP-32). Sums wrap around as Java's do.

Spec: KIP-98 (the v2 format), KIP-82 (headers).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from protocol.record_batches import LOG_APPEND_TIME_MASK, BatchHeader
from table.decoding.record_starts import find_starts
from table.decoding.varint_lanes import Bytes, Flags, Integers, Words, overlapping_words, read_varints, zigzag

# The headers of many records at once: step j reads the j-th header of every record that has one.
#
# Records that have far more headers than others are read one by one where too few of them are left: numpy would then
# cost more than a loop. Nothing is copied: a header is two ranges of the buffer.
#
# Spec: KIP-82. A header's key has a length of 0 or more, its value one of −1 (null) or more.


LANES_MIN = 16
"""Fewer records than these that still have headers are read one by one."""

_VARINT_BYTES_MAX = 5


@dataclass(slots=True)
class HeaderTable:
    """All headers, record by record. Sizes are in bytes, −1 for null."""

    count: Integers
    """How many each record has."""
    first: Integers
    """For each record, the place of its first header in the arrays below."""
    key_start: Integers
    key_size: Integers
    value_start: Integers
    value_size: Integers


def read_headers(
    data: Bytes, words: Words, cursor: Integers, ends: Integers, count: Integers
) -> tuple[HeaderTable, Integers]:
    """The headers that begin at the cursors, and the places of the records that they do not fill exactly.

    Args:
        count: how many each record has, no more than its bytes allow.
    """
    first = np.cumsum(count) - count
    total = int(count.sum())
    table = HeaderTable(count, first, *(np.zeros(total, np.int64) for _ in range(4)))
    which = np.flatnonzero(count)
    position, slot, remaining = cursor[which], first[which], count[which]
    stops = cursor.copy()
    while len(which) >= LANES_MIN:
        position = _step(words, position, ends[which], table, slot)
        slot += 1
        remaining -= 1
        stops[which] = position
        goes_on = (remaining > 0) & (position <= ends[which])
        if not goes_on.all():
            which, position, slot, remaining = which[goes_on], position[goes_on], slot[goes_on], remaining[goes_on]
    view = data.data
    for place, at, place_of_header, left in zip(
        which.tolist(), position.tolist(), slot.tolist(), remaining.tolist(), strict=True
    ):
        stops[place] = _walk(view, at, int(ends[place]), table, place_of_header, left)
    return table, np.flatnonzero((stops != ends) & (count > 0))


def _step(words: Words, position: Integers, ends: Integers, table: HeaderTable, slot: Integers) -> Integers:
    """One header of each record; where the next begins, behind the record's end if something is wrong."""
    raw, start = read_varints(words, position)
    size = zigzag(raw)
    is_wrong = (size < 0) | (size > ends - start)
    table.key_start[slot], table.key_size[slot] = start, size
    raw, start = read_varints(words, np.where(is_wrong, start, start + size))
    size = zigzag(raw)
    is_wrong |= (size < -1) | (size > ends - start)
    table.value_start[slot], table.value_size[slot] = start, size
    return np.where(is_wrong, ends + 1, start + np.maximum(size, 0))


def _walk(view: memoryview, position: int, end: int, table: HeaderTable, slot: int, left: int) -> int:
    """The rest of one record's headers; where they end, −1 if something is wrong."""
    for at in range(slot, slot + left):
        for starts, sizes, size_min in (
            (table.key_start, table.key_size, 0),
            (table.value_start, table.value_size, -1),
        ):
            raw = shift = 0
            while shift < 7 * _VARINT_BYTES_MAX and position < end:
                byte = view[position]
                position += 1
                raw |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            else:
                return -1
            size = (raw >> 1) ^ -(raw & 1)
            if not size_min <= size <= end - position:
                return -1
            starts[at], sizes[at] = position, size
            position += max(size, 0)
    return position


RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, three more lengths: a byte each."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1

Problems = dict[int, str]
"""What is wrong, by the batch's place in the group."""


@dataclass(frozen=True, slots=True)
class Wants:
    """What is to be decoded; `headers` needs all that is before them."""

    timestamp: bool
    key: bool
    value: bool
    headers: bool


@dataclass(slots=True)
class Lanes:
    """Batches side by side in a buffer: an array for each of their numbers that records need."""

    first: Integers
    end: Integers
    count: Integers
    base_offset: Integers
    base_timestamp: Integers
    max_timestamp: Integers
    last_delta: Integers
    is_append_time: Flags
    previous_delta: Integers
    """Delta of the record before the first one here, in a batch that is decoded in pieces; −1 elsewhere."""

    @classmethod
    def of(cls, headers: Sequence[BatchHeader], first: Sequence[int], end: Sequence[int]) -> "Lanes":
        append = np.array([header.attributes & LOG_APPEND_TIME_MASK for header in headers], np.int64)
        return cls(
            np.array(first, np.int64),
            np.array(end, np.int64),
            np.array([header.record_count for header in headers], np.int64),
            np.array([header.base_offset for header in headers], np.int64),
            np.array([header.base_timestamp for header in headers], np.int64),
            np.array([header.max_timestamp for header in headers], np.int64),
            np.array([header.last_offset_delta for header in headers], np.int64),
            append != 0,
            np.full(len(headers), -1, np.int64),
        )


@dataclass(slots=True)
class Ranges:
    """Pieces of a buffer: where each begins, and its bytes, −1 for null."""

    start: Integers
    size: Integers


@dataclass(slots=True)
class RecordTable:
    """Records in order of offset. What was not wanted is None."""

    data: Bytes
    lane: Integers
    offset: Integers
    size: Integers
    """Size of the whole record, in bytes."""
    timestamp: Integers | None
    timestamp_type: Integers
    key: Ranges | None
    value: Ranges | None
    headers: HeaderTable | None


def told_records(headers: Sequence[BatchHeader], records_max: int) -> Iterator[RecordTable]:
    """The records of batches that have one for each of their offsets, without looking at them: sizes are 0, and what
    only a record knows is None. Tables of at most so many."""
    counts = np.array([header.record_count for header in headers], np.int64)
    ends = np.cumsum(counts)
    starts = ends - counts
    bases = np.array([header.base_offset for header in headers], np.int64)
    types = np.array([LOG_APPEND_TIME if header.has_append_time else CREATE_TIME for header in headers], np.int64)
    for first in range(0, int(ends[-1]), records_max):
        records = np.arange(first, min(first + records_max, int(ends[-1])))
        lane = np.searchsorted(ends, records, "right")
        offset = bases[lane] + records - starts[lane]
        sizes = np.zeros(len(records), np.int64)
        yield RecordTable(np.empty(0, np.uint8), lane, offset, sizes, None, types[lane], None, None, None)


def read_records(
    data: Bytes, lanes: Lanes, wants: Wants, starts: Integers | None = None
) -> tuple[RecordTable | None, Problems]:
    """The records of all batches, or what is wrong with some of them: then the others are to be read without them.

    Args:
        starts: where all records begin, if that is known; they then fill their batches.
    """
    problems = _check_counts(lanes)
    if problems:
        return None, problems
    stops = lanes.end
    if starts is None:
        starts, stops = find_starts(data, lanes.first, lanes.end, lanes.count)
    for lane in np.flatnonzero(stops != lanes.end).tolist():
        problems[lane] = "its records do not fill it exactly"
    if problems:
        return None, problems
    reader = _Reader(data, lanes, starts, stops)
    table = reader.table(wants)
    return (None, reader.problems) if reader.problems else (table, reader.problems)


def _check_counts(lanes: Lanes) -> Problems:
    # Before anything is allocated for so many records.
    room = lanes.end - lanes.first
    is_wrong = (lanes.count * RECORD_BYTES_MIN > room) | (lanes.count < 1)
    return {lane: f"{lanes.count[lane]} records in {room[lane]} bytes" for lane in np.flatnonzero(is_wrong).tolist()}


class _Reader:
    """Goes from field to field with all records side by side."""

    def __init__(self, data: Bytes, lanes: Lanes, starts: Integers, stops: Integers) -> None:
        self._data, self._lanes, self._starts = data, lanes, starts
        self._words = overlapping_words(data)
        self._lane_of = np.repeat(np.arange(len(lanes.count)), lanes.count)
        self._slot_ends = np.cumsum(lanes.count)
        self._ends = np.empty_like(starts)
        self._ends[:-1] = starts[1:]
        self._ends[self._slot_ends - 1] = stops
        self.problems: Problems = {}

    def table(self, wants: Wants) -> RecordTable | None:
        lanes = self._lanes
        raw_length, cursor = read_varints(self._words, self._starts)
        self._refuse((raw_length & np.uint64(1)).view(np.int64) != 0, "has a negative length")
        timestamp_delta, cursor = read_varints(self._words, cursor + 1)
        raw_delta, cursor = read_varints(self._words, cursor)
        offset = self._offsets(zigzag(raw_delta))
        timestamp = None
        if wants.timestamp:
            timestamp = np.repeat(lanes.base_timestamp, lanes.count) + zigzag(timestamp_delta)
            if lanes.is_append_time.any():
                is_append_time = np.repeat(lanes.is_append_time, lanes.count)
                timestamp = np.where(is_append_time, np.repeat(lanes.max_timestamp, lanes.count), timestamp)
        key = value = headers = None
        if wants.key or wants.value or wants.headers:
            key, cursor = self._range(cursor, "key")
        if wants.value or wants.headers:
            value, cursor = self._range(cursor, "value")
            headers, cursor = self._headers(cursor, wants.headers)
        self._refuse(cursor > self._ends, "is shorter than its fields")
        if self.problems:
            return None
        timestamp_type = np.where(lanes.is_append_time, LOG_APPEND_TIME, CREATE_TIME)
        sizes = self._ends - self._starts
        return RecordTable(
            self._data,
            self._lane_of,
            offset,
            sizes,
            timestamp,
            np.repeat(timestamp_type, lanes.count),
            key if wants.key else None,
            value if wants.value else None,
            headers,
        )

    def _offsets(self, delta: Integers) -> Integers:
        lanes = self._lanes
        previous = np.empty_like(delta)
        previous[1:] = delta[:-1]
        previous[self._slot_ends - lanes.count] = lanes.previous_delta
        self._refuse(delta <= previous, "has no larger offset than the one before it")
        self._refuse(delta > np.repeat(lanes.last_delta, lanes.count), "has an offset behind the batch's last one")
        return np.repeat(lanes.base_offset, lanes.count) + delta

    def _range(self, cursor: Integers, name: str) -> tuple[Ranges, Integers]:
        raw, start = read_varints(self._words, cursor)
        size = zigzag(raw)
        # Unsigned, so that what a wrong length gives cannot overflow the cursor: −1 is raw 1.
        self._refuse((size < -1) | (size > len(self._data)), f"has a {name} of a wrong length")
        np.minimum(size, len(self._data), out=size)
        return Ranges(start, size), start + np.maximum(size, 0)

    def _headers(self, cursor: Integers, is_wanted: bool) -> tuple[HeaderTable | None, Integers]:
        """The headers, and where the record ends if it is right; as far as is known when they are not wanted."""
        raw, cursor = read_varints(self._words, cursor)
        count = zigzag(raw)
        # Two lengths each.
        self._refuse((count < 0) | (count > (self._ends - cursor) >> 1), "has a wrong number of headers")
        self._refuse((count == 0) & (cursor != self._ends), "is longer than its fields")
        if not is_wanted or self.problems:
            return None, cursor
        headers, at_wrong = read_headers(self._data, self._words, cursor, self._ends, count)
        is_wrong = np.zeros(len(cursor), np.bool_)
        is_wrong[at_wrong] = True
        self._refuse(is_wrong, "has headers that do not fill it exactly")
        return headers, cursor

    def _refuse(self, is_wrong: Flags, what: str) -> None:
        """Name the batches that hold such records, each with its first one; the first thing found is said."""
        if not is_wrong.any():
            return
        records = np.flatnonzero(is_wrong)
        lanes, places = np.unique(self._lane_of[records], return_index=True)
        numbers = records[places] - (self._slot_ends - self._lanes.count)[lanes]
        for lane, number in zip(lanes.tolist(), numbers.tolist(), strict=True):
            self.problems.setdefault(lane, f"record {number} {what}")
