"""One partition, for as long as this copier has it: copies what is due and deletes what is old, every interval.

    PartitionCopier.run                     terms, one after another, until it is cancelled
      _Term                                 from a claim to the next owner's: a ledger, a staging
        look()                              resume · tidy · fetch, stage and copy, segment by segment · retention

- A term begins with a ledger that has noted all records up to now. It ends when somebody else has claimed the partition
  (standalone.copier.ledger); should it still be ours after an interval, the next term claims it back.
- What cannot be done now (RemoteStorageError) is tried again, with back-off, within the term. A staging folder that
  fails (OSError) is given up, and what was in it fetched again.
- A batch that can never be copied ends the copying of this partition, until upstream's log starts behind it; what was
  staged before it is copied still, and retention goes on.
- A slot is held while one segment is fetched, and while one is copied or deleted; not while a lag or a rate is waited
  for.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from metrics.copy_meters import CopyMeter
from protocol.record_batches import CorruptBatchError
from standalone.copier.config import CopyConfig
from standalone.copier.ledger import Ledger
from standalone.copier.limits import CopyRate, Slots
from standalone.copier.log_starts import LogStarts
from standalone.copier.metadata_feed import MetadataFeed
from standalone.copier.resumption import common_offset, resume
from standalone.copier.retention import Expired, Expiry, expire
from standalone.copier.seams import (
    BrokerLog,
    FetchedBatches,
    LogRange,
    OffsetBelowLogStartError,
    Retention,
    TopicGoneError,
)
from standalone.copier.segment_copy import Copied, SegmentCopy
from standalone.copier.staging import PartitionStaging, RollLimits, StagedSegment, UncopyableBatchError
from standalone.copier.steps import StepRunner
from standalone.copier.threads import Threads
from storage.backoff import Backoff
from storage.errors import RemoteStorageError
from storage.indexes.time_index import NO_TIMESTAMP_MS
from storage.model import TopicIdPartition, Uuid
from storage.remote_storage_manager import RemoteStorageManager

FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one Fetch, which a slot holds in memory: large enough that a round trip costs little, small beside a segment."""

GIVE_BACK_S: Final = 60.0
"""How long whoever lets go of a partition tries to delete what only it knows of. What is left then is in the log and
is found by `tidegate gc`."""

RETRY_S_MAX: Final = 30.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopierTools:
    """What the partitions of one copier share."""

    settings: CopyConfig
    brokers: BrokerLog
    feed: MetadataFeed
    storage: RemoteStorageManager
    log_starts: LogStarts
    meter: CopyMeter
    retention_of: Callable[[str], Retention]
    is_disabled: Callable[[], bool]
    deletions_stopped: Callable[[], str | None]
    copies_all: bool
    slots: Slots
    rate: CopyRate
    threads: Threads
    steps: StepRunner
    now_ms: Callable[[], int]
    new_id: Callable[[], Uuid]


@dataclass(slots=True, kw_only=True)
class PartitionProgress:
    """How far a partition is. Offsets are Kafka's: `copied_offset` is the last one in the tier; -1: none, or not known.

    `waits_for`: in words; `last_error`: of what is being tried again, None once it has succeeded. `looks`: those
    in which everything that was due was done.
    """

    topic: str
    partition: int
    copied_offset: int = -1
    last_stable_offset: int = -1
    copied_bytes: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    waits_for: str = "its metadata"
    last_error: str | None = None
    looks: int = 0
    is_poisoned: bool = False


class PartitionCopier:
    """Args:
    generation: of the group, when the partition was assigned.
    folder: for its segments under way; nobody else's.
    """

    def __init__(self, partition: TopicIdPartition, generation: int, folder: Path, tools: CopierTools) -> None:
        self.partition = partition
        self.progress = PartitionProgress(topic=partition.topic, partition=partition.partition)
        self._generation = generation
        self._folder = folder
        self._tools = tools
        self._gap = (0, 0)

    async def run(self) -> None:
        """For ever.

        Cancellation: a segment that is being copied is finished or given back first, and what only this owner knows of
        is deleted, for GIVE_BACK_S at most.
        """
        backoff = Backoff(max_s=RETRY_S_MAX)
        tools = self._tools
        try:
            while True:
                delay_s = tools.settings.interval_ms / 1000
                try:
                    await self._own(backoff)
                    tools.meter.on_superseded()
                    _log.warning("copy_superseded", partition=str(self.partition))
                    self.progress.waits_for = "another copier, which has claimed the partition"
                except TopicGoneError as error:
                    _log.warning("topic_gone", **self._noted(error))
                    self.progress.waits_for = "its topic, which upstream does not have any more"
                    await trio.sleep_forever()
                except (RemoteStorageError, OSError) as error:
                    _log.warning("copy_not_begun", **self._noted(error))
                    delay_s = backoff.next_delay_s()
                await trio.sleep(delay_s)
        finally:
            tools.meter.on_released((self.partition.topic, self.partition.partition))

    async def _own(self, backoff: Backoff) -> None:
        """One term. Returns when another owner has the partition."""
        ledger = Ledger(self.partition)
        async with self._tools.feed.followed(ledger):
            ledger.claim(self._generation)
            term = _Term(self, ledger, self._folder, self._tools)
            try:
                while not ledger.is_superseded:
                    delay_s = self._tools.settings.interval_ms / 1000
                    try:
                        await term.look()
                        backoff.reset()
                        self.progress.last_error = None
                        self.progress.looks += 1
                    except OSError as error:
                        await term.drop_staging()
                        _log.warning("staging_failed", **self._noted(error))
                        delay_s = backoff.next_delay_s()
                    except RemoteStorageError as error:
                        _log.warning("copy_delayed", **self._noted(error))
                        delay_s = backoff.next_delay_s()
                    if not ledger.is_superseded:
                        await trio.sleep(delay_s)
            finally:
                await term.end()

    def note_gap(self, start_offset: int, end_offset: int) -> None:
        """Upstream had deleted these offsets (end exclusive) before they were copied. A later term may find the same
        gap, or more of it, if what was staged before it did not get into the tier: each offset is counted once."""
        counted_start, counted_end = self._gap
        for start, end in (
            (start_offset, min(end_offset, counted_start)),
            (max(start_offset, counted_end), end_offset),
        ):
            if start >= end:
                continue
            self._tools.meter.on_gap(end - start)
            _log.error(
                "copy_gap",
                partition=str(self.partition),
                start_offset=start,
                end_offset=end,
                hint="upstream deletes faster than is copied: see copy.segment.ms and upstream's retention.ms",
            )
        is_apart = end_offset < counted_start or counted_end < start_offset
        self._gap = (
            (start_offset, end_offset) if is_apart else (min(start_offset, counted_start), max(end_offset, counted_end))
        )

    def _noted(self, error: Exception) -> dict[str, str]:
        """The error for the log, and kept for whoever asks for the progress."""
        self.progress.last_error = str(error)
        return {"partition": str(self.partition), "reason": str(error), "kind": type(error).__name__}


@dataclass(slots=True)
class _Looked:
    """What the last look for old segments was made of: nothing else can change its outcome, but time."""

    changes: int
    committed: int | None
    upstream_start: int
    retention: Retention
    next_ms: int | None


class _Term:
    """Of one owner. Nothing here is used by two tasks at once."""

    def __init__(self, owner: PartitionCopier, ledger: Ledger, folder: Path, tools: CopierTools) -> None:
        self._owner = owner
        self._partition = ledger.partition
        self._series = (ledger.partition.topic, ledger.partition.partition)
        self._ledger = ledger
        self._folder = folder
        self._tools = tools
        self._segments = SegmentCopy(ledger, tools.new_id, tools.now_ms)
        self._staging: PartitionStaging | None = None
        self._ready: deque[StagedSegment] = deque()
        self._replay_until = 0
        self._upstream: LogRange | None = None
        self._last_stable_offset = -1
        self._verified_epoch = -1
        self._suspect_offset = -1
        self._poison: str | None = None
        self._tidied_changes = -1
        self._looked: _Looked | None = None
        self._behind_since_ms: int | None = None

    async def look(self) -> None:
        """One look.

        Raises:
            RemoteStorageError, OSError: something could not be done; everything else was.
            TopicGoneError: upstream has no such topic.
        """
        await self._see_upstream()
        if self._staging is None:
            async with self._tools.slots.one():
                await self._resume()
        failure = await self._tidy()
        if failure is not None and self._segments.has_unsure:
            raise failure
        try:
            while await self._copy_next():
                self._tell()
        finally:
            self._tell()
        # What another owner had left is covered by now; else it stayed until the next look, which may never come.
        failure = await self._tidy() or failure
        if not self._ledger.is_superseded:
            await self._delete_old()
        if failure is not None:
            raise failure

    async def end(self) -> None:
        """Let go of everything. Not cancelled by the caller's cancellation."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + GIVE_BACK_S):
            await self.drop_staging()
            backoff = Backoff(max_s=RETRY_S_MAX)
            while self._segments.has_unfinished:
                try:
                    await self._tools.steps.do(self._segments.let_go())
                except RemoteStorageError as error:
                    _log.warning("give_back_failed", partition=str(self._partition), reason=str(error))
                    await trio.sleep(backoff.next_delay_s())
        if self._segments.has_unfinished:
            _log.error("objects_left", partition=str(self._partition), hint="tidegate gc finds them")

    async def drop_staging(self) -> None:
        """Forget what is staged; it is fetched again."""
        staging, self._staging = self._staging, None
        ready = [*self._ready]
        self._ready.clear()

        def discard() -> None:
            for segment in ready:
                segment.discard()
            if staging is not None:
                staging.close()

        await self._tools.threads.run(discard)

    # --- the parts of a look ---

    async def _tidy(self) -> RemoteStorageError | None:
        """What could not be tidied does not keep anything from being copied, unless a segment may be finished."""
        is_needed = self._segments.has_unfinished or self._segments.has_unsure
        if not is_needed and self._ledger.changes == self._tidied_changes:
            return None
        try:
            async with self._tools.slots.one():
                await self._tools.steps.do(self._segments.tidy())
        except RemoteStorageError as error:
            return error
        self._tidied_changes = self._ledger.changes
        return None

    async def _see_upstream(self) -> None:
        """Where upstream's log is; after a change of leader also whether what is staged still belongs to it."""
        upstream = await self._tools.brokers.range(self._partition)
        before = self._upstream
        self._last_stable_offset = upstream.last_stable_offset
        if self._poison and self._staging is not None and upstream.log_start_offset > self._staging.next_offset:
            self._poison = None
            self._tools.meter.on_cured(self._series)
        if before is not None and before.leader_epoch != upstream.leader_epoch and self._staging is not None:
            await self._verify(self._staging)
        self._upstream = upstream  # last: a question that failed is asked again

    async def _verify(self, staging: PartitionStaging) -> bool:
        """Whether upstream's log still holds what is staged; if not, it is dropped."""
        lineage, next_offset = staging.lineage, staging.next_offset
        brokers, known_epoch = self._tools.brokers, self._verified_epoch
        common = await common_offset(self._partition, brokers, lineage, next_offset, known_epoch=known_epoch)
        if common < next_offset:
            _log.warning("staged_records_not_upstreams", partition=str(self._partition), from_offset=common)
            await self.drop_staging()
            return False
        self._verified_epoch = lineage[-1][0] if lineage else -1
        return True

    async def _copy_next(self) -> bool:
        """Copy one segment, if there is one to be copied; whether to look for the next."""
        tools = self._tools
        progress = self._owner.progress
        if self._ledger.is_superseded:
            return False
        if tools.is_disabled():
            progress.waits_for = "copy.disable"
            return False
        if not self._ready:
            await self._stage()
        if self._staging is not None and not await self._is_verified(self._staging):
            return False  # upstream could not be asked when these were fetched
        if not self._ready:
            progress.waits_for = self._poison or "new records, or a segment's end"
            return False
        staged = self._ready[0]
        if not self._is_due(staged):
            progress.waits_for = "copy.lag.ms or copy.lag.bytes"
            return False
        progress.waits_for = "copy.max.bytes.per.second or a slot"
        await tools.rate.wait(staged.size_bytes)
        async with tools.slots.one():
            progress.waits_for = "the upload"
            copied = await tools.steps.do(self._segments.copy(staged))
        await self._on_copied(copied, staged)
        return copied is not Copied.SUPERSEDED

    async def _on_copied(self, copied: Copied, staged: StagedSegment) -> None:
        if copied is Copied.STALE:
            await self.drop_staging()
        if copied is not Copied.FINISHED:
            return
        self._ready.popleft()
        await self._tools.threads.run(staged.discard)
        self._owner.progress.copied_bytes += staged.size_bytes
        self._tools.meter.on_copied(self._partition.topic, staged.size_bytes)
        if self._staging is not None:
            lineage = self._staging.lineage
            self._ledger.follow_lineage([(epoch, start) for epoch, start in lineage if start <= staged.end_offset])

    # --- fetching and staging ---

    async def _stage(self) -> None:
        """Fetch until a segment has ended, or upstream has nothing more for now."""
        async with self._tools.slots.one():
            if self._staging is None:
                await self._resume()
            while not self._ready and self._poison is None and self._staging is not None:
                if not await self._fetch(self._staging):
                    break
            if not self._ready and self._staging is not None:
                staging = self._staging
                roll = staging.roll if self._tools.copies_all else staging.roll_if_due
                self._ready += await self._tools.threads.run(lambda: roll(now_ms=self._tools.now_ms()))

    async def _resume(self) -> None:
        self._owner.progress.waits_for = "what the tier's last segment says"
        tools, settings = self._tools, self._tools.settings
        state = await resume(self._ledger, tools.brokers, tools.storage, tools.threads)
        limits = RollLimits(segment_bytes=settings.segment_bytes, segment_ms=settings.segment_ms)
        self._replay_until = state.replay_until
        self._tidied_changes = -1  # what is left over depends on the lineage too
        self._verified_epoch = state.lineage[-1][0] if state.lineage else -1
        self._staging = await tools.threads.run(lambda: PartitionStaging(self._folder, limits, state))

    async def _fetch(self, staging: PartitionStaging) -> bool:
        """One Fetch into the staging; whether another may bring more."""
        offset = staging.next_offset
        if offset >= self._last_stable_offset:
            return False
        self._owner.progress.waits_for = "records from upstream"
        max_bytes = min(FETCH_BYTES_MAX, self._tools.settings.segment_bytes)
        try:
            fetched = await self._tools.brokers.fetch(self._partition, offset, max_bytes=max_bytes)
        except OffsetBelowLogStartError as error:
            await self._skip_to(staging, error.log_start_offset)
            return True
        self._last_stable_offset = fetched.last_stable_offset
        if not fetched.data:
            return False
        if not await self._take(staging, fetched):
            return True
        return await self._is_verified(staging) and staging.next_offset > offset

    async def _is_verified(self, staging: PartitionStaging) -> bool:
        """A new leader's records may be from a log that parted from the one before where we had read on already. If so
        what is staged is dropped."""
        is_newer = bool(staging.lineage) and staging.lineage[-1][0] > self._verified_epoch
        return not is_newer or await self._verify(staging)

    async def _take(self, staging: PartitionStaging, fetched: FetchedBatches) -> bool:
        """Stage what came; whether all of it could be."""
        now_ms = self._tools.now_ms()
        try:
            self._ready += await self._tools.threads.run(
                lambda: staging.take(fetched.data, now_ms=now_ms, aborted=fetched.aborted)
            )
        except UncopyableBatchError as error:
            self._stop_for(error)
        except CorruptBatchError as error:
            if self._suspect_offset == staging.next_offset:
                self._stop_for(error)
            self._suspect_offset = staging.next_offset
        else:
            return True
        return False

    def _stop_for(self, error: CorruptBatchError) -> None:
        self._poison = f"nothing: {error}. It is not copied any further"
        self._owner.progress.is_poisoned = True
        self._tools.meter.on_poisoned(self._series)
        _log.error("copy_poisoned", partition=str(self._partition), reason=str(error))

    async def _skip_to(self, staging: PartitionStaging, log_start_offset: int) -> None:
        """Go on at upstream's log start."""
        wanted = max(staging.next_offset, self._replay_until)
        has_begun = bool(staging.lineage) or self._ledger.end_offset() >= 0
        now_ms = self._tools.now_ms()
        self._ready += await self._tools.threads.run(lambda: staging.skip_to(log_start_offset, now_ms=now_ms))
        if has_begun:
            self._owner.note_gap(wanted, log_start_offset)

    # --- what is due ---

    def _is_due(self, staged: StagedSegment) -> bool:
        """KIP-1241: both lags hold."""
        settings = self._tools.settings
        # Without a lag whatever is there is due, also what a producer whose clock is wrong has written for next year.
        is_old = settings.lag_ms == 0 or self._tools.now_ms() - staged.max_timestamp_ms >= settings.lag_ms
        return is_old and (settings.lag_bytes == 0 or self._bytes_behind(staged) >= settings.lag_bytes)

    def _bytes_behind(self, staged: StagedSegment) -> int:
        """Log behind the segment. Of what has not been fetched upstream tells offsets only: they are taken to be as
        large as those of the segment."""
        if self._staging is None:
            return 0
        offsets = max(0, self._last_stable_offset - self._staging.next_offset)
        rest = offsets * staged.size_bytes // (staged.end_offset + 1 - staged.start_offset)
        return self._staging.staged_bytes + rest

    def _tell(self) -> None:
        """Progress, lags and age."""
        tools, progress, staging = self._tools, self._owner.progress, self._staging
        now_ms = tools.now_ms()
        progress.copied_offset = self._ledger.end_offset()
        progress.last_stable_offset = self._last_stable_offset
        staged_bytes = sum(segment.size_bytes for segment in self._ready)
        open_bytes = 0 if staging is None else staging.staged_bytes
        progress.lag_bytes = staged_bytes + open_bytes
        whole = open_bytes // tools.settings.segment_bytes
        tools.meter.on_copy_lag(
            self._series, staged_bytes + whole * tools.settings.segment_bytes, len(self._ready) + whole
        )
        progress.lag_ms = max(0, now_ms - oldest_ms) if (oldest_ms := self._oldest_ms(now_ms)) is not None else 0
        tools.meter.on_age(self._series, progress.lag_ms / 1000)

    def _oldest_ms(self, now_ms: int) -> int | None:
        """The timestamp of the oldest record that is not in the tier; None: there is none.

        One that has not been fetched yet counts from when it was first seen to be there.
        """
        if self._ledger.end_offset() + 1 >= self._last_stable_offset:
            self._behind_since_ms = None
            return None
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        staged = [segment.first_timestamp_ms for segment in self._ready]
        if self._staging is not None:
            staged.append(self._staging.first_timestamp_ms)
        known = [timestamp for timestamp in staged if timestamp != NO_TIMESTAMP_MS]
        return min(known, default=self._behind_since_ms)

    # --- retention ---

    async def _delete_old(self) -> None:
        tools = self._tools
        if tools.deletions_stopped() is not None:
            return
        committed = await tools.log_starts.get(self._partition)
        expiry = self._expiry(committed)
        if expiry is None:
            return
        if expiry.log_start_offset is not None:
            await tools.log_starts.raise_to(self._partition, expiry.log_start_offset)
        left = deque(expiry.expired)
        try:
            while left:
                self._tell_delete_lag(left)
                async with tools.slots.one():
                    if not await tools.steps.do(self._segments.delete(left[0].segment)):
                        return
                _log.info("segment_deleted", segment=str(left[0].segment.segment_id), breach=left[0].breach.value)
                left.popleft()
        finally:
            self._tell_delete_lag(left)

    def _expiry(self, committed: int | None) -> Expiry | None:
        """What is too old; None: nothing can have changed since the last look, and it is not time yet."""
        tools, upstream = self._tools, self._upstream
        assert upstream is not None, "upstream was seen before"
        now_ms, retention = tools.now_ms(), tools.retention_of(self._partition.topic)
        seen = _Looked(self._ledger.changes, committed, upstream.log_start_offset, retention, None)
        if self._looked is not None:
            seen.next_ms = self._looked.next_ms
            if seen == self._looked and (seen.next_ms is None or now_ms < seen.next_ms):
                return None
        begun_s = time.perf_counter()
        expiry = expire(
            self._ledger.finished(),
            live_end=self._ledger.live_end,
            is_dead=self._ledger.is_dead,
            log_start_offset=min(0 if committed is None else committed, upstream.log_start_offset),
            retention=retention,
            local_only_bytes=self._owner.progress.lag_bytes,
            now_ms=now_ms,
        )
        tools.meter.on_size_walk(self._partition.topic, time.perf_counter() - begun_s)
        seen.next_ms = expiry.next_ms
        self._looked = None if expiry.expired else seen
        return expiry

    def _tell_delete_lag(self, left: deque[Expired]) -> None:
        size_bytes = sum(each.segment.segment_size_bytes for each in left)
        self._tools.meter.on_delete_lag(self._series, size_bytes, len(left))
