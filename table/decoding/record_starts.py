"""Where each record begins: the one thing about records that must be found one after the other.

A record's length is all that leads to the next one. The rest of its fields is then read for all records at once
(table.decoding.record_fields).

Why lockstep (one core, records of 100 bytes unless said): step j goes from the j-th record of every batch to the next
with a handful of numpy operations over all batches that still have one. A step costs 3.5 µs and 14 ns for each batch:
a record costs 22 ns among 450 batches of 16 KB, 59 among 64 and 222 among 16. A plain loop over one batch, which calls
nothing but append, costs 100 to 150 ns for each record however few there are; below LANES_MIN batches it is faster.
Pointer jumping (the length that would begin at every byte, then doubling) cost 1.1 µs for each record of 20 bytes,
5.3 µs of 100 and 49 µs of 1 KB, where the loop beside it took 0.16 to 0.26: it pays for every byte and is never the
fastest. With all fields the decoder takes about 160 ns for a record (benchmarks/record_decoding.py).
"""

from array import array

import numpy as np

from table.decoding.varint_lanes import Bytes, Integers, overlapping_words, read_varints

LANES_MIN = 24
"""Fewer batches than these are walked one by one."""

_LENGTH_BYTES_MAX = 5


def find_starts(data: Bytes, first: Integers, ends: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The position of every record, batch by batch, and where each batch's last record ends.

    A batch whose last record does not end at its end is corrupt; its positions then mean nothing.

    Args:
        data: the buffer, with padding.
        first: of each batch, where its records begin; and `ends`, where they must end.
        counts: how many records each has, all above 0 and no more than its bytes allow.
    """
    slots = np.cumsum(counts) - counts
    starts = np.empty(int(counts.sum()), np.int64)
    stops = first.copy()
    # Descending, so that the batches that still have records are always the first ones.
    order = np.argsort(-counts, kind="stable")
    steps = _steps_in_lockstep(counts[order])
    if steps:
        _lockstep(data, starts, stops, slots, order, counts, steps)
    view = data.data
    for lane in np.flatnonzero(counts > steps).tolist():
        left = int(counts[lane]) - steps
        found, stop = walk(view, int(stops[lane]), int(ends[lane]), left)
        at = int(slots[lane]) + steps
        starts[at : at + len(found)] = np.frombuffer(found, np.int64) if found else 0
        starts[at + len(found) : at + left] = stop
        stops[lane] = stop if len(found) == left else -1
    return starts, stops


def walk(view: memoryview, position: int, end: int, count: int) -> tuple["array[int]", int]:
    """At most `count` whole records from a position on: where they begin, and where the last of them ends."""
    starts = array("q")
    append = starts.append
    for _ in range(count):
        low = view[position]
        if low < 0x80:
            following = position + 1 + (low >> 1)
        else:
            high = view[position + 1]
            if high < 0x80:
                following = position + 2 + ((low & 0x7F | high << 7) >> 1)
            else:
                length, body = read_length(view, position)
                following = body + length
        if following > end:
            break
        append(position)
        position = following
    return starts, position


def read_length(view: memoryview, position: int) -> tuple[int, int]:
    """A record's length, without its sign, and where the record goes on; one that does not end in time is endless."""
    value = 0
    for number in range(_LENGTH_BYTES_MAX):
        byte = view[position + number]
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value >> 1, position + number + 1
    return 1 << 40, position + _LENGTH_BYTES_MAX


def _steps_in_lockstep(descending: Integers) -> int:
    """As many as there are records in each of at least LANES_MIN batches."""
    return int(descending[LANES_MIN - 1]) if len(descending) >= LANES_MIN else 0


def _lockstep(
    data: Bytes, starts: Integers, stops: Integers, slots: Integers, order: Integers, counts: Integers, steps: int
) -> None:
    pairs = np.ndarray((len(data) - 1,), "<u2", data.data, 0, (1,))
    words = overlapping_words(data)
    last = len(words) - 1
    remaining = counts[order]
    position, slot = stops[order], slots[order]
    active = len(order)
    for step in range(steps):
        if remaining[active - 1] <= step:
            active = int(np.searchsorted(-remaining, -step, "left"))
            stops[order[active : len(position)]] = position[active:]
            position, slot = position[:active], slot[:active]
        starts[slot] = position
        advance = _ADVANCES[pairs[position]]
        if not advance.all():
            _advance_far(words, position, advance)
        position += advance
        # Only lengths that are wrong lead out of the buffer; then the batch does not end where it must.
        np.minimum(position, last, out=position)
        slot += 1
    stops[order[: len(position)]] = position


def _advance_far(words: np.typing.NDArray[np.uint64], position: Integers, advance: Integers) -> None:
    """Fill in what is 0: lengths of three bytes and more."""
    far = np.flatnonzero(advance == 0)
    raw, body = read_varints(words, position[far])
    # Anything above is as wrong as this is, and cannot overflow.
    length = np.minimum(raw >> np.uint64(1), np.uint64(1 << 40)).view(np.int64)
    advance[far] = body - position[far] + length


def _two_byte_advances() -> Integers:
    """From a record's first two bytes to how far the next record is; 0 where its length has more than two bytes."""
    pair = np.arange(1 << 16, dtype=np.int64)
    low, high = pair & 0xFF, pair >> 8
    one, two = 1 + (low >> 1), 2 + ((low & 0x7F | high << 7) >> 1)
    return np.where(low < 0x80, one, np.where(high < 0x80, two, 0))


_ADVANCES = _two_byte_advances()
