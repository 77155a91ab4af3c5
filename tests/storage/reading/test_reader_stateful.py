"""All of the reading side under any order of reads, releases, faults, deletions and restarts.

Whatever happens: an answer is the oracle's, also when it is looked at again long after; memory is never over budget;
no byte is under way twice; and in the end nothing is held.
"""

import shutil
import struct
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
import trio.from_thread
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trio.testing import MockClock

from metrics.cache_meters import CacheMeter
from metrics.registry import Registry
from storage.cache.disk import DiskBlocks
from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.reading.reader import OffsetNotInTierError, TierRecords
from tests.support.drawn import drawn
from tests.support.opened_bytes import OpenedBytes, StreamOfBytes
from tests.support.scripted_gets import until
from tests.support.segments import filled_segment, metadata_of
from tests.support.tier import PARTITION, MemoryStore, expected_bytes, open_reader

SEGMENTS = [filled_segment(100 * number, batch_count=10, interval_bytes=500) for number in range(4)]
CHECKED_BYTE = 40
CLOCK_RATE = 1000.0
"""Back-offs take milliseconds; an autojump clock would never stand still beside `TierStorage.run`."""

T = TypeVar("T")


class WatchedStore(MemoryStore):
    """Notes GETs of a log that overlap what others have still to give."""

    def __init__(self, objects: dict[Uuid, dict[str, bytes]], chunk_bytes: int) -> None:
        super().__init__(objects, chunk_bytes)
        self.under_way: list[WatchedStream] = []
        self.overlaps: list[str] = []
        self.lock = threading.Lock()

    def open_log_segment(self, metadata: RemoteLogSegmentMetadata) -> OpenedBytes:
        return replace(super().open_log_segment(metadata), streams=partial(WatchedStream, self))


class WatchedStream(StreamOfBytes):
    def __init__(
        self, store: WatchedStore, data: bytes, metadata: RemoteLogSegmentMetadata, start: int, end: int
    ) -> None:
        super().__init__(data, metadata, start, end)
        self._store = store
        self.metadata = metadata
        with store.lock:
            for other in store.under_way:
                if other.metadata == metadata and max(start, other.left.start) < min(end, other.left.stop):
                    store.overlaps.append(f"{metadata} {start} to {end} while {other.left}")
            store.under_way.append(self)

    def close(self) -> None:
        super().close()
        with self._store.lock:
            if self in self._store.under_way:
                self._store.under_way.remove(self)


class TrioThread:
    """A trio loop in a thread of its own, for rules that are not async."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(10)

    def call(self, call: Callable[[], Awaitable[T]]) -> T:
        return trio.from_thread.run(call, trio_token=self._token)

    def stop(self) -> None:
        trio.from_thread.run_sync(self._stopped.set, trio_token=self._token)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        trio.run(self._main, clock=MockClock(rate=CLOCK_RATE))

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stopped = trio.Event()
        self._started.set()
        await self._stopped.wait()


@dataclass(frozen=True, slots=True)
class Answer:
    records: TierRecords
    given: bytes


@dataclass(frozen=True, slots=True)
class Read:
    reader: str
    offset: int
    max_bytes: int


def assert_is_answer(given: bytes, expected: bytes) -> None:
    """All whole batches are right. A cut one at the end, which clients drop, cannot be checked against its CRC."""
    whole_bytes = sum(batch_sizes(expected))
    assert len(given) == len(expected)
    assert given[:whole_bytes] == expected[:whole_bytes]


def batch_sizes(data: bytes) -> Iterator[int]:
    """Yield the sizes of the batches that are there whole."""
    at = 0
    while at + 12 <= len(data) and at + (size := 12 + struct.unpack_from(">i", data, at + 8)[0]) <= len(data):
        yield size
        at += size


READS = st.builds(
    Read, st.sampled_from(["one", "two", "three"]), st.integers(0, 410), st.sampled_from([1, 500, 2000, 5000, 30_000])
)


class TierMachine(RuleBasedStateMachine):
    @initialize(
        block_bytes=st.sampled_from([300, 1000, 4096]),
        chunk_bytes=st.sampled_from([1, 700]),
        memory_blocks=st.sampled_from([0, 2, 5, 1000]),
        readahead_bytes=st.sampled_from([0, 3000, 10**6]),
        inflight_bytes_max=st.sampled_from([10_000, 40_000, 10**7]),
        has_disk=st.booleans(),
    )
    def begin(
        self,
        block_bytes: int,
        chunk_bytes: int,
        memory_blocks: int,
        readahead_bytes: int,
        inflight_bytes_max: int,
        has_disk: bool,
    ) -> None:
        self.loop = TrioThread()
        self.folder = Path(tempfile.mkdtemp()) if has_disk else None
        self.metadatas = [metadata_of(PARTITION, segment) for segment in SEGMENTS]
        objects = {m.segment_id.id: s.objects() for m, s in zip(self.metadatas, SEGMENTS, strict=True)}
        self.store = WatchedStore(objects, chunk_bytes)
        self.logs = [(m, s.log) for m, s in zip(self.metadatas, SEGMENTS, strict=True)]
        self.block_bytes = block_bytes
        self.memory_bytes_max = memory_blocks * block_bytes
        self.readahead_bytes = readahead_bytes
        self.inflight_bytes_max = inflight_bytes_max
        self.deleted: set[int] = set()
        self.answers: list[Answer] = []
        self.faults = 0
        self.loop.call(self._open)

    # --- one life of the process ---

    async def _open(self) -> None:
        self.disk = None
        if self.folder is not None:
            self.disk = DiskBlocks(
                self.folder,
                bytes_max=40 * 8192,
                identity="store",
                cipher=None,
                retention_s=None,
                meter=CacheMeter(Registry()),
            )
            self.disk.load()
        opened = trio.Event()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        trio.lowlevel.spawn_system_task(self._live, opened)
        await opened.wait()

    async def _live(self, opened: trio.Event) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                self.tier = open_reader(
                    nursery,
                    self.store,
                    self.logs,
                    block_bytes=self.block_bytes,
                    memory_bytes_max=self.memory_bytes_max,
                    readahead_bytes_max=self.readahead_bytes,
                    inflight_bytes_max=self.inflight_bytes_max,
                    disk_blocks=self.disk,
                )
                for number in self.deleted:
                    self.tier.delete(number)
                nursery.start_soon(self.tier.storage.run)
                opened.set()
        self.ended.set()

    async def _close(self) -> None:
        self.scope.cancel()
        await self.ended.wait()
        if self.disk is not None:
            self.disk.close()

    # --- what may happen ---

    @rule(reads=st.lists(READS, min_size=1, max_size=4), held=st.booleans())
    def read_side_by_side(self, reads: list[Read], held: bool) -> None:
        async def all_reads() -> None:
            async with trio.open_nursery() as readers:
                for read in reads:
                    readers.start_soon(self._read, read, held)

        self.loop.call(all_reads)

    @rule(reader=st.sampled_from(["one", "two"]), start=st.integers(0, 39), count=st.integers(2, 20))
    def read_on_and_on(self, reader: str, start: int, count: int) -> None:
        async def scan() -> None:
            for number in range(start, min(start + count, 40)):
                await self._read(Read(reader, 10 * number, 1500), held=False)

        self.loop.call(scan)

    async def _read(self, read: Read, held: bool) -> None:
        alive = [log for number, log in enumerate(self.logs) if number not in self.deleted]
        expected = expected_bytes(alive, read.offset, max_bytes=read.max_bytes)
        try:
            records = await self.tier.read(read.offset, max_bytes=read.max_bytes, reader=read.reader)
        except OffsetNotInTierError:
            assert expected is None
            return
        except RemoteStorageError:
            assert self.faults, "nothing was wrong"
            return
        answer = Answer(records, b"".join(records.buffers))
        assert_is_answer(answer.given, expected or b"")
        # With little room others would wait for ever for what only a later rule releases.
        if held and self.inflight_bytes_max >= 10**6:
            self.answers.append(answer)
        else:
            await trio.lowlevel.checkpoint()
            records.release()

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        answer = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))

        async def release() -> None:
            answer.records.release()

        assert b"".join(answer.records.buffers) == answer.given, "bytes changed under an answer"
        self.loop.call(release)

    @rule(number=st.integers(0, 3), kind=st.sampled_from(["refuse", "break", "flip"]), batch=st.integers(0, 9))
    def spoil_one_get(self, number: int, kind: str, batch: int) -> None:
        metadata, at = self.metadatas[number], SEGMENTS[number].batch_positions[batch]
        store = self.tier.store
        self.faults += 1
        if kind == "refuse":
            store.fail(RetriableRemoteStorageError("503"), segment=metadata)
        elif kind == "break":
            store.break_body(RetriableRemoteStorageError("reset"), after_bytes=at, segment=metadata)
        else:
            store.flip_bit(metadata, at + CHECKED_BYTE, times=1)

    @precondition(lambda self: self.faults)
    @rule()
    def heal(self) -> None:
        self.tier.store.heal()
        self.loop.call(self._settled)
        self.faults = 0

    @precondition(lambda self: len(self.deleted) < 3)
    @rule(number=st.integers(0, 3))
    def delete(self, number: int) -> None:
        async def delete() -> None:
            self.deleted.add(number)
            self.tier.delete(number)

        if number not in self.deleted:
            self.loop.call(delete)

    @rule(reader=st.sampled_from(["one", "two", "three"]))
    def forget_reader(self, reader: str) -> None:
        async def forget() -> None:
            self.tier.reader.forget_reader(reader)

        self.loop.call(forget)

    @rule()
    def settle(self) -> None:
        self.loop.call(self._settled)

    @rule()
    def restart(self) -> None:
        async def restart() -> None:
            await self._close()
            await self._open()

        self._release_all()
        self.faults = 0
        self.loop.call(restart)

    # --- what must hold ---

    @invariant()
    def budgets_hold(self) -> None:
        if not hasattr(self, "tier"):
            return

        async def look() -> None:
            memory = self.tier.cache.memory
            assert memory.size_bytes <= self.memory_bytes_max
            assert memory.unread_bytes <= self.readahead_bytes
            assert not self.store.overlaps, self.store.overlaps

        self.loop.call(look)

    async def _settled(self) -> None:
        await self.tier.settled()

    def _release_all(self) -> None:
        async def release() -> None:
            for answer in self.answers:
                assert b"".join(answer.records.buffers) == answer.given, "bytes changed under an answer"
                answer.records.release()

        self.loop.call(release)
        self.answers.clear()

    def teardown(self) -> None:
        if not hasattr(self, "tier"):
            return
        try:
            self.loop.call(self._in_the_end)
        finally:
            self.loop.stop()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    async def _in_the_end(self) -> None:
        self.tier.store.heal()
        for answer in self.answers:
            answer.records.release()
        await self.tier.settled()
        self.faults = 0
        # Faults that are over have left nothing wrong behind.
        for number in range(4):
            await self._read(Read("the last", 100 * number, 10**6), held=False)
        await self.tier.settled()
        await until(lambda: not self.store.under_way)
        assert self.tier.inflight_bytes == 0
        assert not self.tier.cache.first_readers
        await self._close()


TierMachine.TestCase.settings = drawn(25, stateful_step_count=25)
TestTier = TierMachine.TestCase
