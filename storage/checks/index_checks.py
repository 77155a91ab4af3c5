"""A segment's offset and time index against its batches, in one pass beside the walk of its log.

Each check gets every batch in order, and bytes that could not be walked, over which it does not judge. It
keeps the first problem that it finds and counts the others. Entries are read in place, never made into lists.

Offset index (docs/kafka-tier.md#indexes): an entry's position is where a batch begins, its offset the last one of that
batch or, as brokers before 4.0 had it for all batches of one append, of a batch after it. Positions and offsets ascend.
Time index: an entry's offset lies in the batch that first had its timestamp, the newest so far; the last entry has the
segment's newest.
Both get their entries at the same moments, but for the last of the time index and one more whenever a broker stops. An
offset index that was cut between two entries shows by that, and by batches too far from the last entry that is left.
"""

from itertools import islice
from typing import Protocol

from protocol.record_batches import BatchHeader
from storage.indexes.offset_index import ENTRY as OFFSET_ENTRY
from storage.indexes.offset_index import INDEX_INTERVAL_BYTES
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.time_index import ENTRY as TIME_ENTRY
from storage.log.transaction_check import PRODUCERS_MAX, Problems
from storage.model import RemoteLogSegmentMetadata


class BatchCheck(Protocol):
    """What follows a walk."""

    problems: Problems

    def batch(self, position: int, header: BatchHeader, is_valid: bool, is_abort: bool | None) -> None:
        """The next batch. Unless it `is_valid`, nothing in its header is to be relied on but, perhaps, its size."""
        ...

    def skip(self, end_position: int) -> None:
        """Note that what lies before `end_position` and did not come is not known."""
        ...

    def finish(self, is_complete: bool) -> None:
        """No more batches; `is_complete`: the walk reached the log's end and skipped nothing."""
        ...


class OffsetIndexCheck:
    """Args: data: an index that storage.indexes.offset_index.OffsetIndex takes."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.problems = Problems(OFFSET_ENTRY.size)
        self.last_entry_offset = base_offset - 1
        """The index's last offset; one below the segment's if it is empty."""
        if data:
            self.last_entry_offset = base_offset + OFFSET_ENTRY.unpack_from(data, len(data) - OFFSET_ENTRY.size)[0]
        self._base_offset = base_offset
        self._entries = enumerate(OFFSET_ENTRY.iter_unpack(data))
        self._next = self._advance()
        self._open: tuple[int, int] | None = None
        """Number and offset of the entry whose offset no batch has reached yet."""
        self._interval = _IntervalGuess()

    @property
    def looks_cut(self) -> bool:
        """Return whether batches are further from the last entry than batches before it are from theirs."""
        return self._interval.is_exceeded

    def batch(self, position: int, header: BatchHeader, is_valid: bool, is_abort: bool | None) -> None:
        self._drop_before(position, is_known=True)
        if self._next is not None and self._next[2] == position:
            self._end_open(is_known=True)
            self._open = self._next[:2]
            self._interval.entry(position, self._next[1])
            self._next = self._advance()
        elif is_valid:
            self._interval.batch(position, header.base_offset)
        if self._open is None:
            return
        number, offset = self._open
        if not is_valid:
            self._open = None
        elif header.last_offset >= offset:
            if header.last_offset > offset:
                batch_offsets = f"{header.base_offset} to {header.last_offset}"
                self.problems.add_entry(
                    number, f"has offset {offset}, where the batch at {position} has {batch_offsets}"
                )
            self._open = None

    def skip(self, end_position: int) -> None:
        self._open = None
        self._drop_before(end_position, is_known=False)

    def finish(self, is_complete: bool) -> None:
        self._drop_before(None, is_known=is_complete)
        self._end_open(is_known=is_complete)

    def _drop_before(self, position: int | None, *, is_known: bool) -> None:
        while self._next is not None and (position is None or self._next[2] < position):
            number, _, at = self._next
            if is_known:
                self.problems.add_entry(number, f"points at {at}, where no batch of the log begins")
            self._next = self._advance()

    def _end_open(self, *, is_known: bool) -> None:
        if self._open is not None and is_known:
            number, offset = self._open
            self.problems.add_entry(number, f"has offset {offset}, which its batches do not reach")
        self._open = None

    def _advance(self) -> tuple[int, int, int] | None:
        """The next entry: its number, offset and position."""
        number, entry = next(self._entries, (0, None))
        return None if entry is None else (number, self._base_offset + entry[0], entry[1])


class TimeIndexCheck:
    """Args: data: an index that storage.indexes.time_index.TimeIndex takes."""

    def __init__(self, data: bytes, base_offset: int) -> None:
        self.problems = Problems(TIME_ENTRY.size)
        self.last_indexed_offset = base_offset - 1
        """Offset of the last entry but one: of the last that was made together with one of the offset index."""
        if len(data) >= 2 * TIME_ENTRY.size:
            self.last_indexed_offset = base_offset + TIME_ENTRY.unpack_from(data, len(data) - 2 * TIME_ENTRY.size)[1]
        self._last_timestamp_ms = TIME_ENTRY.unpack_from(data, len(data) - TIME_ENTRY.size)[0] if data else -1
        self._end = len(data)
        self._base_offset = base_offset
        self._entries = enumerate(TIME_ENTRY.iter_unpack(data))
        self._next = self._advance()
        self._newest_ms = -1
        self._is_newest_known = True

    def batch(self, position: int, header: BatchHeader, is_valid: bool, is_abort: bool | None) -> None:
        if not is_valid:
            self._is_newest_known = False
            return
        self._drop_before(header.base_offset, is_known=self._is_newest_known)
        self._newest_ms = max(self._newest_ms, header.max_timestamp)
        while self._next is not None and self._next[2] <= header.last_offset:
            number, timestamp_ms, offset = self._next
            newest_ms = self._newest_ms if self._is_newest_known else timestamp_ms
            if not timestamp_ms == header.max_timestamp == newest_ms:
                self.problems.add_entry(
                    number,
                    f"has time {timestamp_ms} ms at offset {offset}, whose batch has "
                    f"{header.max_timestamp} ms and the newest up to there {newest_ms} ms",
                )
            self._next = self._advance()

    def skip(self, end_position: int) -> None:
        self._is_newest_known = False

    def finish(self, is_complete: bool) -> None:
        is_known = is_complete and self._is_newest_known
        self._drop_before(None, is_known=is_known)
        if is_known and self._last_timestamp_ms != self._newest_ms:
            self.problems.add(
                self._end,
                f"it ends with time {self._last_timestamp_ms} ms, and the log's newest is {self._newest_ms} ms",
            )

    def _drop_before(self, offset: int | None, *, is_known: bool) -> None:
        while self._next is not None and (offset is None or self._next[2] < offset):
            if is_known:
                number, _, at = self._next
                self.problems.add_entry(number, f"has offset {at}, which no batch of the log has")
            self._next = self._advance()

    def _advance(self) -> tuple[int, int, int] | None:
        """The next entry: its number, time and offset."""
        number, entry = next(self._entries, (0, None))
        return None if entry is None else (number, entry[0], self._base_offset + entry[1])


def cut_problem(offsets: OffsetIndexCheck, times: TimeIndexCheck) -> str | None:
    """A sentence if entries at the offset index's end are missing; None if nothing tells of that.

    Only when both signs are there: each may by chance come from stops of the broker, or from large appends.
    """
    if not offsets.looks_cut or times.last_indexed_offset <= offsets.last_entry_offset:
        return None
    return (
        f"it ends at offset {offsets.last_entry_offset}, and the time index, written with it, goes on to "
        f"{times.last_indexed_offset}: entries at its end are missing"
    )


class _IntervalGuess:
    """`index.interval.bytes`, which nothing in the tier tells: from how far entries are apart and batches from them."""

    def __init__(self) -> None:
        self._entry_position = 0
        self._entry_offset = -1
        self._between_entries_min: int | None = None
        self._without_entry_max = 0
        self._since_entry_max = 0

    def entry(self, position: int, offset: int) -> None:
        distance = position - self._entry_position
        self._between_entries_min = min(distance, self._between_entries_min or distance)
        self._without_entry_max = max(self._without_entry_max, self._since_entry_max)
        self._since_entry_max = 0
        self._entry_position, self._entry_offset = position, offset

    def batch(self, position: int, base_offset: int) -> None:
        """A batch without an entry of its own; those of one append share one."""
        if base_offset > self._entry_offset:
            self._since_entry_max = max(self._since_entry_max, position - self._entry_position)

    @property
    def is_exceeded(self) -> bool:
        between = self._between_entries_min
        # Kafka's default is likely when nothing contradicts it; else only what is surely too far counts.
        limit = max(INDEX_INTERVAL_BYTES, self._without_entry_max)
        if between is not None and between <= limit:
            limit = max(between - 1, self._without_entry_max)
        return self._since_entry_max > limit


# Producer snapshot: its state of a producer has the last offset of that producer's last batch, unless a new epoch has
# just emptied it (−1); no offset is beyond the segment. Producers may be missing: they expire.


class ProducerSnapshotCheck:
    """Args: states: of the segment's snapshot."""

    def __init__(self, states: tuple[ProducerState, ...], segment: RemoteLogSegmentMetadata) -> None:
        self.problems = Problems()
        self._end_offset = segment.end_offset
        self._states = {state.producer_id: state.last_offset for state in islice(states, PRODUCERS_MAX)}
        self._seen: dict[int, int] = {}
        self._judges = True

    def batch(self, position: int, header: BatchHeader, is_valid: bool, is_abort: bool | None) -> None:
        if not is_valid:
            self._judges = False
        elif header.producer_id in self._states and not header.is_control:
            self._seen[header.producer_id] = header.last_offset

    def skip(self, end_position: int) -> None:
        self._judges = False

    def finish(self, is_complete: bool) -> None:
        for producer_id, last_offset in self._states.items():
            if last_offset > self._end_offset:
                self.problems.add(
                    0, f"producer {producer_id} is at offset {last_offset}, the segment ends at {self._end_offset}"
                )
            elif self._judges and is_complete and last_offset >= 0:
                seen = self._seen.get(producer_id, last_offset)
                if seen != last_offset:
                    self.problems.add(
                        0,
                        f"producer {producer_id} is at offset {last_offset}, its last batch in the log ends at {seen}",
                    )
