"""Read-ahead under any order of reads, arrivals, evictions and deletions: never beyond its budgets.

The model is what the cache does: a block that was asked for is under way, then unread, then read or dropped. Wants are
taken late and in any order, as segments open at their own pace.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metrics.cache_probes import ReadAheadProbe
from metrics.registry import Registry
from storage.cache.block_grid import BlockGrid, block_grid
from storage.cache.memory import BlockKey
from storage.cache.read_ahead import IDLE_S, SEGMENTS_AHEAD_MAX, STREAMS_PER_PARTITION_MAX, ReadAhead, Want
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tests.support.segments import topic_partition, uuid_of

MIB = 1024 * 1024
PARTITION = topic_partition()
READERS = st.sampled_from(["one", "two", "three"])


class ReadAheadMachine(RuleBasedStateMachine):
    """`unread`: blocks that nobody has read, under way or arrived. `position`: where each reader is."""

    @initialize(
        sizes=st.lists(st.sampled_from([0, 1, 700_000, 5 * MIB, 40 * MIB, 300 * MIB]), min_size=2, max_size=14),
        stream_bytes_max=st.sampled_from([0, MIB, 8 * MIB, 128 * MIB]),
        total_bytes_max=st.sampled_from([MIB, 10 * MIB, 100 * MIB]),
        chunk_bytes=st.sampled_from([1, 300_000, 4 * MIB, 40 * MIB]),
    )
    def start(self, sizes: list[int], stream_bytes_max: int, total_bytes_max: int, chunk_bytes: int) -> None:
        self.now_s = 0.0
        self.segments = [
            RemoteLogSegmentMetadata(
                RemoteLogSegmentId(PARTITION, uuid_of(str(n))), 10 * n, 10 * n + 9, 0, 1, 0, size, {0: 0}
            )
            for n, size in enumerate(sizes)
        ]
        self.total_bytes_max = total_bytes_max
        self.chunk_bytes = chunk_bytes
        self.read_ahead = ReadAhead(
            stream_bytes_max,
            total_bytes_max,
            probe=ReadAheadProbe(Registry()),
            clock=lambda: self.now_s,
            streams_max=20,
        )
        self.position = {"one": (0, 0), "two": (0, 0), "three": (0, 0)}
        self.wants: list[Want] = []
        self.resident: set[BlockKey] = set()
        self.unread: dict[BlockKey, int] = {}

    def grid(self, segment: RemoteLogSegmentMetadata) -> BlockGrid:
        return block_grid(self.chunk_bytes, segment.segment_size_bytes, MIB)

    def following(self, of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        return next((candidate for candidate in self.segments if candidate.start_offset > of.end_offset), None)

    def room_bytes(self) -> int:
        return self.total_bytes_max - sum(self.unread.values()) - sum(want.size_bytes for want in self.wants)

    def read(self, reader: str, index: int, start: int, size: int, *, waited: bool) -> None:
        segment = self.segments[index]
        end = min(start + size, segment.segment_size_bytes)
        if start < end:
            grid = self.grid(segment)
            for number in range(grid.number_at(start), grid.number_at(end - 1) + 1):
                for filled in grid.unit(number):
                    self.resident.add(BlockKey(segment.segment_id.id, filled))
                self.unread.pop(BlockKey(segment.segment_id.id, number), None)
            room_before = self.room_bytes()
            wants = self.read_ahead.on_read(
                reader,
                segment,
                start,
                end,
                waited=waited,
                following=self.following,
                room_bytes=self.room_bytes,
            )
            assert sum(want.size_bytes for want in wants) <= max(room_before, 0)
            assert len({want.run for want in wants}) == len(wants) <= SEGMENTS_AHEAD_MAX + 1
            self.wants += wants
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

    @rule(reader=READERS, index=st.integers(0, 13), start=st.integers(0, 40 * MIB))
    def seek(self, reader: str, index: int, start: int) -> None:
        index %= len(self.segments)
        self.read(reader, index, min(start, self.segments[index].segment_size_bytes), MIB, waited=True)

    @precondition(lambda self: self.wants)
    @rule(data=st.data())
    def open_a_segment(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(self.wants)).segment
        mine = [want for want in self.wants if want.segment.segment_id == segment.segment_id]
        self.wants = [want for want in self.wants if want not in mine]
        grid = self.grid(segment)
        for want in mine:
            room = self.room_bytes()
            numbers = self.read_ahead.take(want, grid, room)
            assert not numbers or grid.end(numbers[-1]) - grid.start(numbers[0]) <= room
            for number in numbers:
                key = BlockKey(segment.segment_id.id, number)
                if key not in self.resident:
                    self.resident.add(key)
                    self.unread[key] = grid.end(number) - grid.start(number)

    @precondition(lambda self: self.unread)
    @rule(data=st.data(), count=st.integers(1, 5))
    def drop_unread_blocks(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.unread))):
            key = data.draw(st.sampled_from(list(self.unread)))
            del self.unread[key]
            self.resident.discard(key)
            self.read_ahead.on_wasted(key)

    @rule(reader=READERS)
    def close_a_connection(self, reader: str) -> None:
        self.read_ahead.forget_reader(reader)

    @precondition(lambda self: len(self.segments) > 1)
    @rule(index=st.integers(0, 13))
    def delete_a_segment(self, index: int) -> None:
        deleted = self.segments.pop(index % len(self.segments)).segment_id.id
        self.read_ahead.forget_segment(deleted)
        self.resident = {key for key in self.resident if key.segment_id != deleted}
        self.unread = {key: size for key, size in self.unread.items() if key.segment_id != deleted}
        self.wants = [want for want in self.wants if want.segment.segment_id.id != deleted]

    @rule(seconds=st.sampled_from([1.0, 30.0, IDLE_S]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.read_ahead.drop_idle()
        if seconds >= IDLE_S:
            assert (len(self.read_ahead), self.read_ahead.streams_with_window) == (0, 0)

    @invariant()
    def budget_holds(self) -> None:
        assert sum(self.unread.values()) + sum(want.size_bytes for want in self.wants) <= self.total_bytes_max

    @invariant()
    def streams_are_limited(self) -> None:
        assert self.read_ahead.streams_with_window <= len(self.read_ahead) <= min(20, 3 * STREAMS_PER_PARTITION_MAX)


TestReadAhead = ReadAheadMachine.TestCase
