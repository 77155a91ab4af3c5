"""Read-ahead over the segments of a tier that is nowhere, for tests of `storage.cache.read_ahead`.

world = World([segment(number) for number in range(3)])
world.scan(0, mib(0, 20), waited=True)      # reads of 1 MiB in segment 0, each of which had to wait
world.pieces                                # what was asked for: (segment, first byte, end)
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from metrics.cache_meters import ReadAheadMeter
from metrics.registry import Registry
from storage.cache.blocks import BlockKey, SegmentBlocks, block_grid
from storage.cache.pace import GET_BYTES
from storage.cache.read_ahead import Read, ReadAhead, Stream
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tests.support.opened_bytes import OpenedBytes
from tests.support.samples import sum_of
from tests.support.segments import topic_partition, uuid_of

MIB = 1024 * 1024
START_BYTES = 4 * MIB
GIB = 1024 * MIB
OFFSETS = 1000
PARTITION = topic_partition()


def segment(number: int, size_bytes: int = GIB, partition: TopicIdPartition = PARTITION) -> RemoteLogSegmentMetadata:
    """Offsets number * OFFSETS to (number + 1) * OFFSETS − 1."""
    segment_id = RemoteLogSegmentId(partition, uuid_of(f"{partition} {number}"))
    start = number * OFFSETS
    return RemoteLogSegmentMetadata(segment_id, start, start + OFFSETS - 1, 0, 1, 0, size_bytes, {0: 0})


@dataclass(slots=True)
class World:
    """Read-ahead over the segments of a tier. A GET is as large as may be, and recorded as (segment, first, end).

    `opens`: whether segments open at once. `pulls`: whether all that may be asked for is asked for after each read.
    """

    segments: list[RemoteLogSegmentMetadata]
    stream_bytes_max: int = 128 * MIB
    total_bytes_max: int = 512 * MIB
    block_bytes: int = MIB
    chunk_bytes: int = 1
    streams_max: int = 10_000
    opens: bool = True
    pulls: bool = True
    now_s: float = 0.0
    metrics: Registry = field(default_factory=Registry)
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    read_ahead: ReadAhead = field(init=False)

    def __post_init__(self) -> None:
        self.read_ahead = ReadAhead(
            self.stream_bytes_max,
            self.total_bytes_max,
            meter=ReadAheadMeter(self.metrics),
            clock=lambda: self.now_s,
            start_bytes=START_BYTES,
            streams_max=self.streams_max,
        )

    def blocks(self, of: RemoteLogSegmentMetadata) -> SegmentBlocks:
        opened = OpenedBytes(of, lambda: b"", lambda index_type: b"", chunk_bytes=self.chunk_bytes)
        return SegmentBlocks(of, opened, block_grid(self.chunk_bytes, of.segment_size_bytes, self.block_bytes))

    def following(self, of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        return next((candidate for candidate in self.segments if candidate.start_offset > of.end_offset), None)

    def read(
        self,
        index: int,
        start: int,
        end: int,
        *,
        reader: str = "one",
        waited: bool = False,
        is_cut: bool = True,
        is_begun: bool = False,
    ) -> int:
        """Bytes that were asked for upon this read."""
        source = self.blocks(self.segments[index])
        read = Read(reader, source, start, end, waited, is_cut, self.following, is_begun=is_begun)
        for ahead in self.read_ahead.on_read(read):
            self.opened.append(self.segments.index(ahead.segment))
            if self.opens:
                self.read_ahead.opened(self.blocks(ahead.segment))
        return self.pull() if self.pulls else 0

    def pull(self, gets: int = 1_000_000) -> int:
        """Start GETs until nobody wants one; what was asked for."""
        asked = 0
        while gets and (stream := self.read_ahead.nearest()) is not None:
            asked += self.ask(stream)
            self.read_ahead.changed(stream)
            gets -= 1
        return asked

    def ask(self, stream: Stream) -> int:
        """One GET, as `Prefetcher` has it: two fit into a window."""
        frontier, window = stream.frontier, self.read_ahead.window(stream)
        assert frontier is not None
        assert frontier.blocks is not None
        grid = frontier.blocks.grid
        room = max(window - stream.ahead_bytes, grid.block_bytes)
        end = min(grid.size_bytes, frontier.position + min(room, GET_BYTES, max(window // 2, grid.block_bytes)))
        unit = grid.unit(grid.number_at(end - 1))
        end = grid.end(unit.stop - 1) if grid.unit_blocks > 1 else grid.end(grid.number_at(end - 1))
        self.pieces.append((self.segments.index(frontier.segment), frontier.position, end))
        frontier.position = end
        return end - self.pieces[-1][1]

    def scan(
        self, index: int, starts: Iterable[int], *, reader: str = "one", waited: bool = False, read_bytes: int = MIB
    ) -> int:
        return sum(self.read(index, at, at + read_bytes, reader=reader, waited=waited) for at in starts)

    def ahead_bytes(self, end: int, index: int = 0) -> int:
        """Return how far beyond `end` of the segment pieces have gone there."""
        return max((piece[2] for piece in self.pieces if piece[0] == index), default=end) - end

    def wasted(self, number: int, index: int = 0) -> None:
        self.read_ahead.on_wasted(BlockKey(self.segments[index].segment_id.id, number))

    def evicted(self, number: int, index: int = 0) -> None:
        self.read_ahead.on_evicted(BlockKey(self.segments[index].segment_id.id, number))

    def streams(self) -> float:
        return sum_of(self.metrics, "tidegate_readahead_streams", {})


def mib(first: int, end: int) -> range:
    """Return where reads of 1 MiB begin."""
    return range(first * MIB, end * MIB, MIB)


def assert_nothing_is_left(read_ahead: ReadAhead) -> None:
    """No table holds anything, and the gauge says so."""
    assert (read_ahead.streams_with_window, read_ahead.ahead_bytes) == (0, 0)
    assert (read_ahead.by_reader, read_ahead.by_segment, read_ahead.recent) == ({}, {}, {})
    assert read_ahead.nearest() is None
    assert not read_ahead.line
