"""Which bytes to fetch before anyone asks for them (design §8). Pure: no I/O, the clock is passed in.

A *stream* is a run of reads of one connection in one partition, each of which begins where the one before ended. A
connection may have several in one partition: Spark reads it at many offsets at once.

Rule 1. A read continues a stream if it begins behind the last one's start and not behind its end (an answer may end
        with a cut batch, which is read again), or in the segment that follows once the last one reached its
        segment's end: the one that `following` named then (offsets have holes), or the one that holds the next offset.
Rule 2. A new stream costs nothing: a seek gets no window. The second sequential read opens one of START_BYTES. It
        doubles when a read had to wait, and without that, up to two GETs of full size, when a whole window was
        read in sequence: slow readers too shall cost few GETs. It halves when a block that was read ahead is dropped
        unread: once for each answer, since evictions come in bursts.
Rule 3. No window is larger than `stream_bytes_max`, nor than its share of `total_bytes_max` among the streams that
        have one (but half of START_BYTES remains). What is asked for also fits in the room that the caller has left.
Rule 4. GETs stay large. A piece is asked for if it is GET_BYTES long, or reaches its segment's end, or if less than
        half of the window is asked for; else it waits for the window to move on.
Rule 5. A segment that begins within the window and GET_BYTES is wanted at once, if only its manifest and index.
Rule 6. What was asked for is not asked for again, also if it fails (the reader will meet that), unless it was dropped
        unread or found no room.

Working: a GET of 12 MiB takes 30 ms + 12 MiB / 60 MB/s = 0.24 s, so a window of W bytes yields W / 0.24 s: 128 MiB
give 560 MB/s over eleven connections, 4.5 Gbit/s. A link of 10 Gbit/s takes a window of 288 MiB.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from metrics.cache_probes import ReadAheadProbe
from storage.cache.block_grid import BlockGrid
from storage.cache.memory import BlockKey
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, Uuid

START_BYTES = 8 * 1024 * 1024
"""The first window, or two blocks if those are more. Doubled twice it is two GETs of full size."""

GET_BYTES = 12 * 1024 * 1024
"""The middle of the 8 to 16 MiB of design §8: the first byte is then an eighth of a GET's time, and a GB takes 80."""

IDLE_S = 60.0
"""A stream that is not read for so long is forgotten."""

STREAMS_MAX = 10_000
"""Some 1 KB each."""

STREAMS_PER_PARTITION_MAX = 16
"""Of one reader."""

SEGMENTS_AHEAD_MAX = 8
"""So many segments after the current one are opened ahead at most, however small they are."""

Following = Callable[[RemoteLogSegmentMetadata], RemoteLogSegmentMetadata | None]
"""The segment that a reader comes to after this one; None at the tier's end."""


@dataclass(slots=True, eq=False)
class Run:
    """What a stream asked for of one segment and has not read: bytes [start, end). Empty: only opened ahead."""

    segment: RemoteLogSegmentMetadata
    start: int
    end: int
    block_bytes: int = 0
    is_dropped: bool = False

    @property
    def segment_id(self) -> Uuid:
        return self.segment.segment_id.id


@dataclass(slots=True, eq=False)
class Stream:
    """One sequential reader: its last read was of bytes [start, end) of `segment`.

    `runs` begin with that segment's. `window_bytes` is 0 until the second read.
    """

    reader: Hashable
    segment: RemoteLogSegmentMetadata
    start: int
    end: int
    read_at_s: float
    follower: Uuid | None = None
    window_bytes: int = 0
    sequential_bytes: int = 0  # read since the window last changed
    unit_bytes: int = 1
    was_halved: bool = False
    runs: list[Run] = field(default_factory=list)

    @property
    def partition(self) -> TopicIdPartition:
        return self.segment.topic_id_partition

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


@dataclass(frozen=True, slots=True, eq=False)
class Want:
    """Bytes [start, end) of a segment that a stream wants to have ready; none of them: only the segment opened.

    `is_first`: the stream comes to this segment, so that its manifest and index are wanted too.
    """

    stream: Stream
    run: Run
    start: int
    end: int
    is_first: bool

    @property
    def segment(self) -> RemoteLogSegmentMetadata:
        return self.run.segment

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class ReadAhead:
    """All streams. Not thread-safe: the trio thread owns it.

    Args:
        stream_bytes_max: the largest window; 0: nothing is ever read ahead.
        total_bytes_max: of all windows.
        clock: seconds, from any beginning; never goes back.
    """

    def __init__(
        self,
        stream_bytes_max: int,
        total_bytes_max: int,
        *,
        probe: ReadAheadProbe,
        clock: Callable[[], float],
        block_bytes: int = 1024 * 1024,
        start_bytes: int = START_BYTES,
        get_bytes: int = GET_BYTES,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self._stream_bytes_max = min(stream_bytes_max, total_bytes_max)
        self._total_bytes_max = total_bytes_max
        self._start_bytes = min(max(start_bytes, 2 * block_bytes), self._stream_bytes_max)
        self._get_bytes = get_bytes
        self._streams_max = streams_max
        self._probe = probe
        self._clock = clock
        # No list or set in these is ever empty; streams of one partition are in the order of their last reads.
        self._by_reader: dict[Hashable, dict[TopicIdPartition, list[Stream]]] = {}
        self._by_segment: dict[Uuid, set[Stream]] = {}
        self._recent: OrderedDict[Stream, None] = OrderedDict()
        self._with_window = 0

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def streams_with_window(self) -> int:
        return self._with_window

    def on_read(
        self,
        reader: Hashable,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        *,
        waited: bool,
        following: Following,
        room_bytes: Callable[[], int],
    ) -> list[Want]:
        """Plaintext bytes [start, end) of the segment's log answered a read; what to fetch now, nearest first.

        Args:
            reader: a connection, by anything that names it.
            waited: the answer had to wait for a fill.
            room_bytes: how much more may be asked for, by all streams.
        """
        if self._stream_bytes_max <= 0 or end <= start:
            return []
        self.drop_idle()
        stream = self._continued(reader, segment, start)
        if stream is None:
            self._add(Stream(reader, segment, start, end, self._clock()), following)
            return []
        stream.sequential_bytes += end - start
        is_repeated = stream.start == start and stream.segment.segment_id == segment.segment_id
        self._advance(stream, segment, start, end, following)
        if is_repeated:
            return []
        self._grow(stream, waited)
        return self._plan(stream, following, room_bytes)

    def take(self, want: Want, grid: BlockGrid, room_bytes: int) -> range:
        """The blocks to fetch for a want, now that its segment's grid is known, at most room_bytes of them.

        Whole blocks, and all that are filled together. The stream remembers how far this came; what found no room
        is wanted again later. Empty if the reader was faster, has left, or the want is out of date.
        """
        run, start = want.run, max(want.start, want.run.start)
        if run.is_dropped or run.end < want.end or start >= want.end:
            return range(0)
        run.block_bytes = grid.block_bytes
        unit_bytes = want.stream.unit_bytes = grid.block_bytes * grid.unit_blocks
        # What holds the byte before `start` was filled when that was read.
        first = min(-(-start // unit_bytes) * grid.unit_blocks, grid.count)
        stop = max(first, grid.unit(grid.number_at(want.end - 1)).stop)
        while stop > first and grid.end(stop - 1) - grid.start(first) > room_bytes:
            stop = grid.unit(stop - 1).start
        end = grid.end(stop - 1) if stop else 0
        if end < want.end:
            _cut(want.stream, run, end)
        elif run.end == want.end:
            run.end = end
        return range(first, stop)

    def on_wasted(self, key: BlockKey) -> None:
        """A block that was read ahead is dropped unread: streams that still have it before them get less (rule 2)."""
        for stream in self._by_segment.get(key.segment_id, ()):
            run = next(run for run in stream.runs if run.segment_id == key.segment_id)
            start = key.number * run.block_bytes
            if not run.start < start + run.block_bytes or start >= run.end:
                continue
            _cut(stream, run, start)
            if not stream.was_halved:
                stream.was_halved = True
                stream.sequential_bytes = 0
                stream.window_bytes = max(self._smallest(stream), self._window(stream) // 2)

    def forget_reader(self, reader: Hashable) -> None:
        """A connection closed. What was fetched for it stays for others."""
        for streams in tuple(self._by_reader.get(reader, {}).values()):
            for stream in tuple(streams):
                self._drop(stream)

    def forget_segment(self, segment_id: Uuid) -> None:
        """A segment is deleted: streams in it end, others no longer come to it."""
        for stream in tuple(self._by_segment.get(segment_id, ())):
            if stream.segment.segment_id.id == segment_id:
                self._drop(stream)
                continue
            while any(run.segment_id == segment_id for run in stream.runs):
                self._drop_run(stream, -1)

    def drop_idle(self) -> None:
        """Forget streams that were not read for IDLE_S; each read does that too."""
        idle_since_s = self._clock() - IDLE_S
        while self._recent and (stream := next(iter(self._recent))).read_at_s <= idle_since_s:
            self._drop(stream)

    # --- streams ---

    def _continued(self, reader: Hashable, segment: RemoteLogSegmentMetadata, start: int) -> Stream | None:
        streams = self._by_reader.get(reader, {}).get(segment.topic_id_partition, ())
        found = [stream for stream in streams if stream.is_continued_by(segment, start)]
        # Several after a seek into what another stream has just read: the nearest.
        return max(found, key=lambda stream: (stream.end == start, stream.start), default=None)

    def _add(self, stream: Stream, following: Following) -> None:
        streams = self._by_reader.setdefault(stream.reader, {}).setdefault(stream.partition, [])
        streams.append(stream)
        self._recent[stream] = None
        self._advance(stream, stream.segment, stream.start, stream.end, following)
        if len(streams) > STREAMS_PER_PARTITION_MAX:
            self._drop(streams[0])
        if len(self._recent) > self._streams_max:
            self._drop(next(iter(self._recent)))

    def _advance(
        self, stream: Stream, segment: RemoteLogSegmentMetadata, start: int, end: int, following: Following
    ) -> None:
        """The stream's last read is this one now."""
        while stream.runs and stream.runs[0].segment_id != segment.segment_id.id:
            self._drop_run(stream, 0)
        if not stream.runs:
            self._add_run(stream, Run(segment, end, end))
        run = stream.runs[0]
        run.start = max(run.start, end)
        run.end = max(run.end, run.start)
        stream.segment, stream.start, stream.end = segment, start, end
        stream.read_at_s = self._clock()
        stream.was_halved = False
        follower = following(segment) if end >= segment.segment_size_bytes else None
        stream.follower = None if follower is None else follower.segment_id.id
        self._recent.move_to_end(stream)
        streams = self._by_reader[stream.reader][stream.partition]
        if streams[-1] is not stream:
            streams.remove(stream)
            streams.append(stream)

    def _drop(self, stream: Stream) -> None:
        while stream.runs:
            self._drop_run(stream, -1)
        del self._recent[stream]
        partitions = self._by_reader[stream.reader]
        streams = partitions[stream.partition]
        streams.remove(stream)
        if not streams:
            del partitions[stream.partition]
        if not partitions:
            del self._by_reader[stream.reader]
        if stream.window_bytes:
            self._with_window -= 1
            self._probe.on_streams(self._with_window)

    def _add_run(self, stream: Stream, run: Run) -> None:
        stream.runs.append(run)
        self._by_segment.setdefault(run.segment_id, set()).add(stream)

    def _drop_run(self, stream: Stream, index: int) -> None:
        run = stream.runs.pop(index)
        run.is_dropped = True
        streams = self._by_segment[run.segment_id]
        streams.discard(stream)
        if not streams:
            del self._by_segment[run.segment_id]

    # --- windows ---

    def _grow(self, stream: Stream, waited: bool) -> None:
        if not stream.window_bytes:
            stream.window_bytes = self._smallest(stream)
            self._with_window += 1
            self._probe.on_streams(self._with_window)
        elif waited or stream.sequential_bytes >= self._window(stream):
            doubled = 2 * self._window(stream)
            stream.window_bytes = doubled if waited else max(stream.window_bytes, min(doubled, 2 * self._get_bytes))
            stream.sequential_bytes = 0
        stream.window_bytes = self._window(stream)

    def _window(self, stream: Stream) -> int:
        share = max(self._start_bytes // 2, self._total_bytes_max // max(1, self._with_window))
        return min(max(stream.window_bytes, self._smallest(stream)), share, self._stream_bytes_max)

    def _smallest(self, stream: Stream) -> int:
        # Chunks may be larger than `cache.block.bytes`.
        return min(max(self._start_bytes, 2 * stream.unit_bytes), self._stream_bytes_max)

    def _plan(self, stream: Stream, following: Following, room_bytes: Callable[[], int]) -> list[Want]:
        """Rules 4 and 5: along the current segment and those that follow, as far as the window reaches."""
        window = self._window(stream)
        is_low = 2 * sum(run.end - run.start for run in stream.runs) < window
        wants: list[Want] = []
        planned_bytes = 0
        distance = -stream.end  # from the reader to the segment's first byte
        may_ask = True
        for index in range(SEGMENTS_AHEAD_MAX + 1):
            if distance >= window + self._get_bytes:
                break
            is_first = index == len(stream.runs)
            run = self._run_after(stream, following) if is_first else stream.runs[index]
            if run is None:
                break
            start = run.end
            if may_ask and window - distance > start:
                room = room_bytes() - planned_bytes
                run.end = self._goal(stream, run, window - distance, room, is_low)
            if is_first or run.end > start:
                wants.append(Want(stream, run, start, run.end, is_first))
                planned_bytes += run.end - start
            may_ask = may_ask and run.end >= run.segment.segment_size_bytes
            distance += run.segment.segment_size_bytes
        return wants

    def _goal(self, stream: Stream, run: Run, position: int, room: int, is_low: bool) -> int:
        """How far to ask in a segment that the window reaches up to `position`."""
        size = run.segment.segment_size_bytes
        goal = min(size, position, run.end + room)
        piece = goal - run.end
        if piece <= 0:
            return run.end
        is_large = piece >= self._get_bytes or (is_low and 2 * piece >= self._start_bytes)
        if goal == size or (is_large and room >= stream.unit_bytes):
            return goal
        return run.end

    def _run_after(self, stream: Stream, following: Following) -> Run | None:
        last = stream.runs[-1].segment
        segment = following(last)
        if segment is None or segment.end_offset <= last.end_offset:
            return None
        run = Run(segment, 0, 0)
        self._add_run(stream, run)
        return run


def _cut(stream: Stream, run: Run, end: int) -> None:
    """What was asked for ends here; the rest may be asked for again."""
    run.end = max(run.start, end)
    for later in stream.runs[stream.runs.index(run) + 1 :]:
        later.end = later.start
