"""A segment whose GETs go as a test says, and the engine over it.

    segment = ScriptedSegment()                               # 64 blocks of 16 bytes that count as 1 MiB each
    held = segment.script(Script(begins=Gate()))              # what the next GET does: its answer waits for the gate
    segment.script(Script(fails={3: CorruptObjectError("x")}))    # the GET after it fails at block 3
    world = GetWorld(nursery)
    flights = world.want(segment, range(12))
    segment.gets[0].numbers                                   # what was asked for, in the order it was asked

GETs without a script deliver at once. Thread-safe.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from metrics.cache_meters import CacheMeter
from metrics.get_meter import GetMeter
from metrics.registry import Registry
from storage.cache.blocks import BlockGrid, BlockKey, SegmentBlocks
from storage.cache.byte_budget import ByteBudget
from storage.cache.gets import Gets
from storage.cache.pace import Pace
from storage.cache.segment_entries import Flight
from storage.cache.throttle import Throttle
from storage.log.block import Block
from storage.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState
from storage.remote_storage_manager import SegmentStream
from tests.support.faults import Gate as Gate
from tests.support.samples import sum_of
from tests.support.segments import topic_partition, uuid_of
from tests.support.waiting import until as until

MIB = 1024 * 1024
BLOCK_BYTES = 16
STORED_PER_BYTE = MIB // BLOCK_BYTES
"""Blocks are small, and as large to the planner as real ones."""

FINISHED_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Script:
    """What one GET does; keys are block numbers, reached before the block is given."""

    begins: Gate | None = None
    refusal: Exception | None = None
    holds: dict[int, Gate] = field(default_factory=dict)
    fails: dict[int, Exception] = field(default_factory=dict)
    short: bool = False


@dataclass(slots=True, eq=False)
class ScriptedGet:
    """One GET of a ScriptedSegment, and its stream."""

    segment: "ScriptedSegment"
    numbers: range
    script: Script
    is_begun: bool = False
    is_closed: bool = False
    read_bytes: int = 0

    @property
    def left(self) -> range:
        """Return what has not been read yet."""
        return self.numbers[self.read_bytes // self.segment.grid.block_bytes :]

    def read(self, size_bytes: int) -> bytes:
        number = self.left[0]
        if (gate := self.script.holds.get(number)) is not None:
            gate.hold()
        if (error := self.script.fails.get(number)) is not None:
            raise error
        self.read_bytes += size_bytes
        return self.segment.block(number)[: size_bytes - self.script.short]

    def close(self) -> None:
        self.is_closed = True

    async def closed(self) -> None:
        """Wait until it is closed; real time."""
        await until(lambda: self.is_closed)


class ScriptedSegment:
    """An OpenedSegment with metadata and grid; blocks differ in their bytes."""

    memory_bytes = 0

    def __init__(
        self,
        blocks: int = 64,
        *,
        name: str = "segment",
        unit_blocks: int = 1,
        block_bytes: int = BLOCK_BYTES,
        stored_per_byte: int = STORED_PER_BYTE,
        event_timestamp_ms: int = FINISHED_MS,
    ) -> None:
        size_bytes = blocks * block_bytes
        self.grid = BlockGrid(block_bytes, size_bytes, unit_blocks)
        self.chunk_bytes = block_bytes * unit_blocks
        self.gets: list[ScriptedGet] = []
        self.metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(topic_partition(), uuid_of(name)),
            start_offset=0,
            end_offset=blocks,
            max_timestamp_ms=0,
            broker_id=1,
            event_timestamp_ms=event_timestamp_ms,
            segment_size_bytes=size_bytes,
            segment_leader_epochs={0: 0},
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )
        self._stored_per_byte = stored_per_byte
        self._scripts: deque[Script] = deque()
        self._lock = threading.Lock()

    @property
    def source(self) -> SegmentBlocks:
        return SegmentBlocks(self.metadata, self, self.grid)

    @property
    def open_gets(self) -> list[ScriptedGet]:
        return [get for get in self.gets if not get.is_closed]

    def script(self, *scripts: Script) -> None:
        """Set what the next GETs do, in this order."""
        self._scripts.extend(scripts)

    def block(self, number: int) -> bytes:
        """The block's bytes."""
        return (b"%d:" % number).ljust(self.grid.block_bytes, b".")

    def key(self, number: int) -> BlockKey:
        return BlockKey(self.metadata.segment_id.id, number)

    def ranges(self) -> list[tuple[int, int]]:
        """First and last block of every GET."""
        return [(get.numbers.start, get.numbers.stop - 1) for get in self.gets]

    async def asked(self, count: int) -> None:
        """Wait until there were so many GETs; real time."""
        await until(lambda: len(self.gets) >= count)

    # --- OpenedSegment ---

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        return (end_position - start_position) * self._stored_per_byte

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        numbers = range(self.grid.number_at(start_position), self.grid.number_at(end_position - 1) + 1)
        with self._lock:
            get = ScriptedGet(self, numbers, self._scripts.popleft() if self._scripts else Script())
            self.gets.append(get)
        try:
            if get.script.begins is not None:
                get.script.begins.hold()
            if get.script.refusal is not None:
                raise get.script.refusal
        except Exception:
            get.is_closed = True
            raise
        get.is_begun = True
        return get

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        return True

    def fetch_index(self, index_type: IndexType) -> bytes:
        raise NotImplementedError


class UntaughtPace:
    """A Pace that never learns how fast the store is, so nothing is ever late: a test machine's pauses are not the
    store's."""

    def __init__(self, gets_max: int) -> None:
        self._pace = Pace(gets_max)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pace, name)

    def on_end(self, *_args: float, **_named: float) -> None:
        """Not heeded."""


@dataclass(frozen=True, slots=True)
class Landing:
    key: BlockKey
    data: bytes
    demanded: bool


class GetWorld:
    """GETs, what they landed, and what they counted."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        gets_max: int = 8,
        budget_bytes: int = 1024 * MIB,
        pace: Pace | None = None,
        land: Callable[[BlockKey, Block, bool], None] | None = None,
        now_ms: int = FINISHED_MS + HOUR_MS,
    ) -> None:
        self.landed: list[Landing] = []
        self.registry = Registry()
        self.held_bytes_max = 0
        self.budget = ByteBudget(budget_bytes, self._on_held)
        meter, self.cache_meter = GetMeter(self.registry), CacheMeter(self.registry)
        self.throttle = Throttle(gets_max, meter)
        self.gets = Gets(
            nursery,
            gets_max=gets_max,
            inflight=self.budget,
            pace=pace or cast(Pace, UntaughtPace(gets_max)),
            throttle=self.throttle,
            gets=meter,
            cache=self.cache_meter,
            now_ms=lambda: now_ms,
        )
        self.gets.land = land or self._land

    def want(self, segment: ScriptedSegment, numbers: range) -> list[Flight[Block]]:
        """One GET for those that are not under way, and a flight for each that is not here by then."""
        source = segment.source
        missing = [number for number in numbers if not self.gets.want_if_under_way(source.key(number))]
        if missing:
            self.gets.fetch(source, range(missing[0], missing[-1] + 1), missing)
        return [self.gets.wait_for(source.key(number)) for number in numbers]

    def ahead(self, segment: ScriptedSegment, numbers: range) -> bool:
        """One GET that nobody waits for; whether it was started."""
        return self.gets.fetch_ahead(segment.source, numbers, numbers)

    def may_read_ahead(self) -> bool:
        """A call, since a type checker takes a property to stay as it was."""
        return self.gets.may_read_ahead

    async def fetch(self, segment: ScriptedSegment, numbers: range) -> list[bytes]:
        return [bytes((await flight.wait()).data) for flight in self.want(segment, numbers)]

    def numbers(self) -> list[int]:
        """The blocks that landed, in that order."""
        return [landing.key.number for landing in self.landed]

    async def landed_at_least(self, count: int) -> None:
        """Wait for so many blocks; real time."""
        await until(lambda: len(self.landed) >= count)

    def sample(self, name: str, **labels: str) -> float:
        """A metric's value, summed over the labels that are not given; 0 until it is counted."""
        return sum_of(self.registry, f"tidegate_{name}", labels)

    def _land(self, key: BlockKey, block: Block, demanded: bool) -> None:
        self.landed.append(Landing(key, bytes(block.data), demanded))

    def _on_held(self, held_bytes: int) -> None:
        self.held_bytes_max = max(self.held_bytes_max, held_bytes)


def expected(segment: ScriptedSegment, numbers: Iterable[int]) -> list[bytes]:
    """The blocks' bytes."""
    return [segment.block(number) for number in numbers]
