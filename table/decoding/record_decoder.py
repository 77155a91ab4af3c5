"""Kafka's record batches as Arrow RecordBatches, without a Python call for a record or a field.

    decoder = RecordDecoder(options, "orders", 0, where="tiered/…/00000000000000000000.log")
    for rows in decoder.decode(batches, first_offset=0, end_offset=100):
        ...

How: batches are inflated side by side into one buffer (a group), the positions of their records are found in
lockstep (table.decoding.record_starts), the fields of all records are read at once
(table.decoding.record_fields), and Arrow copies keys and values out of the buffer (table.decoding.arrow_columns).

Rules:
1. Memory: a group has at most a quarter of `task_bytes_max` inflated, and a record for each of its KiB (RECORDS_MAX),
   with about 200 bytes of arrays each; a produced batch an eighth and as many rows, or one record. With 64 MiB that
   was measured to be 40 MiB at most. A batch that is larger than a group is decoded piece by piece. A record that is
   larger is a RecordTooLargeError that names `taskBytes`.
2. Columns that are not wanted are not decoded; for those that headers of batches tell, offsets among them, nothing is
   inflated but batches that have lost records. Control batches, and batches that are wholly outside the offsets or
   older than the timestamps, are not even inflated.
3. A corrupt batch is a CorruptObjectError that names `where` and the batch's position, the first one of a group. With
   `skips_bad_records` and `on_bad`, that batch alone is left out, whole, and `on_bad` gets it.
4. Rows are in order of offset as the batches are. A timestamp that Spark cannot have makes its batch corrupt, if it
   would be a row: the Kafka source fails there too.

CRCs are the scan's to check. Synchronous; a decoder belongs to one thread at a time.
"""

import numpy as np

from protocol.record_batches import BatchHeader
from table.decoding.arrow_columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from table.decoding.record_fields import Problems, RecordTable
from table.decoding.varint_lanes import Flags
from table.tasks import ReadOptions

# Which records are rows: offsets in a range, timestamps within bounds.
#
# Batches are left out by their headers where that is certain: a v2 batch and a v1 message say their largest timestamp,
# and their smallest only with LogAppendTime; the offset of a v0 or v1 message is the last one in it.


class RowSelection:
    """The bounds of one call: offsets in [first_offset, end_offset), and the options' timestamps."""

    def __init__(self, options: ReadOptions, first_offset: int, end_offset: int, *, must_fit: bool) -> None:
        """`must_fit`: timestamps will be Spark's, which end at ±292,277 years."""
        self._first_offset, self._end_offset = first_offset, end_offset
        self._min_ms, self._max_ms = options.timestamp_min_ms, options.timestamp_max_ms
        self._must_fit = must_fit

    def may_hold(self, header: BatchHeader) -> bool:
        """Return whether a batch may have rows."""
        if header.is_control or header.last_offset < self._first_offset:
            return False
        if header.magic >= 2 and header.base_offset >= self._end_offset:
            return False
        if self._max_ms is not None and header.has_append_time and header.max_timestamp > self._max_ms:
            return False
        return self._min_ms is None or header.max_timestamp >= self._min_ms

    def keep(self, table: RecordTable) -> tuple[Flags | None, Problems]:
        """Which records are rows, None for all; and the batches with a row whose timestamp Spark cannot have."""
        offset, timestamp = table.offset, table.timestamp
        keep: Flags | None = None
        if offset.min() < self._first_offset or offset.max() >= self._end_offset:
            keep = (offset >= self._first_offset) & (offset < self._end_offset)
        for bound, is_within in ((self._min_ms, np.greater_equal), (self._max_ms, np.less_equal)):
            if bound is not None and timestamp is not None:
                flags = is_within(timestamp, bound)
                keep = flags if keep is None else keep & flags
        problems: Problems = {}
        if timestamp is not None and self._must_fit and not _all_fit(table):
            is_wrong = (timestamp < TIMESTAMP_MS_MIN) | (timestamp > TIMESTAMP_MS_MAX)
            for record in np.flatnonzero(is_wrong if keep is None else is_wrong & keep).tolist():
                problems.setdefault(int(table.lane[record]), f"a timestamp of {timestamp[record]} ms")
        return keep, problems


def _all_fit(table: RecordTable) -> bool:
    timestamp = table.timestamp
    return timestamp is None or bool(timestamp.min() >= TIMESTAMP_MS_MIN and timestamp.max() <= TIMESTAMP_MS_MAX)
