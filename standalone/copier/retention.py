"""What is too old for the tier, as a function of values (docs/standalone.md; KIP-405, Kafka's expiration task).

Segments are looked at by start offset, and the first finished one that stays ends the look. A segment goes

- by the log start: its end lies below it (DeleteRecords, or an earlier deletion that did not come to its end);
- by time: its newest record is `retention_ms` old or older;
- by size: the partition is larger than `retention_bytes` by at least the whole segment.

Those of the last two raise the log start to the offset behind them, which is to be committed before any object goes.

Records that upstream lost in an unclean election are nobody's: a segment that has no others is `dead` and goes whenever
that is known, wherever it stands. It counts for no size, and neither stays nor goes by any other rule.
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from standalone.copier.seams import KEEP, Retention
from storage.model import RemoteLogSegmentMetadata


class Breach(enum.StrEnum):
    """By which rule a segment goes."""

    LOG_START = "log_start"
    TIME = "time"
    SIZE = "size"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that goes."""

    segment: RemoteLogSegmentMetadata
    breach: Breach


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """What goes, in the order in which it goes.

    `log_start_offset`: what is to be committed first; None: it stays as it is. `size_bytes`: of all finished segments
    on the lineage, those that go among them. `next_ms`: when a look may find something that this one did not, if
    nothing else changes; None: never.
    """

    expired: Sequence[Expired]
    log_start_offset: int | None
    size_bytes: int
    next_ms: int | None


def expire(
    finished: Sequence[RemoteLogSegmentMetadata],
    *,
    live_end: Callable[[RemoteLogSegmentMetadata], int],
    is_dead: Callable[[RemoteLogSegmentMetadata], bool],
    log_start_offset: int,
    retention: Retention,
    local_only_bytes: int = 0,
    now_ms: int,
) -> Expiry:
    """Which of a partition's finished segments are too old.

    Args:
        finished: by start offset.
        live_end: the last of a segment's offsets that upstream's log has, or had; -1: none. What is behind it is other
            segments'.
        is_dead: whether it is sure that there is none. A segment of which it is not is left alone.
        log_start_offset: the tier's, and at most upstream's: after an unclean election one that was committed before
            may lie above records that are new.
        local_only_bytes: of the partition at upstream and not in the tier, as far as is known.
    """
    live = [(segment, end) for segment in finished if (end := live_end(segment)) >= 0]
    expired = [Expired(segment, Breach.DEAD) for segment in finished if is_dead(segment)]
    size_bytes = sum(segment.segment_size_bytes for segment, _ in live)
    excess_bytes = 0
    if retention.retention_bytes != KEEP:
        excess_bytes = size_bytes + local_only_bytes - retention.retention_bytes
    new_log_start, next_ms = log_start_offset, None
    for segment, end_offset in live:
        breach = _breach(segment, end_offset < new_log_start, excess_bytes, retention, now_ms)
        if breach is None:
            if retention.retention_ms != KEEP:
                next_ms = segment.max_timestamp_ms + retention.retention_ms
            break
        expired.append(Expired(segment, breach))
        if breach is not Breach.LOG_START:
            new_log_start = max(new_log_start, end_offset + 1)
        excess_bytes -= segment.segment_size_bytes
    is_raised = new_log_start > log_start_offset
    return Expiry(
        expired=expired, log_start_offset=new_log_start if is_raised else None, size_bytes=size_bytes, next_ms=next_ms
    )


def _breach(
    segment: RemoteLogSegmentMetadata, is_below_log_start: bool, excess_bytes: int, retention: Retention, now_ms: int
) -> Breach | None:
    if is_below_log_start:
        return Breach.LOG_START
    if retention.retention_ms != KEEP and segment.max_timestamp_ms <= now_ms - retention.retention_ms:
        return Breach.TIME
    if retention.retention_bytes != KEEP and excess_bytes >= segment.segment_size_bytes:
        return Breach.SIZE
    return None
