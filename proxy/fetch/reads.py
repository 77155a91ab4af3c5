"""The tier reads of one Fetch, side by side, under one deadline (docs/protocol.md#l3).

Rule 1. What a read has when the time is up is its answer; one that has nothing yet is answered empty. Its fills go
        on, and the next request finds them. What came in time counts, however late the loop looks at it
        (`proxy.turns`); and that a read is late says nothing of the tier where the loop was late itself.
Rule 2. A read that finds no segment is first taken as our own lag (docs/protocol.md#l2): the catalog is read up to
        the end that the metadata topic has now, and the read is tried once more. Until that has found the segment it
        counts as a miss, also at the deadline, and is given back to the broker.
Rule 3. Reads of a client that had the right before start beside the probe, so the probe may make some pointless and
        others wrong: `settle` says which. A read that nobody wants any more holds nothing.
Rule 4. Nothing is held for a probe that does not come: at the deadline reads that have not been settled are let go.
        If the word comes later, the time begins again then, as it would at a broker that hears of the request only
        then, and what was let go is to be started once more.
Rule 5. A failure is a result; what becomes of it is `proxy.fetch.fallback`'s to say, and to log.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import structlog
import trio

from metrics.meters import TierMeter
from protocol.client.errors import UpstreamError
from proxy.connection.client_reads import ClientReads
from proxy.fetch.plan import Share, TierPart
from proxy.fetch.tier import Tier, Under
from proxy.turns import LATE_S, arrive, move_on_after
from storage.errors import RemoteStorageError
from storage.reading.reader import OffsetNotInTierError, ReadTime, TierRecords
from storage.reading.segment_finder import LocalLogIsNextError, ReachesLocalLogError
from storage.steps import Steps, Wait, finish, waited
from storage.tasks import TaskNursery

_log = structlog.get_logger(__name__)

READS_AT_ONCE_MAX = 64
"""For one Fetch: each may ask for some MiB of the store, and one of thousands of partitions would have all GETs wait
for its own."""

FINISH_S = 0.25
"""What a read may take, once its time is up, to check what it has and to look for aborted transactions."""

NO_WORD: Mapping[TierPart, Under] = {}

ReadResult = TierRecords | Exception
"""Records, or the fault. OffsetNotInTierError: give it back."""


_Work = tuple[TierPart, ReadTime, Steps[ReadResult], Wait | None]
"""A read in steps, and what it waits for if it has begun."""


class TierReads:
    """Reads under way; `stop` must follow. `results` has a part once its read ended by itself, or missed.

    Args:
        started_s: by trio's clock.
        wait_s: what the reads may take.
        committed: as `Tier.read`.
        client: whose reads they are; it holds what they bring.
    """

    def __init__(
        self, tier: Tier, meter: TierMeter, client: ClientReads, started_s: float, wait_s: float, *, committed: bool
    ) -> None:
        self.results: dict[TierPart, ReadResult] = {}
        self.expired: set[TierPart] = set()
        """Parts whose read had nothing at the deadline; not those of which the linger, or a late loop, was the end."""
        self.deadline_s = started_s + wait_s
        self.records_since_s = math.inf
        """Since when there are records, and the word that they may be given."""
        self.parts: dict[TierPart, tuple[Share, Under]] = {}
        """Those that are read and how, in the order in which they were started."""
        self._wait_s = wait_s
        self._tier = tier
        self._meter = meter
        self._nursery: TaskNursery | None = None
        self._committed = committed
        self._client = client
        self._times: dict[TierPart, ReadTime] = {}
        self._tasks = 0
        self._line: deque[_Work] = deque()
        """Reads for which there is no task: those that wait for what is not at hand, and then those that have not
        begun, being beyond READS_AT_ONCE_MAX."""
        self._progress = trio.Event()
        self._word = trio.Event()
        """Set when the reads are settled."""
        self._is_loop_late = False

    @property
    def pending(self) -> bool:
        """Return whether a read is under way."""
        return bool(self._times)

    @property
    def any_records(self) -> bool:
        """Return whether a read has records."""
        return any(isinstance(result, TierRecords) and result.size_bytes > 0 for result in self.results.values())

    def start(
        self, parts: Iterable[TierPart], shares: Mapping[TierPart, Share], under: Mapping[TierPart, Under] = NO_WORD
    ) -> None:
        """Start these reads, and do at once what is at hand; beyond READS_AT_ONCE_MAX they take turns."""
        for part in parts:
            self._start(part, shares[part], under.get(part, part.frontier))
        self._begin_line()

    async def are_at_hand(self) -> bool:
        """Return whether no read waits. Those that have not begun do so, and others have their turn between."""
        while self._line and not self._line[0][-1]:
            await trio.lowlevel.checkpoint()
            self._begin(READS_AT_ONCE_MAX)
        return not self._line

    def go_on_in(self, nursery: TaskNursery) -> None:
        """Wait in the exchange's nursery for what was not at hand."""
        if self._nursery is None:
            self._meter.on_delayed_fetch_parked()
            if not self._word.is_set():
                nursery.start_soon(self._let_go_at_deadline)
        self._nursery = nursery
        for _ in range(min(READS_AT_ONCE_MAX - self._tasks, len(self._line))):
            self._tasks += 1
            nursery.start_soon(self._work)

    def settle(
        self, vouched: Mapping[TierPart, Under], shares: Mapping[TierPart, Share], outdated: Collection[TierPart] = ()
    ) -> None:
        """After the probe: give up the reads that nobody wants, and start those again that are to be read otherwise:
        with another share, or by what was out of date."""
        if trio.current_time() >= self.deadline_s:
            self.deadline_s = trio.current_time() + self._wait_s
            for time in self._times.values():
                time.deadline_s = self.deadline_s
        self._word.set()
        for part, (share, _) in self.parts.items():
            is_wanted = part in vouched
            if is_wanted and share == shares[part] and part not in outdated:
                continue
            self._give_up(part)
            if is_wanted:
                self._start(part, shares[part], vouched[part])
        self._begin_line()
        self.records_since_s = trio.current_time() if self.any_records else math.inf

    def stop(self) -> None:
        """Wait no longer: reads that have something yet to check do so in the nursery, the others end."""
        self._word.set()
        if self._nursery is None:
            return  # all was at hand
        if trio.current_time() >= self.deadline_s and not self._is_loop_late:
            self.expired.update(part for part, time in self._times.items() if time.is_late)
        if self.expired:
            self._meter.on_remote_fetch_expired()
        while self._line:
            part, time, *_ = self._line.popleft()
            if self._times.get(part) is time:
                del self._times[part]
        if any(time.has_batch for time in self._times.values()):
            self._nursery.start_soon(self._finish)
        for time in self._times.values():
            time.end()
        self._meter.on_delayed_fetch_completed()

    async def wait_until(self, time_s: float) -> None:
        """Return when all reads have ended, or at that time and with what has come by then."""
        await self._wait(time_s, lambda: not self.pending)
        if self.pending:
            await arrive()

    async def wait_any_until(self, time_s: float) -> None:
        """Return when one read has records or all have ended, or at that time."""
        await self._wait(time_s, lambda: self.any_records or not self.pending)

    async def _wait(self, time_s: float, is_enough: Callable[[], bool]) -> None:
        if is_enough():
            return
        began_s = trio.current_time()
        with trio.move_on_at(time_s):
            while not is_enough():
                self._progress = trio.Event()
                await self._progress.wait()
        if began_s < time_s:
            self._is_loop_late = trio.current_time() - time_s >= LATE_S

    def _start(self, part: TierPart, share: Share, under: Under) -> None:
        self.parts[part] = share, under
        if share.bytes_max == 0:
            self.results[part] = TierRecords([], 0, first_batch_too_large=True)
            return
        time = self._times[part] = ReadTime(self.deadline_s)
        self._line.append((part, time, self._result(part, time), None))

    def _give_up(self, part: TierPart) -> None:
        result = self.results.pop(part, None)
        if isinstance(result, TierRecords):
            self._client.drop(result)
        time = self._times.pop(part, None)
        if time is not None:
            time.give_up()

    def _begin_line(self) -> None:
        """Do what is at hand of the reads in line, as far as they may begin."""
        self._begin(READS_AT_ONCE_MAX - self._tasks)
        if self._nursery is not None:
            self.go_on_in(self._nursery)

    def _begin(self, count: int) -> None:
        """See how far the first reads of the line come at once."""
        begun: list[_Work] = []
        for _ in range(min(count, len(self._line))):
            part, time, steps, wait = self._line.popleft()
            try:
                if self._times.get(part) is time:
                    begun.append((part, time, steps, wait or next(steps)))
            except StopIteration as done:
                self._end(part, time, done.value)
        self._line.extendleft(reversed(begun))

    async def _work(self) -> None:
        """Reads of the line, one after another."""
        while self._line:
            part, time, steps, wait = self._line[0]
            if wait is None:
                await trio.lowlevel.checkpoint()  # reads of what is at hand must not pile up
                self._begin(1)
                continue
            self._line.popleft()
            result: ReadResult | None = None
            with time.scope():
                result = await finish(steps, wait)
            self._end(part, time, result)
        self._tasks -= 1

    def _end(self, part: TierPart, time: ReadTime, result: ReadResult | None) -> None:
        """A read has its result; None: it was given up."""
        is_wanted = self._times.get(part) is time
        if is_wanted:
            del self._times[part]
            self._progress.set()
        if is_wanted and result is not None:
            self.results[part] = result
            if isinstance(result, TierRecords) and result.size_bytes and self.records_since_s == math.inf:
                self.records_since_s = trio.current_time()
        elif isinstance(result, TierRecords):
            self._client.drop(result)

    async def _let_go_at_deadline(self) -> None:
        """Rule 4."""
        with move_on_after(self.deadline_s - trio.current_time()):
            await self._word.wait()
        if not self._word.is_set():
            for part in self.parts:
                self._give_up(part)
            self.parts.clear()

    async def _finish(self) -> None:
        await self.wait_until(trio.current_time() + FINISH_S)
        for time in self._times.values():
            time.give_up()

    def _result(self, part: TierPart, time: ReadTime) -> Steps[ReadResult]:
        try:
            try:
                return (yield from self._read(part, time))
            except (ReachesLocalLogError, LocalLogIsNextError) as error:
                return error
            except OffsetNotInTierError as miss:
                if self._times.get(part) is time:
                    self.results[part] = miss
                if not (yield from waited(partial(self._made_up_lag, part))):
                    return miss
            return (yield from self._read(part, time, is_caught_up=True))
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

    def _read(self, part: TierPart, time: ReadTime, *, is_caught_up: bool = False) -> Steps[TierRecords]:
        identity = self._client.identity
        records = yield from self._tier.read(
            part, *self.parts[part], committed=self._committed, is_caught_up=is_caught_up, reader=identity, time=time
        )
        # At once, without a checkpoint between: a read that nobody wants any more must be released too.
        self._client.hold(records)
        return records
