"""Read-ahead under any order of reads, openings, GETs, evictions and deletions: its tables agree with each other, what
streams ask for stays inside their windows, and nothing is left of streams that went.

The model is what the prefetcher and the cache do: segments open at their own pace, GETs are started one by one, a block
that was asked for is unread until it is read or dropped.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage.cache.blocks import BlockKey
from storage.cache.pace import GET_BYTES
from storage.cache.read_ahead import IDLE_S, SEGMENTS_AHEAD_MAX, STREAMS_PER_PARTITION_MAX, Read
from storage.model import RemoteLogSegmentMetadata
from tests.support.read_ahead_world import MIB, World, segment

READERS = st.sampled_from(["one", "two", "three"])


class ReadAheadMachine(RuleBasedStateMachine):
    """`unread`: blocks that nobody has read, under way or arrived. `position`: where each reader is.
    `opening`: segments that streams come to and that are not open yet."""

    @initialize(
        sizes=st.lists(st.sampled_from([0, 1, 700_000, 5 * MIB, 40 * MIB, 300 * MIB]), min_size=2, max_size=14),
        stream_bytes_max=st.sampled_from([0, MIB, 8 * MIB, 128 * MIB]),
        total_bytes_max=st.sampled_from([MIB, 10 * MIB, 100 * MIB]),
        chunk_bytes=st.sampled_from([1, 300_000, 4 * MIB, 40 * MIB]),
    )
    def start(self, sizes: list[int], stream_bytes_max: int, total_bytes_max: int, chunk_bytes: int) -> None:
        self.segments = [segment(number, size) for number, size in enumerate(sizes)]
        self.world = World(self.segments, stream_bytes_max, total_bytes_max, chunk_bytes=chunk_bytes, streams_max=20)
        self.read_ahead = self.world.read_ahead
        self.position = {"one": (0, 0), "two": (0, 0), "three": (0, 0)}
        self.opening = list[RemoteLogSegmentMetadata]()
        self.unread = set[BlockKey]()

    def read(self, reader: str, index: int, start: int, size: int, *, waited: bool, is_cut: bool = True) -> None:
        read_from = self.segments[index]
        end = min(start + size, read_from.segment_size_bytes)
        if start < end:
            source = self.world.blocks(read_from)
            numbers = range(source.grid.number_at(start), source.grid.number_at(end - 1) + 1)
            self.unread.difference_update(source.key(number) for number in numbers)
            found = self.read_ahead.on_read(Read(reader, source, start, end, waited, is_cut, self.world.following))
            assert len(found) <= SEGMENTS_AHEAD_MAX
            assert [ahead.segment.start_offset for ahead in found] == sorted(
                {ahead.segment.start_offset for ahead in found}
            )
            assert all(ahead.segment in self.segments for ahead in found)
            self.opening += [ahead.segment for ahead in found]
        self.position[reader] = (index, end)

    @rule(
        reader=READERS, size=st.sampled_from([1, 500_000, MIB, 9 * MIB]), times=st.integers(1, 20), waited=st.booleans()
    )
    def read_on(self, reader: str, size: int, times: int, waited: bool) -> None:
        for _ in range(times):
            index, start = self.position[reader]
            if index >= len(self.segments):
                index = 0
            if start >= self.segments[index].segment_size_bytes:
                index, start = (index + 1) % len(self.segments), 0
            self.read(reader, index, start, size, waited=waited)

    @rule(reader=READERS, index=st.integers(0, 13), start=st.integers(0, 40 * MIB), is_cut=st.booleans())
    def seek(self, reader: str, index: int, start: int, is_cut: bool) -> None:
        index %= len(self.segments)
        start = min(start, self.segments[index].segment_size_bytes)
        self.read(reader, index, start, MIB, waited=True, is_cut=is_cut)

    @precondition(lambda self: self.opening)
    @rule(data=st.data(), succeeds=st.booleans())
    def open_a_segment(self, data: st.DataObject, succeeds: bool) -> None:
        opened = data.draw(st.sampled_from(self.opening))
        self.opening = [other for other in self.opening if other is not opened]
        if succeeds:
            segment_id = opened.segment_id.id
            is_wanted = any(
                ahead.segment_id == segment_id for stream in self.read_ahead.recent for ahead in stream.segments
            )
            assert self.read_ahead.opened(self.world.blocks(opened)) == is_wanted

    @rule(gets=st.integers(1, 40))
    def start_gets(self, gets: int) -> None:
        for _ in range(gets):
            able = [stream for stream in self.read_ahead.recent if self.read_ahead.may_ask(stream)]
            stream = self.read_ahead.nearest()
            if stream is None:
                return
            assert stream in able
            assert stream.window_bytes > 0
            frontier, window = stream.frontier, self.read_ahead.window(stream)
            assert frontier is not None
            assert frontier.blocks is not None
            grid = frontier.blocks.grid
            assert frontier.segment in self.segments
            wanted_bytes = min(GET_BYTES, max(window - stream.ahead_bytes, grid.block_bytes))
            first = grid.number_at(frontier.position)
            last = grid.number_at(min(frontier.position + wanted_bytes, grid.size_bytes) - 1)
            numbers = range(first, grid.unit(last).stop)
            frontier.position = grid.end(numbers[-1])
            self.unread.update(frontier.blocks.key(number) for number in numbers)
            self.read_ahead.changed(stream)
            assert stream.ahead_bytes <= window + 2 * grid.block_bytes * grid.unit_blocks

    @precondition(lambda self: self.unread)
    @rule(data=st.data(), count=st.integers(1, 5))
    def drop_unread_blocks(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.unread))):
            key = data.draw(st.sampled_from(sorted(self.unread)))
            self.unread.discard(key)
            self.read_ahead.on_wasted(key)

    @rule(reader=READERS)
    def close_a_connection(self, reader: str) -> None:
        self.read_ahead.forget_reader(reader)

    @precondition(lambda self: len(self.segments) > 1)
    @rule(index=st.integers(0, 13))
    def delete_a_segment(self, index: int) -> None:
        deleted = self.segments.pop(index % len(self.segments)).segment_id.id
        self.read_ahead.forget_segment(deleted)
        self.unread = {key for key in self.unread if key.segment_id != deleted}

    @rule(seconds=st.sampled_from([1.0, 30.0, IDLE_S]))
    def wait(self, seconds: float) -> None:
        self.world.now_s += seconds
        self.read_ahead.drop_idle()
        if seconds >= IDLE_S:
            assert (len(self.read_ahead.recent), self.read_ahead.streams_with_window) == (0, 0)

    @invariant()
    def windows_are_inside_the_limits(self) -> None:
        grids = [self.world.blocks(each).grid for each in self.segments]
        smallest_bytes = max(2 * grid.block_bytes * grid.unit_blocks for grid in grids)
        for stream in self.read_ahead.recent:
            assert stream.window_bytes <= min(self.world.stream_bytes_max, self.world.total_bytes_max)
            share = self.world.total_bytes_max // max(1, self.read_ahead.streams_with_window)
            assert self.read_ahead.window(stream) <= max(share, smallest_bytes)

    @invariant()
    def streams_are_limited(self) -> None:
        streams_max = min(20, 3 * STREAMS_PER_PARTITION_MAX)
        assert self.read_ahead.streams_with_window <= len(self.read_ahead.recent) <= streams_max

    @invariant()
    def tables_agree(self) -> None:
        """Every stream is in each table once, and nothing else is."""
        read_ahead = self.read_ahead
        streams = list(read_ahead.recent)
        by_reader = [
            stream
            for reader, partitions in read_ahead.by_reader.items()
            for partition, of_one in partitions.items()
            for stream in of_one
            if (stream.last.reader, stream.partition) == (reader, partition)
        ]
        assert len(by_reader) == len(streams)
        assert set(by_reader) == set(streams)
        assert all(read_ahead.by_reader.values())
        assert all(of_one for partitions in read_ahead.by_reader.values() for of_one in partitions.values())
        assert {(segment_id, stream) for segment_id, of_one in read_ahead.by_segment.items() for stream in of_one} == {
            (ahead.segment_id, stream) for stream in streams for ahead in stream.segments
        }
        assert all(read_ahead.by_segment.values())
        assert read_ahead.streams_with_window == sum(stream.window_bytes > 0 for stream in streams)
        assert read_ahead.ahead_bytes == sum(stream.ahead_bytes for stream in streams)
        assert len(read_ahead.line) <= 64 + 2 * 20 + 1

    @invariant()
    def a_stream_asks_for_what_lies_before_its_reader_without_a_gap(self) -> None:
        for stream in self.read_ahead.recent:
            assert stream.segments[0].segment_id == stream.segment.segment_id.id
            assert stream.ahead_bytes >= 0
            is_behind_frontier = False
            for ahead in stream.segments:
                assert not (is_behind_frontier and ahead.position and ahead.segment.segment_size_bytes)
                is_behind_frontier |= ahead.position < ahead.segment.segment_size_bytes


TestReadAhead = ReadAheadMachine.TestCase
