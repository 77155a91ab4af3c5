"""One partition's deletions: the one place that decides about each (docs/standalone.md#deletion).

    deletions = PartitionDeletions(ledger, segments, tools, progress)
    await deletions.look(upstream.log_start_offset, local_only_bytes=...)

What is to go is for `retention` to say, and for segments that others have superseded; when it goes, for `waits`. What
waits is kept durably, and the log start is committed, before the first object of a segment goes. Nothing else deletes a
finished segment of a topic that there is.
"""

import time
from collections import deque
from collections.abc import Sequence

import structlog

from standalone.copier.ledger import Ledger
from standalone.copier.progress import PartitionProgress
from standalone.copier.retention import Cause, Expired, Expiry, expire
from standalone.copier.segment_copy import SegmentCopy
from standalone.copier.tools import CopierTools
from standalone.copier.waits import Noted, Spares, plan

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PartitionDeletions:
    """One owner's. `progress` gets what waits, and how much has no record on the lineage."""

    def __init__(self, ledger: Ledger, segments: SegmentCopy, tools: CopierTools, progress: PartitionProgress) -> None:
        self._ledger = ledger
        self._segments = segments
        self._tools = tools
        self._progress = progress
        self._partition = ledger.partition
        self._series = (ledger.partition.topic, ledger.partition.partition)
        self._seen: tuple[object, ...] = ()
        """What the last walk over the segments was made of: nothing else can change its outcome, but time."""
        self._expiry = Expiry()
        self._spares: Spares = ()
        self._has_waves = True
        """Whether waits may be noted that are to be forgotten, should nothing be wanted any more."""

    async def look(self, upstream_start: int, *, local_only_bytes: int) -> None:
        """Delete what is due.

        Raises:
            RemoteStorageError: something could not be done; the next look goes on.
        """
        tools = self._tools
        committed = await tools.log_starts.get(self._partition)
        self._walk(committed, upstream_start, local_only_bytes)
        if not (self._expiry.expired or self._spares or len(self._expiry.dead) > 1 or self._has_waves):
            tools.tell_waiting(self._partition, self._progress, None)
            return
        noted = await tools.notes.get(self._partition) or Noted()
        stopped = tools.deletions_stopped() or tools.steps.deletion_refusal()
        planned = plan(self._expiry, self._spares, noted, tools.settings, stopped=stopped, now_ms=tools.now_ms())
        if planned.noted != noted:
            await tools.notes.commit(self._partition, planned.noted)
        self._has_waves = bool(planned.noted.waves)
        tools.tell_waiting(self._partition, self._progress, planned.waiting)
        if planned.goes:
            await self._delete(planned.goes, committed)

    def _walk(self, committed: int | None, upstream_start: int, local_only_bytes: int) -> None:
        """Find what is wanted to go, unless it is as it was found last."""
        tools, now_ms = self._tools, self._tools.now_ms()
        retention = tools.retention_of(self._partition.topic)
        seen = (self._ledger.changes, committed, upstream_start, retention)
        next_ms = self._expiry.next_ms
        if seen == self._seen and (next_ms is None or now_ms < next_ms):
            return
        begun_s = time.perf_counter()
        self._spares = self._segments.spares()
        ids = {spare.segment_id.id for spare, _ in self._spares}
        self._expiry = expire(
            [segment for segment in self._ledger.finished() if segment.segment_id.id not in ids],
            live_end=self._ledger.live_end,
            log_start_offset=min(0 if committed is None else committed, upstream_start),
            retention=retention,
            local_only_bytes=local_only_bytes,
            now_ms=now_ms,
        )
        self._seen = seen
        tools.meter.on_size_walk(self._partition.topic, time.perf_counter() - begun_s)
        progress, dead = self._progress, self._expiry.dead
        progress.dead_segments, progress.dead_bytes = len(dead), sum(each.segment_size_bytes for each in dead)
        tools.meter.on_dead(self._series, progress.dead_segments, progress.dead_bytes)

    async def _delete(self, goes: Sequence[Expired], committed: int | None) -> None:
        tools, left = self._tools, deque(goes)
        self._seen = ()
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
