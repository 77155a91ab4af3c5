"""From upstream's log into segments that are ready to be copied, for one owner of a partition.

    intake = Intake(ledger, folder, tools, backlog, note_gap)
    await intake.see_upstream()
    await intake.stage()                # fetch until a segment has ended, or there is nothing more for now
    intake.ready[0]                     # is copied by standalone.copier.term, which then takes it away

- What upstream has deleted comes from logs that were staged before (standalone.copier.kept_logs), and what is only
  replayed comes from the tier. Where neither has it there is a gap.
- A batch that can never be copied ends the copying of this partition, until upstream's log starts behind it, its leader
  changes or an hour has passed; what was staged before it is copied still.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Final

import structlog
import trio

from protocol.client.leaders import FetchedRecords
from protocol.record_batches import CorruptBatchError
from standalone.copier.backlog import Backlog
from standalone.copier.kept_logs import cut, sound_batches
from standalone.copier.ledger import Ledger
from standalone.copier.resumption import common_offset, read_unless_lost, resume
from standalone.copier.seams import LogRange, OffsetBelowLogStartError
from standalone.copier.staging import PartitionStaging, RollLimits, StagedSegment, UncopyableBatchError
from standalone.copier.tools import CopierTools
from storage.indexes.offset_index import OffsetIndex
from storage.model import IndexType

FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""One Fetch brings so much, and a slot holds it in memory: a round trip costs little beside it."""

TIER_BYTES_MAX: Final = 128 * 1024 * 1024
"""A batch of the tier that is replayed may be so large."""

POISON_MS: Final = 3_600_000
"""After so long a batch that could not be copied is looked at again."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Intake:
    """Nothing here is used by two tasks at once. `poison`: why nothing is fetched any more."""

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        tools: CopierTools,
        backlog: Backlog,
        note_gap: Callable[[int, int, str], None],
    ) -> None:
        self._partition = ledger.partition
        self._ledger = ledger
        self._folder = folder
        self._tools = tools
        self._backlog = backlog
        self._note_gap = note_gap
        self.staging: PartitionStaging | None = None
        self.ready: deque[StagedSegment] = deque()
        self.upstream: LogRange | None = None
        self.last_stable_offset = -1
        self.poison: str | None = None
        self._poisoned_ms = 0
        self._replay_until = 0
        self._verified_epoch = -1
        self._suspect_offset = -1
        self._has_begun = False
        self._is_caught_up = False

    @property
    def staged_from(self) -> int | None:
        """The first offset that is staged; None: nothing is."""
        if self.ready:
            return self.ready[0].start_offset
        return None if self.staging is None else self.staging.open_offset

    @property
    def staged_bytes(self) -> int:
        """Bytes of log that are staged."""
        open_bytes = 0 if self.staging is None else self.staging.staged_bytes
        return open_bytes + sum(segment.size_bytes for segment in self.ready)

    @property
    def is_pressed(self) -> bool:
        """Return whether upstream has deleted what is staged, or is about to."""
        return self.staged_from is not None and self._backlog.is_pressed(self.staged_from)

    async def see_upstream(self) -> None:
        """Learn where upstream's log is; after a change of leader also whether what is staged still belongs to it.

        Raises:
            RemoteStorageError: no answer.
            TopicGoneError: upstream has no such topic.
        """
        upstream = await self._tools.brokers.range(self._partition)
        before = self.upstream
        self.last_stable_offset = upstream.last_stable_offset
        self._backlog.see(upstream.log_start_offset, upstream.high_watermark, self._tools.now_ms())
        has_new_leader = before is not None and before.leader_epoch != upstream.leader_epoch
        if self.staging is not None:
            is_gone = upstream.log_start_offset > self.staging.next_offset
            if has_new_leader or is_gone or self._tools.now_ms() - self._poisoned_ms >= POISON_MS:
                self.poison = None
            if has_new_leader:
                await self._verify(self.staging)
        self.upstream = upstream  # last: a question that failed is asked again

    async def resume(self) -> None:
        """Begin to stage behind what the tier has.

        Raises:
            RemoteStorageError: it cannot be found out where that is.
        """
        tools, settings = self._tools, self._tools.settings
        state = await resume(self._ledger, tools)
        begins = self._ledger.end_offset() < 0 and tools.is_copied(self._partition.topic)
        if begins and self.upstream is not None:
            # Where copying began is kept: else nobody would count what is lost before the first segment.
            log_start = self.upstream.log_start_offset
            begun_at = await tools.log_starts.get(self._partition)
            if begun_at is None:
                await tools.log_starts.commit(self._partition, log_start)
            elif begun_at < log_start and not state.replay_until:
                state.next_offset, self._has_begun = begun_at, True
        limits = RollLimits(segment_bytes=settings.segment_bytes, segment_ms=settings.segment_ms)
        self._replay_until = state.replay_until
        self._verified_epoch = state.lineage[-1][0] if state.lineage else -1
        self.staging = await tools.threads.run(lambda: PartitionStaging(self._folder, limits, state))

    async def stage(self) -> None:
        """Fetch until a segment has ended, or upstream has nothing more for now."""
        tools = self._tools
        async with tools.slots.one():
            if self.staging is None:
                await self.resume()
            while not self.ready and self.poison is None and self.staging is not None:
                if not await self._fetch(self.staging):
                    self._is_caught_up = True
                    break
            if not self.ready and self.staging is not None:
                staging, rolls = self.staging, tools.copies_all or self.is_pressed
                await self._roll(staging, rolls)

    async def roll(self) -> None:
        """End the segment under way."""
        if self.staging is not None:
            await self._roll(self.staging, True)

    async def is_verified(self) -> bool:
        """A new leader's records may be from a log that parted from the one before where we had read on already. If so
        what is staged is dropped."""
        staging = self.staging
        is_newer = staging is not None and bool(staging.lineage) and staging.lineage[-1][0] > self._verified_epoch
        return not is_newer or staging is None or await self._verify(staging)

    async def drop(self, *, keeps_logs: bool) -> None:
        """Forget what is staged; it is fetched again.

        Args:
            keeps_logs: as far as upstream has it. Else it is read again from here.
        """
        if self.staging is None:
            return
        dropped: list[StagedSegment | PartitionStaging] = [*self.ready, self.staging]
        self.staging = None
        self.ready.clear()
        if not keeps_logs:
            await self._tools.threads.run(lambda: _discard(dropped))

    async def on_copied(self, staged: StagedSegment) -> None:
        """The first that is ready is in the tier."""
        self.ready.popleft()
        staging = self.staging
        assert staging is not None, "what is ready is dropped with it"

        def discard() -> None:
            staged.discard()
            staging.kept.drop_below(staged.end_offset + 1)

        with trio.CancelScope(shield=True):
            await self._tools.threads.run(discard)
        self._ledger.follow_lineage([(epoch, start) for epoch, start in staging.lineage if start <= staged.end_offset])

    def waiting_bytes(self) -> int:
        """Upstream's log that is not in the tier. What has not been fetched is taken to be as large as what is staged,
        or else as the tier's last segment."""
        begin = end = self._ledger.end_offset() + 1
        staged_bytes = self.staged_bytes
        if self.staging is not None:
            begin, end = begin if self.staged_from is None else self.staged_from, self.staging.next_offset
        upstream = self.upstream
        offsets = 0 if upstream is None else upstream.high_watermark - max(end, upstream.log_start_offset)
        if offsets <= 0:
            return staged_bytes
        if begin < end:
            return staged_bytes + offsets * staged_bytes // (end - begin)
        last = max(self._ledger.finished(), key=lambda segment: segment.end_offset, default=None)
        return 0 if last is None else offsets * last.segment_size_bytes // (last.end_offset + 1 - last.start_offset)

    # --- fetching ---

    async def _fetch(self, staging: PartitionStaging) -> bool:
        """One Fetch into the staging; whether another may bring more."""
        offset = staging.next_offset
        if offset >= self.last_stable_offset:
            return False
        max_bytes = min(FETCH_BYTES_MAX, self._tools.settings.segment_bytes)
        try:
            fetched = await self._tools.brokers.fetch(self._partition, offset, max_bytes=max_bytes)
        except OffsetBelowLogStartError as error:
            await self._take_from_elsewhere(staging, offset, error.log_start_offset)
            return await self.is_verified()
        self.last_stable_offset = fetched.last_stable_offset
        if not fetched.data:
            return False
        if not await self._take(staging, fetched):
            return True
        return await self.is_verified() and staging.next_offset > offset

    async def _take_from_elsewhere(self, staging: PartitionStaging, offset: int, log_start_offset: int) -> None:
        """Go on without upstream, which has deleted the offset."""
        tools = self._tools
        kept_from = await tools.threads.run(lambda: staging.kept.first_from(offset))
        data = await self._tier_batches(offset) if offset < self._replay_until else b""
        aborted = None if data else staging.kept.aborted
        if not data and kept_from == offset:
            data = await tools.threads.run(lambda: staging.kept.read(offset, FETCH_BYTES_MAX))
        try:
            if data:
                await self._do(lambda: staging.take(data, now_ms=tools.now_ms(), aborted=aborted))
        except CorruptBatchError as error:
            _log.error("kept_log_corrupt", partition=str(self._partition), reason=str(error))
            await tools.threads.run(staging.kept.clear)
        if staging.next_offset == offset:
            behind = (kept_from or 0, self._replay_until, log_start_offset)
            await self._skip_to(staging, min(each for each in behind if each > offset))

    async def _tier_batches(self, offset: int) -> bytes:
        """Batches that the tier has, for a replay; empty if it has them not, or has lost what finds them."""
        holds = (s for s in self._ledger.finished() if s.start_offset <= offset <= self._ledger.live_end(s))
        segment = next(holds, None)
        if segment is None:
            return b""
        storage = self._tools.storage

        def read() -> bytes:
            index = storage.fetch_index(segment, IndexType.OFFSET)
            position = OffsetIndex(index, segment.start_offset).lookup(offset)[1]
            return storage.fetch_log_segment(segment, position, position + TIER_BYTES_MAX)

        data = await read_unless_lost(self._tools, segment, read) or b""
        # What is behind its end on the lineage is of a branch that was lost.
        return data[: _bytes_before(data, min(self._replay_until, self._ledger.live_end(segment) + 1))]

    async def _take(self, staging: PartitionStaging, fetched: FetchedRecords) -> bool:
        """Stage what came; whether all of it could be."""
        now_ms = self._tools.now_ms()
        try:
            await self._do(lambda: staging.take(fetched.data, now_ms=now_ms, aborted=fetched.aborted))
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
        self.poison = f"nothing: {error}. It is not copied any further"
        self._poisoned_ms = self._tools.now_ms()
        _log.error("copy_poisoned", partition=str(self._partition), reason=str(error))

    async def _skip_to(self, staging: PartitionStaging, offset: int) -> None:
        """Go on at an offset before which there is nothing any more."""
        wanted = max(staging.next_offset, self._replay_until)
        has_begun = self._has_begun or bool(staging.lineage) or self._ledger.end_offset() >= 0
        now_ms = self._tools.now_ms()
        await self._do(lambda: staging.skip_to(offset, now_ms=now_ms))
        if has_begun and wanted < offset:
            self._note_gap(wanted, offset, self._gap_hint())

    def _gap_hint(self) -> str:
        upstream = self.upstream
        if not self._is_caught_up:
            return "copying stood still, or ran nowhere, for longer than upstream keeps records: see its log before"
        if upstream is not None and upstream.high_watermark > upstream.last_stable_offset:
            return "an open transaction held copying back while upstream deleted: see its transaction.timeout.ms"
        return "upstream deletes faster than is copied: see copy.segment.ms, and its retention.ms, retention.bytes"

    async def _roll(self, staging: PartitionStaging, at_once: bool) -> None:
        roll = staging.roll if at_once else staging.roll_if_due
        await self._do(lambda: roll(now_ms=self._tools.now_ms()))

    async def _do(self, step: Callable[[], list[StagedSegment]]) -> None:
        """A step of the staging. Not cancelled: what ended with it would be missed, and nobody would know."""
        with trio.CancelScope(shield=True):
            self.ready += await self._tools.threads.run(step)

    async def _verify(self, staging: PartitionStaging) -> bool:
        """Return whether upstream's log still holds what is staged; if not, it is dropped."""
        lineage, next_offset = staging.lineage, staging.next_offset
        brokers, known_epoch = self._tools.brokers, self._verified_epoch
        common = await common_offset(self._partition, brokers, lineage, next_offset, known_epoch=known_epoch)
        if common < next_offset:
            _log.warning("staged_records_not_upstreams", partition=str(self._partition), from_offset=common)
            await self.drop(keeps_logs=True)
            await self._tools.threads.run(lambda: cut(self._folder, common))
            return False
        self._verified_epoch = lineage[-1][0] if lineage else -1
        return True


def _discard(dropped: Iterable[StagedSegment | PartitionStaging]) -> None:
    for each in dropped:
        each.discard()


def _bytes_before(data: bytes, offset: int) -> int:
    """Return how long the whole batches are that end below the offset: what is behind it may be another log's."""
    before = takewhile(lambda found: found[1].last_offset < offset, sound_batches(memoryview(data)))
    return sum(header.size_bytes for _, header in before)
