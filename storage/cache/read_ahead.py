"""Which bytes to fetch before anyone asks for them (docs/protocol.md#read-ahead). `ReadAhead` says for whom,
`Prefetcher` has it done.

A *stream* is a run of reads of one connection in one partition, each of which begins where the one before ended. A
connection may have several in one partition: Spark reads it at many offsets at once.

Rule 1. A read continues a stream if it begins behind the last one's start and not behind its end (an answer may end
        with a cut batch, which is read again), or in the segment that follows once the last one reached its
        segment's end: the one that `following` named then (offsets have holes), or the one that holds the next offset.
Rule 2. A window opens with the first read whose answer was cut by its size, or with the second of a stream; where a
        read has to wait, its answer's size is guessed, so that what comes next is under way beside it. It has as many
        answers of that size as START_ANSWERS, START_BYTES at most. It doubles when a read had to wait, and without
        that, up to two GETs of full size, when a whole window was read in sequence: slow readers too shall cost few
        GETs. It halves when a block that was read ahead is dropped unread: once for each answer, since evictions come
        in bursts.
Rule 3. No window is larger than `stream_bytes_max`, nor than its share of `total_bytes_max` among the streams that
        have one (but two blocks remain).
Rule 4. The next GET goes to the stream that has the least ahead of its reader (`nearest`), and asks for as much as a
        GET is large, half of a window at most; so GETs stay large, and no stream waits for another's far future.
Rule 5. Segments that begin within the window and two GETs are wanted at once, if only their manifests and indexes.
Rule 6. What was asked for, or was here when it would have been, is not asked for again, also if it fails (the reader
        will meet that), unless it was dropped before its reader came to it.

Working: a GET of 12 MiB takes 30 ms + 12 MiB / 60 MB/s = 0.24 s, so a window of W bytes yields W / 0.24 s: 128 MiB
give 560 MB/s over eleven connections, 4.5 Gbit/s. A link of 10 Gbit/s takes a window of 288 MiB.
"""

import heapq
import itertools
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

import structlog
import trio

from metrics.cache_meters import ReadAheadMeter, StallReason
from storage.cache.block_cache import BlockCache
from storage.cache.blocks import BlockKey, SegmentBlocks
from storage.cache.gets import Gets
from storage.cache.pace import GET_BYTES, GET_BYTES_MIN
from storage.cache.recent_speed import RecentSpeed
from storage.errors import RemoteStorageError
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid
from storage.remote_storage_manager import OpenedSegment
from storage.tasks import TaskNursery

START_BYTES = 32 * 1024 * 1024
START_ANSWERS = 32

IDLE_S = 60.0
"""A stream that is not read for so long is forgotten."""

STREAMS_MAX = 10_000
"""Some 1 KB each."""

STREAMS_PER_PARTITION_MAX = 16
"""Limit for one reader."""

SEGMENTS_AHEAD_MAX = 64
"""So many segments after the current one are opened ahead at most, however small they are."""

_log = structlog.get_logger(__name__)

Following = Callable[[RemoteLogSegmentMetadata], RemoteLogSegmentMetadata | None]
"""The segment that a reader comes to after this one; None at the tier's end."""


@dataclass(slots=True, eq=False)
class Ahead:
    """A segment that a stream reads or comes to: everything below `position` was asked for, or is behind the reader.

    `blocks` is None until the segment is open.
    """

    segment: RemoteLogSegmentMetadata
    position: int = 0
    blocks: SegmentBlocks | None = None

    @property
    def segment_id(self) -> Uuid:
        return self.segment.segment_id.id


@dataclass(slots=True, eq=False)
class Stream:
    """One sequential reader: its `last` read was of bytes [start, end) of `segment`.

    `segments` begin with that one. `window_bytes` is 0 until there is a window. `asked_bytes`: what was asked for in
    all, as stored. `stamp`: of its place in the line; 0: it may not ask.
    """

    last: "Read"
    segment: RemoteLogSegmentMetadata
    start: int
    end: int
    read_at_s: float
    follower: Uuid | None = None
    window_bytes: int = 0
    smallest_bytes: int = 0  # of its window
    sequential_bytes: int = 0  # read since the window last changed
    asked_bytes: int = 0
    ahead_bytes: int = 0
    was_halved: bool = False
    speed: RecentSpeed = field(default_factory=lambda: RecentSpeed(0.0))
    stalled_by: StallReason = StallReason.COLD_START
    stamp: int = 0
    segments: list[Ahead] = field(default_factory=list)

    @property
    def partition(self) -> TopicIdPartition:
        return self.segment.topic_id_partition

    @property
    def frontier(self) -> Ahead | None:
        """Return where the next bytes are to be asked for; None at the tier's end."""
        for ahead in self.segments:
            if ahead.position < ahead.segment.segment_size_bytes:
                return ahead
        return None

    def is_continued_by(self, segment: RemoteLogSegmentMetadata, start: int) -> bool:
        """Rule 1; a read of the same start, which is one repeated, is this stream's too."""
        if segment.segment_id.id == self.segment.segment_id.id:
            return self.start <= start <= self.end
        if self.end < self.segment.segment_size_bytes:
            return False
        next_offset = self.segment.end_offset + 1
        if segment.segment_id.id != self.follower and not segment.start_offset <= next_offset <= segment.end_offset:
            return False
        # Where segments overlap, the reader begins in the midst of the next.
        return start == 0 or segment.start_offset < next_offset

    def distance(self, segment_id: Uuid, position: int) -> int | None:
        """Return how far ahead of the reader that is; None: not in a segment that is read or comes next."""
        before_bytes = -self.end
        for ahead in self.segments:
            if ahead.segment_id == segment_id:
                return before_bytes + position
            before_bytes += ahead.segment.segment_size_bytes
        return None


@dataclass(slots=True)
class Read:
    """A read that was answered with plaintext bytes [start, end) of a segment's log.

    Args:
        reader: a connection, by anything that names it.
        waited: the answer had to wait for a block.
        is_cut: there is more, which the reader will ask for next.
        offset: what it was of.
        found_by: while this is the same, the segment holds what follows up to its end.
        is_begun: it has to wait, and what is said of it is what its answer is likely to be.
    """

    reader: Hashable
    blocks: SegmentBlocks
    start: int
    end: int
    waited: bool
    is_cut: bool
    following: Following
    offset: int = 0
    found_by: object = None
    is_begun: bool = False


class ReadAhead:
    """All streams. Pure: no I/O, the clock is passed in. Not thread-safe: the trio thread owns it.

    Args:
        stream_bytes_max: the largest window; 0: nothing is ever read ahead.
        total_bytes_max: of all windows.
        clock: seconds, from any beginning; never goes back.
        get_bytes: how large a stream's next GET is, from what it has asked for and all that windows may hold.
    """

    def __init__(
        self,
        stream_bytes_max: int,
        total_bytes_max: int,
        *,
        meter: ReadAheadMeter,
        clock: Callable[[], float],
        get_bytes: Callable[[int, int], int] = lambda asked_bytes, windows_bytes: GET_BYTES,
        start_bytes: int = START_BYTES,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self._stream_bytes_max = min(stream_bytes_max, total_bytes_max)
        self._total_bytes_max = total_bytes_max
        self._start_bytes = start_bytes
        self._streams_max = streams_max
        self._meter = meter
        self._clock = clock
        self._get_bytes = get_bytes
        # No list or set in these is ever empty.
        self.by_reader: dict[Hashable, dict[TopicIdPartition, list[Stream]]] = {}
        self.by_segment: dict[Uuid, set[Stream]] = {}
        self.recent: OrderedDict[Stream, None] = OrderedDict()
        """All streams, the one that was read longest ago first."""
        self._read_lately: dict[Stream, None] = {}
        self.streams_with_window = 0
        self.ahead_bytes = 0
        """What was asked for and not read, of all streams together."""
        self.line: list[tuple[int, int, Stream]] = []
        self._stamps = itertools.count(1)

    @property
    def has_nearest(self) -> bool:
        """Return whether some stream may ask. Those at the head of the line that may not leave it."""
        while self.line:
            _, stamp, stream = self.line[0]
            if stamp == stream.stamp:
                if self.may_ask(stream):
                    return True
                stream.stamp = 0
            heapq.heappop(self.line)
        return False

    def on_read(self, read: Read) -> list[Ahead]:
        """A read was answered, or begins a stream; the segments that are to be opened now, nearest first."""
        if self._stream_bytes_max <= 0 or read.end <= read.start:
            return []
        segment = read.blocks.segment
        stream = self._continued(read.reader, segment, read.start)
        is_new = stream is None
        if stream is None:
            stream = self._add(read)
        elif read.is_begun:
            return []
        is_same = stream.start == read.start and stream.segment is segment
        is_repeated = not is_new and (is_same or stream.last.is_begun)
        stream.last = read
        stream.read_at_s = self._clock()
        self.recent.move_to_end(stream)
        if is_repeated and stream.end == read.end:
            return []
        self._advance(stream, read)
        if not is_repeated and (read.is_cut or not is_new):
            self._grow(stream, read)
        self._read_lately[stream] = None
        return self._segments_to_open(stream)

    def blocks_at(
        self, reader: Hashable, partition: TopicIdPartition, offset: int, found_by: object
    ) -> SegmentBlocks | None:
        """The segment of a stream that comes to this offset, found by the same as its last read was."""
        for stream in self.by_reader.get(reader, {}).get(partition, ()):
            read = stream.last
            if read.offset <= offset <= read.blocks.segment.end_offset and read.found_by == found_by:
                return read.blocks
        return None

    def reach(self, reader: Hashable, blocks: SegmentBlocks, position: int) -> Stream | None:
        """The reader's stream that comes to this byte within its window; it may lie in the block that it reads."""
        nearest, nearest_bytes = None, math.inf
        for stream in self.by_reader.get(reader, {}).get(blocks.segment.topic_id_partition, ()):
            distance = stream.distance(blocks.segment.segment_id.id, position)
            if not stream.window_bytes or distance is None or abs(distance) >= nearest_bytes:
                continue
            if -blocks.grid.block_bytes <= distance <= self.window(stream):
                nearest, nearest_bytes = stream, abs(distance)
        return nearest

    def window(self, stream: Stream) -> int:
        """Return how far ahead of its reader the stream may ask, in bytes."""
        window_bytes = min(stream.window_bytes, self._total_bytes_max // (self.streams_with_window or 1))
        return max(window_bytes, stream.smallest_bytes)

    def get_bytes(self, stream: Stream) -> int:
        """Return what the stream's next GET is to transfer: two at least fit into its window."""
        return min(self._full_get_bytes(stream), self.window(stream) // 2)

    def _full_get_bytes(self, stream: Stream) -> int:
        windows_bytes = min(self._total_bytes_max, self.streams_with_window * self._stream_bytes_max)
        return self._get_bytes(stream.asked_bytes, windows_bytes)

    def nearest(self) -> Stream | None:
        """The stream with the least ahead among those that may ask; it is to be put in the line again (`changed`)."""
        return heapq.heappop(self.line)[2] if self.has_nearest else None

    def changed(self, stream: Stream) -> None:
        """The stream may be able to ask: it was read, has asked, or a segment was opened."""
        self._measure(stream)
        stream.stamp = 0
        if not stream.window_bytes or not self.may_ask(stream):
            return
        stream.stamp = next(self._stamps)
        heapq.heappush(self.line, (stream.ahead_bytes, stream.stamp, stream))
        if len(self.line) > 64 + 2 * self.streams_with_window:
            self.line = [entry for entry in self.line if entry[1] == entry[2].stamp]
            heapq.heapify(self.line)

    def opened(self, blocks: SegmentBlocks) -> bool:
        """A segment is open now. Whether a stream still comes to it: the segment may be deleted, its reader gone."""
        streams = self.by_segment.get(blocks.segment.segment_id.id, ())
        for stream in streams:
            for ahead in stream.segments:
                if ahead.segment_id == blocks.segment.segment_id.id:
                    ahead.blocks = blocks
            self.changed(stream)
        return bool(streams)

    def on_wasted(self, key: BlockKey) -> None:
        """A block that was read ahead is dropped unread: streams that still have it before them get less (rule 2)."""
        for stream in self.on_evicted(key):
            if stream.window_bytes and not stream.was_halved:
                stream.was_halved = True
                stream.sequential_bytes = 0
                halved = max(stream.smallest_bytes, self.window(stream) // 2)
                stream.window_bytes = min(halved, self._stream_bytes_max)

    def on_evicted(self, key: BlockKey) -> list[Stream]:
        """A block is dropped; the streams that still had it before them, which may ask for it again (rule 6)."""
        found = []
        for stream in self.by_segment.get(key.segment_id, ()):
            ahead = next(ahead for ahead in stream.segments if ahead.segment_id == key.segment_id)
            if ahead.blocks is None:
                continue
            grid = ahead.blocks.grid
            read_to = stream.end if ahead is stream.segments[0] else 0
            if grid.start(key.number) >= ahead.position or grid.end(key.number) <= read_to:
                continue
            # Here ends what was asked for; the rest may be asked for again.
            ahead.position = max(grid.start(key.number), read_to)
            for later in stream.segments[stream.segments.index(ahead) + 1 :]:
                later.position = 0
            self._measure(stream)
            found.append(stream)
        return found

    def on_failed(self, segment_id: Uuid) -> None:
        """A GET of that segment failed that nobody waited for."""
        for stream in self.by_segment.get(segment_id, ()):
            self.stalled(stream, StallReason.FAILED)

    def stalled(self, stream: Stream, reason: StallReason) -> None:
        """Read-ahead of the stream goes no further for now; counted when the reason is another one than before."""
        if stream.stalled_by is not reason:
            stream.stalled_by = reason
            self._meter.on_stalled(reason)

    def note_stalls(self, why_full: Callable[[], StallReason]) -> None:
        """Note why the streams that were read since this was last called have not been asked for more.

        Args:
            why_full: tells of those that may ask.
        """
        for stream in self._read_lately:
            self.stalled(stream, self.why_stalled(stream) or why_full())
        self._read_lately.clear()

    def why_stalled(self, stream: Stream) -> StallReason | None:
        """Return what keeps the stream from asking, as far as it is the stream's own matter."""
        if stream.stamp:
            return None
        frontier = stream.frontier
        if not stream.window_bytes or (frontier is not None and frontier.blocks is None):
            return StallReason.COLD_START
        if frontier is None:
            return StallReason.END_OF_TIER
        return StallReason.DEPTH if stream.last.waited else StallReason.CONSUMER

    def forget_reader(self, reader: Hashable) -> None:
        """A connection closed. What was fetched for it stays for others."""
        for streams in tuple(self.by_reader.get(reader, {}).values()):
            for stream in tuple(streams):
                self._drop(stream)

    def forget_segment(self, segment_id: Uuid) -> None:
        """A segment is deleted: streams in it end, others no longer come to it."""
        for stream in tuple(self.by_segment.get(segment_id, ())):
            if stream.segment.segment_id.id == segment_id:
                self._drop(stream)
                continue
            while any(ahead.segment_id == segment_id for ahead in stream.segments):
                self._drop_segment(stream, -1)
            self._measure(stream)

    def drop_idle(self) -> None:
        """Forget streams that were not read for IDLE_S."""
        idle_since_s = self._clock() - IDLE_S
        while self.recent and (stream := next(iter(self.recent))).read_at_s <= idle_since_s:
            self._drop(stream)

    # --- streams ---

    def _continued(self, reader: Hashable, segment: RemoteLogSegmentMetadata, start: int) -> Stream | None:
        streams = self.by_reader.get(reader, {}).get(segment.topic_id_partition, ())
        found = [stream for stream in streams if stream.is_continued_by(segment, start)]
        # Several after a seek into what another stream has just read: the nearest.
        return max(found, key=lambda stream: (stream.end == start, stream.start), default=None)

    def _add(self, read: Read) -> Stream:
        stream = Stream(read, read.blocks.segment, read.start, read.end, self._clock())
        streams = self.by_reader.setdefault(read.reader, {}).setdefault(stream.partition, [])
        streams.append(stream)
        self.recent[stream] = None
        if len(streams) > STREAMS_PER_PARTITION_MAX:
            self._drop(min(streams, key=lambda each: each.read_at_s))
        if len(self.recent) > self._streams_max:
            self._drop(next(iter(self.recent)))
        return stream

    def _advance(self, stream: Stream, read: Read) -> None:
        """The stream's last read is this one now."""
        segment = read.blocks.segment
        while stream.segments and stream.segments[0].segment_id != segment.segment_id.id:
            self._drop_segment(stream, 0)
        if not stream.segments:
            self._add_segment(stream, Ahead(segment))
        ahead = stream.segments[0]
        ahead.blocks = read.blocks
        ahead.position = max(ahead.position, read.end)
        # Two blocks, or what is decoded together: chunks may be larger than `expert.cache.block.bytes`.
        grid = read.blocks.grid
        stream.smallest_bytes = min(2 * grid.block_bytes * grid.unit_blocks, self._stream_bytes_max)
        stream.segment, stream.start, stream.end = segment, read.start, read.end
        stream.speed.add(stream.read_at_s, read.end - read.start)
        stream.was_halved = False
        follower = read.following(segment) if read.end >= segment.segment_size_bytes else None
        stream.follower = None if follower is None else follower.segment_id.id

    def _drop(self, stream: Stream) -> None:
        while stream.segments:
            self._drop_segment(stream, -1)
        self.ahead_bytes -= stream.ahead_bytes
        del self.recent[stream]
        reader = stream.last.reader
        partitions = self.by_reader[reader]
        streams = partitions[stream.partition]
        streams.remove(stream)
        if not streams:
            del partitions[stream.partition]
        if not partitions:
            del self.by_reader[reader]
        stream.stamp = 0
        self._read_lately.pop(stream, None)
        if stream.window_bytes:
            self.streams_with_window -= 1
            self._meter.on_streams(self.streams_with_window)

    def _add_segment(self, stream: Stream, ahead: Ahead) -> None:
        stream.segments.append(ahead)
        self.by_segment.setdefault(ahead.segment_id, set()).add(stream)

    def _drop_segment(self, stream: Stream, index: int) -> None:
        ahead = stream.segments.pop(index)
        streams = self.by_segment[ahead.segment_id]
        streams.discard(stream)
        if not streams:
            del self.by_segment[ahead.segment_id]

    # --- windows ---

    def _measure(self, stream: Stream) -> None:
        """Count again what was asked for and not read."""
        self.ahead_bytes -= stream.ahead_bytes
        stream.ahead_bytes = sum([ahead.position for ahead in stream.segments]) - stream.end
        self.ahead_bytes += stream.ahead_bytes

    def _grow(self, stream: Stream, read: Read) -> None:
        answer_bytes = read.end - read.start
        stream.sequential_bytes += answer_bytes
        if not stream.window_bytes:
            stream.window_bytes = max(stream.smallest_bytes, min(self._start_bytes, START_ANSWERS * answer_bytes))
            self.streams_with_window += 1
            self._meter.on_streams(self.streams_with_window)
        elif read.waited or stream.sequential_bytes >= self.window(stream):
            doubled = 2 * self.window(stream)
            stream.sequential_bytes = 0
            stream.window_bytes = doubled if read.waited else max(stream.window_bytes, min(doubled, 2 * GET_BYTES))
        stream.window_bytes = min(stream.window_bytes, self._stream_bytes_max)

    def may_ask(self, stream: Stream) -> bool:
        """Return whether the stream has room for its next GET."""
        frontier = stream.frontier
        if frontier is None or frontier.blocks is None:
            return False
        window_bytes = self.window(stream)
        room_bytes = window_bytes - stream.ahead_bytes
        # A GET is half of a window at most.
        return window_bytes // 2 <= room_bytes or (room_bytes > 0 and self._full_get_bytes(stream) <= room_bytes)

    def _segments_to_open(self, stream: Stream) -> list[Ahead]:
        """Rule 5; and the stream stands in the line, if it may ask."""
        found: list[Ahead] = []
        if stream.window_bytes:
            distance = sum([ahead.segment.segment_size_bytes for ahead in stream.segments]) - stream.end
            end = self.window(stream) + 2 * GET_BYTES
            while distance < end and len(stream.segments) <= SEGMENTS_AHEAD_MAX:
                last = stream.segments[-1].segment
                segment = stream.last.following(last)
                if segment is None or segment.end_offset <= last.end_offset:
                    break
                found.append(Ahead(segment))
                self._add_segment(stream, found[-1])
                distance += segment.segment_size_bytes
        self.changed(stream)
        return found


class Prefetcher:
    """Read-ahead in the application: opens the segments that streams come to, and asks for blocks whenever a GET may
    start. Owned by the trio thread.

    `ReadAhead` says for whom, `block_cache` which blocks, `gets` whether there is a slot. Nothing here is waited for by
    a reader, and no failure reaches one: a segment that cannot be opened is met again by its reader, who knows what to
    say.

    Args:
        nursery: the application's.
        open_segment: the opened segment from its cache, or opened now.
        fetch_index: has the segment's offset index brought into its cache.
    """

    def __init__(
        self,
        nursery: TaskNursery,
        read_ahead: ReadAhead,
        *,
        cache: BlockCache,
        gets: Gets,
        open_segment: Callable[[RemoteLogSegmentMetadata], Awaitable[OpenedSegment]],
        fetch_index: Callable[[RemoteLogSegmentMetadata], None],
    ) -> None:
        self._nursery = nursery
        self._read_ahead = read_ahead
        self.blocks_at = read_ahead.blocks_at
        self.forget_reader = read_ahead.forget_reader
        self._cache = cache
        self._gets = gets
        self._open_segment = open_segment
        self._fetch_index = fetch_index
        self._opening: set[Uuid] = set()
        self._is_asking = False
        self._is_to_ask = False
        cache.reach_by(self.reach_bytes)
        gets.on_room = self._ask
        gets.on_ahead_failed = read_ahead.on_failed

    def on_read(self, read: Read) -> None:
        """As `ReadAhead.on_read`, and does what it wants. Neither blocks nor raises."""
        try:
            for ahead in self._read_ahead.on_read(read):
                if ahead.segment_id not in self._opening:
                    # First, because it raises once the nursery is closed.
                    self._nursery.start_soon(self._open, ahead.segment)
                    self._opening.add(ahead.segment_id)
            if not self._read_ahead.has_nearest:
                self._read_ahead.note_stalls(self._gets.why_full)
            elif not self._is_to_ask:
                # Not at once: reads of other partitions that end in the same turn have their streams nearest, too.
                self._nursery.start_soon(self._ask_next_turn)
                self._is_to_ask = True
        except Exception:  # an answer that is ready does not fail for what may come after it
            _log.warning("read_ahead_failed", segment=str(read.blocks.segment.segment_id), exc_info=True)

    def reach_bytes(self, reader: Hashable, source: SegmentBlocks, start: int, likely_bytes: int) -> int:
        """Return how far a GET for a read that begins there may go on, beyond what is read: as far as its stream's
        next, or what the reader is likely to ask for."""
        stream = self._read_ahead.reach(reader, source, start)
        next_bytes = 0 if stream is None else self._read_ahead.get_bytes(stream)
        return min(max(next_bytes, likely_bytes), self.room_bytes)

    def guess(self, source: SegmentBlocks, position: int) -> None:
        """Fetch what lies around the byte where a read is likely to begin, and a block before it, if a slot is free."""
        grid, room_bytes = source.grid, self.room_bytes
        count = min(GET_BYTES_MIN, room_bytes) // grid.block_bytes
        first = max(0, grid.number_at(position) - (1 if count > 1 else 0))
        if self._gets.may_read_ahead and count:
            end = min(grid.start(first + count), grid.size_bytes)
            self._cache.fetch_ahead(source, grid.start(first), end, GET_BYTES_MIN, room_bytes)

    @property
    def room_bytes(self) -> int:
        """Return what is left for blocks that are read ahead and unread, here or under way.

        Blocks that no stream comes to any more, because their readers have gone, take no room: they make way first,
        being the oldest.
        """
        memory = self._cache.memory
        unread_bytes = memory.unread_bytes + self._cache.read_ahead_bytes
        return max(0, memory.unread_bytes_max - min(unread_bytes, self._read_ahead.ahead_bytes))

    async def _ask_next_turn(self) -> None:
        self._is_to_ask = False
        self._ask()

    def _ask(self) -> None:
        """Start what may be started, nearest first."""
        if self._is_asking:
            return  # what is asked for may find blocks dropped that give room again
        self._is_asking = True
        try:
            while self._gets.may_read_ahead and (stream := self._read_ahead.nearest()) is not None:
                has_asked = self._ask_for(stream)
                self._read_ahead.changed(stream)
                if not has_asked:
                    break
            self._read_ahead.note_stalls(self._gets.why_full)
        except Exception:  # the application's nursery must live on, and is closed at shutdown
            _log.warning("read_ahead_failed", exc_info=True)
        finally:
            self._is_asking = False

    def _ask_for(self, stream: Stream) -> bool:
        """Move the stream's frontier over what is here, or ask for a GET; False: there is no room."""
        frontier = stream.frontier
        assert frontier is not None, "nobody stands in line at the tier's end"
        source, window = frontier.blocks, self._read_ahead.window(stream)
        assert source is not None, "nor before a segment that is not open"
        position = frontier.position
        stop = min(source.grid.size_bytes, position + max(window - stream.ahead_bytes, source.grid.block_bytes))
        asked = self._cache.fetch_ahead(source, position, stop, self._read_ahead.get_bytes(stream), self.room_bytes)
        if asked is None:
            return False
        frontier.position, asked_bytes = asked
        stream.asked_bytes += asked_bytes
        return True

    async def _open(self, segment: RemoteLogSegmentMetadata) -> None:
        """One task per segment, for all streams that come to it."""
        try:
            opened = await self._open_segment(segment)
            if self._read_ahead.opened(self._cache.blocks_of(segment, opened)):
                self._fetch_index(segment)
                self._ask()
        except (RemoteStorageError, trio.ClosedResourceError) as error:  # trouble with the tier is the reader's to tell
            _log.debug("segment_not_read_ahead", segment=str(segment.segment_id), error=str(error))
        except Exception:  # anything else is a bug of ours; the application's nursery must live on
            _log.warning("segment_not_read_ahead", segment=str(segment.segment_id), exc_info=True)
        finally:
            self._opening.discard(segment.segment_id.id)
