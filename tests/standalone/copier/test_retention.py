"""What retention deletes: Kafka's rules by example, and a model that says what a live lineage still needs."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from standalone.copier.ledger import Ledger, epoch_ranges
from standalone.copier.retention import Cause, Expiry, expire
from standalone.copier.seams import KEEP, Retention
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    Uuid,
)
from tests.support.drawn import drawn
from tests.support.for_each import for_each
from tests.support.segments import topic_partition

PARTITION = topic_partition()
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
NOW_MS = 1_000_000


def segment(
    start: int, end: int, *, newest_ms: int = NOW_MS, size: int = 100, epochs: dict[int, int] | None = None
) -> RemoteLogSegmentMetadata:
    name = Uuid(start.to_bytes(8, "big") + end.to_bytes(8, "big"))
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, name),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=newest_ms,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_bytes=size,
        segment_leader_epochs=epochs or {0: start},
        state=FINISHED,
    )


def looked(*segments: RemoteLogSegmentMetadata, lineage: tuple[tuple[int, int], ...] = (), **limits: int) -> Expiry:
    return expired(ledger_of(segments, lineage), **limits)


def expired(ledger: Ledger, *, log_start: int = 0, ms: int = KEEP, size: int = KEEP, local: int = 0) -> Expiry:
    return expire(
        ledger.finished(),
        live_end=ledger.live_end,
        log_start_offset=log_start,
        retention=Retention(retention_ms=ms, retention_bytes=size),
        local_only_bytes=local,
        now_ms=NOW_MS,
    )


def ledger_of(
    segments: tuple[RemoteLogSegmentMetadata, ...] | list[RemoteLogSegmentMetadata],
    lineage: tuple[tuple[int, int], ...] = (),
    copied_ms: int = 0,
) -> Ledger:
    ledger = Ledger(PARTITION)
    for each in segments:
        ledger.note(replace(each, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED))
        ledger.note(RemoteLogSegmentMetadataUpdate(each.segment_id, copied_ms, FINISHED, 1))
    ledger.follow_lineage(lineage)
    return ledger


def raised(expiry: Expiry) -> int | None:
    """Return where the log would start once all of these are gone; None: as before."""
    by_rule = [each.behind_offset for each in expiry.expired if each.cause is not Cause.LOG_START]
    return max(by_rule, default=-1) if any(offset > 0 for offset in by_rule) else None


def gone(expiry: Expiry) -> list[tuple[int, Cause]]:
    return [(each.segment.start_offset, each.cause) for each in expiry.expired]


THREE = (segment(0, 9, newest_ms=100), segment(10, 19, newest_ms=200), segment(20, 29, newest_ms=300))


def test_without_a_limit_all_stay() -> None:
    expiry = looked(*THREE)
    assert (gone(expiry), raised(expiry), expiry.size_bytes, expiry.next_ms) == ([], None, 300, None)


def test_a_segment_below_the_log_start_goes_and_one_that_straddles_it_stays() -> None:
    expiry = looked(*THREE, log_start=15)
    assert (gone(expiry), raised(expiry)) == ([(0, Cause.LOG_START)], None)


@for_each("ms, count", [(NOW_MS - 200, 2), (NOW_MS - 199, 1), (NOW_MS - 99, 0), (0, 3)])
def test_time_takes_what_is_as_old_or_older(ms: int, count: int) -> None:
    expiry = looked(*THREE, ms=ms)
    assert gone(expiry) == [(10 * number, Cause.TIME) for number in range(count)]  # the second is NOW_MS - 200 old
    assert raised(expiry) == (10 * count or None)
    assert expiry.next_ms == (None if count == 3 else (count + 1) * 100 + ms)


def test_time_stops_at_the_first_that_stays() -> None:
    assert gone(looked(segment(0, 9), segment(10, 19, newest_ms=0), ms=1000)) == []


@for_each(
    "size, local, starts",
    [(300, 0, []), (201, 0, []), (200, 0, [0]), (199, 0, [0]), (100, 0, [0, 10]), (200, 99, [0]), (200, 100, [0, 10])],
)
def test_size_takes_whole_segments_only(size: int, local: int, starts: list[int]) -> None:
    expiry = looked(*THREE, size=size, local=local)
    assert gone(expiry) == [(start, Cause.SIZE) for start in starts]
    assert raised(expiry) == (starts[-1] + 10 if starts else None)


def test_what_goes_by_the_log_start_counts_for_the_size() -> None:
    assert gone(looked(*THREE, log_start=10, size=201)) == [(0, Cause.LOG_START)]
    assert gone(looked(*THREE, log_start=10, size=200)) == [(0, Cause.SIZE)]


def test_a_dead_segment_goes_by_the_same_rules_raises_nothing_and_ends_no_look() -> None:
    """Failed before: it went whenever it was known to be dead."""
    live = (segment(0, 9), segment(30, 39, epochs={2: 30}))
    dead = (segment(10, 60, epochs={1: 10}, newest_ms=NOW_MS - 10), segment(61, 70, epochs={1: 61}, newest_ms=0))
    segments = (live[0], *dead, live[1])
    assert gone(looked(*segments, lineage=((0, 0), (2, 10)))) == []
    expiry = looked(*segments, ms=100, lineage=((0, 0), (2, 10)))
    assert (gone(expiry), raised(expiry), expiry.size_bytes) == ([(61, Cause.TIME)], None, 400)
    expiry = looked(*dead, live[1], ms=100, lineage=((0, 0), (2, 10)))
    assert (gone(expiry), raised(expiry)) == ([(61, Cause.TIME)], None)
    assert gone(looked(*dead, live[1], size=200, lineage=((0, 0), (2, 10)))) == [(10, Cause.SIZE)]
    assert gone(looked(*dead, live[1], log_start=65, lineage=((0, 0), (2, 10))))[0] == (10, Cause.LOG_START)


def test_a_time_far_behind_the_copying_counts_as_of_the_copying() -> None:
    future = replace(segment(0, 9, newest_ms=10**15), event_timestamp_ms=NOW_MS - 500)
    ledger = ledger_of([future], copied_ms=NOW_MS - 500)
    assert gone(expired(ledger, ms=500)) == [(0, Cause.TIME)]
    assert gone(expired(ledger, ms=501)) == []


def test_a_segment_with_a_dead_end_raises_the_log_start_to_its_live_end_only() -> None:
    parted = segment(0, 99, epochs={0: 0}, newest_ms=0)
    expiry = looked(parted, segment(40, 60, epochs={2: 40}), ms=1000, lineage=((0, 0), (2, 40)))
    assert (gone(expiry), raised(expiry)) == ([(0, Cause.TIME)], 40)


@dataclass(frozen=True)
class _Log:
    """A lineage, and the segments that several owners made of it and of branches that were cut."""

    lineage: tuple[tuple[int, int], ...]
    segments: list[RemoteLogSegmentMetadata]


@st.composite
def logs(draw: st.DrawFn) -> _Log:
    """Owners cut the log as they like, at the same time, and some went on on a branch that was lost."""
    starts = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    lineage = tuple(zip(sorted(draw(st.sets(st.integers(0, 9), min_size=4, max_size=4))), [0, *starts], strict=False))
    made: dict[tuple[int, int], RemoteLogSegmentMetadata] = {}
    for _ in range(draw(st.integers(1, 3))):
        offset = draw(st.integers(0, 30))
        for size in draw(st.lists(st.integers(1, 25), max_size=5)):
            end = offset + size - 1
            branch = draw(st.integers(1, len(lineage)))  # 1: knows the first epoch only, and so on
            known = [(epoch, start) for epoch, start in lineage[:branch] if start <= end]
            inside = {epoch: max(start, offset) for epoch, start in known}
            at = [epoch for epoch, start in known if start <= offset]
            epochs = {epoch: start for epoch, start in inside.items() if epoch >= max(at)}
            made[offset, end] = segment(
                offset, end, newest_ms=draw(st.integers(0, NOW_MS)), size=draw(st.integers(1, 500)), epochs=epochs
            )
            offset = end + 1
    return _Log(lineage, list(made.values()))


def held(segments: list[RemoteLogSegmentMetadata], lineage: tuple[tuple[int, int], ...]) -> set[int]:
    """Offsets that some segment has as the lineage has them: one by one, by no rule of ours."""
    found = set()
    for each in segments:
        for epoch, start, end in epoch_ranges(each):
            for offset in range(start, end + 1):
                if max(own for own, begin in lineage if begin <= offset) == epoch:
                    found.add(offset)
    return found


@drawn(100)
@given(
    logs(),
    st.integers(0, 90),
    st.sampled_from([KEEP, 0, 1000, NOW_MS // 2, NOW_MS]),
    st.sampled_from([KEEP, 0, 300, 1000]),
)
def test_nothing_that_a_live_lineage_needs_is_ever_deleted(log: _Log, log_start: int, ms: int, size: int) -> None:
    expiry = looked(*log.segments, log_start=log_start, ms=ms, size=size, lineage=log.lineage)
    deleted = {each.segment.segment_id for each in expiry.expired}
    assert len(deleted) == len(expiry.expired)
    left = [each for each in log.segments if each.segment_id not in deleted]
    new_start = max(log_start, raised(expiry) or 0)
    assert new_start >= log_start
    needed = {offset for offset in held(log.segments, log.lineage) if offset >= new_start}
    assert needed <= held(left, log.lineage)
    # Nor is the log start raised over a record that no limit reaches.
    lost = {offset for offset in held(log.segments, log.lineage) if log_start <= offset < new_start}
    by_rule = [each.segment for each in expiry.expired if each.cause in (Cause.TIME, Cause.SIZE)]
    reached = max((each.end_offset for each in by_rule), default=-1)
    assert all(offset <= reached for offset in lost)
    if ms == size == KEEP:
        assert not lost
