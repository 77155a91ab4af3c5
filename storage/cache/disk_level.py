"""The disk cache's trio shell: reads on demand, writes behind the readers' backs (design §8).

Rule 1. Nobody waits for a write. What the disk does not keep up with is not written, and counted: the cache of a disk
        that is slower than the store is of no use anyway.
Rule 2. A block that turns out bad, on disk or in a reader's hands, is gone from here before anyone asks again, also
        when it is just being written.
Rule 3. Trouble with the disk is never a reader's error: it reads from the store.
"""

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from metrics.cache_probes import CacheLevel, CacheProbe
from storage.cache.disk import DiskBlockKey, DiskBlocks
from storage.cache.flight import Flight
from storage.cache.memory import Block
from storage.errors import CorruptObjectError
from storage.model import Uuid

V = TypeVar("V")

WRITE_QUEUE_BYTES_MAX = 32 * 1024 * 1024
"""Blocks that wait to be written. They are kept alive by that alone once memory has dropped them."""

READS_MAX = 8
"""Reads at once: a disk gains nothing from more, and each is a thread."""

EXPIRE_INTERVAL_S = 60.0

SEGMENTS_DELETED_AT_ONCE = 64
"""Deleted segments whose files go in one visit to a thread: of 1 GiB each, some ten thousand files."""


@dataclass(slots=True, eq=False)
class _Reading:
    """A read under way. `is_bad`: what it brings is not to be used; `is_forgotten`: it is not to be kept."""

    flight: Flight[Block] = field(default_factory=Flight)
    is_bad: bool = False
    is_forgotten: bool = False


class DiskLevel:
    """Owned by the trio thread; `run` must be running.

    Args:
        nursery: the application's; reads live in it.
    """

    def __init__(self, disk: DiskBlocks, nursery: trio.Nursery, probe: CacheProbe) -> None:
        self._disk = disk
        self._nursery = nursery
        self._probe = probe
        self._reads: dict[DiskBlockKey, _Reading] = {}
        self._read_limiter = trio.CapacityLimiter(READS_MAX)
        self._queue: dict[DiskBlockKey, tuple[Block, Hashable]] = {}
        self._queue_bytes = 0
        self._queued = trio.Event()
        self._writing: DiskBlockKey | None = None
        self._unwanted: set[DiskBlockKey] = set()
        self._deleted: dict[Uuid, None] = {}
        """Deleted segments whose files have yet to go: never more than there are segments on disk."""
        self._is_deleting = False

    async def run(self) -> None:
        """List what an earlier process left, then write what is queued, for ever."""
        await trio.to_thread.run_sync(self._disk.load)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire)
            while True:
                while self._queue:
                    await self._write_next()
                self._queued = trio.Event()
                await self._queued.wait()

    def holds(self, key: DiskBlockKey) -> bool:
        """Whether the block is on disk, as far as known without looking."""
        return self._disk.holds(key)

    def find(self, segment_id: Uuid, number: int) -> DiskBlockKey | None:
        """The key of the segment's block of that number, whatever its size; None if it is not on disk."""
        return self._disk.find(segment_id, number)

    async def read_parsed(self, key: DiskBlockKey, reader: Hashable, parse: Callable[[bytearray], V]) -> V | None:
        """What `parse` makes of a block, in a worker thread; None if it is not there, or bad."""

        def read() -> V | None:
            data = self._disk.read(key, reader)
            try:
                return None if data is None else parse(data)
            except CorruptObjectError:
                self._disk.drop(key)
                return None

        return await trio.to_thread.run_sync(read, limiter=self._read_limiter)

    def read(
        self,
        key: DiskBlockKey,
        reader: Hashable,
        *,
        land: Callable[[Block], None],
        otherwise: Callable[[], Flight[Block]],
    ) -> Flight[Block]:
        """A flight for a block on disk; `otherwise` gives the flight that replaces it when the disk fails."""
        reading = self._reads.get(key)
        if reading is None:
            reading = _Reading()
            self._nursery.start_soon(self._read, key, reader, reading, land, otherwise)
            self._reads[key] = reading
        return reading.flight

    def write_soon(self, key: DiskBlockKey, block: Block, reader: Hashable) -> None:
        """Queue a block, or leave it."""
        size_bytes = len(block.data)
        if key in self._queue or self._disk.holds(key):
            return
        if not self._disk.available or self._queue_bytes + size_bytes > WRITE_QUEUE_BYTES_MAX:
            self._probe.on_disk_skipped()
            return
        self._queue[key] = (block, reader)
        self._queue_bytes += size_bytes
        self._queued.set()

    def drop(self, key: DiskBlockKey) -> None:
        """Forget a block at once, wherever it is."""
        self._unqueue(key)
        if key == self._writing:
            self._unwanted.add(key)
        reading = self._reads.pop(key, None)
        if reading is not None:
            reading.is_bad = True
        self._disk.drop(key)

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's blocks; their files go in a thread, those of many segments one after another.

        A segment of which nothing is here costs a look-up: most deletions are of segments that nobody has read.
        """
        for key in [key for key in self._queue if key.segment_id == segment_id]:
            self._unqueue(key)
        if self._writing is not None and self._writing.segment_id == segment_id:
            self._unwanted.add(self._writing)
        for key in [key for key in self._reads if key.segment_id == segment_id]:
            self._reads.pop(key).is_forgotten = True
        if not self._disk.has_segment(segment_id):
            return
        self._deleted[segment_id] = None
        if not self._is_deleting:
            self._nursery.start_soon(self._delete_files)
            self._is_deleting = True

    async def drop_unknown(self, known_among: Callable[[frozenset[Uuid]], AbstractSet[Uuid]]) -> int:
        """Forget segments that the catalog does not have, once it is live; how many blocks there were."""
        return await trio.to_thread.run_sync(self._disk.drop_unknown, known_among)

    async def _read(
        self,
        key: DiskBlockKey,
        reader: Hashable,
        reading: _Reading,
        land: Callable[[Block], None],
        otherwise: Callable[[], Flight[Block]],
    ) -> None:
        try:
            data = await trio.to_thread.run_sync(partial(self._disk.read, key, reader), limiter=self._read_limiter)
            if data is None or reading.is_bad:
                self._probe.on_miss(CacheLevel.DISK)
                block = await otherwise().wait()
            else:
                self._probe.on_hit(CacheLevel.DISK, len(data))
                block = Block(memoryview(data))
                if not reading.is_forgotten:
                    land(block)
        except Exception as error:  # every failure belongs to the waiters; the nursery must live on
            self._ended(key, reading)
            reading.flight.fail(error)
        except BaseException:  # shutdown: nobody may be left waiting
            self._ended(key, reading)
            reading.flight.fail(trio.ClosedResourceError("the application is shutting down"))
            raise
        else:
            self._ended(key, reading)
            reading.flight.land(block)

    async def _delete_files(self) -> None:
        try:
            while self._deleted:
                segment_ids, self._deleted = list(self._deleted), {}
                for at in range(0, len(segment_ids), SEGMENTS_DELETED_AT_ONCE):
                    # A limited number for each thread: the application's end waits for it.
                    await trio.to_thread.run_sync(
                        self._delete_segments, segment_ids[at : at + SEGMENTS_DELETED_AT_ONCE]
                    )
        finally:
            self._is_deleting = False

    def _delete_segments(self, segment_ids: Sequence[Uuid]) -> None:
        """In a worker thread."""
        for segment_id in segment_ids:
            self._disk.drop_segment(segment_id)

    def _ended(self, key: DiskBlockKey, reading: _Reading) -> None:
        if self._reads.get(key) is reading:
            del self._reads[key]

    async def _write_next(self) -> None:
        key, (block, reader) = next(iter(self._queue.items()))
        self._unqueue(key)
        self._writing = key
        try:
            await trio.to_thread.run_sync(self._disk.write, key, block.data, reader)
        finally:
            self._writing = None
            if key in self._unwanted:
                self._unwanted.discard(key)
                self._disk.drop(key)

    def _unqueue(self, key: DiskBlockKey) -> None:
        entry = self._queue.pop(key, None)
        if entry is not None:
            self._queue_bytes -= len(entry[0].data)

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_INTERVAL_S)
            await trio.to_thread.run_sync(self._disk.expire)
