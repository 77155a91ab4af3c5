"""One batch that is too large to be inflated as a whole, or that cannot be: decoded piece by piece.

A piece is as many whole records as a buffer holds; what is left of the last one is moved to the front. Checks are
those of table.decoding.record_fields, and go on from piece to piece. What storage.log.batch_records finds wrong is
said from here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np

from protocol.record_batches import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from storage.errors import CorruptObjectError
from table.decoding.inflation import inflate_pieces, refuse_large
from table.decoding.record_fields import Lanes, RecordTable, Wants, read_records
from table.decoding.record_starts import read_length, walk
from table.decoding.varint_lanes import PADDING_BYTES, Bytes


def iterate_tables(
    header: BatchHeader, batch: memoryview, wants: Wants, data: Bytes, records_max: int
) -> Iterator[RecordTable]:
    """The records of a batch of v2, some at a time.

    Args:
        data: a buffer to work in; a table refers to it until the next one is asked for.

    Raises:
        CorruptObjectError: while iterating; says what is wrong, not where.
        RecordTooLargeError: while iterating: one has more bytes than the buffer.
    """
    buffer = _Buffer(inflate_pieces(header.attributes & COMPRESSION_MASK, batch[HEADER_BYTES:]), data)
    lanes = Lanes.of([header], [0], [0])
    done, previous_delta = 0, -1
    while done < header.record_count:
        buffer.fill()
        starts, stop = walk(buffer.view, 0, buffer.filled, min(header.record_count - done, records_max))
        if not starts:
            buffer.refuse()
        table, problems = read_records(
            data,
            replace(
                lanes, count=np.array([len(starts)]), end=np.array([stop]), previous_delta=np.array([previous_delta])
            ),
            wants,
            np.frombuffer(starts, np.int64),
        )
        if table is None:
            raise CorruptObjectError(f"{problems[0]}, counted from record {done}")
        yield table
        done += len(starts)
        previous_delta = int(table.offset[-1]) - header.base_offset
        buffer.drop(stop)
    if not buffer.is_at_end():
        raise CorruptObjectError("its records do not fill it exactly")


class _Buffer:
    """The bytes that have been inflated and not been decoded yet."""

    def __init__(self, pieces: Iterator[bytes], data: Bytes) -> None:
        self._pieces, self._data = pieces, data
        self._next = b""
        self.view = data.data
        self.filled = 0

    def fill(self) -> None:
        room = len(self._data) - PADDING_BYTES
        while True:
            self._next = self._next or next(self._pieces, b"")
            size = min(len(self._next), room - self.filled)
            if not size:
                return
            self.view[self.filled : self.filled + size] = self._next[:size]
            self.filled, self._next = self.filled + size, self._next[size:]

    def drop(self, size: int) -> None:
        self._data[: self.filled - size] = self._data[size : self.filled].copy()
        self.filled -= size

    def is_at_end(self) -> bool:
        return not self.filled and not self._next and not next(self._pieces, b"")

    def refuse(self) -> NoReturn:
        """Raise why no whole record is in the buffer, although it is full or all has been inflated."""
        self.view[self.filled : self.filled + PADDING_BYTES] = bytes(PADDING_BYTES)
        length, body = read_length(self.view, 0)
        refuse_large(body + length, self.filled + len(self._next), self._pieces)
