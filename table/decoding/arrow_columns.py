"""From records as numpy arrays to Arrow columns, without a Python object for any of them.

Rules:
1. A binary column is taken out of the buffer in one go: Arrow sees the whole buffer as one BinaryArray whose elements
   are in turn a record's bytes and what lies between it and the next record's, and `take` copies every other one.
   So nothing that Arrow holds refers to the buffer, which is used again.
2. Columns that are the same in every row are made once and sliced.
3. Timestamps become microseconds; the caller has refused those that cannot (TIMESTAMP_MS_MIN and _MAX).
4. A header's key that is not UTF-8 is decoded as Java does, with U+FFFD for what is wrong: Spark's rows have strings.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from protocol.record_batches import BatchHeader
from table.decoding.record_fields import Ranges, RecordTable
from table.decoding.varint_lanes import Bytes, Flags, Integers
from table.schema import HEADERS, arrow_schema

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN = -TIMESTAMP_MS_MAX
"""What Spark's millisToMicros takes: it multiplies exactly, and the Kafka source fails on anything beyond."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""Java replaces the three bytes of a surrogate by one U+FFFD, Python by three."""


class ColumnBuilder:
    """Makes RecordBatches of one topic partition."""

    def __init__(self, columns: Sequence[str], topic: str, partition: int) -> None:
        self._columns = tuple(columns)
        self._schema = arrow_schema(columns)
        self._same = {"topic": pa.scalar(topic, pa.string()), "partition": pa.scalar(partition, pa.int32())}
        self._repeated: dict[str, pa.Array] = {}

    def begin_segment(self, segment_id: str | None) -> None:
        """Rows are of this segment from now on; None: of none."""
        self._same["segment_id"] = pa.scalar(segment_id, pa.string())
        self._repeated.pop("segment_id", None)

    def build(
        self, table: RecordTable, rows: slice | Integers, row_count: int, headers: Sequence[BatchHeader]
    ) -> pa.RecordBatch:
        """Some rows of a table. `headers`: of the batches that its lanes are."""
        makers: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _binary(table.data, table.key, rows),
            "value": lambda: _binary(table.data, table.value, rows),
            "offset": lambda: pa.array(table.offset[rows]),
            "timestamp": lambda: _timestamps(table, rows),
            "timestampType": lambda: pa.array(table.timestamp_type[rows].astype(np.int32)),
            HEADERS: lambda: _headers(table, rows),
        }
        of_log = [name for name in self._columns if name in _LOG_COLUMNS]
        makers |= {name: partial(_LOG_COLUMNS[name], table, rows, headers) for name in of_log}
        arrays = [
            self._constant(name, row_count) if name in self._same else _typed(makers[name](), field.type)
            for name, field in zip(self._columns, self._schema, strict=True)
        ]
        if not arrays:
            # An Arrow batch without columns has no rows either, unless it comes from one that had some.
            return pa.RecordBatch.from_arrays([pa.nulls(row_count)], ["none"]).select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, row_count: int) -> pa.Array:
        known = self._repeated.get(name)
        if known is None or len(known) < row_count:
            known = self._repeated[name] = pa.repeat(self._same[name], row_count)
        return known[:row_count]


def _of_batches(
    value: Callable[[BatchHeader], int], table: RecordTable, rows: slice | Integers, headers: Sequence[BatchHeader]
) -> pa.Array:
    """A number of each record's batch; null for one below 0, which says that there is none."""
    numbers = np.array([value(header) for header in headers], np.int64)[table.lane[rows]]
    return pa.array(numbers, mask=numbers < 0)


def _sequences(table: RecordTable, rows: slice | Integers, headers: Sequence[BatchHeader]) -> pa.Array:
    """The producer's number of each record, which begins at 0 again behind the largest int32."""
    lanes = table.lane[rows]
    bases = np.array([header.base_sequence for header in headers], np.int64)[lanes]
    offsets = np.array([header.base_offset for header in headers], np.int64)[lanes]
    return pa.array((bases + table.offset[rows] - offsets) % 2**31, mask=bases < 0)


_LOG_COLUMNS: dict[str, Callable[[RecordTable, slice | Integers, Sequence[BatchHeader]], pa.Array]] = {
    "leader_epoch": partial(_of_batches, lambda header: header.partition_leader_epoch),
    "producer_id": partial(_of_batches, lambda header: header.producer_id),
    "producer_epoch": partial(_of_batches, lambda header: header.producer_epoch),
    "sequence": _sequences,
    "is_transactional": partial(_of_batches, lambda header: header.is_transactional),
    "batch_offset": partial(_of_batches, lambda header: header.base_offset),
    "batch_bytes": partial(_of_batches, lambda header: header.size_bytes),
    "size_bytes": lambda table, rows, _headers: pa.array(table.size[rows]),
}


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _timestamps(table: RecordTable, rows: slice | Integers) -> pa.Array:
    assert table.timestamp is not None
    return pa.array(table.timestamp[rows] * 1000).view(pa.timestamp("us", tz="UTC"))


def _binary(data: Bytes, ranges: Ranges | None, rows: slice | Integers) -> pa.Array:
    assert ranges is not None
    return take_ranges(data, ranges.start[rows], ranges.size[rows])


def take_ranges(data: Bytes, start: Integers, size: Integers) -> pa.Array:
    """A BinaryArray of copies of these ranges of the buffer, which follow each other; a size of −1 is null."""
    bounds = np.empty(2 * len(start) + 1, np.int32)
    bounds[0:-1:2] = start
    bounds[1::2] = start + np.maximum(size, 0)
    bounds[-1] = bounds[-2] if len(start) else 0
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * len(start), [None, pa.py_buffer(bounds), pa.py_buffer(data.data)]
    )
    is_null: Flags = size < 0
    places = np.arange(0, 2 * len(start), 2, dtype=np.int32)
    return whole.take(pa.array(places, mask=is_null if is_null.any() else None))


def _headers(table: RecordTable, rows: slice | Integers) -> pa.Array:
    headers = table.headers
    if headers is None or not len(headers.key_start):
        # As in the old formats, no record has any.
        return pa.nulls(len(table.offset[rows]), arrow_schema([HEADERS]).field(0).type)
    count, first = headers.count[rows], headers.first[rows]
    bounds = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=bounds[1:])
    which = np.repeat(first - bounds[:-1], count) + np.arange(bounds[-1])
    keys = take_ranges(table.data, headers.key_start[which], headers.key_size[which])
    values = take_ranges(table.data, headers.value_start[which], headers.value_size[which])
    return pa.ListArray.from_arrays(
        pa.array(bounds),
        pa.StructArray.from_arrays([as_text(keys), values], ["key", "value"]),
        # The Kafka source has null for a record without headers.
        mask=pa.array(count == 0),
    )


def as_text(keys: pa.Array) -> pa.Array:
    """Binary as strings; what is not UTF-8 as Java decodes it."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        # Each different key once: there are few.
        encoded = keys.dictionary_encode()
        different = encoded.dictionary.to_pylist()
        texts = [_SURROGATE.sub("\ufffd".encode(), key).decode("utf-8", "replace") for key in different]
        return pa.array(texts, pa.string()).take(encoded.indices)
