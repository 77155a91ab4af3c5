"""Wants become opened segments, loaded indexes and blocks asked for; nothing of it reaches the reader."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
import structlog.testing
import trio
import trio.testing

from metrics.cache_probes import ReadAheadProbe
from metrics.registry import Registry
from storage.cache.block_grid import BlockGrid
from storage.cache.prefetcher import Prefetcher
from storage.cache.read_ahead import GET_BYTES, ReadAhead
from storage.errors import RemoteResourceNotFoundError
from storage.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata
from storage.remote_storage_manager import SegmentStream
from tests.support.segments import topic_partition, uuid_of

MIB = 1024 * 1024
START_BYTES = 4 * MIB


def segment(number: int, size_bytes: int = 64 * MIB) -> RemoteLogSegmentMetadata:
    segment_id = RemoteLogSegmentId(topic_partition(), uuid_of(str(number)))
    return RemoteLogSegmentMetadata(segment_id, 10 * number, 10 * number + 9, 0, 1, 0, size_bytes, {0: 0})


@dataclass(frozen=True, slots=True)
class FakeOpened:
    """An OpenedSegment that knows its chunk size; nobody reads from it here."""

    chunk_bytes: int = 1
    memory_bytes: int = 1

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        raise NotImplementedError

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        raise NotImplementedError

    def fetches_index(self, index_type: IndexType) -> bool:
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        raise NotImplementedError


@dataclass(slots=True)
class World:
    """A prefetcher before a cache that fills nothing: blocks are asked for once and stay unread until told.

    `opens`, `loads`: indexes of segments, in the order of the calls. `open_gates` and `load_gates` hold the call for
    a segment until they are set; `open_errors` and `load_errors` end it.
    """

    nursery: trio.Nursery
    segments: list[RemoteLogSegmentMetadata]
    total_bytes_max: int = 512 * MIB
    chunk_bytes: int = 1
    opens: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    open_gates: dict[int, trio.Event] = field(default_factory=dict)
    load_gates: dict[int, trio.Event] = field(default_factory=dict)
    open_errors: dict[int, Exception] = field(default_factory=dict)
    load_errors: dict[int, Exception] = field(default_factory=dict)
    calls: list[tuple[int, int, int]] = field(default_factory=list)
    fills: list[tuple[int, int]] = field(default_factory=list)
    unread_bytes: int = 0
    read_ahead: ReadAhead = field(init=False)
    prefetcher: Prefetcher = field(init=False)

    def __post_init__(self) -> None:
        self.read_ahead = ReadAhead(
            128 * MIB,
            self.total_bytes_max,
            probe=ReadAheadProbe(Registry()),
            clock=trio.current_time,
            start_bytes=START_BYTES,
        )
        self.prefetcher = Prefetcher(
            self.nursery,
            self.read_ahead,
            block_bytes=MIB,
            open_segment=self.open_segment,
            load_index=self.load_index,
            ahead=self.ahead,
            room_bytes=lambda: self.total_bytes_max - self.unread_bytes,
        )

    async def open_segment(self, opened: RemoteLogSegmentMetadata) -> FakeOpened:
        number = self.segments.index(opened)
        self.opens.append(number)
        if number in self.open_gates:
            await self.open_gates[number].wait()
        if number in self.open_errors:
            raise self.open_errors[number]
        return FakeOpened(self.chunk_bytes)

    async def load_index(self, loaded: RemoteLogSegmentMetadata) -> None:
        number = self.segments.index(loaded)
        self.loads.append(number)
        if number in self.load_gates:
            await self.load_gates[number].wait()
        if number in self.load_errors:
            raise self.load_errors[number]

    def ahead(self, of: RemoteLogSegmentMetadata, opened: object, grid: BlockGrid, numbers: Sequence[int]) -> None:
        index = self.segments.index(of)
        self.calls.append((index, numbers[0], numbers[-1]))
        for number in numbers:
            if (index, number) not in self.fills:
                self.fills.append((index, number))
                self.unread_bytes += grid.end(number) - grid.start(number)
        assert self.unread_bytes <= self.total_bytes_max

    def following(self, of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        return next((candidate for candidate in self.segments if candidate.start_offset > of.end_offset), None)

    async def scan(self, index: int, reads: Iterable[int], *, reader: str = "one", waited: bool = False) -> None:
        """Reads of 1 MiB that begin at these MiB, with all tasks run in between."""
        for at in reads:
            self.prefetcher.on_read(
                reader,
                self.segments[index],
                at * MIB,
                (at + 1) * MIB,
                waited=waited,
                following=self.following,
            )
            await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery, [segment(number) for number in range(3)])


async def test_seeks_open_nothing(world: World) -> None:
    await world.scan(0, [5, 3, 60, 20], waited=True)
    assert (world.opens, world.loads, world.calls) == ([], [], [])


async def test_a_sequential_read_asks_for_the_blocks_behind_it(world: World) -> None:
    await world.scan(0, range(2))
    assert (world.opens, world.loads, world.calls) == ([0], [], [(0, 2, 5)])


async def test_each_block_is_asked_for_once_by_a_reader(world: World) -> None:
    await world.scan(0, range(64), waited=True)
    await world.scan(1, range(64), waited=True)
    asked = [(index, number) for index, first, last in world.calls for number in range(first, last + 1)]
    assert sorted(set(asked)) == sorted(asked) == [(n, b) for n in range(3) for b in range(2 if n == 0 else 0, 64)]


async def test_two_readers_of_one_partition_cost_one_fill(world: World) -> None:
    for at in range(40):
        await world.scan(0, [at], reader="one")
        await world.scan(0, [at], reader="two")
    assert len(world.calls) > 10
    assert len(world.fills) == len(set(world.fills)) <= 40 + 2 * GET_BYTES // MIB


async def test_the_next_segment_is_opened_and_its_index_loaded_before_the_border(world: World) -> None:
    await world.scan(0, range(24))
    assert (world.opens.count(1), world.loads) == (0, [])
    await world.scan(0, range(24, 36))
    assert (world.opens.count(1), world.loads) == (1, [1])
    assert all(index == 0 for index, _, _ in world.calls)
    await world.scan(0, range(36, 64))
    assert any(index == 1 for index, _, _ in world.calls)
    assert world.loads == [1]


async def test_a_segment_is_opened_by_one_task_however_many_want_it(world: World) -> None:
    world.open_gates[0] = trio.Event()
    for reader in ("one", "two", "three"):
        await world.scan(0, range(2), reader=reader)
    assert (world.opens, world.calls, world.prefetcher.planned_bytes) == ([0], [], 3 * START_BYTES)
    world.open_gates[0].set()
    await trio.testing.wait_all_tasks_blocked()
    assert (world.calls, world.prefetcher.planned_bytes) == ([(0, 2, 5)] * 3, 0)
    assert len(world.fills) == 4


async def test_an_index_is_loaded_by_one_task_however_many_come_to_it(world: World) -> None:
    world.load_gates[1] = trio.Event()
    for reader in ("one", "two"):
        await world.scan(0, range(58, 64), reader=reader)
    assert world.loads == [1]
    world.load_gates[1].set()


async def test_blocks_do_not_wait_for_an_index(world: World) -> None:
    world.load_gates[1] = trio.Event()
    await world.scan(0, range(50, 64))
    assert any(index == 1 for index, _, _ in world.calls)
    world.load_gates[1].set()


async def test_reads_go_on_while_a_segment_is_being_opened(world: World) -> None:
    world.open_gates[1] = trio.Event()
    await world.scan(0, range(45, 60))
    assert world.opens.count(1) == 1
    assert max(last for index, _, last in world.calls if index == 0) == 63
    world.open_gates[1].set()
    await world.scan(0, range(60, 64))
    assert any(index == 1 for index, _, _ in world.calls)


@pytest.mark.parametrize(
    ("error", "level"), [(RemoteResourceNotFoundError("gone"), "debug"), (ValueError("a bug"), "warning")]
)
async def test_a_segment_that_cannot_be_opened_harms_nobody(world: World, error: Exception, level: str) -> None:
    world.open_errors[1] = error
    with structlog.testing.capture_logs() as logs:
        await world.scan(0, range(58, 64))
    assert {entry["log_level"] for entry in logs} == {level}
    assert {entry["event"] for entry in logs} == {"segment_not_opened_ahead"}
    assert world.opens.count(1) == 2, "once for its manifest and index, once for its blocks, not for every read"
    assert (world.loads, world.prefetcher.planned_bytes) == ([], 0)
    await world.scan(1, range(4))
    del world.open_errors[1]
    await world.scan(1, range(4, 12))
    assert any(index == 1 for index, _, _ in world.calls), "it is tried again as the stream goes on"


async def test_an_index_that_cannot_be_loaded_harms_nobody(world: World) -> None:
    world.load_errors[1] = RemoteResourceNotFoundError("gone")
    with structlog.testing.capture_logs() as logs:
        await world.scan(0, range(50, 64))
    assert [entry["event"] for entry in logs] == ["segment_not_read_ahead"]
    assert any(index == 1 for index, _, _ in world.calls)


async def test_what_is_unread_and_under_way_stays_inside_the_budget(nursery: trio.Nursery) -> None:
    world = World(nursery, [segment(0)], total_bytes_max=10 * MIB)
    world.open_gates[0] = trio.Event()
    for reader in range(8):
        await world.scan(0, [reader * 8, reader * 8 + 1], reader=str(reader), waited=True)
    assert world.prefetcher.planned_bytes <= 10 * MIB
    world.open_gates[0].set()
    await trio.testing.wait_all_tasks_blocked()
    assert 8 * MIB <= world.unread_bytes <= 10 * MIB


async def test_chunks_larger_than_the_first_window_are_asked_for_whole(nursery: trio.Nursery) -> None:
    world = World(nursery, [segment(0)], chunk_bytes=6 * MIB)
    await world.scan(0, range(8), waited=True)
    assert world.calls[0][:2] == (0, 1)
    assert [number for _, number in world.fills] == list(range(1, len(world.fills) + 1))
    assert world.unread_bytes > 12 * MIB


async def test_a_reader_that_left_is_read_ahead_for_no_more(world: World) -> None:
    world.open_gates[0] = trio.Event()
    await world.scan(0, range(2))
    world.read_ahead.forget_reader("one")
    world.open_gates[0].set()
    await trio.testing.wait_all_tasks_blocked()
    assert (world.calls, world.prefetcher.planned_bytes) == ([], 0)


async def test_a_bug_elsewhere_does_not_reach_the_reader(world: World) -> None:
    def lost(_of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        raise KeyError("lost")

    with structlog.testing.capture_logs() as logs:
        for at in range(60, 64):
            world.prefetcher.on_read("one", world.segments[0], at * MIB, (at + 1) * MIB, waited=True, following=lost)
    assert {entry["event"] for entry in logs} == {"read_ahead_failed"}
    await world.scan(1, range(2), reader="two")
    assert world.calls[-1] == (1, 2, 5)


async def test_after_shutdown_nothing_is_started_and_nothing_raised() -> None:
    async with trio.open_nursery() as application:
        world = World(application, [segment(0)])
        world.open_gates[0] = trio.Event()
        await world.scan(0, range(2))
        application.cancel_scope.cancel()
    assert world.prefetcher.planned_bytes == 0
    with structlog.testing.capture_logs() as logs:
        await world.scan(0, range(2, 12), waited=True)
    assert {entry["event"] for entry in logs} == {"read_ahead_failed"}
    assert (world.calls, world.prefetcher.planned_bytes) == ([], 0)
