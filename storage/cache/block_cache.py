"""Blocks by segment and number: memory first, then one single-flight ranged GET.

A block is a run of `block_bytes` of the segment's log (design §8; this format has no chunks, so the grid is
the unit). A hit costs one dict look-up in the trio thread and no await. A miss starts one flight in the
application's nursery; whoever leaves does not cancel it.
"""

import time
from collections.abc import Callable

import trio

from metrics.probes import CacheLevel, CacheProbe
from storage.cache.memory import Block, BlockKey, MemoryBlocks
from storage.cache.single_flight import Flight, SingleFlight
from storage.errors import CorruptObjectError
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import RemoteStorageManager


class BlockCache:
    """The cache. Owned by the trio thread.

    Args:
        nursery: the application's; fills live in it.
        limiter: bounds GETs in flight (`tier.concurrent.gets.max`, lowered so that block_bytes times its
            tokens stays inside `tier.inflight.bytes.max`).
    """

    def __init__(
        self,
        storage_manager: RemoteStorageManager,
        *,
        nursery: trio.Nursery,
        limiter: trio.CapacityLimiter,
        memory_bytes_max: int,
        block_bytes: int,
        probe: CacheProbe,
    ) -> None:
        self.block_bytes = block_bytes
        self._storage_manager = storage_manager
        self._memory = MemoryBlocks(memory_bytes_max)
        self._flights: SingleFlight[BlockKey, Block] = SingleFlight(nursery, limiter)
        self._probe = probe

    @property
    def resident_bytes(self) -> int:
        return self._memory.size_bytes

    @property
    def fills_in_flight(self) -> int:
        return len(self._flights)

    def resident(self, segment: RemoteLogSegmentMetadata, number: int) -> Block | None:
        """The block if it is in memory."""
        block = self._memory.get(BlockKey(segment.segment_id.id, number))
        if block is not None:
            self._probe.on_hit(CacheLevel.MEMORY, len(block.data))
        return block

    async def blocks(self, segment: RemoteLogSegmentMetadata, first: int, last: int) -> list[Block]:
        """Blocks first to last, inclusive; missing ones are fetched side by side.

        Raises:
            RemoteStorageError: as the storage manager raises it; CorruptObjectError for a truncated object.
        """
        found: list[Block | Flight[Block]] = []
        waiting = False
        for number in range(first, last + 1):
            block = self.resident(segment, number)
            if block is None:
                self._probe.on_miss(CacheLevel.MEMORY)
                found.append(self._fill(segment, number))
                waiting = True
            else:
                found.append(block)
        if not waiting:
            return found  # type: ignore[return-value]  # no Flight went in
        asked_at = time.monotonic()
        blocks = [await entry.wait() if isinstance(entry, Flight) else entry for entry in found]
        self._probe.on_fill_waited(time.monotonic() - asked_at)
        return blocks

    def quarantine(self, segment: RemoteLogSegmentMetadata, number: int, block: Block) -> None:
        """Drop a block that turned out bad; the next request for it is a fresh GET (design L5).

        Only that very block: another reader may have found the same and put a fresh one in its place.
        """
        key = BlockKey(segment.segment_id.id, number)
        if self._memory.get(key) is block:
            self._memory.drop(key)
            self._probe.on_quarantined()
            self._probe.on_resident(CacheLevel.MEMORY, self._memory.size_bytes)

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's blocks."""
        self._memory.drop_segment(segment_id)
        self._probe.on_resident(CacheLevel.MEMORY, self._memory.size_bytes)

    def _fill(self, segment: RemoteLogSegmentMetadata, number: int) -> Flight[Block]:
        key = BlockKey(segment.segment_id.id, number)
        started_at = time.monotonic()

        def landed(block: Block) -> None:
            evictions = self._memory.evictions
            self._memory.put(key, block)
            self._probe.on_fill(len(block.data), time.monotonic() - started_at)
            self._probe.on_evicted(CacheLevel.MEMORY, self._memory.evictions - evictions)
            self._probe.on_resident(CacheLevel.MEMORY, self._memory.size_bytes)

        return self._flights.start(key, self._getter(segment, number), landed)

    def _getter(self, segment: RemoteLogSegmentMetadata, number: int) -> Callable[[], Block]:
        start = number * self.block_bytes
        end = min(start + self.block_bytes, segment.segment_size_bytes) - 1

        def get() -> Block:
            try:
                data = self._storage_manager.fetch_log_segment(segment, start, end)
                if len(data) != end - start + 1:
                    raise CorruptObjectError(
                        f"segment {segment.segment_id} is truncated: bytes {start} to {end} of "
                        f"{segment.segment_size_bytes} wanted, {len(data)} there"
                    )
            except Exception:
                self._probe.on_fill_failed()
                raise
            return Block(memoryview(data))

        return get
