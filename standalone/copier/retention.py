"""Which segments are asked to go, as a function of values (docs/standalone.md#deletion; KIP-405's expiration task).

Segments are looked at by start offset, and behind the first one on the lineage that stays, all others on it stay. A
segment is asked to go

- by the log start: its end lies below it (DeleteRecords, or an earlier deletion that did not come to its end);
- by time: its newest record is `retention_ms` old or older;
- by size: the partition is larger than `retention_bytes` by at least the whole segment.

Records that upstream lost in an unclean election are served to nobody, but may be the last copy that there is. A
segment that has no others is `dead`, and goes by the same rules and no sooner. It raises no log start.

When it goes is another question (standalone.copier.waits).
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from standalone.copier.seams import KEEP, Retention
from standalone.copier.staging import believed_ms
from storage.model import RemoteLogSegmentMetadata


class Cause(enum.StrEnum):
    """Why a segment is to go."""

    LOG_START = "log_start"
    TIME = "time"
    SIZE = "size"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that is to go. `behind_offset`: the first behind what of it is on the lineage; -1: it is dead."""

    segment: RemoteLogSegmentMetadata
    cause: Cause
    behind_offset: int

    @property
    def is_dead(self) -> bool:
        """Return whether no record of it is on the lineage."""
        return self.behind_offset < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What is to go, by start offset.

    `dead`: all segments of which nothing is on the lineage. `size_bytes`: of all segments. `next_ms`: when a look may
    find something that this one did not, if nothing else changes; None: never.
    """

    expired: Sequence[Expired] = ()
    dead: Sequence[RemoteLogSegmentMetadata] = ()
    size_bytes: int = 0
    next_ms: int | None = None


def expire(
    segments: Sequence[RemoteLogSegmentMetadata],
    *,
    live_end: Callable[[RemoteLogSegmentMetadata], int],
    log_start_offset: int,
    retention: Retention,
    local_only_bytes: int = 0,
    now_ms: int,
) -> Expiry:
    """Which of a partition's finished segments are too old.

    Args:
        segments: by start offset, without those whose offsets another one has too.
        live_end: the last of a segment's offsets that upstream's log has, or had; -1: none. What is behind it is other
            segments'.
        log_start_offset: the tier's, and at most upstream's: after an unclean election one that was committed before
            may lie above records that are new.
        local_only_bytes: of the partition at upstream and not in the tier, as far as is known.
    """
    size_bytes = sum(segment.segment_size_bytes for segment in segments)
    excess_bytes = 0
    if retention.retention_bytes != KEEP:
        excess_bytes = size_bytes + local_only_bytes - retention.retention_bytes
    expired: list[Expired] = []
    dead: list[RemoteLogSegmentMetadata] = []
    log_start, next_ms, has_ended = log_start_offset, None, False
    for segment in segments:
        end_offset = live_end(segment)
        is_dead = end_offset < 0
        if is_dead:
            dead.append(segment)
        if has_ended and not is_dead:
            continue
        is_below = (segment.end_offset if is_dead else end_offset) < log_start
        cause = _cause(segment, is_below, excess_bytes, retention, now_ms)
        if cause is None:
            if retention.retention_ms != KEEP:
                due_ms = newest_record_ms(segment) + retention.retention_ms
                next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
            has_ended |= not is_dead
            continue
        expired.append(Expired(segment, cause, -1 if is_dead else end_offset + 1))
        if not is_dead:
            log_start = max(log_start, end_offset + 1)
        excess_bytes -= segment.segment_size_bytes
    return Expiry(expired=expired, dead=dead, size_bytes=size_bytes, next_ms=next_ms)


def newest_record_ms(segment: RemoteLogSegmentMetadata) -> int:
    """The time of its newest record; when it was copied, if that lies far behind."""
    return believed_ms(segment.max_timestamp_ms, segment.event_timestamp_ms)


def _cause(
    segment: RemoteLogSegmentMetadata, is_below_log_start: bool, excess_bytes: int, retention: Retention, now_ms: int
) -> Cause | None:
    if retention.retention_ms != KEEP and newest_record_ms(segment) <= now_ms - retention.retention_ms:
        return Cause.TIME
    if retention.retention_bytes != KEEP and excess_bytes >= segment.segment_size_bytes:
        return Cause.SIZE
    return Cause.LOG_START if is_below_log_start else None
