"""The headers of many records at once: step j reads the j-th header of every record that has one.

Records that have far more headers than others are read one by one where too few of them are left: numpy would then
cost more than a loop. Nothing is copied: a header is two ranges of the buffer.

Spec: KIP-82. A header's key has a length of 0 or more, its value one of −1 (null) or more.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.decoding.varint_lanes import Bytes, Integers, Words, read_varints, zigzag

LANES_MIN = 16
"""Fewer records than these that still have headers are read one by one."""

_VARINT_BYTES_MAX = 5


@dataclass(slots=True)
class HeaderTable:
    """All headers, record by record. Sizes are in bytes, −1 for null."""

    count: Integers
    """Of each record."""
    first: Integers
    """Of each record, the place of its first header in the arrays below."""
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
