"""A disk level whose `run` is running, over a real folder, with gates that hold its threads.

async with world_at(tmp_path) as world:
    gate = world.gate("read", KEY)        # reads of KEY wait for it in their thread
    flight = world.start_read(KEY)
"""

from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import trio

from metrics.cache_meters import CacheMeter
from metrics.registry import Registry
from storage.cache.blocks import BlockKey, SegmentBlocks
from storage.cache.disk import DiskBlockKey, DiskBlocks
from storage.cache.disk_level import DiskLevel
from storage.cache.disk_reads import DiskReads
from storage.cache.segment_entries import Flight
from storage.log.arriving_batches import ArrivalWalk
from storage.log.block import Block
from storage.model import Uuid
from tests.support.disk_cache import cost, data_of
from tests.support.scripted_gets import Gate, until
from tests.support.segments import filled_segment, metadata_of, topic_partition

FROM_STORE = b"from the store"
UNCHECKED = metadata_of(topic_partition(), filled_segment(0))


class GatedDisk:
    """A DiskBlocks. `gates` hold reads and writes of a block in their thread, before they look at the disk."""

    def __init__(self, disk: DiskBlocks) -> None:
        self.gates: dict[tuple[str, DiskBlockKey], Gate] = {}
        self.after_read: dict[DiskBlockKey, Gate] = {}
        """The same, once the bytes are read."""
        self.after_drop: Gate | None = None
        """Holds the thread that has deleted segments."""
        self.expirations = 0
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def read(self, key: DiskBlockKey, reader: Hashable | None = None) -> memoryview | None:
        self._hold("read", key)
        data = self._disk.read(key, reader)
        if key in self.after_read:
            self.after_read[key].hold()
        return data

    def write(self, key: DiskBlockKey, data: memoryview | bytes | bytearray, reader: Hashable | None = None) -> bool:
        self._hold("write", key)
        return self._disk.write(key, data, reader)

    def drop_segments(self, segment_ids: Iterable[Uuid]) -> int:
        dropped = self._disk.drop_segments(segment_ids)
        if self.after_drop is not None:
            self.after_drop.hold()
        return dropped

    def expire(self) -> int:
        self.expirations += 1
        return self._disk.expire()

    def _hold(self, verb: str, key: DiskBlockKey) -> None:
        if (verb, key) in self.gates:
            self.gates[verb, key].hold()


@dataclass(frozen=True)
class SourceOf:
    """One block's segment."""

    disk_key: DiskBlockKey

    def key(self, number: int) -> BlockKey:
        return BlockKey(self.disk_key.segment_id, number)

    def size_bytes(self, number: int) -> int:
        return self.disk_key.size_bytes


@dataclass
class World:
    """A level whose `run` is running. `landed` is what it handed to memory."""

    level: DiskLevel
    disk: GatedDisk
    registry: Registry
    landed: list[Block] = field(default_factory=list)
    fetched: int = 0
    store_error: Exception | None = None

    def __post_init__(self) -> None:
        self.reads = DiskReads(
            self.level,
            land=lambda key, block, demanded: self.landed.append(block),
            otherwise=lambda source, number: self.otherwise(),
            walk_from=lambda source, number: ArrivalWalk(UNCHECKED, source.size_bytes(number), None),
        )

    def gate(self, verb: str, key: DiskBlockKey) -> Gate:
        return self.disk.gates.setdefault((verb, key), Gate())

    def otherwise(self) -> Flight[Block]:
        self.fetched += 1
        flight: Flight[Block] = Flight()
        trio.lowlevel.current_trio_token().run_sync_soon(self._end, flight)
        return flight

    def _end(self, flight: Flight[Block]) -> None:
        if self.store_error is None:
            flight.land(Block(memoryview(FROM_STORE)))
        else:
            flight.fail(self.store_error)

    def start_read(self, key: DiskBlockKey) -> Flight[Block]:
        block_key = BlockKey(key.segment_id, key.number)
        if not self.reads.is_under_way(block_key):
            # All that it knows of a segment is which keys and sizes its blocks have.
            source = cast(SegmentBlocks, SourceOf(key))
            self.reads.read(source, [key], "a reader")
        return self.reads.wait_for(block_key)

    async def read(self, key: DiskBlockKey) -> bytes:
        return bytes((await self.start_read(key).wait()).data)

    async def done(self) -> None:
        """Wait until nothing is on its way."""
        await until(lambda: not self.level.runs)

    def write_soon(self, *keys: DiskBlockKey) -> None:
        for key in keys:
            self.level.write_soon(key, Block(memoryview(data_of(key))), "a reader")

    async def written(self, *keys: DiskBlockKey) -> None:
        await until(lambda: all(self.disk.holds(key) for key in keys))

    def sample(self, name: str, **labels: str) -> float:
        return self.registry.sample_value(f"tidegate_{name}", labels) or 0.0


@asynccontextmanager
async def world_at(path: Path, *, bytes_max: int = cost(100), is_run: bool = True) -> AsyncIterator[World]:
    registry = Registry()
    meter = CacheMeter(registry)
    blocks = DiskBlocks(
        path, bytes_max=bytes_max, identity="a format in a store", cipher=None, retention_s=None, meter=meter
    )
    disk = GatedDisk(blocks)
    try:
        async with trio.open_nursery() as nursery:
            level = DiskLevel(cast(DiskBlocks, disk), nursery, meter)
            if is_run:
                nursery.start_soon(level.run)
                await until(lambda: disk.available)
            yield World(level, disk, registry)
            nursery.cancel_scope.cancel()
    finally:
        disk.close()
