"""Gaps, overlaps and leftovers among the segments of a partition, objects of nobody, and findings as plain values."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from storage.checks.finding import Finding, FindingKind, partition_finding, segment_finding
from storage.checks.partition_check import UNFINISHED_AGE_MS, PartitionState, check_partition
from storage.checks.strange_objects import GRACE_MS, check_store
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState, uuid_to_text
from tests.support.checked_tier import NOW_MS, CheckedTier, aiven_tier, local_tier, no_wait
from tests.support.segments import filled_segment, metadata_of, topic_partition, uuid_of

PARTITION = topic_partition()
ALL = PartitionState()


def segment(start: int, end: int, *, epoch: int = 0, copy_attempt: int = 0) -> RemoteLogSegmentMetadata:
    content = filled_segment(start, batch_count=1, records_per_batch=end - start + 1, leader_epoch=epoch)
    return metadata_of(PARTITION, content, copy_attempt=copy_attempt)


def found(segments: list[RemoteLogSegmentMetadata], state: PartitionState = ALL) -> list[tuple[FindingKind, str]]:
    return [(each.kind, each.detail) for each in check_partition(PARTITION, segments, state, now_ms=NOW_MS)]


def kinds(segments: list[RemoteLogSegmentMetadata], state: PartitionState = ALL) -> list[FindingKind]:
    return [kind for kind, _ in found(segments, state)]


def lineage(**ends: int) -> LeaderEpochLineage:
    """e0=100: epoch 0 ends at 100."""
    answers = {int(name[1:]): (int(name[1:]), end) for name, end in ends.items()}
    return LeaderEpochLineage(max(answers), answers)


def test_a_gap_is_found_with_its_offsets() -> None:
    assert found([segment(10, 19), segment(0, 9), segment(20, 29)]) == found([]) == []
    ((kind, detail),) = found([segment(0, 9), segment(15, 29)])
    assert kind is FindingKind.GAP
    assert "offsets 10 to 14" in detail


def test_an_overlap_is_found_with_its_offsets() -> None:
    for start, end, shared in [(5, 19, "5 to 9"), (2, 7, "2 to 7"), (0, 9, "0 to 9")]:
        ((kind, detail),) = found([segment(0, 9), segment(start, end, copy_attempt=1)])
        assert kind is FindingKind.OVERLAP
        assert shared in detail


def test_a_segment_inside_another_hides_no_gap() -> None:
    assert kinds([segment(0, 19), segment(2, 7), segment(30, 39)]) == [FindingKind.OVERLAP, FindingKind.GAP]


def test_a_dead_branch_is_no_overlap() -> None:
    segments = [segment(0, 9), segment(10, 29), segment(10, 24, epoch=1)]
    assert kinds(segments) == [FindingKind.OVERLAP]
    assert found(segments, PartitionState(lineage=lineage(e0=10, e1=25))) == []


def test_what_neither_tier_nor_broker_has_is_a_gap() -> None:
    for log_start, local_start, gaps in [
        (10, 30, []),
        (15, 30, []),  # the log begins in a segment
        (5, 30, ["5 to 9"]),
        (0, 0, []),  # the broker has all that is not in the tier
        (5, 5, []),
        (10, 35, ["30 to 34"]),
        (40, 50, ["40 to 49"]),
    ]:
        state = PartitionState(log_start_offset=log_start, local_log_start_offset=local_start)
        details = found([segment(10, 19), segment(20, 29)], state)
        assert [kind for kind, _ in details] == [FindingKind.GAP] * len(gaps)
        assert all(gap in detail for gap, (_, detail) in zip(gaps, details, strict=True))


def test_what_is_below_the_log_start_is_not_looked_at() -> None:
    state = PartitionState(log_start_offset=20, local_log_start_offset=30)
    assert found([segment(0, 4), segment(7, 12), segment(20, 29)], state) == []


def test_what_began_long_ago_and_never_ended_is_found() -> None:
    for state in [RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED]:
        late = replace(segment(10, 19), state=state, event_timestamp_ms=NOW_MS - UNFINISHED_AGE_MS - 1)
        young = replace(segment(20, 29), state=state, event_timestamp_ms=NOW_MS - UNFINISHED_AGE_MS)
        ((kind, detail),) = found([segment(0, 9), late, young])
        assert kind is FindingKind.UNFINISHED
        assert state.name in detail


@pytest.fixture(params=[local_tier, aiven_tier], ids=["local", "aiven"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> CheckedTier:
    opened: CheckedTier = request.param(tmp_path)
    return opened


def orphans(tier: CheckedTier, *, metadata_read_ms: int = NOW_MS, topic: str | None = None) -> set[tuple[str, str]]:
    """Segment and what was said, of each object."""
    found = check_store(tier.manager, tier.state_of, metadata_read_ms=metadata_read_ms, topic=topic, wait=no_wait)
    assert {finding.kind for finding in found} <= {FindingKind.ORPHAN}
    return {(str(finding.segment), finding.detail.partition(" (")[0]) for finding in found}


def test_a_segment_keeps_its_objects_until_it_is_deleted(tier: CheckedTier) -> None:
    segment_id = uuid_to_text(tier.metadatas[1].segment_id.id)
    for state in RemoteLogSegmentState:
        tier.metadatas[1] = replace(tier.metadatas[1], state=state)
        is_deleted = state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        assert orphans(tier) == ({(segment_id, "its segment was deleted")} if is_deleted else set()), state


def test_objects_of_an_unknown_segment_are_orphans_each(tier: CheckedTier) -> None:
    unknown = tier.metadatas.pop(0)
    found = check_store(tier.manager, tier.state_of, metadata_read_ms=NOW_MS, wait=no_wait)
    present = [each for each in tier.manager.inspect_segment(unknown).objects if each.size_bytes is not None]
    assert {finding.object_name for finding in found} == {each.name for each in present}
    assert len(found) == len(present)


def test_objects_of_a_copy_under_way_are_no_orphans(tier: CheckedTier) -> None:
    tier.metadatas.pop(0)
    newest_ms = max(stored.modified_ms for stored in tier.manager.list_objects())
    oldest_ms = min(stored.modified_ms for stored in tier.manager.list_objects())
    assert orphans(tier, metadata_read_ms=oldest_ms + GRACE_MS) == set()
    assert orphans(tier, metadata_read_ms=newest_ms + GRACE_MS + 1) != set()


def test_an_object_with_a_name_of_its_own_is_an_orphan(tier: CheckedTier) -> None:
    log = tier.path(tier.metadatas[0], "log")
    log.with_name("notes.txt").write_text("not ours")
    assert orphans(tier) == {("None", "its name is none that this format gives")}
    assert orphans(tier, topic="orders") == set()


SEGMENT_ID = RemoteLogSegmentId(topic_partition("orders", 4), uuid_of("one"))


def test_a_finding_names_what_it_is_of_and_comes_back_from_json() -> None:
    finding = segment_finding(FindingKind.INDEX, SEGMENT_ID, "an entry", object_name="a.index", position=8)
    assert Finding.from_json(json.loads(json.dumps(finding.as_json()))) == finding
    assert finding.as_json()["kind"] == "index"
    finding = segment_finding(FindingKind.SEGMENT_MISSING, SEGMENT_ID, "nothing")
    assert (finding.topic, finding.partition, finding.segment) == ("orders", 4, uuid_to_text(SEGMENT_ID.id))
    assert (finding.object_name, finding.position) == (None, None)
    finding = partition_finding(FindingKind.GAP, SEGMENT_ID.topic_id_partition, "a gap")
    assert (finding.topic, finding.partition, finding.segment) == ("orders", 4, None)
    with pytest.raises(ValueError, match="no such kind"):
        Finding.from_json({"kind": "no such kind", "detail": ""})
