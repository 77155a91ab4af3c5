"""Objects of nobody."""

from dataclasses import replace
from pathlib import Path

import pytest

from storage.checks.finding import FindingKind
from storage.checks.partition_check import GRACE_MS, check_store
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import RemoteLogSegmentId, RemoteLogSegmentState, uuid_to_text
from tests.support.checked_tier import NOW_MS, CheckedTier, aiven_tier, local_tier, no_wait
from tests.support.frozen_tier import recorded_catalog, storage_config


@pytest.fixture(params=[local_tier, aiven_tier], ids=["local", "aiven"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> CheckedTier:
    opened: CheckedTier = request.param(tmp_path)
    return opened


def orphans(tier: CheckedTier, *, metadata_read_ms: int = NOW_MS, topic: str | None = None) -> set[tuple[str, str]]:
    """Segment and what was said, of each object."""
    found = check_store(tier.manager, tier.state_of, metadata_read_ms=metadata_read_ms, topic=topic, wait=no_wait)
    assert {finding.kind for finding in found} <= {FindingKind.ORPHAN}
    return {(str(finding.segment), finding.detail.partition(" (")[0]) for finding in found}


def test_objects_of_known_segments_are_no_orphans(tier: CheckedTier) -> None:
    assert orphans(tier) == set()


@pytest.mark.parametrize(
    "state", [state for state in RemoteLogSegmentState if state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED]
)
def test_a_segment_keeps_its_objects_until_it_is_deleted(tier: CheckedTier, state: RemoteLogSegmentState) -> None:
    tier.metadatas[1] = replace(tier.metadatas[1], state=state)
    assert orphans(tier) == set()


def test_objects_of_a_deleted_segment_are_orphans(tier: CheckedTier) -> None:
    deleted = replace(tier.metadatas[1], state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
    tier.metadatas[1] = deleted
    assert orphans(tier) == {(uuid_to_text(deleted.segment_id.id), "its segment was deleted")}


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


def test_other_topics_are_not_looked_at_when_one_is_named(tier: CheckedTier) -> None:
    tier.metadatas.clear()
    assert orphans(tier, topic="order") == set()
    assert len(orphans(tier, topic="orders")) == 3


def test_a_store_that_a_real_broker_filled_has_no_orphans() -> None:
    catalog = recorded_catalog()

    def state_of(segment_id: RemoteLogSegmentId) -> RemoteLogSegmentState | None:
        metadata = catalog.find_segment(segment_id)
        return None if metadata is None else metadata.state

    manager = AivenRemoteStorageManager(storage_config())
    assert check_store(manager, state_of, metadata_read_ms=NOW_MS) == []
    assert sum(1 for _ in manager.list_objects()) == 57
