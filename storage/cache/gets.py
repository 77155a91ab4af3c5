"""GETs of segments' logs: which blocks are under way, which GETs run, and what becomes of those that fail or are late.

Rule 1. A block is under way once, however many want it. GETs live in the application's nursery: who stops to wait
        cancels nothing (docs/protocol.md#l3), and every flight ends, at shutdown with trio.ClosedResourceError.
Rule 2. At most `gets_max` GETs are under way, and fewer while the store throttles. What somebody waits for stands in
        line for the next free slot; read-ahead is started only when nobody stands there, as many GETs as fill the link
        (`pace`).
Rule 3. A GET begins once its plaintext fits into the budget, with what a chunk takes while the format decodes it.
        Each block's part is given back as it lands. What somebody waits for stands in line for room; read-ahead only
        takes room that nobody waits for, and holds at most half of the budget.
Rule 4. Blocks arrive in order. An attempt begins at the first one that is missing. Where the next one is late and
        somebody waits, a second transfer begins there, over another connection; the first that brings a block goes on
        alone.
Rule 5. A block lands where it is kept before those who wait for it wake. If that fails, so does the block. A failed
        GET fails the blocks that it has not brought, and nothing is remembered of it.

One task and one worker thread run each transfer; all but `Transfer.run` is in the trio thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
import trio

from metrics.cache_meters import CacheMeter, StallReason
from metrics.get_meter import GetMeter, GetObject, GetOutcome
from storage.bounded_map import BoundedMap
from storage.cache.blocks import BlockKey, SegmentBlocks
from storage.cache.byte_budget import ByteBudget
from storage.cache.pace import Pace
from storage.cache.segment_entries import Flight
from storage.cache.throttle import Throttle
from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from storage.log.arriving_batches import ArrivalWalk
from storage.log.block import Block
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.object_store.retries import Attempts, as_retriable_if_fresh
from storage.tasks import TaskNursery
from storage.wall_clock import wall_clock_ms

WATCH_S = 0.05
"""How often GETs that somebody waits for are looked at."""

FORGOTTEN_MAX = 1000
"""Segments that were deleted last; a read ends in seconds."""

POST_BYTES = 4 * 1024 * 1024
"""After this many bytes that nobody waits for, the listener hears of them."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


_OUTCOMES: tuple[tuple[type[Exception], GetOutcome], ...] = (
    (RemoteResourceNotFoundError, GetOutcome.NOT_FOUND),
    (ThrottledError, GetOutcome.THROTTLED),
    (RetriableRemoteStorageError, GetOutcome.RETRIABLE),
    (RemoteAccessDeniedError, GetOutcome.DENIED),
    (CorruptObjectError, GetOutcome.CORRUPT),
)


def outcome_of(error: Exception) -> GetOutcome:
    """Return what a failed GET is counted under, by the error's class."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), GetOutcome.ERROR)


class Slots(NamedTuple):
    """Slots for GETs: those taken, all, and the GETs that wait for one."""

    busy: int
    total: int
    waiting: int


class Transfer:
    """One GET of a run of blocks, in a worker thread: opens the stream, reads block by block, hands them over, closes.

    The thread never waits for the trio thread: what it has lies in a queue in order, and what it holds is bounded by
    what was reserved for the GET. The trio thread takes blocks from there whenever it looks for one of them. It hears
    of each block that is waited for, and otherwise every few MiB: each message wakes the event loop. Beside the
    queue, all that the two threads share is two flags, `is_waited_for` and `stopped`, which only ever go from
    False to True.

    `sent_s`, `begun_s` and `heard_s` are the trio thread's to keep, by its clock.

    `numbers_read`: blocks that came, right also after a failure; read it when `run` has ended.

    Args:
        walk: checks its batches as they come.
    """

    def __init__(self, source: SegmentBlocks, numbers: range, walk: ArrivalWalk) -> None:
        self._walk = walk
        self.source = source
        self.numbers = numbers
        self.sent_s: float | None = None
        self.begun_s: float | None = None
        self.heard_s = 0.0
        self.numbers_read = range(numbers.start, numbers.start)
        self.is_waited_for = False
        """Set it when somebody begins to wait for a block: each block is announced from then on."""
        self.stopped = threading.Event()
        """Set it, and no other block is read."""
        self._read: deque[tuple[int, Block]] = deque()

    def take(self) -> list[tuple[int, Block]]:
        """Blocks that have come since, with their numbers."""
        # The thread may append meanwhile; what it has appended before is here.
        return [self._read.popleft() for _ in range(len(self._read))]

    def run(self, post: Callable[..., None], gets: "Gets", get: "_Get") -> None:
        """The whole GET; blocks. `post` is the trio token's run_sync_soon; `gets` hear of it in the trio thread.

        Raises:
            RemoteStorageError: as the stream does; blocks before it are delivered.
        """
        if self.stopped.is_set():
            return
        stream = self.source.opened.open_stream(*self.source.positions(self.numbers))
        untold_bytes = 0
        try:
            post(gets.on_begun, self)
            for number in self.numbers:
                if self.stopped.is_set():
                    break
                size_bytes = self.source.size_bytes(number)
                data = stream.read(size_bytes)
                if len(data) != size_bytes:
                    raise CorruptObjectError(
                        f"segment {self.source.segment.segment_id}: block {number} has {len(data)} bytes, "
                        f"{size_bytes} wanted"
                    )
                self.numbers_read = range(self.numbers.start, number + 1)
                block = Block(memoryview(data))
                self._walk.feed(number, block)
                self._read.append((number, block))
                untold_bytes += size_bytes
                # Otherwise this thread would keep it from being freed while it reads the next.
                del data, block
                if self.is_waited_for or untold_bytes >= POST_BYTES:
                    post(gets.on_blocks, get, self)
                    untold_bytes = 0
        finally:
            if untold_bytes:
                post(gets.on_blocks, get, self)
            stream.close()


@dataclass(slots=True, eq=False)
class _Wanted:
    """A block under way. `flight`: of those who wait for it; None while nobody has."""

    get: "_Get"
    wanted_s: float
    flight: Flight[Block] | None = None


@dataclass(slots=True, eq=False)
class _Get:
    """A run of blocks that one GET is to bring; those before `next_number` have come, `left` are still wanted.

    `is_read_ahead`: nobody waits for one of them yet. `reserved_bytes`: what it holds of the budget. `second`: what was
    sent because the first was late.
    """

    source: SegmentBlocks
    next_number: int
    end_number: int
    is_read_ahead: bool
    reserved_bytes: int = 0
    left: int = 0
    is_done: bool = False
    second: Transfer | None = None
    attempts: Attempts = field(default_factory=Attempts)
    transfers: list[Transfer] = field(default_factory=list)

    @property
    def numbers(self) -> range:
        return range(self.next_number, self.end_number)


class Gets:
    """The GETs. Owned by the trio thread.

    Args:
        nursery: the application's.
        gets_max: GETs under way at once; second transfers come on top.
        inflight: what GETs under way may hold.
        throttle: shared with all other GETs of the store.
        batch_start: where in the segment's log a batch begins at or behind a position, if that is known.
        now_ms: the time of day.
    """

    def __init__(
        self,
        nursery: TaskNursery,
        *,
        gets_max: int,
        inflight: ByteBudget,
        pace: Pace,
        throttle: Throttle,
        gets: GetMeter,
        cache: CacheMeter,
        batch_start: Callable[[RemoteLogSegmentMetadata, int], int | None] = lambda segment, position: None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._nursery = nursery
        self._gets_max = gets_max
        self._inflight = inflight
        self.pace = pace
        self._throttle = throttle
        self._gets = gets
        self._cache = cache
        self.land: Callable[[BlockKey, Block, bool], None] = lambda key, block, demanded: None
        """Gets each block in the trio thread; its flag says whether somebody had asked by then."""
        self.on_room: Callable[[], None] = lambda: None
        """Called whenever read-ahead may go on."""
        self.on_ahead_failed: Callable[[Uuid], None] = lambda segment_id: None
        """Called with the segment whenever a GET failed that nobody waited for."""
        self.plaintext_bytes_max = max(1, inflight.bytes_max // 8)
        """About how many bytes one GET may bring."""
        self.read_ahead_bytes = 0
        """Plaintext of the blocks under way that nobody has asked for yet."""
        self._batch_start = batch_start
        self._now_ms = now_ms
        # Each slot may have a second transfer. Losers may outlive their GETs: then new ones wait for their threads.
        self._limiter = trio.CapacityLimiter(2 * gets_max)
        self._wanted: dict[BlockKey, _Wanted] = {}
        self._forgotten: BoundedMap[Uuid, None] = BoundedMap(FORGOTTEN_MAX)
        self._read_over: dict[BlockKey, _Get] = {}
        """Blocks that were here when a GET was sent over them. One that is evicted before it comes is wanted of it."""
        self._line: deque[_Get] = deque()
        self._running: set[_Get] = set()
        self._ahead_running = 0
        self._is_watching = False
        self._idle: trio.Event | None = None
        self._is_closed = False
        inflight.when_room(self._schedule)
        gets.under_way_from(lambda: len(self._running), lambda: len(self._line))

    def __len__(self) -> int:
        """Blocks under way."""
        return len(self._wanted)

    @property
    def slots(self) -> Slots:
        """Return how busy the store is kept."""
        return Slots(len(self._running), self._gets_max, len(self._line))

    @property
    def may_read_ahead(self) -> bool:
        """Return whether there is a slot for another GET that nobody waits for."""
        return (
            not self._is_closed
            and not self._line
            and self._ahead_running < self.pace.gets
            and len(self._running) < self._throttle.gets_max
        )

    def why_full(self) -> StallReason:
        """Return what keeps another GET of read-ahead from being started."""
        if self.may_read_ahead:
            return StallReason.MEMORY
        return StallReason.CONCURRENCY if self._ahead_running >= self.pace.gets else StallReason.GET_SLOTS

    def want_if_under_way(self, key: BlockKey) -> bool:
        """Return whether the block, which is not here, is in the line or being fetched; it is wanted then.

        One that a GET goes over, because it was here when that GET was sent, is wanted of it from now on.
        """
        if key in self._wanted:
            return True
        get = self._read_over.pop(key, None)
        if get is None:
            return False
        self._want(get, (key.number,))
        return True

    def collect(self, key: BlockKey) -> None:
        """Land the block if it has come and nobody was told of it yet."""
        wanted = self._wanted.get(key)
        if wanted is not None:
            for transfer in tuple(wanted.get.transfers):
                self.on_blocks(wanted.get, transfer)

    def fetch(self, source: SegmentBlocks, numbers: range, missing: Collection[int]) -> None:
        """Fetch a run of blocks by one GET that somebody waits for; `wait_for` is called next.

        Args:
            missing: those of them that are wanted: not here, nor under way. The others are read over.

        Raises:
            RuntimeError: the application's nursery is closed.
        """
        get = _Get(source, numbers.start, numbers.stop, is_read_ahead=False)
        # First, because it raises once the nursery is closed: nobody may find a flight that never starts.
        if self._line or len(self._running) >= self._throttle.gets_max:
            self._line.append(get)
        else:
            self._send(get)
        self._enter(get, missing)

    def fetch_ahead(self, source: SegmentBlocks, numbers: range, missing: Collection[int]) -> bool:
        """The same of blocks that nobody waits for; False: the budget has no room, nothing was done."""
        size_bytes = source.reservation_bytes(numbers)
        held_bytes = sum(get.reserved_bytes for get in self._running if get.is_read_ahead)
        # One that is larger than the half goes alone: otherwise it never would.
        if held_bytes and 2 * (held_bytes + size_bytes) > self._inflight.bytes_max:
            return False
        if not self._inflight.try_acquire(size_bytes):
            return False
        get = _Get(source, numbers.start, numbers.stop, is_read_ahead=True, reserved_bytes=size_bytes)
        try:
            self._send(get)  # before anything is found under way, as in `fetch`
        except BaseException:
            self._inflight.release(size_bytes)
            raise
        self._ahead_running += 1
        self._enter(get, missing)
        return True

    def wait_for(self, key: BlockKey) -> Flight[Block]:
        """Somebody waits for a block that is under way."""
        wanted = self._wanted[key]
        get = wanted.get
        if wanted.flight is None:
            wanted.flight = Flight()
            self.read_ahead_bytes -= get.source.size_bytes(key.number)
        if get.is_read_ahead:
            get.is_read_ahead = False
            self._ahead_running -= 1
            for transfer in get.transfers:
                transfer.is_waited_for = True
                # Blocks received since the last look were not announced.
                trio.lowlevel.current_trio_token().run_sync_soon(self.on_blocks, get, transfer)
            self._watch_soon()
        return wanted.flight

    def walk_from(self, source: SegmentBlocks, number: int) -> ArrivalWalk:
        """Return what checks batches as blocks come, from that number on; none where no batch is known to begin."""
        batch_start = self._batch_start(source.segment, source.grid.start(number))
        return ArrivalWalk(source.segment, source.grid.block_bytes, batch_start)

    def forget_segment(self, segment_id: Uuid) -> None:
        """A segment was deleted: what is under way of it still reaches those who wait, and is not kept. Nor is what a
        reader that has begun asks for later."""
        self._forgotten[segment_id] = None

    # --- what runs when ---

    def _enter(self, get: _Get, missing: Collection[int]) -> None:
        """From now on the GET's blocks are found."""
        self._want(get, missing)
        self._read_over |= {get.source.key(number): get for number in set(get.numbers).difference(missing)}

    def _want(self, get: _Get, numbers: Collection[int]) -> None:
        now_s = trio.current_time()
        for number in numbers:
            self._wanted[get.source.key(number)] = _Wanted(get, now_s)
            self.read_ahead_bytes += get.source.size_bytes(number)
        get.left += len(numbers)

    def _schedule(self) -> None:
        while self._line and len(self._running) < self._throttle.gets_max:
            self._send(self._line.popleft())
        if self.may_read_ahead:
            self.on_room()

    def _send(self, get: _Get, delay_s: float = 0.0) -> Transfer:
        transfer = Transfer(get.source, get.numbers, self.walk_from(get.source, get.next_number))
        transfer.is_waited_for = not get.is_read_ahead
        self._nursery.start_soon(self._run, get, transfer, delay_s)
        if self._idle is None:
            self._idle = trio.Event()
            self._nursery.start_soon(self._guard, self._idle)
        get.transfers.append(transfer)
        self._running.add(get)
        if not get.is_read_ahead:
            self._watch_soon()
        return transfer

    async def _run(self, get: _Get, transfer: Transfer, delay_s: float) -> None:
        error: Exception | None = None
        try:
            if not get.reserved_bytes and not transfer.stopped.is_set():
                size_bytes = get.source.reservation_bytes(get.numbers)
                await self._inflight.acquire(size_bytes)
                get.reserved_bytes = size_bytes
            await trio.sleep(delay_s)
            async with self._throttle.admitted():
                if not transfer.stopped.is_set():
                    transfer.sent_s = transfer.heard_s = trio.current_time()
                    self.pace.on_sent(transfer.sent_s)
                    post = trio.lowlevel.current_trio_token().run_sync_soon
                    await trio.to_thread.run_sync(transfer.run, post, self, get, limiter=self._limiter)
        except Exception as raised:  # whatever it is, the GET's attempts know whether to go on
            error = raised
        except BaseException:
            self._close()
            self._release(get, get.reserved_bytes)  # if it was let in while the others ended
            raise
        self._on_transfer_end(get, transfer, error)

    async def _guard(self, idle: trio.Event) -> None:
        """While GETs run: their tasks are not told of a shutdown before their threads end, and those may hang."""
        try:
            await idle.wait()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        """Shutdown: nobody is left waiting, nor in the line, and no other GET begins."""
        self._is_closed = True
        line = tuple(self._line)
        self._line.clear()
        for get in (*self._running, *line):
            self._fail(get, trio.ClosedResourceError("the application is shutting down"))

    def _on_transfer_end(self, get: _Get, transfer: Transfer, error: Exception | None) -> None:
        self._count(get, transfer, error)
        get.transfers.remove(transfer)
        if get.is_done or transfer.stopped.is_set() or any(not each.stopped.is_set() for each in get.transfers):
            self._schedule()  # its success may have raised what the throttle allows
            return
        assert error is not None, "a transfer that was not stopped brings everything, or fails"
        delay_s = get.attempts.delay_after_s(as_retriable_if_fresh(error, get.source.segment, self._now_ms()))
        if delay_s is None:
            self._fail(get, error)  # as the store said it: what stays away is the broker's error too
        else:
            self._gets.on_retry()
            self._send(get, delay_s)

    def _count(self, get: _Get, transfer: Transfer, error: Exception | None) -> None:
        if transfer.sent_s is None:
            return
        now_s = trio.current_time()
        came = transfer.numbers_read
        if error is not None:
            outcome = outcome_of(error)
        else:
            outcome = GetOutcome.OK if came == transfer.numbers else GetOutcome.CANCELLED
        received_bytes = get.source.stored_bytes(came) if came else 0
        self._gets.on_end(GetObject.LOG, outcome, now_s - transfer.sent_s, received_bytes)
        if outcome is GetOutcome.OK and transfer.begun_s is not None:
            body_s = now_s - transfer.begun_s
            all_in_use = self._ahead_running + 1 >= self.pace.gets
            self.pace.on_end(now_s, received_bytes, body_s, all_in_use=all_in_use)

    def _release(self, get: _Get, size_bytes: int) -> None:
        get.reserved_bytes -= size_bytes
        self._inflight.release(size_bytes)

    def _end(self, get: _Get) -> None:
        """All has come, or the rest never will."""
        get.is_done = True
        for transfer in get.transfers:
            transfer.stopped.set()
        for number in get.numbers:  # what is left was only to be read over
            self._take(get, get.source.key(number))
        self._running.discard(get)
        if get.is_read_ahead:
            self._ahead_running -= 1
        self._release(get, get.reserved_bytes)
        self._schedule()
        if not self._running and self._idle is not None:
            self._idle.set()
            self._idle = None

    # --- what becomes of a block ---

    def on_begun(self, transfer: Transfer) -> None:
        """The store's answer has begun. Also of one that comes second: leaving those out would make the p95 lower with
        every second GET."""
        assert transfer.sent_s is not None, "it was sent"
        now_s = trio.current_time()
        transfer.begun_s = transfer.heard_s = now_s
        self.pace.on_begun(now_s - transfer.sent_s)
        self._gets.on_first_byte(now_s - transfer.sent_s)

    def on_blocks(self, get: _Get, transfer: Transfer) -> None:
        """Blocks may have come."""
        blocks = transfer.take()
        if not blocks:
            return
        now_s = transfer.heard_s = trio.current_time()
        if get.is_done or blocks[-1][0] < get.next_number:
            return
        # One that lost may still bring blocks that it read before: welcome, but the one that won goes on.
        if len(get.transfers) > 1 and not transfer.stopped.is_set():
            self._go_on_alone(get, transfer)
        for number, block in blocks:
            if number >= get.next_number:
                self._deliver(get, number, block, now_s)
        if not get.left:
            self._end(get)

    def _go_on_alone(self, get: _Get, transfer: Transfer) -> None:
        for other in get.transfers:
            if other is not transfer and not other.stopped.is_set():
                other.stopped.set()
                if transfer is get.second:
                    self._gets.on_hedge_won()

    def _deliver(self, get: _Get, number: int, block: Block, now_s: float) -> None:
        get.next_number = number + 1
        get.attempts.on_progress()
        self._release(get, len(block.data))
        key = get.source.key(number)
        wanted = self._take(get, key)
        if wanted is None:
            return
        self._cache.on_fill(len(block.data), now_s - wanted.wanted_s)
        try:
            if key.segment_id not in self._forgotten:
                self.land(key, block, wanted.flight is not None)
        except Exception as error:  # this runs in trio's own task, which must live on
            _log.warning("block_not_kept", segment=str(get.source.segment.segment_id), block=number, exc_info=True)
            if wanted.flight is not None:
                wanted.flight.fail(error)
        else:
            if wanted.flight is not None:
                wanted.flight.land(block)

    def _fail(self, get: _Get, error: Exception) -> None:
        if get.is_done:
            return
        log = _log.debug if isinstance(error, RemoteStorageError | trio.ClosedResourceError) else _log.warning
        log("blocks_not_fetched", segment=str(get.source.segment.segment_id), blocks=get.numbers, error=repr(error))
        for number in get.numbers:
            wanted = self._take(get, get.source.key(number))
            if wanted is not None:
                self._cache.on_fill_failed()
                if wanted.flight is not None:
                    wanted.flight.fail(error)
        if get.is_read_ahead:
            self.on_ahead_failed(get.source.segment.segment_id.id)
        self._end(get)

    def _take(self, get: _Get, key: BlockKey) -> _Wanted | None:
        """The block is no longer found under way; None if the GET was to read over it."""
        wanted = self._wanted.get(key)
        if wanted is None or wanted.get is not get:
            if self._read_over.get(key) is get:
                del self._read_over[key]
            return None
        del self._wanted[key]
        get.left -= 1
        if wanted.flight is None:
            self.read_ahead_bytes -= get.source.size_bytes(key.number)
        return wanted

    # --- what is late ---

    def _watch_soon(self) -> None:
        if not self._is_watching and self.pace.sends_seconds:
            self._nursery.start_soon(self._watch)
            self._is_watching = True

    async def _watch(self) -> None:
        try:
            while any(not get.is_read_ahead for get in self._running):
                await trio.sleep(WATCH_S)
                for get in tuple(self._running):
                    self._look_at(get)
        finally:
            self._is_watching = False

    def _look_at(self, get: _Get) -> None:
        """Send a second transfer for what is late, if somebody waits for it and the store wants no fewer GETs."""
        if get.second is not None or len(get.transfers) != 1 or self._throttle.is_on:
            return
        transfer = get.transfers[0]
        if transfer.sent_s is None:
            return  # it waits for room, or to be tried again
        wanted = self._wanted.get(get.source.key(get.next_number))
        if wanted is None or wanted.get is not get or wanted.flight is None:
            return
        next_bytes = get.source.stored_bytes(range(get.next_number, get.next_number + 1))
        now_s = trio.current_time()
        late_s = self.pace.late_after_s(now_s, transfer.begun_s is not None, next_bytes)
        if late_s is None or now_s - transfer.heard_s < late_s:
            return
        get.second = self._send(get)
        if transfer.begun_s is not None:
            self._gets.on_split()
        else:
            self._gets.on_hedge()
