"""The tier reads of one Fetch, side by side, under one deadline (docs/protocol.md#l3).

Rule 1. What a read has when the time is up is its answer; one that has nothing yet is answered empty. Its fills go on,
        and the next request finds them.
Rule 2. A read that finds no segment is first taken as our own lag (docs/protocol.md#l2): the catalog is read up to the
        end that the metadata topic has now, and the read is tried once more. Until that has found the segment it counts
        as a miss, also at the deadline, and is given back to the broker.
Rule 3. Reads of a client that had the right before start beside the probe, so the probe may make some pointless and
        others wrong: `settle` says which. A read that nobody wants any more holds nothing.
Rule 4. Nothing is held for a probe that does not come: at the deadline a read that has not been settled lets go of what
        it has. If the word comes later, the time begins again then, as it would at a broker that hears of the request
        only then, and what was let go of is to be started once more.
Rule 5. A failure is a result; what becomes of it is `proxy.fetch.fallback`'s to say, and to log.
"""

import math
from collections import deque
from collections.abc import Iterable

import structlog
import trio

from metrics.meters import TierMeter
from protocol.client.errors import UpstreamError
from proxy.connection.client_reads import ClientReads
from proxy.fetch.plan import TierPart
from proxy.fetch.tier import ReachesLocalLogError, Tier
from storage.errors import RemoteStorageError
from storage.reader import OffsetNotInTierError, ReadTime, TierRecords

READS_AT_ONCE_MAX = 64
"""Of one Fetch: each may ask for some MiB of the store, and one of thousands of partitions would have all GETs wait for
its own."""

ReadResult = TierRecords | Exception
"""Records, or the fault. OffsetNotInTierError: give it back."""

_log = structlog.get_logger(__name__)


class TierReads:
    """Reads under way; `stop` must follow. `results` has a part once its read ended by itself, or missed.

    Args:
        nursery: the exchange's; the reads live in it.
        deadline_s: by trio's clock.
        committed: READ_COMMITTED: segments that reach into the broker's local log are not read, as the broker tells
            the rest of their aborted transactions up to there only (proxy.fetch.aborted_tails).
        client: whose reads they are; it holds what they bring.
    """

    def __init__(
        self,
        tier: Tier,
        meter: TierMeter,
        nursery: trio.Nursery,
        *,
        deadline_s: float,
        committed: bool,
        client: ClientReads,
    ) -> None:
        self.results: dict[TierPart, ReadResult] = {}
        self.expired: set[TierPart] = set()
        """Parts whose read had nothing at the deadline; not those of which the linger was the end."""
        self.deadline_s = deadline_s
        self.records_since_s = math.inf
        """Since when there are records, and the word that they may be given."""
        self.parts: dict[TierPart, None] = {}
        """Those that are read, in the order in which they were started."""
        self._wait_s = deadline_s - trio.current_time()
        self._tier = tier
        self._meter = meter
        self._nursery = nursery
        self._committed = committed
        self._client = client
        self._times: dict[TierPart, ReadTime] = {}
        self._tasks = 0
        self._line: deque[tuple[TierPart, ReadTime]] = deque()
        """Reads beyond READS_AT_ONCE_MAX, which a task takes up when it has done another."""
        self._progress = trio.Event()
        self._settled = trio.Event()
        self._is_word_waited_for = False
        meter.on_delayed_fetch_parked()

    @property
    def pending(self) -> bool:
        """Whether a read is under way."""
        return bool(self._times)

    @property
    def any_records(self) -> bool:
        """Whether a read has records."""
        return any(isinstance(result, TierRecords) and result.size_bytes > 0 for result in self.results.values())

    def start(self, parts: Iterable[TierPart]) -> None:
        """Start these reads; beyond READS_AT_ONCE_MAX they take turns."""
        for part in parts:
            self.parts[part] = None
            self._start(part)

    def settle(self, wanted: Iterable[TierPart], read_again: Iterable[TierPart]) -> None:
        """After the probe: give up the reads that nobody wants, and start those anew that are to be read otherwise."""
        if trio.current_time() >= self.deadline_s:
            for part in tuple(self.parts):
                self._let_go(part)
            self.deadline_s = trio.current_time() + self._wait_s
        self._settled.set()
        kept, again = set(wanted), set(read_again)
        for part in self.parts:
            if part not in kept or part in again:
                self._give_up(part)
            if part in kept and part in again:
                self._start(part)
        self.records_since_s = trio.current_time() if self.any_records else math.inf

    def stop(self) -> None:
        """Wait no longer: reads that have something yet to check do so in the nursery, the others end."""
        self._settled.set()
        if trio.current_time() >= self.deadline_s:
            self.expired.update(part for part, time in self._times.items() if not time.has_batch)
        if self.expired:
            self._meter.on_remote_fetch_expired()
        while self._line:
            part, time = self._line.popleft()
            if self._times.get(part) is time:
                del self._times[part]
        for time in self._times.values():
            time.end()
        self._meter.on_delayed_fetch_completed()

    async def wait_until(self, time_s: float) -> None:
        """Return when all reads have ended, or at that time."""
        with trio.move_on_at(time_s):
            while self.pending:
                await self._wait_progress()

    async def wait_any_until(self, time_s: float) -> None:
        """Return when one read has records or all have ended, or at that time."""
        with trio.move_on_at(time_s):
            while self.pending and not self.any_records:
                await self._wait_progress()

    async def _wait_progress(self) -> None:
        self._progress = trio.Event()
        await self._progress.wait()

    def _start(self, part: TierPart) -> None:
        if part.budget_bytes == 0:
            self.results[part] = TierRecords([], 0, first_batch_too_large=True)
            return
        time = self._times[part] = ReadTime(self.deadline_s)
        if self._tasks >= READS_AT_ONCE_MAX:
            self._line.append((part, time))
        else:
            self._tasks += 1
            self._nursery.start_soon(self._run, part, time)

    def _let_go(self, part: TierPart) -> None:
        self._give_up(part)
        self.parts.pop(part, None)

    def _give_up(self, part: TierPart) -> None:
        result = self.results.pop(part, None)
        if isinstance(result, TierRecords):
            self._client.drop(result)
        time = self._times.pop(part, None)
        if time is not None:
            time.give_up()

    async def _run(self, part: TierPart, time: ReadTime) -> None:
        """This read, and then those of the line."""
        await self._run_one(part, time, has_waited=False)
        while self._line:
            await self._run_one(*self._line.popleft(), has_waited=True)
        self._tasks -= 1

    async def _run_one(self, part: TierPart, time: ReadTime, *, has_waited: bool) -> None:
        with time:
            if has_waited:
                await trio.lowlevel.checkpoint()  # its time may be up; and reads of what is at hand must not pile up
            result = await self._result(part, time)
            if self._times.get(part) is time:
                self.results[part] = result
                if isinstance(result, TierRecords) and result.size_bytes and self.records_since_s == math.inf:
                    self.records_since_s = trio.current_time()
            elif isinstance(result, TierRecords):
                self._client.drop(result)
        if self._times.get(part) is not time:
            return
        del self._times[part]
        self._progress.set()
        if not self._settled.is_set():
            self._wait_for_word(part)
        elif time.ran_out and trio.current_time() >= self.deadline_s:
            self.expired.add(part)

    def _wait_for_word(self, part: TierPart) -> None:
        """Rule 4, for a read that has ended before it is settled."""
        if trio.current_time() >= self.deadline_s:
            self._let_go(part)
        elif not self._is_word_waited_for:
            self._is_word_waited_for = True
            self._nursery.start_soon(self._let_go_at_deadline)

    async def _let_go_at_deadline(self) -> None:
        with trio.move_on_at(self.deadline_s):
            await self._settled.wait()
            return
        for part in [part for part in self.parts if part not in self._times]:
            self._let_go(part)

    async def _result(self, part: TierPart, time: ReadTime) -> ReadResult:
        try:
            try:
                return await self._read(part, time)
            except ReachesLocalLogError as error:
                return error
            except OffsetNotInTierError as miss:
                if self._times.get(part) is time:
                    self.results[part] = miss
                if not await self._made_up_lag(part):
                    return miss
            return await self._read(part, time)
        except OffsetNotInTierError as error:
            return error
        except (RemoteStorageError, UpstreamError) as error:
            _log.debug(
                "tier_read_failed", partition=str(part.partition), offset=part.asked.fetch_offset, reason=str(error)
            )
            return error
        except Exception as error:
            _log.exception("tier_read_fault", partition=str(part.partition), offset=part.asked.fetch_offset)
            return error

    async def _made_up_lag(self, part: TierPart) -> bool:
        try:
            await self._tier.catch_up(part.partition)
        except (RemoteStorageError, UpstreamError) as error:
            _log.warning("catalog_lag_unknown", partition=str(part.partition), reason=str(error))
            return False
        return True

    async def _read(self, part: TierPart, time: ReadTime) -> TierRecords:
        records = await self._tier.read(
            part.partition,
            part.asked.fetch_offset,
            part.frontier.leader_epoch,
            max_bytes=part.budget_bytes,
            minimum_one_batch=part.minimum_one_batch,
            ends_below=part.frontier.local_log_start_offset if self._committed else None,
            reader=self._client.identity,
            time=time,
        )
        # At once, without a checkpoint between: a read that nobody wants any more must be released too.
        self._client.hold(records)
        return records
