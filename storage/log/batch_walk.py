"""The walk of all who hold blocks of a segment: it never joins them, and they remember what has passed.

`SegmentWindow` is a run of blocks of one segment as one read, or one GET (`storage.log.arriving_batches`), sees it.
Positions are byte positions in the segment's log. Pure: nothing here waits, so that verification can run in a worker
thread.

Batches that lie in one block are taken by the tight loops of `protocol.record_batches`. What makes these stop (a batch
that straddles blocks, an old message, a fault) goes the slow way here, which also words every error.

What is checked: every header that is walked makes sense and stays inside its segment, in bytes and in offsets
(a batch's CRC covers neither its base offset nor its length); every whole batch that is handed out passes its CRC.
The leader epoch, too, is outside the CRC; it is handed on as it is.

Messages of v0 and v1, still in old segments, are walked as batches of their own: their CRC covers no offset either,
and one that wraps others names its last offset only.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.record_batches import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatchError,
    batch_crc,
    pass_by,
    scan_header,
    verify_run,
)
from storage.errors import CorruptObjectError
from storage.log.block import Block, VerifiedRun
from storage.log.log_walk import CorruptLogError, corrupt_batch, header_of, order_fault
from storage.model import RemoteLogSegmentMetadata


class IndexMismatchError(CorruptLogError):
    """There is no batch where the offset index has one, or one with higher offsets: the index or the log is wrong."""


SPARSE_WALK_BYTES = 4 * 1024 * 1024
"""A walk over more than this, its largest batch not counted, has followed an index that lacks entries.

Kafka adds an entry when an append begins and more than `index.interval.bytes` (4 KiB) were written since the last one.
So between two entries lie at most the interval and one append: a batch, or before 4.0 as many batches as a follower
fetched at once, `replica.fetch.max.bytes` (1 MiB). This is four times that."""


_ANY_TIMESTAMP_MS = -(2**63)

_BEYOND = 2**63
"""An offset, and a time, that no record has."""


class SparseIndexError(CorruptObjectError):
    """The offset index has no entry near a batch, where Kafka would have written some: it is empty, cut or sparse.

    `walked`: the position that it led to, and the last offset that was found from there.
    """

    def __init__(self, message: str, walked: tuple[int, int]) -> None:
        super().__init__(message)
        self.walked = walked


class SegmentWindow:
    """Blocks `first_block` to `last_block` of a segment; grows at its end only."""

    __slots__ = ("_block_bytes", "_blocks", "end", "first_block", "segment", "size_bytes")

    def __init__(self, segment: RemoteLogSegmentMetadata, block_bytes: int) -> None:
        self.size_bytes = segment.segment_size_bytes
        self.end = 0
        """Bytes below this position (and from the first block on) are here."""
        self.first_block = 0
        self.segment = segment
        self._block_bytes = block_bytes
        self._blocks: list[Block] = []

    @property
    def is_empty(self) -> bool:
        return not self._blocks

    @property
    def last_block(self) -> int:
        return self.first_block + len(self._blocks) - 1

    def missing(self, start: int, end: int) -> tuple[int, int]:
        """The blocks still wanted for [start, end), cut to the segment; (n, n - 1) or less when there is none."""
        last = (min(end, self.size_bytes) - 1) // self._block_bytes
        if not self._blocks:
            return start // self._block_bytes, last
        return self.last_block + 1, last

    def add(self, first: int, blocks: list[Block]) -> None:
        """Append what `missing` asked for."""
        if not self._blocks:
            self.first_block = first
        assert first == self.first_block + len(self._blocks), "a window grows at its end"
        self.extend(blocks)

    def extend(self, blocks: Iterable[Block]) -> None:
        """Add the next blocks; `first_block` says which is the first."""
        self._blocks.extend(blocks)
        self.end = min((self.last_block + 1) * self._block_bytes, self.size_bytes) if self._blocks else 0

    def drop_before(self, position: int) -> None:
        """Forget the blocks that end at or below `position`."""
        number = position // self._block_bytes
        del self._blocks[: max(0, number - self.first_block)]
        self.first_block = max(number, self.first_block)
        self.extend(())

    def block_at(self, position: int) -> Block:
        return self._blocks[position // self._block_bytes - self.first_block]

    def block_start(self, position: int) -> int:
        """Return where the block begins that holds `position`."""
        return position - position % self._block_bytes

    def numbered_blocks(self, start: int, end: int) -> list[tuple[int, Block]]:
        """The blocks here that hold bytes of [start, end), with their numbers."""
        first = max(start // self._block_bytes, self.first_block)
        last = min((end - 1) // self._block_bytes, self.last_block)
        return [(number, self._blocks[number - self.first_block]) for number in range(first, last + 1)]

    def views(self, start: int, end: int) -> list[memoryview]:
        """[start, end) as views into the blocks."""
        out: list[memoryview] = []
        while start < end:
            number = start // self._block_bytes
            block_start = number * self._block_bytes
            cut = min(end, block_start + self._block_bytes)
            out.append(self._blocks[number - self.first_block].data[start - block_start : cut - block_start])
            start = cut
        return out

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that begins at `position`.

        Raises:
            CorruptLogError: it makes no sense, or its batch does not lie inside the segment.
        """
        # An old message may be shorter than a header, and the last thing here.
        return header_of(self._bytes_at(position, HEADER_BYTES), position, self.segment)

    def base_offset_at(self, position: int) -> int:
        """The base offset of a batch that has passed."""
        return int.from_bytes(self._bytes_at(position, 8), "big")

    def _bytes_at(self, position: int, size: int) -> bytes | memoryview:
        """Return `size` bytes, or as many as are here."""
        at = position % self._block_bytes
        data = self._blocks[position // self._block_bytes - self.first_block].data[at : at + size]
        return data if len(data) == size else b"".join(self.views(position, min(position + size, self.end)))

    def has_serials(self, position: int, serials: tuple[int, ...]) -> bool:
        """Return whether these are the serials of the blocks from that of `position` on."""
        first = position // self._block_bytes - self.first_block
        return tuple([block.serial for block in self._blocks[first : first + len(serials)]]) == serials

    def corrupt(self, position: int, end: int, reason: str) -> CorruptLogError:
        """The error for the batch at `position`."""
        return corrupt_batch(self.segment, position, end, reason)


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """Where a scan ended: at a batch (`size_bytes`), short of bytes (`needs_end`), or the segment's end (neither).

    It also names the largest of the batches that were scanned, and the last one's last offset.
    """

    position: int
    size_bytes: int | None = None
    needs_end: int | None = None
    largest_passed_bytes: int = field(default=0, compare=False)
    last_passed_offset: int = field(default=-1, compare=False)


def check_index_entry(window: SegmentWindow, offset: int, position: int) -> BatchHeader:
    """Check that an index entry leads to a batch whose offsets do not go beyond it; its header.

    A lower last offset is right: before 4.0 one entry stood for all batches of an append, with the last one's offset.

    Raises:
        IndexMismatchError: it does not.
    """
    try:
        header = window.header_at(position)
    except CorruptLogError as error:
        raise IndexMismatchError(str(error), position, error.end) from error
    if header.last_offset > offset:
        reason = f"it ends at offset {header.last_offset}, the offset index has {offset}"
        mismatch = window.corrupt(position, position + HEADER_BYTES, reason)
        raise IndexMismatchError(str(mismatch), position, mismatch.end)
    return header


def find_first_batch(window: SegmentWindow, position: int, offset: int) -> FoundBatch:
    """Scan from the batch at `position` for the first whose last offset is at or above `offset`.

    Raises:
        CorruptLogError: a header on the way is wrong.
    """
    return find_batch_by_time(window, position, _ANY_TIMESTAMP_MS, offset)


def find_batch_by_time(window: SegmentWindow, position: int, timestamp_ms: int, offset: int) -> FoundBatch:
    """Scan from the batch at `position` for the first that may hold a record of that time or later, at or above
    `offset`.

    Raises:
        CorruptLogError: a header on the way is wrong.
    """
    segment, largest_bytes, last_offset = window.segment, 0, -1
    offsets = segment.start_offset, segment.end_offset
    while position < window.size_bytes:
        header_end = min(position + HEADER_BYTES, window.size_bytes)
        if window.end < header_end:
            return FoundBatch(position, None, header_end, largest_bytes, last_offset)
        block_start = window.block_start(position)
        log_end = window.size_bytes - block_start
        at, passed_bytes, passed_offset = pass_by(
            window.block_at(position).data, position - block_start, log_end, offsets, offset, timestamp_ms
        )
        if passed_bytes:
            position, last_offset = block_start + at, passed_offset
        else:
            header = window.header_at(position)
            if header.max_timestamp >= timestamp_ms and header.last_offset >= offset:
                return FoundBatch(position, header.size_bytes, None, largest_bytes, last_offset)
            passed_bytes = header.size_bytes
            position, last_offset = position + passed_bytes, header.last_offset
        largest_bytes = max(largest_bytes, passed_bytes)
    return FoundBatch(position, None, None, largest_bytes, last_offset)


def batch_begun_at(window: SegmentWindow, position: int, offset: int) -> tuple[int, int] | None:
    """From the batch at `position` on, the first that begins at `offset` or above: its position and base offset. None
    if none of those does whose header is here.

    Raises:
        CorruptLogError: a header on the way is wrong.
    """
    if window.segment.end_offset < offset:
        return None
    found = find_first_batch(window, position, offset)
    while found.size_bytes is not None:
        header = window.header_at(found.position)
        if header.base_offset >= offset:
            return found.position, header.base_offset
        found = find_first_batch(window, found.position + found.size_bytes, offset)
    return None


def check_walk(segment: RemoteLogSegmentMetadata, start: int, found: FoundBatch, largest_bytes: int) -> None:
    """Check that an index entry at `start` was worth following to what was found, over batches of at most that size.

    Raises:
        SparseIndexError: it was not, see SPARSE_WALK_BYTES.
    """
    if found.position - start - largest_bytes > SPARSE_WALK_BYTES:
        gap = f"the offset index has no entry between positions {start} and {found.position}"
        raise SparseIndexError(f"segment {segment.segment_id}: {gap}", (start, found.last_passed_offset))


def unverified_bytes(window: SegmentWindow, start: int, end: int) -> tuple[int, int]:
    """Return how many bytes of the whole batches in [start, end), at most, have not passed their CRC, and where others
    end.

    Raises:
        CorruptLogError: a header is wrong, or offsets do not ascend.
    """
    frontier = Frontier(start, start)
    try:
        while frontier.position < end and _take_verified(window, frontier):
            pass
        position = frontier.position
        if position >= end or next_header(window, position, end) is None:
            return 0, position
    except CorruptLogError as error:
        error.follows_verified = error.position > start
        raise
    runs = [block.verified for _, block in window.numbered_blocks(position, end)]
    known_bytes = sum(max(0, min(run.end, end) - max(run.start, position)) for run in runs)
    # Never 0 here, although another thread may have verified the rest meanwhile.
    return max(1, end - position - known_bytes), position


def verify_batches(window: SegmentWindow, start: int, end: int) -> int:
    """Check the CRC of every whole batch in [start, end), and that their offsets ascend; where the last of them ends.

    Safe in a worker thread: what is remembered in a block is replaced as one value, and each value is true by itself.

    Raises:
        CorruptLogError: names the position.
    """
    frontier = Frontier(start, start)
    try:
        verify_onward(window, frontier, end)
    except CorruptLogError as error:
        error.follows_verified = error.position > start
        raise
    return frontier.position


def end_offset(window: SegmentWindow, start: int, end: int) -> int:
    """One more than the last offset of the last whole batch in [start, end), all of which have passed.

    Runs that are known to have passed are gone over as one, so it is little work but for the last block.
    """
    position, last_offset = start, -1
    while position < end:
        run = _verified_run(window, position)
        if run is not None and run[0] <= end:
            position, last_offset = run
            continue
        block_start, offsets = window.block_start(position), (0, window.segment.end_offset)
        log_end = end - block_start
        at, passed_bytes, passed_offset = pass_by(
            window.block_at(position).data, position - block_start, log_end, offsets, _BEYOND, _BEYOND
        )
        if passed_bytes:
            position, last_offset = block_start + at, passed_offset
        elif (header := next_header(window, position, end)) is not None:
            position, last_offset = position + header.size_bytes, header.last_offset
        else:
            break
    return last_offset + 1


@dataclass(slots=True)
class Frontier:
    """Batches before `position` have passed. The last of them begins at `previous`, or the run that it is in, and
    `last_offset` is its; −1: none has passed yet."""

    position: int
    previous: int
    last_offset: int = -1


def verify_onward(window: SegmentWindow, frontier: Frontier, end: int) -> None:
    """Move the frontier over every whole batch that ends at or below `end`, and remember in the blocks what passed.

    Raises:
        CorruptLogError: as `verify_batches`, save that `follows_verified` is not set; what passed before is remembered.
    """
    while frontier.position < end and (
        _take_verified(window, frontier)
        or _verify_in_block(window, frontier, end)
        or _verify_one(window, frontier, end)
    ):
        pass


def _take_verified(window: SegmentWindow, frontier: Frontier) -> bool:
    """Move over a run of batches that passed before; False: there is none."""
    run = _verified_run(window, frontier.position)
    if run is None:
        return False
    is_first = frontier.last_offset < 0  # any order is right
    _advance(window, frontier, 0 if is_first else window.base_offset_at(frontier.position), *run)
    return True


def _verify_in_block(window: SegmentWindow, frontier: Frontier, end: int) -> bool:
    """Check the batches that lie in the frontier's block, up to what passed there before; False: there is none."""
    position, segment = frontier.position, window.segment
    block, block_start = window.block_at(position), window.block_start(position)
    end = min(end, block_start + len(block.data))
    known_start = block.verified.start
    if position < known_start < end:
        end = known_start
    at, previous, last_offset = verify_run(
        block.data,
        position - block_start,
        end - block_start,
        max(frontier.last_offset, segment.start_offset - 1),
        segment.end_offset,
    )
    if block_start + at == position:
        return False
    frontier.previous, frontier.position, frontier.last_offset = block_start + previous, block_start + at, last_offset
    _remember_run(block, block_start, VerifiedRun(position, frontier.position, last_offset, (block.serial,)))
    return True


def _verify_one(window: SegmentWindow, frontier: Frontier, end: int) -> bool:
    """Check the batch at the frontier, whatever it is; False: it is not whole below `end`."""
    position = frontier.position
    header = next_header(window, position, end)
    if header is None:
        return False
    batch_end = position + header.size_bytes
    if batch_crc(window.views(position, batch_end), header.magic) != header.crc:
        raise window.corrupt(position, batch_end, "its CRC is wrong")
    _advance(window, frontier, header.base_offset, batch_end, header.last_offset)
    blocks = [block for _, block in window.numbered_blocks(position, batch_end)]
    passed = VerifiedRun(position, batch_end, header.last_offset, tuple(block.serial for block in blocks))
    if len(blocks) > 1:
        blocks[0].straddler = passed
    else:
        _remember_run(blocks[0], window.block_start(position), passed)
    return True


def _advance(window: SegmentWindow, frontier: Frontier, base_offset: int, run_end: int, last_offset: int) -> None:
    """Take one run of batches more; where two runs meet either side may be the bad one."""
    reason = order_fault(base_offset, frontier.last_offset)
    if reason is not None:
        error = window.corrupt(frontier.position, frontier.position + HEADER_BYTES, reason)
        error.position = frontier.previous
        raise error
    frontier.previous, frontier.position, frontier.last_offset = frontier.position, run_end, last_offset


def _remember_run(block: Block, block_start: int, run: VerifiedRun) -> None:
    """Remember a run in its block: joined with the one known there if they meet and offsets ascend from one to the
    other, else in its place."""
    known = block.verified  # read once: another thread may replace it
    if known.end == run.start and _base_offset(block, run.start - block_start) > known.last_offset:
        run = run._replace(start=known.start)
    elif known.start == run.end and _base_offset(block, known.start - block_start) > run.last_offset:
        run = known._replace(start=run.start)
    block.verified = run


def _base_offset(block: Block, at: int) -> int:
    """Return the base offset of a batch that passed."""
    scanned = scan_header(block.data, at)
    assert scanned is not None
    return scanned[0]


def _verified_run(window: SegmentWindow, position: int) -> tuple[int, int] | None:
    """The end and the last offset of a run of batches from `position` on that passed before; None if there is none."""
    block = window.block_at(position)
    verified = block.verified
    if verified.start <= position < verified.end:
        return verified.end, verified.last_offset
    straddler = block.straddler
    if straddler.start != position or not position < straddler.end <= window.end:
        return None
    return (straddler.end, straddler.last_offset) if window.has_serials(position, straddler.serials) else None


def next_header(window: SegmentWindow, position: int, end: int) -> BatchHeader | None:
    """The header of the batch at `position`, or None if the batch is not whole below `end`."""
    if min(position + HEADER_BYTES, window.size_bytes) > end and not _is_whole_message(window, position, end):
        return None
    header = window.header_at(position)
    return header if position + header.size_bytes <= end else None


def _is_whole_message(window: SegmentWindow, position: int, end: int) -> bool:
    """Return whether a v0 or v1 message, which may be shorter than a batch's header, lies between here and `end`."""
    try:
        found = scan_header(b"".join(window.views(position, end)), 0)
    except CorruptBatchError as error:
        raise window.corrupt(position, end, str(error)) from error
    return found is not None and found[1] <= end - position
