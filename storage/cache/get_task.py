"""One planned GET until all its blocks are there: attempts, the hedge, the split of a slow rest.

Rule 1. Blocks arrive in order, each once: an attempt begins at the first one that is missing.
Rule 2. An attempt waits until it may be sent (`throttle`). It is one transfer, and a second one if the answer is late
        (`hedging`). The first whose answer begins
        delivers; the other is closed when its own begins, in the application's nursery: nothing waits for it.
Rule 3. If the body is much slower than connections usually are and somebody waits for it, the second half of what is
        left becomes another GET (`connection_speed`).
Rule 4. A cancelled GET delivers nothing more; its thread ends between two blocks.

Everything here runs in the trio thread, save `_Attempt.may_begin`.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from metrics.get_probe import GetObject, GetOutcome, GetProbe
from storage.cache.connection_speed import BodyProgress, ConnectionSpeed
from storage.cache.get_errors import outcome_of
from storage.cache.hedging import Hedging
from storage.cache.memory import Block, BlockKey
from storage.cache.retries import Attempts, as_retriable_if_fresh
from storage.cache.throttle import Throttle
from storage.cache.transfer import FillSource, Transfer, token_post

WATCH_S = 0.25
"""How often a body under way is looked at."""


@dataclass(slots=True, eq=False)
class Get:
    """Blocks [next_number, end_number) of a segment that one GET is to bring.

    `is_read_ahead`: nobody waits for one of them yet. `reserved_bytes`: what it holds of the budget.
    `is_forgotten`: the segment was deleted.
    """

    source: FillSource
    next_number: int
    end_number: int
    is_read_ahead: bool
    reserved_bytes: int = 0
    is_forgotten: bool = False

    @property
    def numbers(self) -> range:
        """What is still to come."""
        return range(self.next_number, self.end_number)

    def key(self, number: int) -> BlockKey:
        """The cache's key of a block."""
        return BlockKey(self.source.segment.segment_id.id, number)


class GetOwner(Protocol):
    """Who planned the GET."""

    def deliver(self, get: Get, number: int, block: Block) -> None:
        """A block has arrived. Must not raise."""
        ...

    def may_split(self, get: Get) -> bool:
        """Whether somebody waits for what is left, and another connection is free."""
        ...

    def split_off(self, get: Get, numbers: range) -> None:
        """These blocks are no longer this GET's: fetch them by another."""
        ...


class GetRunner:
    """Runs GETs.

    Args:
        nursery: the application's; transfers live in it.
        limiter: bounds their threads.
        now_ms: the time of day.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        limiter: trio.CapacityLimiter,
        hedging: Hedging,
        throttle: Throttle,
        probe: GetProbe,
        owner: GetOwner,
        now_ms: Callable[[], int],
    ) -> None:
        self.nursery = nursery
        self.limiter = limiter
        self.hedging = hedging
        self._throttle = throttle
        self.probe = probe
        self.owner = owner
        self.speed = ConnectionSpeed()
        self._now_ms = now_ms

    async def run(self, get: Get) -> None:
        """All blocks of the GET are delivered, or given to another one.

        Raises:
            RemoteStorageError: those in `get.numbers` are not.

        Cancellation: they will not be.
        """
        attempts = Attempts()
        while get.numbers:
            first = get.next_number
            try:
                await self._attempt(get)
            except Exception as raised:  # whatever it is, `attempts` knows whether to go on
                error = as_retriable_if_fresh(raised, get.source.segment, self._now_ms())
                if get.next_number > first:
                    attempts.on_progress()
                delay_s = attempts.delay_after_s(error)
                if not get.numbers:
                    return
                if delay_s is None:
                    raise  # as the store said it: what stays away is the broker's error too
                self.probe.on_retry()
                await trio.sleep(delay_s)

    async def _attempt(self, get: Get) -> None:
        async with self._throttle.admitted():
            attempt = _Attempt(self, get)
            try:
                self.hedging.on_get()
                attempt.send(is_hedge=False)
                await self._hedge(attempt)
                await self._watch(attempt)
            finally:
                attempt.close()
            if attempt.error is not None:
                raise attempt.error

    async def _hedge(self, attempt: "_Attempt") -> None:
        delay_s = self.hedging.delay_s()
        with trio.move_on_after(math.inf if delay_s is None else delay_s):
            await attempt.settled.wait()
            return
        # A store that asks for fewer GETs is not sent two for one.
        if not self._throttle.is_on and self.hedging.take():
            self.probe.on_hedge()
            attempt.send(is_hedge=True)

    async def _watch(self, attempt: "_Attempt") -> None:
        await attempt.settled.wait()
        while not attempt.ended.is_set():
            is_worth_a_look = self.speed.bytes_per_s is not None and len(attempt.get.numbers) > 1
            with trio.move_on_after(WATCH_S if is_worth_a_look else math.inf):
                await attempt.ended.wait()
                return
            if attempt.is_slow() and self.owner.may_split(attempt.get):
                attempt.split()


class _Attempt:
    """A transfer, perhaps a second one beside it, and which of them delivers.

    `settled`: an answer has begun, or none will. `ended`: nothing more comes; `error` says why if that is too early.
    """

    def __init__(self, runner: GetRunner, get: Get) -> None:
        self.get = get
        self.settled = trio.Event()
        self.ended = trio.Event()
        self.error: Exception | None = None
        self._runner = runner
        self._numbers = get.numbers
        start, end = get.source.positions(get.numbers)
        self._stored_ratio = get.source.stored_bytes(get.numbers) / (end - start)
        self._progress: BodyProgress | None = None
        self._delivered_bytes = 0.0
        self._under_way = 0
        self._hedge: Transfer | None = None
        self._lock = threading.Lock()
        self._winner: Transfer | None = None
        self._is_closed = False

    def send(self, *, is_hedge: bool) -> None:
        """Start a transfer."""
        transfer = Transfer(self.get.source, self._numbers, self, trio.current_time())
        self._runner.nursery.start_soon(self._run, transfer)
        self._under_way += 1
        if is_hedge:
            self._hedge = transfer

    def close(self) -> None:
        """Take nothing more. Idempotent."""
        with self._lock:
            self._is_closed = True
        if self._winner is not None:
            self._winner.stop()

    def is_slow(self) -> bool:
        """Whether the body lags behind what connections usually do."""
        if self._progress is None or not self.get.numbers:
            return False
        next_bytes = self._stored_ratio * self.get.source.size_bytes(self.get.next_number)
        return self._progress.is_slow(trio.current_time(), self._runner.speed.bytes_per_s, next_bytes)

    def split(self) -> None:
        """Give half of what is left to another connection, if it is more than one block."""
        given = None if self._winner is None else self._winner.give_away()
        if given is None or self._progress is None:
            return
        self.get.end_number = given.start
        self._progress.restart(trio.current_time())
        self._runner.probe.on_split()
        self._runner.owner.split_off(self.get, given)

    # --- TransferListener ---

    def may_begin(self, transfer: Transfer) -> bool:
        """In the worker thread: the first to ask delivers."""
        with self._lock:
            if self._is_closed or self._winner is not None:
                return False
            self._winner = transfer
            return True

    def on_begun(self, transfer: Transfer) -> None:
        now_s = trio.current_time()
        # Also of one that lost: leaving those out would make the p95 lower with every hedge.
        self._runner.hedging.on_first_byte(now_s - transfer.sent_s)
        self._runner.probe.on_first_byte(now_s - transfer.sent_s)
        if transfer is not self._winner or self._is_closed:
            return
        transfer.begun_s = now_s
        self._progress = BodyProgress(now_s)
        self.settled.set()
        if transfer is self._hedge:
            self._runner.probe.on_hedge_won()

    def on_block(self, transfer: Transfer, number: int, block: Block) -> None:
        if self._is_closed or self._progress is None:
            return
        assert transfer is self._winner, "only one transfer delivers"
        assert number == self.get.next_number, (number, self.get.next_number)
        self.get.next_number += 1
        stored_bytes = self._stored_ratio * len(block.data)
        self._delivered_bytes += stored_bytes
        self._progress.on_bytes(trio.current_time(), stored_bytes)
        self._runner.owner.deliver(self.get, number, block)

    # --- the transfer's task ---

    async def _run(self, transfer: Transfer) -> None:
        error: Exception | None = None
        try:
            await trio.to_thread.run_sync(transfer.run, token_post(), limiter=self._runner.limiter)
        except Exception as raised:  # the GET's own task says what becomes of it
            error = raised
        self._count(transfer, error)
        self._under_way -= 1
        if transfer is self._winner:
            self._on_winner_end(transfer, error)
        elif self._winner is None and not self._under_way:
            self._end(error)

    def _on_winner_end(self, transfer: Transfer, error: Exception | None) -> None:
        if error is None and transfer.begun_s is not None and not self._is_closed:
            now_s = trio.current_time()
            self._runner.speed.on_get(self._delivered_bytes, now_s - transfer.begun_s)
        self._end(error)

    def _count(self, transfer: Transfer, error: Exception | None) -> None:
        if error is not None:
            outcome = outcome_of(error)
        else:
            outcome = GetOutcome.CANCELLED if transfer.was_cut else GetOutcome.OK
        came = transfer.numbers_read
        received_bytes = self.get.source.stored_bytes(came) if came else 0
        self._runner.probe.on_end(GetObject.LOG, outcome, trio.current_time() - transfer.sent_s, received_bytes)

    def _end(self, error: Exception | None) -> None:
        self.error = error
        self.settled.set()
        self.ended.set()
