"""`tidegate cat FILE TOPIC:PARTITION`: records that the tier holds, as JSON lines (docs/tools.md#cat).

- The tier alone: what only brokers hold is not shown. Where segments overlap, after an unclean election, the newest
  leader epoch's counts. Offsets that no segment holds are passed over with a line on standard error, those before the
  first segment too: retention deleted them, or the metadata topic has lost what it said of them (`verify` knows).
- With `dead` only segments of which nothing is on the lineage, each whole: records that upstream has lost. A line on
  standard error names each, as branches may have the same offsets.
- Every batch's CRC is checked. One that is corrupt is left out, with a line on standard error and exit code 1.
- Keys, values and headers' values are text where they are UTF-8; otherwise base64, and a field `…_encoding` says so.
- With `read_committed` aborted transactions are left out, as the transaction indexes tell. One that ends behind the
  tier is known to no index; a line on standard error says so.

Memory: one batch, and the indexes of a segment.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TextIO, TypeVar

import trio

from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.transaction_index import AbortedTransaction, absent_transaction_index, segment_transaction_index
from storage.log.log_walk import Depth, LogWalk, PassedOver, WalkedBatch
from storage.log.segment_scan import LogWindow
from storage.log.walk_start import walk_start
from storage.log.whole_records import WholeRecord, iterate_whole_records
from storage.metadata.catalog import Catalog
from storage.model import IndexType, RemoteLogSegmentMetadata, TopicIdPartition, Uuid, uuid_to_text
from storage.object_store.retries import call_with_retries, wait_in_thread
from storage.remote_storage_manager import OpenedSegment, RemoteStorageManager
from tidegate import exit_codes
from tidegate.commands.output import Progress, iso_time, print_json_line, text_or_base64
from tidegate.commands.selection import Place, finished, holes, one_partition
from tidegate.commands.tier import OpenTier, run_on_tier
from tidegate.commands.tier_lineage import TierLineage
from tidegate.config.model import Config

PIECE_BYTES = 1024 * 1024
RANGE_BYTES = 8 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatOptions:
    """Offsets and times are inclusive; None: no bound. `key`: only records of this very key."""

    place: Place
    topic_id: Uuid | None = None
    from_offset: int = 0
    to_offset: int | None = None
    from_timestamp_ms: int | None = None
    to_timestamp_ms: int | None = None
    key: bytes | None = None
    max_records: int | None = None
    read_committed: bool = False
    dead: bool = False

    def wants(self, record: WholeRecord) -> bool:
        """Return whether to show it."""
        return (
            record.offset >= self.from_offset
            and (self.to_offset is None or record.offset <= self.to_offset)
            and (self.from_timestamp_ms is None or record.timestamp_ms >= self.from_timestamp_ms)
            and (self.to_timestamp_ms is None or record.timestamp_ms <= self.to_timestamp_ms)
            and (self.key is None or record.key == self.key)
        )

    def wants_segment(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether it may hold what is wanted."""
        first, last = self.wanted_of(segment.start_offset, segment.end_offset)
        return first <= last and self.wants_time_of(segment)

    def wants_time_of(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Return whether it may hold a time that is wanted."""
        return self.from_timestamp_ms is None or segment.max_timestamp_ms >= self.from_timestamp_ms

    def wanted_of(self, first: int, last: int) -> tuple[int, int]:
        """Return what is wanted of these offsets; none if the first is above the last."""
        return max(first, self.from_offset), last if self.to_offset is None else min(last, self.to_offset)


def run(config: Config, options: CatOptions, out: TextIO) -> int:
    """Show them; exit_codes.FOUND_WRONG if something could not be shown."""

    async def work(tier: OpenTier) -> int:
        partition = one_partition(tier.catalog, options.place, options.topic_id)
        shown = Records(tier.storage_manager, tier.catalog, partition, options, note=note)
        with Progress("reading", "bytes", is_wanted=not out.isatty()) as progress:

            def went_on() -> None:
                trio.from_thread.check_cancelled()
                progress.told(shown.done_bytes, shown.total_bytes)

            def write() -> None:
                shown.went_on = went_on
                for record in shown:
                    print_json_line(out, record_fields(partition, record))

            await trio.to_thread.run_sync(write)
        if shown.has_open_end:
            note(
                "no transaction index tells how the last transactions ended: records that a broker would hide may be "
                "among these; a consumer with isolation.level=read_committed knows"
            )
        return tier.tell_problems() or (exit_codes.FOUND_WRONG if shown.corrupt_batches else exit_codes.DONE)

    return run_on_tier(config, work)


def note(sentence: str) -> None:
    """Say on standard error what the records do not."""
    print(f"tidegate: {sentence}", file=sys.stderr)


def record_fields(partition: TopicIdPartition, record: WholeRecord) -> dict[str, Any]:
    """A record as JSON has it."""
    headers = [{"key": key, **text_or_base64("value", value)} for key, value in record.headers]
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp": iso_time(record.timestamp_ms),
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": headers,
    }


@dataclass(slots=True)
class Records:
    """The records that are wanted, in order of their offsets; to be iterated once, in one thread.

    `note` hears what was passed over; `went_on` is called now and then, and may raise to end it.
    """

    manager: RemoteStorageManager
    catalog: Catalog
    partition: TopicIdPartition
    options: CatOptions
    note: Callable[[str], None]
    went_on: Callable[[], None] = lambda: None
    corrupt_batches: int = 0
    has_open_end: bool = False
    """Records were given of a transaction that may have been aborted behind the tier."""
    done_bytes: int = 0
    total_bytes: int = 0

    def __iter__(self) -> Iterator[WholeRecord]:
        """Raises RemoteStorageError while iterating."""
        with closing(self._wanted()) as wanted:
            yield from islice(wanted, self.options.max_records)

    def _wanted(self) -> Generator[WholeRecord, None, None]:
        options, key = self.options, self.partition
        segments = finished(self.catalog.list_segments(key.topic_id, key.partition))
        lineage = TierLineage(segments)
        if options.dead:
            segments = [segment for segment in segments if lineage.is_dead(segment)]
        if not segments:
            return
        self.total_bytes = sum(each.segment_size_bytes for each in segments if options.wants_segment(each))
        yield from self._of_dead(segments) if options.dead else self._of_lineage(segments, lineage)

    def _of_dead(self, segments: Sequence[RemoteLogSegmentMetadata]) -> Iterator[WholeRecord]:
        options = self.options
        for number, segment in enumerate(segments):
            if not options.wants_segment(segment):
                continue
            epochs = ", ".join(map(str, segment.segment_leader_epochs))
            offsets = f"offsets {segment.start_offset} to {segment.end_offset}"
            self.note(f"segment {uuid_to_text(segment.segment_id.id)}, leader epochs {epochs}, {offsets}:")
            done_bytes = self.done_bytes
            yield from filter(
                options.wants, self._of_segment(segment, options.from_offset, islice(segments, number, None))
            )
            self.done_bytes = done_bytes + segment.segment_size_bytes

    def _of_lineage(self, segments: Sequence[RemoteLogSegmentMetadata], lineage: TierLineage) -> Iterator[WholeRecord]:
        options, gaps, offset = self.options, deque([(0, segments[0].start_offset - 1), *holes(segments)]), -1
        for number, segment in enumerate(segments):
            while gaps and gaps[0][1] < segment.start_offset:
                first, last = options.wanted_of(*gaps.popleft())
                if first <= last and options.wants_time_of(segment):
                    self.note(f"offsets {first} to {last} are in no segment of the tier")
            if not options.wants_segment(segment):
                continue
            end = lineage.end_of(max(segment.segment_leader_epochs))
            done_bytes = self.done_bytes
            for record in self._of_segment(segment, max(offset, options.from_offset), islice(segments, number, None)):
                if record.offset >= end:
                    break  # a newer epoch has begun: this is a branch that was cut
                if record.offset >= offset:
                    offset = record.offset + 1
                    if options.wants(record):
                        yield record
            offset = max(offset, min(end, segment.end_offset + 1))
            self.done_bytes = done_bytes + segment.segment_size_bytes

    def _of_segment(
        self, segment: RemoteLogSegmentMetadata, offset: int, onwards: Iterable[RemoteLogSegmentMetadata]
    ) -> Iterator[WholeRecord]:
        opened = self._retried(segment, lambda: self.manager.open_log_segment(segment))
        fetch = partial(self._index, opened, segment)
        start, index = walk_start(fetch, segment, offset, self.options.from_timestamp_ms)
        aborted, is_complete = self._aborted(segment, onwards) if self.options.read_committed else ([], True)
        size_bytes, before = segment.segment_size_bytes, self.done_bytes
        walk = LogWalk(segment, start, size_bytes, Depth.BATCHES, index=index, recovers=True)
        window = LogWindow(
            opened, segment, size_bytes, start=start, piece_bytes=PIECE_BYTES, range_bytes=RANGE_BYTES, has_holes=True
        )
        with closing(window):
            for found in window.drive(walk.steps()):
                self.went_on()
                if isinstance(found, PassedOver):
                    self._note_corrupt(str(found.error))
                    continue
                for batch in found:
                    self.done_bytes = before + batch.position
                    if self.options.to_offset is not None and batch.header.base_offset > self.options.to_offset:
                        return
                    if batch.header.last_offset >= offset and not _is_aborted(batch, aborted):
                        self.has_open_end |= not is_complete and batch.header.is_transactional
                        yield from self._of_batch(segment, batch)
                del found

    def _of_batch(self, segment: RemoteLogSegmentMetadata, batch: WalkedBatch) -> Iterator[WholeRecord]:
        try:
            yield from iterate_whole_records(batch.header, batch.data)
        except CorruptObjectError as error:
            self._note_corrupt(f"segment {segment.segment_id}: batch at {batch.position}: {error}")

    def _index(self, opened: OpenedSegment, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return self._retried(segment, lambda: opened.fetch_index(index_type))

    def _aborted(
        self, segment: RemoteLogSegmentMetadata, onwards: Iterable[RemoteLogSegmentMetadata]
    ) -> tuple[list[AbortedTransaction], bool]:
        """Those that touch the segment, and whether that is all: an abort stands in the index of the segment that holds
        its marker, which may be behind the tier."""
        found: list[AbortedTransaction] = []
        for each in onwards:
            if each.txn_index_empty:
                continue
            opened = self._retried(each, partial(self.manager.open_log_segment, each))
            try:
                index = segment_transaction_index(self._index(opened, each, IndexType.TRANSACTION), each)
            except RemoteResourceNotFoundError as error:
                index = absent_transaction_index(error, each)
            entries, is_complete = index.collect_aborted(segment.start_offset, segment.end_offset + 1)
            found += entries
            if is_complete:
                return found, True
        return found, False

    def _retried(self, segment: RemoteLogSegmentMetadata, call: Callable[[], T]) -> T:
        return call_with_retries(call, segment, wait_in_thread)

    def _note_corrupt(self, reason: str) -> None:
        self.corrupt_batches += 1
        self.note(f"left out: {reason}; `tidegate verify` tells all that is wrong")


def _is_aborted(batch: WalkedBatch, aborted: Sequence[AbortedTransaction]) -> bool:
    header = batch.header
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )
