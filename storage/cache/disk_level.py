"""The disk cache's trio shell: reads in runs, writes behind the readers' backs (docs/protocol.md#blocks).

Rule 1. Nobody waits for a write. What the disk does not keep up with is not written, and counted: the cache of a disk
        that is slower than the store is of no use anyway.
Rule 2. A block that turns out bad, on disk or in a reader's hands, is gone from here before anyone asks again, also
        when it is just being written. Its file goes in a thread, before the next block is written.
Rule 3. Trouble with the disk is never a reader's error: it reads from the store.
Rule 4. A run of blocks costs one visit to a thread and a post to the trio thread for every few MiB, not one a block.
"""

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeVar

import trio

from metrics.cache_meters import CacheLevel, CacheMeter
from storage.cache.disk import DiskBlockKey, DiskBlocks
from storage.errors import CorruptObjectError
from storage.log.block import Block
from storage.model import Uuid
from storage.tasks import TaskNursery

if TYPE_CHECKING:
    from storage.cache.disk_index import Room

V = TypeVar("V")

WRITE_QUEUE_BYTES_MAX = 32 * 1024 * 1024
"""Blocks that wait to be written. They are kept alive by that alone once memory has dropped them."""

READS_MAX = 8
"""Runs that are read at once: a disk gains nothing from more, and each is a thread."""

EXPIRE_INTERVAL_S = 60.0

SEGMENTS_DELETED_AT_ONCE = 64
"""Deleted segments whose files go in one visit to a thread: of 1 GiB each, some ten thousand files."""


POST_BYTES = 4 * 1024 * 1024
"""A run is handed over in parts of this size; its first block by itself, as somebody may wait for just that."""


class DiskRun:
    """Blocks of one segment that are read one after another. Owned by the trio thread.

    `is_forgotten`: the segment was deleted meanwhile. What comes answers those who asked, but is not to be kept.
    """

    def __init__(
        self,
        keys: Sequence[DiskBlockKey],
        deliver: Callable[[DiskBlockKey, Block | None], None],
        fail: Callable[[DiskBlockKey, Exception], None],
        check: Callable[[int, Block], None],
        meter: CacheMeter,
    ) -> None:
        assert len({key.segment_id for key in keys}) == 1, "a run is of one segment"
        self.keys = tuple(keys)
        self.is_forgotten = False
        self._deliver = deliver
        self._fail = fail
        self._check = check
        self._meter = meter
        self._bad: set[DiskBlockKey] = set()
        self._ended = 0
        """Keys, of the first ones, that were delivered or have failed."""

    def drop(self, key: DiskBlockKey) -> None:
        """The block is known to be bad: None takes its place, if it has yet to be delivered."""
        self._bad.add(key)

    def read(self, disk: DiskBlocks, reader: Hashable, post: Callable[..., object]) -> list[Block | None]:
        """Read and check the blocks and post what is together; the rest is returned. In a worker thread.

        Raises:
            Cancelled: the application ends.
        """
        group: list[Block | None] = []
        group_bytes = 0
        for at, key in enumerate(self.keys):
            trio.from_thread.check_cancelled()
            if self._ended == len(self.keys):
                break
            data = None if key in self._bad else disk.read(key, reader)
            block = None if data is None else Block(data)
            if block is not None:
                self._check(key.number, block)
                group_bytes += len(block.data)
            group.append(block)
            # Otherwise this thread would keep it from being freed while it reads the next.
            del data, block
            if (at == 0 or group_bytes >= POST_BYTES) and at + 1 < len(self.keys):
                post(self.hand_over, group)
                group, group_bytes = [], 0
        return group

    def hand_over(self, group: Sequence[Block | None]) -> None:
        """Deliver the blocks that come next."""
        try:
            for key, read in zip(self.keys[self._ended :], group, strict=False):
                self._ended += 1
                block = None if key in self._bad else read
                if block is None:
                    self._meter.on_miss(CacheLevel.DISK)
                else:
                    self._meter.on_hit(CacheLevel.DISK, len(block.data))
                self._deliver(key, block)
        except Exception as error:  # it belongs to the waiters; nothing may be raised from a post
            self.end(error)

    def end(self, error: Exception) -> None:
        """Tell the waiters of the blocks that are still to come that they do not."""
        rest, self._ended = self.keys[self._ended :], len(self.keys)
        for key in rest:
            self._fail(key, error)


class DiskLevel:
    """Owned by the trio thread; `run` must be running.

    Args:
        nursery: the application's; reads live in it.
    """

    def __init__(self, disk: DiskBlocks, nursery: TaskNursery, meter: CacheMeter) -> None:
        self._disk = disk
        self._nursery = nursery
        self._meter = meter
        self.runs: set[DiskRun] = set()
        self.read_limiter = trio.CapacityLimiter(READS_MAX)
        self.queue: dict[DiskBlockKey, tuple[Block, Hashable]] = {}
        self.queue_bytes = 0
        self._queued = trio.Event()
        self._writing: DiskBlockKey | None = None
        """What is being written; None also if it was dropped since, and is not to stay."""
        self._dropped: list[Room] = []
        """Dropped blocks whose files have yet to go. Until then the index lets nobody write them again."""
        self._deleted: dict[Uuid, None] = {}
        """Deleted segments whose files have yet to go: never more than there are segments on disk."""
        self._is_deleting = False

    async def run(self) -> None:
        """List what an earlier process left, then delete what is dropped and write what is queued, for ever."""
        await trio.to_thread.run_sync(self._disk.load)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire)
            while True:
                while self._dropped or self.queue:
                    await (self._delete_dropped() if self._dropped else self._write_next())
                self._queued = trio.Event()
                await self._queued.wait()

    def holds(self, key: DiskBlockKey) -> bool:
        """Return whether the block is on disk, as far as known without looking."""
        return self._disk.holds(key)

    def find(self, segment_id: Uuid, number: int) -> DiskBlockKey | None:
        """The key of the segment's block of that number, whatever its size; None if it is not on disk."""
        return self._disk.find(segment_id, number)

    async def read_parsed(self, key: DiskBlockKey, reader: Hashable, parse: Callable[[bytes], V]) -> V | None:
        """Return what `parse` makes of a block, in a worker thread; None if it is not there, or bad."""

        def read() -> V | None:
            data = self._disk.read(key, reader)
            try:
                return None if data is None else parse(bytes(data))
            except CorruptObjectError:
                self._disk.drop(key)
                return None

        return await trio.to_thread.run_sync(read, limiter=self.read_limiter)

    def read_run(
        self,
        keys: Sequence[DiskBlockKey],
        reader: Hashable,
        *,
        deliver: Callable[[DiskBlockKey, Block | None], None],
        fail: Callable[[DiskBlockKey, Exception], None],
        check: Callable[[int, Block], None],
    ) -> DiskRun:
        """Read blocks of one segment, one after another, in one visit to a worker thread; returns at once.

        Args:
            keys: at least one. All of them may be in memory at once, before the first is delivered.
            deliver: called in the trio thread, in the order of `keys`, with the block, or None if it is not there or
                bad. What it raises goes to `fail`.
            fail: called for each block that will not be delivered: trio.ClosedResourceError at the application's end.
                It must not raise.
            check: called in the worker thread with each block and its number.
        """
        run = DiskRun(keys, deliver, fail, check, self._meter)
        self.runs.add(run)
        self._nursery.start_soon(self._read_run, run, reader)
        return run

    def write_soon(self, key: DiskBlockKey, block: Block, reader: Hashable) -> None:
        """Queue a block, or leave it."""
        size_bytes = len(block.data)
        if key in self.queue or self._disk.holds(key):
            return
        if not self._disk.available or self.queue_bytes + size_bytes > WRITE_QUEUE_BYTES_MAX:
            self._meter.on_disk_skipped()
            return
        self.queue[key] = (block, reader)
        self.queue_bytes += size_bytes
        self._queued.set()

    def drop(self, key: DiskBlockKey) -> None:
        """Forget a block at once, wherever it is; its file goes soon."""
        self._unqueue(key)
        if key == self._writing:
            self._writing = None
        for run in self.runs:
            run.drop(key)
        self._forget(key)

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's blocks; their files go in a thread, those of many segments one after another.

        A segment of which nothing is here costs a look-up: most deletions are of segments that nobody has read.
        """
        for key in [key for key in self.queue if key.segment_id == segment_id]:
            self._unqueue(key)
        if self._writing is not None and self._writing.segment_id == segment_id:
            self._writing = None
        for run in self.runs:
            run.is_forgotten = run.is_forgotten or run.keys[0].segment_id == segment_id
        if not self._disk.index.has_segment(segment_id):
            return
        self._deleted[segment_id] = None
        if not self._is_deleting:
            self._nursery.start_soon(self._delete_files)
            self._is_deleting = True

    async def drop_unknown(self, known_among: Callable[[frozenset[Uuid]], AbstractSet[Uuid]]) -> int:
        """Forget segments that the catalog does not have, once it is live; how many blocks there were."""
        return await trio.to_thread.run_sync(self._disk.drop_unknown, known_among)

    async def _read_run(self, run: DiskRun, reader: Hashable) -> None:
        post = trio.lowlevel.current_trio_token().run_sync_soon
        try:
            run.hand_over(await trio.to_thread.run_sync(run.read, self._disk, reader, post, limiter=self.read_limiter))
        except Exception as error:  # every failure belongs to the waiters; the nursery must live on
            run.end(error)
        except BaseException:  # shutdown: nobody may be left waiting
            run.end(trio.ClosedResourceError("the application is shutting down"))
            raise
        finally:
            self.runs.discard(run)

    async def _delete_files(self) -> None:
        while self._deleted:
            # A limited number for each thread: the application's end waits for it.
            count = min(len(self._deleted), SEGMENTS_DELETED_AT_ONCE)
            segment_ids = [self._deleted.popitem()[0] for _ in range(count)]
            await trio.to_thread.run_sync(self._disk.drop_segments, segment_ids)
        self._is_deleting = False

    async def _write_next(self) -> None:
        key, (block, reader) = next(iter(self.queue.items()))
        self._unqueue(key)
        self._writing = key
        try:
            await trio.to_thread.run_sync(self._disk.write, key, block.data, reader)
        finally:
            if self._writing != key:
                self._forget(key)
            self._writing = None

    def _forget(self, key: DiskBlockKey) -> None:
        room = self._disk.index.take([key])
        if room.doomed:
            self._dropped.append(room)
            self._queued.set()

    async def _delete_dropped(self) -> None:
        rooms, self._dropped = self._dropped, []
        await trio.to_thread.run_sync(lambda: [self._disk.delete(room) for room in rooms])

    def _unqueue(self, key: DiskBlockKey) -> None:
        entry = self.queue.pop(key, None)
        if entry is not None:
            self.queue_bytes -= len(entry[0].data)

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_INTERVAL_S)
            await trio.to_thread.run_sync(self._disk.expire)
