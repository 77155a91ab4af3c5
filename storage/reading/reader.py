"""Offset → batches: one read from the tier (docs/kafka-tier.md#the-read).

The path: lineage says which epoch an offset was written in, the catalog which segment holds it, the offset
index where to look, the cache hands out blocks, and the batch headers say where the answer begins. What is
returned is the segment's own bytes as views into cached blocks: never joined, never decoded (docs/protocol.md#l5).

Rules kept from the broker:
- The first batch returned is the first whose last offset is at or above the fetch offset; it may begin below.
- One oversize first batch is returned whole if `minimum_one_batch`; otherwise the answer is empty.
- An answer ends with its segment; `max_bytes` may cut its last batch, which clients discard.
- An offset in a hole (compaction) is answered from the next segment.
As its finder says (`segment_finder`):
- A READ_COMMITTED answer ends in front of the first batch that begins in the local log: the aborted transactions of
  what begins there are the broker's to tell.
- Offsets that no segment holds may be stepped over, to the next segment that begins below the local log.
Added:
- The CRC of every whole batch is checked the first time it is handed out.
- An entry of the offset index is believed only if it leads to a batch of its offset, and not far from the one that is
  looked for (`batch_walk.SPARSE_WALK_BYTES`); otherwise the index is rebuilt.
- A reader that reads on stays in its segment without a look into the catalog (`ReadAhead.blocks_at`), while that and
  the lineage are what they were: also where another segment begins that has the same batches.
- A large answer is collected piece by piece. What is contiguous when the time is up, or when there is no room for more,
  is the answer: whole batches, at least one (docs/protocol.md#l3).
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from protocol.record_batches import HEADER_BYTES
from storage.cache.block_cache import AskedBlocks, BlockCache
from storage.cache.blocks import SegmentBlocks
from storage.cache.held_blocks import AnswerBlocks, Room
from storage.cache.read_ahead import Prefetcher, Read
from storage.cache.segment_parts import SegmentParts
from storage.indexes.offset_index import OffsetIndex
from storage.log.batch_walk import (
    SPARSE_WALK_BYTES,
    FoundBatch,
    IndexMismatchError,
    SegmentWindow,
    SparseIndexError,
    batch_begun_at,
    check_index_entry,
    check_walk,
    end_offset,
    find_first_batch,
    unverified_bytes,
    verify_batches,
)
from storage.log.log_walk import CorruptLogError
from storage.log.transaction_check import AnswerLog
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from storage.reading.aborted_transactions import AbortSearch, TierAborts
from storage.reading.segment_finder import LocalLogIsNextError, SegmentFinder
from storage.reading.segment_finder import OffsetNotInTierError as OffsetNotInTierError
from storage.steps import Steps, waited

VERIFY_IN_THREAD_BYTES = 256 * 1024
"""From here on CRC-32C runs in a thread (docs/protocol.md#read-ahead): below, the hop costs more than the sum."""

LOOK_AHEAD_BYTES = 64 * 1024
"""How far beyond the index position the first read asks: an index entry every 4 KiB, batches mostly below 64 KiB."""

GUESS_ANSWER_BYTES_MIN = 256 * 1024
"""A client that asks for less looks at a record here and there: a guess would cost more than all that it reads."""

LIKELY_ANSWERS = 4
"""Clients that read this much usually continue, so the first GET covers four answers."""

PIECE_BYTES = 4 * 1024 * 1024
"""So much of an answer is asked for at first. The next piece is asked for when half of the last has come, and is twice
as large, up to PIECE_BYTES_MAX: a read that gets little of a busy link has little under way when its time is up."""

PIECE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class Origin:
    """Where an answer's bytes come from: `start` is the position of its first in the segment's log."""

    source: SegmentBlocks
    start: int
    cache: BlockCache
    answers: AnswerBlocks
    reader: Hashable

    async def read(self, first: int, end: int) -> "TierRecords":
        """The bytes [first, end) of the answer once more, with a room of their own; nothing is checked.

        Raises:
            RemoteStorageError: the store does not give them, for instance because retention was faster.
        """
        grid, start, end = self.source.grid, self.start + first, self.start + end
        numbers = range(grid.number_at(start), grid.number_at(end - 1) + 1)
        room = self.answers.room(self.reader)
        try:
            await room.reserve(grid.end(numbers[-1]) - grid.start(numbers[0]))
            blocks, _ = await self.cache.blocks(self.source, numbers[0], numbers[-1], self.reader)
        except BaseException:
            room.release()
            raise
        window = SegmentWindow(self.source.segment, grid.block_bytes)
        window.add(numbers[0], blocks)
        room.keep(blocks)
        return TierRecords(window.views(start, end), end - start, room=room)


@dataclass(slots=True)
class TierRecords:
    """One answer: views whose concatenation is a run of raw batches. Empty when one batch would not fit.

    `room`: the blocks that the views keep alive; the sender of the answer releases it then.
    `aborts`: what the tier knows of the answer's aborted transactions, of a READ_COMMITTED read that has records.
    `origin`: where the same bytes are read once more, should the views have to be given up before they are sent.
    """

    buffers: list[memoryview]
    size_bytes: int
    first_batch_too_large: bool = False
    room: Room | None = field(default=None, compare=False)
    aborts: TierAborts | None = None
    origin: "Origin | None" = field(default=None, compare=False)

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks that are held."""
        return 0 if self.room is None else self.room.kept_bytes

    def offsets(self) -> tuple[int, int]:
        """The first batch's base offset, and one more than the last offset of the last whole batch. Before `release`,
        and not of an empty answer.

        A message older than v2 that wraps others names the last offset of them only.
        """
        assert self.origin is not None
        assert self.room is not None
        grid, start = self.origin.source.grid, self.origin.start
        window = SegmentWindow(self.origin.source.segment, grid.block_bytes)
        window.add(grid.number_at(start), [*self.room.blocks])
        return window.header_at(start).base_offset, end_offset(window, start, start + self.size_bytes)

    def release(self) -> None:
        """The answer is sent, or nobody wants it. Idempotent."""
        if self.room is not None:
            self.room.release()


class ReadTime:
    """The time of one read. What the read has when it is up is its answer; a read that has no batch then is cancelled
    by `end`, and not by itself: what it waits for may have come, to a loop that is late.

        time = ReadTime(deadline_s)
        with time.scope():
            records = await finish(reader.read(…, time=time))

    Args:
        deadline_s: by trio's clock: from then on a read that has a batch collects no more of them.
    """

    __slots__ = ("_is_given_up", "_more", "_whole", "deadline_s", "has_batch", "room")

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.room: Room | None = None
        self.has_batch = False
        """Whether the read will have an answer when the time is up."""
        self._is_given_up = False
        self._whole: trio.CancelScope | None = None
        self._more: trio.CancelScope | None = None

    def scope(self) -> trio.CancelScope:
        """To enter before the read waits."""
        self._whole = trio.CancelScope()
        if self._is_given_up:
            self._whole.cancel()
        return self._whole

    @property
    def is_late(self) -> bool:
        """Return whether the read has nothing yet, and that is not for want of memory."""
        return not self.has_batch and not (self.room is not None and self.room.is_waiting)

    def end(self) -> None:
        """The time is up now."""
        if not self.has_batch:
            self.give_up()
            return
        self.deadline_s = -math.inf
        if self._more is not None:
            self._more.cancel()

    def give_up(self) -> None:
        """Nobody wants the answer."""
        self._is_given_up = True
        if self._whole is not None:
            self._whole.cancel()

    async def more(self, wait: Callable[[], Awaitable[object]]) -> bool:
        """For the reader, which has a batch and waits for more of them: whether they came before the time was up."""
        with trio.CancelScope(deadline=self.deadline_s) as self._more:
            await wait()
            return True
        return False


@dataclass(slots=True)
class _Asked:
    """What a read wants of its segment."""

    offset: int
    max_bytes: int
    minimum_one_batch: bool
    committed: bool
    time: ReadTime | None
    finder: SegmentFinder
    found_by: tuple[int, LeaderEpochLineage]
    """The catalog's generation, of the partition, and the lineage."""

    @property
    def lineage(self) -> LeaderEpochLineage:
        return self.found_by[1]

    @property
    def begins_below(self) -> int | None:
        """No batch of the answer is to begin at this offset or beyond."""
        return self.finder.cuts_at if self.committed else None


@dataclass(slots=True)
class _Read:
    """One attempt to read one segment: what it has so far, and what it has asked for beyond that.

    `asked_end`: a byte position, 0 before the first block is asked for.
    """

    source: SegmentBlocks
    window: SegmentWindow
    room: Room
    reader: Hashable
    likely_bytes: int
    waited: bool = False
    asked_end: int = 0
    asks: deque[AskedBlocks] = field(default_factory=deque)

    def take(self, end: int) -> Steps[None]:
        """Blocks that were asked for, until everything below `end` is here."""
        while self.window.end < end:
            yield from self.take_more()

    def take_more(self, time: ReadTime | None = None) -> Steps[bool]:
        """Wait for the next block, which was asked for, and take what is here then; False: there was no time for it."""
        asked, self.waited = self.asks[0], True
        if (yield from waited(asked.wait if time is None else partial(time.more, asked.wait))) is False:
            return False
        self.take_here()
        return True

    def take_here(self) -> None:
        """Take all that was asked for and is here."""
        while self.asks:
            self.window.extend(self.asks[0].take())
            if len(self.asks[0]):
                break
            self.asks.popleft().close()

    def close(self) -> None:
        """Nothing more is taken."""
        for asked in self.asks:
            asked.close()


@dataclass(slots=True)
class _Found:
    """What a read found; `records` None: all batches end below the offset. `start`: where in the log they begin.
    `cut_offset`: where the batch begins that the answer was cut in front of."""

    read: _Read
    records: TierRecords | None
    start: int
    cut_offset: int | None = None


class TierReader:
    """Reads batches. Owned by the trio thread; safe for any number of tasks.

    Args:
        prefetcher: None for no read-ahead.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        parts: SegmentParts,
        cache: BlockCache,
        answers: AnswerBlocks,
        prefetcher: Prefetcher | None,
    ) -> None:
        self._catalog = catalog
        self.finder = SegmentFinder(catalog)
        self._opened = parts.opened
        self._indexes = parts.offset_indexes
        self._cache = cache
        self._answers = answers
        self.prefetcher = prefetcher
        self._abort_search = AbortSearch(parts.transaction_indexes, parts.open_transactions, self._is_finished)
        self._given_up: dict[Hashable, set[TopicIdPartition]] = {}
        """Reads that were not waited for to the end: the next finds the blocks, and has waited all the same."""

    def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        minimum_one_batch: bool,
        lineage: LeaderEpochLineage,
        reader: Hashable = None,
        committed: bool = False,
        time: ReadTime | None = None,
        finder: SegmentFinder | None = None,
    ) -> Steps[TierRecords]:
        """In steps: the batches from `offset` on, at most max_bytes, and fewer if the time is up or room is scarce.

        Args:
            time: whose scope is entered before the read waits; None: until all of the answer is there.
            reader: whose read it is: sequential reads of one reader are read ahead for.
            committed: READ_COMMITTED: with what the tier knows of the answer's aborted transactions.
            finder: finds the segments; None: by the catalog alone.

        Raises:
            OffsetNotInTierError: the tier does not hold the offset.
            RemoteStorageError: it should, and cannot be read.
        """
        finder = finder or self.finder
        found_by = self._catalog.generation(partition.topic_id, partition.partition), lineage
        source: SegmentBlocks | None = None
        if self.prefetcher is not None:
            source = self.prefetcher.blocks_at(reader, partition, offset, found_by)
        while True:
            segment = finder.segment_for(partition, offset, lineage) if source is None else source.segment
            if committed:
                finder.check_end(segment)
            source = source or self._cache.blocks_of(segment, (yield from self._opened.in_steps(segment)))
            wishes = max(offset, segment.start_offset), max_bytes, minimum_one_batch, committed
            asked = _Asked(*wishes, time, finder, found_by)
            answer = yield from self._read_segment(source, asked, reader)
            if answer is not None:
                return answer
            offset, source = segment.end_offset + 1, None
            if asked.begins_below is not None and offset >= asked.begins_below:
                raise LocalLogIsNextError(f"{partition}: no batch begins at or above offset {offset} in the tier")

    def forget_reader(self, reader: Hashable) -> None:
        """A reader has gone: nothing is read ahead for it any more."""
        self._given_up.pop(reader, None)
        if self.prefetcher is not None:
            self.prefetcher.forget_reader(reader)

    def _is_finished(self, segment: RemoteLogSegmentMetadata) -> bool:
        now = self._catalog.find_segment(segment.segment_id)
        return now is not None and now.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    def _read_segment(self, source: SegmentBlocks, asked: _Asked, reader: Hashable) -> Steps[TierRecords | None]:
        """The answer from one segment; None if all its batches end below the offset."""
        segment, index = source.segment, None
        if asked.offset == segment.start_offset:
            # What begins with the segment is found without an index; what is read next is not.
            self._indexes.fetch_soon(segment)
        else:
            index = self._indexes.at_hand(segment, asked.offset)
            if index is None:
                self._guess(source, asked)
                index = yield from self._indexes.in_steps(segment, asked.offset)
        room = self._answers.room(reader)
        if asked.time is not None:
            asked.time.room = room
        try:
            index, found = yield from self._read_by_index(source, index, asked, room, reader)
            read, records, start = found.read, found.records, found.start
            if asked.committed and records is not None and records.size_bytes:
                if index is None:
                    index = yield from self._indexes.in_steps(segment, asked.offset)
                aborts = yield from self._aborts(found, index, records.size_bytes, asked)
                records = replace(records, aborts=aborts)
        except BaseException as error:
            room.release()
            if isinstance(error, trio.Cancelled):
                self._given_up.setdefault(reader, set()).add(segment.topic_id_partition)
            raise
        read.waited |= self._gave_up_before(reader, segment.topic_id_partition)
        if records is None or not records.size_bytes:
            room.release()
            return records
        self._read_ahead(found, start + records.size_bytes, asked)
        return records

    def _guess(self, source: SegmentBlocks, asked: _Asked) -> None:
        """Fetch what the read is likely to need beside its index, which it would have to wait for first: offsets are
        spread about evenly over a segment. Where they are not, a GET was for nothing."""
        segment = source.segment
        if self.prefetcher is None or asked.max_bytes < GUESS_ANSWER_BYTES_MIN:
            return
        if self._indexes.resident(segment) is not None:
            return
        offsets = segment.end_offset + 1 - segment.start_offset
        position = source.grid.size_bytes * (asked.offset - segment.start_offset) // offsets
        self.prefetcher.guess(source, position)

    def _read_by_index(
        self, source: SegmentBlocks, index: OffsetIndex | None, asked: _Asked, room: Room, reader: Hashable
    ) -> Steps[tuple[OffsetIndex | None, _Found]]:
        """Return what the index led to; it is rebuilt where it misleads."""
        try:
            return index, (yield from self._read_checked(source, index, asked, room, reader))
        except IndexMismatchError as error:
            # Two GETs gave the same bytes, so the index may be the liar.
            reason, walked = str(error), None
        except SparseIndexError as error:
            reason, walked = str(error), error.walked
        # Out here nothing holds what was walked over, while a GiB may be read.
        room.release()
        rebuild = partial(self._indexes.rebuild, source.segment, reason, instead_of=index, walked=walked)
        index = yield from waited(rebuild)
        return index, (yield from self._read_checked(source, index, asked, room, reader))

    def _aborts(self, found: _Found, index: OffsetIndex, size_bytes: int, asked: _Asked) -> Steps[TierAborts]:
        """Return the aborts of an answer of that size. Where it ends, a cut batch included, the offset index has its
        upper bound (docs/kafka-tier.md#aborted-transactions)."""
        segment, window, end = found.read.source.segment, found.read.window, found.start + size_bytes
        log = AnswerLog(window, found.start, end)
        upper_bound_offset = index.fetch_upper_bound_offset(end)
        if upper_bound_offset is not None and upper_bound_offset < log.behind:
            reason = f"it has offset {upper_bound_offset} at {end} or beyond, where higher ones come before"
            index = yield from waited(partial(self._indexes.rebuild, segment, reason, instead_of=index))
            upper_bound_offset = index.fetch_upper_bound_offset(end)
        if upper_bound_offset is None:
            upper_bound_offset = segment.end_offset + 1
        if found.cut_offset is not None:
            upper_bound_offset = min(upper_bound_offset, found.cut_offset)
        base_offset = window.header_at(found.start).base_offset
        bounds = base_offset, upper_bound_offset
        return (yield from self._abort_search.search(segment, *bounds, asked.lineage, asked.finder, log))

    def _gave_up_before(self, reader: Hashable, partition: TopicIdPartition) -> bool:
        partitions = self._given_up.get(reader)
        if partitions is None or partition not in partitions:
            return False
        partitions.discard(partition)
        if not partitions:
            del self._given_up[reader]
        return True

    def _read_ahead(self, found: _Found, end: int, asked: _Asked, *, is_begun: bool = False) -> None:
        if self.prefetcher is None:
            return
        read, start, source = found.read, found.start, found.read.source
        partition = source.segment.topic_id_partition
        is_cut = end - start >= asked.max_bytes or end == source.grid.size_bytes

        def following(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
            return self.finder.holding(partition, segment.end_offset + 1, asked.lineage)

        how = read.waited, is_cut, following, asked.offset, asked.found_by, is_begun
        self.prefetcher.on_read(Read(read.reader, source, start, end, *how))

    def _read_checked(
        self, source: SegmentBlocks, index: OffsetIndex | None, asked: _Asked, room: Room, reader: Hashable
    ) -> Steps[_Found]:
        """The same; blocks with a bad batch are quarantined, and fetched once more each before it is an error
        (docs/protocol.md#l5)."""
        entry = (asked.offset, 0) if index is None else index.lookup(asked.offset)
        fetched_anew: set[int] = set()
        has_waited = False
        while True:
            window = SegmentWindow(source.segment, source.grid.block_bytes)
            read = _Read(source, window, room, reader, LIKELY_ANSWERS * asked.max_bytes, has_waited)
            try:
                return (yield from self._answer(read, entry, index, asked))
            except CorruptLogError as error:
                bad = quarantine_bad(self._cache, source, window, entry[1], error)
                if bad <= fetched_anew:
                    raise
                fetched_anew |= bad
                has_waited = read.waited
            finally:
                read.close()

    def _answer(self, read: _Read, entry: tuple[int, int], index: OffsetIndex | None, asked: _Asked) -> Steps[_Found]:
        window, max_bytes, size_bytes = read.window, asked.max_bytes, read.source.grid.size_bytes
        walk_start = entry[1]
        yield from self._ask_first(read, walk_start, asked)
        found = yield from self._find(read, entry, index, asked.offset)
        start = found.position
        if found.size_bytes is None:
            yield from self._extend(read, walk_start, size_bytes)
            yield from verify(window, walk_start, size_bytes)
            return _Found(read, None, start)
        if found.size_bytes > max_bytes:
            if not asked.minimum_one_batch:
                return _Found(read, TierRecords([], 0, first_batch_too_large=True), start)
            max_bytes = found.size_bytes
        if asked.committed:
            self._abort_search.begin(read.source.segment)
        if window.end < start + found.size_bytes:
            yield from self._extend(read, start, start + found.size_bytes)
        end = min(start + max_bytes, size_bytes)
        if asked.time is not None:
            asked.time.has_batch = True
        yield from self._collect(read, end, asked.time)
        # What was walked over too: a bad batch there would be a silent skip.
        whole_end = yield from verify(window, walk_start, min(end, window.end))
        if window.end < end:
            end = whole_end
        cut_offset: int | None = None
        if asked.begins_below is not None and (cut := batch_begun_at(window, start, asked.begins_below)) is not None:
            cut_position, cut_offset = cut
            end = min(end, cut_position)
            if end == start:
                return _Found(read, None, start)  # what is left of the segment is in the local log
        read.room.keep([block for _, block in window.numbered_blocks(start, end)])
        origin = Origin(read.source, start, self._cache, self._answers, read.reader)
        records = TierRecords(window.views(start, end), end - start, room=read.room, origin=origin)
        return _Found(read, records, start, cut_offset)

    def _ask_first(self, read: _Read, start: int, asked: _Asked) -> Steps[None]:
        """Ask for what the answer is likely to need, and for what comes behind it: all fills run side by side."""
        yield from self._ask(read, start, start + min(max(asked.max_bytes, LOOK_AHEAD_BYTES), PIECE_BYTES))
        if read.asks and asked.max_bytes >= GUESS_ANSWER_BYTES_MIN:
            likely_end = min(start + asked.max_bytes, read.source.grid.size_bytes)
            self._read_ahead(_Found(read, None, start), likely_end, asked, is_begun=True)

    def _find(self, read: _Read, entry: tuple[int, int], index: OffsetIndex | None, offset: int) -> Steps[FoundBatch]:
        """The first batch whose last offset is at or above `offset`.

        Args:
            entry: of the index, offset and position: the batch does not begin behind the one after it.
        """
        window, size_bytes = read.window, read.source.grid.size_bytes
        entry_offset, walk_start = entry
        yield from read.take(min(walk_start + HEADER_BYTES, size_bytes))
        position, largest_bytes = walk_start, 0
        if walk_start > 0:
            header = check_index_entry(window, entry_offset, walk_start)
            if header.last_offset >= offset:
                return FoundBatch(walk_start, header.size_bytes)
            largest_bytes = header.size_bytes
            position += largest_bytes
        while (found := find_first_batch(window, position, offset)).needs_end is not None:
            position, largest_bytes = found.position, max(largest_bytes, found.largest_passed_bytes)
            check_walk(read.source.segment, walk_start, found, largest_bytes)
            # As much again as was walked over: a walk of some length does not take a GET for each block.
            walk_end = (index and index.position_above(walk_start)) or size_bytes
            worth_end = walk_start + SPARSE_WALK_BYTES + largest_bytes
            ahead_end = min(2 * position - walk_start, walk_end, worth_end)
            yield from self._ask(read, position, max(found.needs_end, ahead_end))
            yield from read.take(found.needs_end)
        return found

    def _collect(self, read: _Read, end: int, time: ReadTime | None) -> Steps[None]:
        """Take blocks up to `end`, or to where there is no room or time for more."""
        piece_bytes = PIECE_BYTES
        while read.window.end < end:
            left_bytes = read.asked_end - read.window.end
            if read.asked_end < end and 2 * left_bytes <= piece_bytes:
                piece_bytes = min(2 * piece_bytes, PIECE_BYTES_MAX)
                # With a batch in hand nobody waits for room: others have nothing yet.
                has_room = yield from self._ask(read, end, min(read.asked_end + piece_bytes, end), waits=False)
                if not has_room and not left_bytes:
                    return
            if read.asks and not (yield from read.take_more(time)):
                return

    def _extend(self, read: _Read, start: int, end: int) -> Steps[None]:
        yield from self._ask(read, start, end)
        yield from read.take(end)

    def _ask(self, read: _Read, start: int, end: int, *, waits: bool = True) -> Steps[bool]:
        """Ask for the blocks that hold [start, end), cut to the segment, as far as that is not done; once there is room
        for them, or if there is room now (`waits`). Whether it was done."""
        grid = read.source.grid
        end = min(end, grid.size_bytes)
        if end <= read.asked_end:
            return True
        if not read.asked_end:
            read.window.first_block = grid.number_at(start)
        first, last = grid.number_at(read.asked_end or start), grid.number_at(end - 1)
        asked_end = grid.end(last)
        needed_bytes = asked_end - grid.start(read.window.first_block)
        if waits:
            if not read.room.try_reserve(self._answers.budget.charged(needed_bytes)):
                yield partial(read.room.reserve, needed_bytes)
        elif not read.room.try_reserve(needed_bytes):
            return False
        read.asks.append(self._cache.ask(read.source, first, last, read.reader, likely_bytes=read.likely_bytes))
        read.asked_end = asked_end
        read.take_here()
        return True


def quarantine_bad(
    cache: BlockCache, source: SegmentBlocks, window: SegmentWindow, walked_from: int, error: CorruptLogError
) -> set[int]:
    """Fetch again the blocks that are not to be believed; return their numbers (docs/protocol.md#l5)."""
    start = error.position if error.follows_verified else walked_from
    blocks = window.numbered_blocks(start, error.end)
    for number, block in blocks:
        cache.quarantine(source, number, block)
    return {number for number, _ in blocks}


def verify(window: SegmentWindow, start: int, end: int, in_thread_bytes: int = VERIFY_IN_THREAD_BYTES) -> Steps[int]:
    """Return where the last whole batch of [start, end) ends; all of them pass their CRC, from `in_thread_bytes` on in
    a thread."""
    unverified, verified_end = unverified_bytes(window, start, end)
    if unverified >= in_thread_bytes:
        return (yield from waited(partial(trio.to_thread.run_sync, verify_batches, window, start, end)))
    return verify_batches(window, start, end) if unverified else verified_end
