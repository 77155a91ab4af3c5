"""One owner's time with a partition: looks, each of which copies what is due and deletes what is old.

A slot is held while one segment is fetched, and while one is copied or deleted; not while a lag or a rate is waited
for.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from metrics.copy_meters import Stall
from standalone.copier.deletions import PartitionDeletions
from standalone.copier.intake import Intake
from standalone.copier.ledger import Ledger
from standalone.copier.seams import KEEP, TopicGoneError
from standalone.copier.segment_copy import Copied, SegmentCopy
from standalone.copier.staging import StagedSegment
from standalone.copier.tools import RETRY_S_MAX, CopierTools
from storage.backoff import Backoff
from storage.errors import DeletionRefusedError, RemoteStorageError
from storage.indexes.time_index import NO_TIMESTAMP_MS

if TYPE_CHECKING:
    from standalone.copier.partition_copier import PartitionCopier

GIVE_BACK_S: Final = 60.0
"""How long an owner that lets go of a partition tries to copy what is staged and to delete what only it knows of. What
is staged then stays on its disk; objects that are left are in the log, and `tidegate gc` finds them."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Term:
    """Nothing here is used by two tasks at once."""

    def __init__(self, owner: "PartitionCopier", ledger: Ledger, folder: Path, tools: CopierTools) -> None:
        self._progress = owner.progress
        self._backlog = owner.backlog
        self._partition = ledger.partition
        self._series = (ledger.partition.topic, ledger.partition.partition)
        self._ledger = ledger
        self._tools = tools
        self._segments = SegmentCopy(ledger, tools.new_id, tools.now_ms)
        self._intake = Intake(ledger, folder, tools, owner.backlog, owner.note_gap)
        self._deletions = PartitionDeletions(ledger, self._segments, tools, owner.progress)
        self._begun_ms = tools.now_ms()
        self._tidied_changes = -1
        self._stall: Stall | None = Stall.UPSTREAM
        """What keeps records from being copied, should what it is about to do fail."""

    async def look(self) -> None:
        """One look.

        Raises:
            RemoteStorageError, OSError: something could not be done; everything else was.
            TopicGoneError: upstream has no such topic.
        """
        try:
            await self._look()
        except (OSError, RemoteStorageError) as error:
            self._tell(Stall.STAGING if isinstance(error, OSError) else self._stall)
            raise
        self._tell(None)

    async def end(self) -> None:
        """Let go of everything. Not cancelled by the caller's cancellation."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + GIVE_BACK_S):
            await self._copy_rest()
            self._segments.stop_trying()
            await self._intake.drop(keeps_logs=not self._ledger.is_superseded or await self._is_all_there_is())
            backoff = Backoff(max_s=RETRY_S_MAX)
            while self._segments.unfinished:
                try:
                    await self._tools.steps.do(self._segments.let_go())
                except RemoteStorageError as error:
                    _log.warning("give_back_failed", partition=str(self._partition), reason=str(error))
                    await trio.sleep(backoff.next_delay_s())
        if self._segments.unfinished:
            _log.error("objects_left", partition=str(self._partition), hint="tidegate gc finds them")

    async def _is_all_there_is(self) -> bool:
        """Return whether what is staged may be nowhere else: upstream has deleted it, is about to, or does not answer.
        It is asked again, since a copier that stood still knows an old log start."""
        try:
            await self._intake.see_upstream()
        except RemoteStorageError:
            return True
        except TopicGoneError:
            return self._intake.is_pressed
        return self._intake.is_pressed

    async def give_staging_up(self) -> None:
        """Its folder has failed: all is fetched again, but for what upstream has deleted."""
        self._segments.stop_trying()
        await self._intake.drop(keeps_logs=self._intake.is_pressed)

    # --- the parts of a look ---

    async def _look(self) -> None:
        self._stall = Stall.UPSTREAM
        await self._intake.see_upstream()
        if self._intake.staging is None:
            self._stall, self._progress.waits_for = Stall.RESUME, "what the tier's last segment says"
            async with self._tools.slots.one():
                await self._intake.resume()
            self._tidied_changes = -1  # what is left over depends on the lineage too
        self._stall = Stall.STORE
        failure = await self._tidy()
        if failure is not None and self._segments.unsure:
            raise failure
        while await self._copy_next():
            self._tell(None)
        self._stall = None
        # What another owner had left is covered by now; else it stayed until the next look, which may never come.
        failure = await self._tidy() or failure
        if not self._ledger.is_superseded:
            upstream = self._intake.upstream
            assert upstream is not None, "it was seen before"
            await self._deletions.look(upstream.log_start_offset, local_only_bytes=self._progress.lag_bytes)
        if failure is not None:
            raise failure

    async def _tidy(self) -> RemoteStorageError | None:
        """Tidy. A failure does not keep anything from being copied, unless a segment may be finished."""
        if not (self._segments.unfinished or self._segments.unsure) and self._ledger.changes == self._tidied_changes:
            return None
        try:
            async with self._tools.slots.one():
                await self._tools.steps.do(self._segments.tidy())
        except DeletionRefusedError:
            return None  # which is said once an hour, and shown with what waits
        except RemoteStorageError as error:
            return error
        self._tidied_changes = self._ledger.changes
        return None

    async def _copy_next(self) -> bool:
        """Copy one segment, if there is one to be copied; whether to look for the next."""
        tools, intake, progress = self._tools, self._intake, self._progress
        if self._ledger.is_superseded:
            return False
        if (off := self._off()) is not None:
            progress.waits_for = off
            return False
        if not intake.ready:
            self._stall, progress.waits_for = Stall.UPSTREAM, "records from upstream"
            await intake.stage()
        if not await intake.is_verified():
            return False  # upstream could not be asked when these were fetched
        if not intake.ready:
            progress.waits_for = intake.poison or "new records, or a segment's end"
            return False
        staged = intake.ready[0]
        if not self._is_due(staged):
            progress.waits_for = "copy.lag.ms or expert.copy.lag.bytes"
            return False
        self._stall, progress.waits_for = Stall.STORE, "copy.max.bytes.per.second or a slot"
        await tools.rate.wait(staged.size_bytes)
        return await self._copy(staged)

    async def _copy(self, staged: StagedSegment) -> bool:
        """Return whether it is in the tier."""
        tools = self._tools
        async with tools.slots.one():
            self._progress.waits_for = "the upload"
            await tools.threads.run(staged.check)
            copied = await tools.steps.do(self._segments.copy(staged))
        if copied is Copied.STALE:
            await self._intake.drop(keeps_logs=True)
        if copied is not Copied.FINISHED:
            return False
        await self._intake.on_copied(staged)
        self._progress.copied_bytes += staged.size_bytes
        tools.meter.on_copied(self._partition.topic, staged.size_bytes)
        if staged.newest_record_ms != staged.max_timestamp_ms:
            _log.warning(
                "copy_future_timestamp",
                partition=str(self._partition),
                end_offset=staged.end_offset,
                max_timestamp_ms=staged.max_timestamp_ms,
                hint="a producer's clock is wrong: retention counts these records as of when they were copied",
            )
        return True

    async def _copy_rest(self) -> None:
        """Copy what is staged, since the next owner may not find it at upstream any more."""
        intake = self._intake
        if self._ledger.is_superseded or self._off() is not None:
            return
        try:
            await intake.roll()
            while await intake.is_verified() and intake.ready and self._is_due(intake.ready[0]):
                if not await self._copy(intake.ready[0]):
                    break
        except (RemoteStorageError, OSError, TopicGoneError) as error:
            _log.warning("staged_not_copied", partition=str(self._partition), reason=str(error))

    # --- what is due, and what others see of it ---

    def _off(self) -> str | None:
        """Why nothing is copied, whatever there is."""
        if not self._tools.is_copied(self._partition.topic):
            return "nothing: its topic is not copied any more"
        return "copy.disable" if self._tools.is_disabled() else None

    def _is_due(self, staged: StagedSegment) -> bool:
        """KIP-1241: both lags hold, unless upstream is about to delete it."""
        settings = self._tools.settings
        is_old = self._tools.now_ms() - staged.newest_record_ms >= settings.lag_ms or settings.lag_ms == 0
        is_far = settings.lag_bytes == 0 or self._intake.waiting_bytes() - staged.size_bytes >= settings.lag_bytes
        return (is_old and is_far) or self._backlog.is_pressed(staged.start_offset)

    def _tell(self, failed: Stall | None) -> None:
        """Progress, lags, age, and what nothing is copied for."""
        tools, progress, intake = self._tools, self._progress, self._intake
        progress.is_copied = tools.is_copied(self._partition.topic)
        progress.copied_offset = self._ledger.end_offset()
        progress.last_stable_offset = intake.last_stable_offset
        progress.is_pressed = intake.is_pressed
        progress.lag_bytes = intake.staged_bytes
        tools.meter.on_copy_lag(self._series, sum(each.size_bytes for each in intake.ready), len(intake.ready))
        oldest_ms = self._oldest_ms()
        progress.lag_ms = max(0, tools.now_ms() - oldest_ms) if oldest_ms is not None else 0
        progress.retention_share = 0.0 if oldest_ms is None else self._retention_share(progress.lag_ms)
        tools.meter.on_age(self._series, progress.lag_ms / 1000, progress.retention_share)
        progress.stall = Stall.POISON if intake.poison else failed or (None if oldest_ms is None else self._own_stall())
        tools.meter.on_stall(self._series, progress.stall)

    def _retention_share(self, age_ms: int) -> float:
        """Return how near upstream is to deleting what is not in the tier; 1: it does."""
        kept = self._tools.upstream_retention(self._partition.topic)
        by_age = 0.0 if kept.retention_ms == KEEP else age_ms / max(1, kept.retention_ms)
        by_size = 0.0 if kept.retention_bytes == KEEP else self._intake.waiting_bytes() / max(1, kept.retention_bytes)
        return max(by_age, by_size)

    def _own_stall(self) -> Stall | None:
        """Return what keeps records from being copied although nothing has failed."""
        intake = self._intake
        if self._tools.is_disabled():
            return Stall.DISABLED
        upstream = intake.upstream
        is_open = upstream is not None and upstream.last_stable_offset < upstream.high_watermark
        is_at_end = self._ledger.end_offset() + 1 >= intake.last_stable_offset
        return Stall.OPEN_TRANSACTION if is_open and is_at_end else None

    def _oldest_ms(self) -> int | None:
        """Since when the oldest record waits that is not in the tier; None: there is none.

        By our own clock, or by its timestamp if that is older: it may have been there before we looked.
        """
        if not self._progress.is_copied:
            return None
        if self._intake.upstream is None:
            return self._begun_ms
        since_ms = self._backlog.since_ms(self._ledger.end_offset())
        if since_ms is None:
            return None
        staged = [segment.first_timestamp_ms for segment in self._intake.ready]
        if self._intake.staging is not None:
            staged.append(self._intake.staging.first_timestamp_ms)
        known = [timestamp for timestamp in staged if timestamp != NO_TIMESTAMP_MS]
        return min(since_ms, *known) if known else since_ms
