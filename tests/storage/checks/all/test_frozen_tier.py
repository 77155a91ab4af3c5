"""What a real broker tiered has no findings."""

import pytest

from storage.checks.batch_audit import check_segment
from storage.checks.partition_check import PartitionState, check_partition
from storage.checks.strange_objects import check_store
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.model import RemoteLogSegmentId, RemoteLogSegmentState
from tests.support.checked_tier import NOW_MS
from tests.support.frozen_tier import NAMES, Recorded, recorded_catalog, storage_config


@pytest.mark.needs("vectors")
def test_its_segments() -> None:
    manager = AivenRemoteStorageManager(storage_config())
    for name in NAMES:
        for segment in Recorded(name).segments:
            report = check_segment(manager, segment)
            assert report.findings == (), name
            assert report.log_bytes == segment.segment_size_bytes
            assert report.records == segment.end_offset - segment.start_offset + 1
            assert report.batches > 10


@pytest.mark.needs("vectors")
def test_its_partitions() -> None:
    for name in NAMES:
        recorded = Recorded(name)
        state = PartitionState(
            lineage=recorded.lineage,
            log_start_offset=recorded.log_start,
            local_log_start_offset=recorded.local_log_start,
        )
        assert check_partition(recorded.key, recorded.segments, state, now_ms=NOW_MS) == [], name


@pytest.mark.needs("vectors")
def test_its_store() -> None:
    catalog = recorded_catalog()

    def state_of(segment_id: RemoteLogSegmentId) -> RemoteLogSegmentState | None:
        metadata = catalog.find_segment(segment_id)
        return None if metadata is None else metadata.state

    manager = AivenRemoteStorageManager(storage_config())
    assert check_store(manager, state_of, metadata_read_ms=NOW_MS) == []
    assert sum(1 for _ in manager.list_objects()) == 57
