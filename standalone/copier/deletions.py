"""One partition's deletions: the one place that decides about each (docs/standalone.md#deletion).

    deletions = PartitionDeletions(ledger, segments, tools)
    await deletions.look(upstream.log_start_offset, local_only_bytes=...)

What is to go is for `retention` to say, and for segments that others have superseded; when it goes, for `waits`. What
waits is kept durably, and the log start is committed, before the first object of a segment goes. Nothing else deletes a
finished segment of a topic that there is.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from standalone.copier.ledger import Ledger
from standalone.copier.retention import Cause, Expired, expire
from standalone.copier.seams import Retention
from standalone.copier.segment_copy import SegmentCopy
from standalone.copier.tools import CopierTools
from standalone.copier.waits import Noted, Waiting, WaitLimits, Wanted, plan
from storage.model import RemoteLogSegmentMetadata

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a walk over the segments was made of: nothing else can change its outcome, but time."""

    changes: int
    committed: int | None
    upstream_start: int
    retention: Retention


class PartitionDeletions:
    """One owner's; `waiting`: what the last look has left, `dead`: segments without a record on the lineage."""

    def __init__(self, ledger: Ledger, segments: SegmentCopy, tools: CopierTools) -> None:
        self._ledger = ledger
        self._segments = segments
        self._tools = tools
        self._partition = ledger.partition
        self._series = (ledger.partition.topic, ledger.partition.partition)
        settings = tools.settings
        self._limits = WaitLimits(settings.delete_grace_ms, settings.delete_share_max)
        self._seen: _Seen | None = None
        self._wanted = Wanted(expired=(), spares=(), dead=(), size_bytes=0)
        self._next_ms: int | None = None
        self._has_waves = True
        """Whether waits may be noted that are to be forgotten, should nothing be wanted any more."""
        self.waiting: Waiting | None = None

    @property
    def dead(self) -> Sequence[RemoteLogSegmentMetadata]:
        """Segments without a record on the lineage."""
        return self._wanted.dead

    async def look(self, upstream_start: int, *, local_only_bytes: int) -> None:
        """Delete what is due.

        Raises:
            RemoteStorageError: something could not be done; the next look goes on.
        """
        tools = self._tools
        committed = await tools.log_starts.get(self._partition)
        self._walk(committed, upstream_start, local_only_bytes)
        wanted = self._wanted
        if not (wanted.expired or wanted.spares or len(wanted.dead) > 1 or self._has_waves):
            self._tell(None)
            return
        noted = await tools.notes.get(self._partition) or Noted()
        stopped = tools.deletions_stopped() or tools.steps.deletion_refusal()
        planned = plan(wanted, noted, self._limits, stopped=stopped, now_ms=tools.now_ms())
        if planned.noted != noted:
            await tools.notes.commit(self._partition, planned.noted)
        self._has_waves = bool(planned.noted.waves)
        self._tell(planned.waiting)
        if planned.goes:
            await self._delete(planned.goes, committed)

    def _walk(self, committed: int | None, upstream_start: int, local_only_bytes: int) -> None:
        """Find what is wanted to go, unless it is as it was found last."""
        tools, now_ms = self._tools, self._tools.now_ms()
        retention = tools.retention_of(self._partition.topic)
        seen = _Seen(self._ledger.changes, committed, upstream_start, retention)
        if seen == self._seen and (self._next_ms is None or now_ms < self._next_ms):
            return
        begun_s = time.perf_counter()
        spares = self._segments.spares()
        ids = {spare.segment_id.id for spare, _ in spares}
        whole = [segment for segment in self._ledger.finished() if segment.segment_id.id not in ids]
        expiry = expire(
            whole,
            live_end=self._ledger.live_end,
            log_start_offset=min(0 if committed is None else committed, upstream_start),
            retention=retention,
            local_only_bytes=local_only_bytes,
            now_ms=now_ms,
        )
        dead = [segment for segment in whole if self._ledger.live_end(segment) < 0]
        self._wanted = Wanted(expired=expiry.expired, spares=spares, dead=dead, size_bytes=expiry.size_bytes)
        self._seen, self._next_ms = seen, expiry.next_ms
        tools.meter.on_size_walk(self._partition.topic, time.perf_counter() - begun_s)
        tools.meter.on_dead(self._series, len(dead), sum(segment.segment_size_bytes for segment in dead))

    async def _delete(self, goes: Sequence[Expired], committed: int | None) -> None:
        tools, left = self._tools, deque(goes)
        self._seen = None
        behind = max((each.behind_offset for each in goes if each.cause is not Cause.SUPERSEDED), default=-1)
        if behind > (committed or 0):
            await tools.log_starts.commit(self._partition, behind)
        try:
            while left:
                self._tell_lag(left)
                async with tools.slots.one():
                    if not await tools.steps.do(self._segments.delete(left[0].segment)):
                        return
                _log.info("segment_deleted", segment=str(left[0].segment.segment_id), cause=left[0].cause.value)
                left.popleft()
        finally:
            self._tell_lag(left)

    def _tell_lag(self, left: deque[Expired]) -> None:
        size_bytes = sum(each.segment.segment_size_bytes for each in left)
        self._tools.meter.on_delete_lag(self._series, size_bytes, len(left))

    def _tell(self, waiting: Waiting | None) -> None:
        self._tools.tell_waiting(self._partition, waiting, self.waiting)
        self.waiting = waiting
