"""Blocks from the store: who wants them, in which GETs they come, and what runs when.

Rule 1. A block is under way once, however many want it. Fills live in the application's nursery: who stops to wait
        cancels nothing (law L3), and every flight ends, at shutdown with trio.ClosedResourceError.
Rule 2. At most `gets_max` GETs are under way, and fewer while the store throttles. What somebody waits for goes first;
        read-ahead leaves one slot in eight free for it, and holds at most half of the budget.
Rule 3. A GET begins once its plaintext fits into the budget, with what a chunk takes while the format decodes it.
        Each block's part is given back as it lands. What somebody waits for stands in line for room; read-ahead only
        takes room that nobody waits for.
Rule 4. A block lands where it is kept before those who wait for it wake. If that fails, so does the block.
Rule 5. A failed GET fails the blocks that it has not brought, and nothing is remembered of it.

One task hands out the slots while there is a queue, one task runs each GET (`get_task`), one worker thread each
transfer (`transfer`).
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
import trio

from metrics.cache_probes import CacheProbe
from metrics.get_probe import GetProbe
from storage.cache.block_grid import BlockGrid
from storage.cache.byte_budget import ByteBudget
from storage.cache.connection_speed import ConnectionSpeed
from storage.cache.flight import Flight
from storage.cache.get_planner import GET_BYTES, get_bytes, plan_gets, weigher, whole_units
from storage.cache.get_task import Get, GetRunner
from storage.cache.hedging import Hedging
from storage.cache.memory import Block, BlockKey
from storage.cache.throttle import Throttle
from storage.cache.transfer import FillSource
from storage.errors import RemoteStorageError
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

DEMANDED_SLOTS = 8
"""One slot in so many is never used by read-ahead, and at least one."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def wall_clock_ms() -> int:
    """The time of day."""
    return time.time_ns() // 1_000_000


class Slots(NamedTuple):
    """Slots for GETs: those taken, all, and the GETs that wait for one."""

    busy: int
    total: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Wanted:
    """A block under way, in `get` as long as no split gives it to another."""

    get: Get
    size_bytes: int
    wanted_s: float
    demanded: bool
    flight: Flight[Block] = field(default_factory=Flight)


class Fills:
    """The fills. Owned by the trio thread.

    Args:
        nursery: the application's.
        gets_max: GETs under way at once; hedges come on top.
        inflight: what GETs under way may hold.
        throttle: shared with all other GETs of the store.
        land: keeps a block, in the trio thread; the flag says whether somebody had asked for it by then.
        now_ms: the time of day.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        gets_max: int,
        inflight: ByteBudget,
        hedging: Hedging,
        throttle: Throttle,
        gets: GetProbe,
        cache: CacheProbe,
        land: Callable[[BlockKey, Block, bool], None],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._nursery = nursery
        self._gets_max = gets_max
        self._inflight = inflight
        self._throttle = throttle
        self._gets = gets
        self._cache = cache
        self._land = land
        self._runner = GetRunner(
            nursery,
            # Each slot may have a hedge. Losers may outlive their GETs: then new transfers wait for their threads.
            limiter=trio.CapacityLimiter(2 * gets_max),
            hedging=hedging,
            throttle=throttle,
            probe=gets,
            owner=self,
            now_ms=now_ms,
        )
        self._wanted: dict[BlockKey, _Wanted] = {}
        self._demanded: deque[Get] = deque()
        self._ahead: deque[Get] = deque()
        self._running: set[Get] = set()
        self._ahead_reserved_bytes = 0
        self._undemanded_bytes = 0
        self._is_dispatching = False
        self._changed = trio.Event()
        inflight.when_room(self._wake)

    def __len__(self) -> int:
        """Blocks under way."""
        return len(self._wanted)

    @property
    def read_ahead_bytes(self) -> int:
        """Plaintext of the blocks under way that nobody has asked for yet."""
        return self._undemanded_bytes

    @property
    def slots(self) -> Slots:
        """How busy the store is kept."""
        return Slots(len(self._running), self._gets_max, len(self._demanded) + len(self._ahead))

    @property
    def speed(self) -> ConnectionSpeed:
        """What connections to the store achieve."""
        return self._runner.speed

    def is_under_way(self, key: BlockKey) -> bool:
        """Whether the block is queued or being fetched."""
        return key in self._wanted

    def want(
        self,
        segment: RemoteLogSegmentMetadata,
        opened: OpenedSegment,
        grid: BlockGrid,
        numbers: Sequence[int],
        *,
        demanded: bool,
    ) -> list[Flight[Block]]:
        """One flight for each number; starts GETs for those that are not under way.

        Blocks that are decoded together with one of these come too, and land unasked.

        Args:
            demanded: somebody waits; if the block is queued as read-ahead, its GET now goes first.

        Raises:
            RuntimeError: the application's nursery is closed.
        """
        source = FillSource(segment, opened, grid)
        segment_id = segment.segment_id.id
        missing = [number for number in numbers if BlockKey(segment_id, number) not in self._wanted]
        if missing:
            together = whole_units(missing, grid)
            self._queue(source, [n for n in together if BlockKey(segment_id, n) not in self._wanted], demanded)
        wanted = [self._wanted[BlockKey(segment_id, number)] for number in numbers]
        if demanded:
            for block in wanted:
                self._demand(block)
        return [block.flight for block in wanted]

    def forget_segment(self, segment_id: Uuid) -> None:
        """A segment was deleted: what is under way of it still reaches those who wait, and is not kept."""
        for get in itertools.chain(self._running, self._demanded, self._ahead):
            if get.source.segment.segment_id.id == segment_id:
                get.is_forgotten = True

    # --- the queue ---

    def _queue(self, source: FillSource, numbers: Sequence[int], demanded: bool) -> None:
        # First, because it raises once the nursery is closed: nobody may find a flight that never starts.
        if not self._is_dispatching:
            self._nursery.start_soon(self._dispatch)
            self._is_dispatching = True
        plaintext_bytes_max = max(self._inflight.bytes_max // 8, min(GET_BYTES, self._inflight.bytes_max // 2))
        weigh = weigher(source.opened.stored_bytes, max(1, plaintext_bytes_max))
        first, last = min(numbers), max(numbers)
        total_bytes = weigh(*source.positions(range(first, last + 1))) * len(numbers) // (last + 1 - first)
        now_s = trio.current_time()
        for planned in plan_gets(numbers, source.grid, weigh, self._target_bytes(total_bytes, demanded)):
            get = Get(source, planned.start, planned.stop, is_read_ahead=not demanded)
            (self._demanded if demanded else self._ahead).append(get)
            for number in planned:
                size_bytes = source.size_bytes(number)
                self._wanted[get.key(number)] = _Wanted(get, size_bytes, now_s, demanded=False)
                self._undemanded_bytes += size_bytes
        self._wake()

    def _target_bytes(self, total_bytes: int, demanded: bool) -> int:
        """Small GETs on slow connections, but no more of them than there are slots: those would only wait.

        Read-ahead is cut small only while the store has little else to do: a busy link is slow for everybody, and
        more connections would make each still slower.
        """
        free = self._slots_now() - len(self._running) - len(self._demanded) - len(self._ahead)
        if not demanded and 2 * free < self._gets_max:
            return GET_BYTES
        return max(get_bytes(self.speed.bytes_per_s), min(GET_BYTES, total_bytes // max(1, free)))

    def _demand(self, block: _Wanted) -> None:
        """Somebody waits for the block."""
        if not block.demanded:
            block.demanded = True
            self._undemanded_bytes -= block.size_bytes
        get = block.get
        if get.is_read_ahead:
            get.is_read_ahead = False
            self._ahead_reserved_bytes -= get.reserved_bytes
            if get not in self._running:
                self._ahead.remove(get)
                self._demanded.append(get)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()

    async def _dispatch(self) -> None:
        """Hands out the slots as long as anything is queued."""
        try:
            while True:
                self._changed = trio.Event()
                self._start_all_that_may()
                if not self._demanded and not self._ahead:
                    return
                await self._changed.wait()
        finally:
            self._is_dispatching = False
            # Only after a cancellation is there anything left: nobody may be left waiting.
            while queued := self._demanded or self._ahead:
                self._fail(queued.popleft(), trio.ClosedResourceError("the application is shutting down"))
            self._report()

    def _start_all_that_may(self) -> None:
        slots = self._slots_now()
        while self._demanded and len(self._running) < slots:
            self._start(self._demanded.popleft())
        ahead_slots = slots - min(max(1, slots // DEMANDED_SLOTS), slots - 1)
        while self._ahead and len(self._running) < ahead_slots and self._reserve_ahead(self._ahead[0]):
            self._start(self._ahead.popleft())
        self._report()

    def _slots_now(self) -> int:
        """As few as the throttle allows: who waits here goes by Rule 2, who waits there does not."""
        return min(self._gets_max, self._throttle.gets_max)

    def _reserve_ahead(self, get: Get) -> bool:
        size_bytes = _reservation_bytes(get.source, get.numbers)
        held_bytes = self._ahead_reserved_bytes
        # One that is larger than the half goes alone: otherwise it never would.
        if held_bytes and 2 * (held_bytes + size_bytes) > self._inflight.bytes_max:
            return False
        if not self._inflight.try_acquire(size_bytes):
            return False
        get.reserved_bytes = size_bytes
        self._ahead_reserved_bytes += size_bytes
        return True

    def _start(self, get: Get) -> None:
        self._nursery.start_soon(self._run, get)
        self._running.add(get)

    async def _run(self, get: Get) -> None:
        try:
            if not get.reserved_bytes:
                size_bytes = _reservation_bytes(get.source, get.numbers)
                await self._inflight.acquire(size_bytes)
                get.reserved_bytes = size_bytes
            await self._runner.run(get)
        except Exception as error:  # every failure belongs to those who wait; the nursery must live on
            self._fail(get, error)
        finally:
            # Of a GET that ended well or failed nothing is left; a cancelled one leaves nobody waiting.
            self._fail(get, trio.ClosedResourceError("the application is shutting down"))
            self._running.remove(get)
            self._release(get, get.reserved_bytes)
            self._wake()
            self._report()

    def _release(self, get: Get, size_bytes: int) -> None:
        get.reserved_bytes -= size_bytes
        if get.is_read_ahead:
            self._ahead_reserved_bytes -= size_bytes
        self._inflight.release(size_bytes)

    def _report(self) -> None:
        self._gets.on_gets(len(self._running), len(self._demanded) + len(self._ahead))

    # --- what becomes of a block ---

    def deliver(self, get: Get, number: int, block: Block) -> None:
        """As GetOwner."""
        key = get.key(number)
        wanted = self._take(key)
        self._release(get, wanted.size_bytes)
        self._cache.on_fill(wanted.size_bytes, trio.current_time() - wanted.wanted_s)
        try:
            if not get.is_forgotten:
                self._land(key, block, wanted.demanded)
        except Exception as error:  # this runs in trio's own task, which must live on
            _log.warning("block_not_kept", segment=str(get.source.segment.segment_id), block=number, exc_info=True)
            wanted.flight.fail(error)
        else:
            wanted.flight.land(block)

    def _fail(self, get: Get, error: Exception) -> None:
        if not get.numbers:
            return
        log = _log.debug if isinstance(error, RemoteStorageError | trio.ClosedResourceError) else _log.warning
        log("blocks_not_fetched", segment=str(get.source.segment.segment_id), blocks=get.numbers, error=repr(error))
        for number in get.numbers:
            self._cache.on_fill_failed()
            self._take(get.key(number)).flight.fail(error)
        get.next_number = get.end_number

    def _take(self, key: BlockKey) -> _Wanted:
        wanted = self._wanted.pop(key)
        if not wanted.demanded:
            self._undemanded_bytes -= wanted.size_bytes
        return wanted

    # --- splits ---

    def may_split(self, get: Get) -> bool:
        """As GetOwner."""
        return (
            len(self._running) < self._slots_now()
            and any(self._wanted[get.key(number)].demanded for number in get.numbers)
            and self._inflight.room >= _decoding_bytes(get.source, get.numbers)
        )

    def split_off(self, get: Get, numbers: range) -> None:
        """As GetOwner. The blocks bring their reservation with them; only what decoding takes is reserved anew."""
        moved_bytes = sum(get.source.size_bytes(number) for number in numbers)
        decoding_bytes = _decoding_bytes(get.source, numbers)
        is_reserved = self._inflight.try_acquire(decoding_bytes)
        assert is_reserved, "may_split has seen the room"
        rest = Get(get.source, numbers.start, numbers.stop, is_read_ahead=False, is_forgotten=get.is_forgotten)
        rest.reserved_bytes = moved_bytes + decoding_bytes
        get.reserved_bytes -= moved_bytes
        for number in numbers:
            self._wanted[get.key(number)].get = rest
        self._start(rest)
        self._report()


def _reservation_bytes(source: FillSource, numbers: range) -> int:
    """What a GET holds at most before its first block lands."""
    start, end = source.positions(numbers)
    return end - start + _decoding_bytes(source, numbers)


def _decoding_bytes(source: FillSource, numbers: range) -> int:
    """What decoding a chunk holds beside the blocks, if the format has to: the chunk as it is stored, decrypted but not
    decompressed, and its plaintext, if that is not the very block.

    Nothing says whether chunks are encrypted, compressed or both, so it is counted as both.
    """
    start, end = source.positions(numbers)
    stored_bytes, chunk_bytes = source.opened.stored_bytes, source.opened.chunk_bytes
    if stored_bytes(start, end) == end - start:
        return 0
    # The buffer for stored chunks grows to the largest of the GET.
    firsts = range(start - start % chunk_bytes, end, chunk_bytes)
    largest_bytes = max(stored_bytes(first, min(first + chunk_bytes, source.grid.size_bytes)) for first in firsts)
    return 2 * largest_bytes + (0 if source.grid.block_bytes == chunk_bytes else chunk_bytes)
