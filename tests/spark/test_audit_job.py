"""`audit` on a real Spark session: what was deleted meanwhile; a run that was cut off goes on."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.jobs import audit as audit_module
from pipeline.jobs.audit import AuditedPartition, AuditInputs, audit
from pipeline.jobs.audit_record import AuditRecord
from pipeline.jobs.job_folder import JobFolder
from storage.checks.audit_result import AuditResult
from storage.checks.finding import FindingKind
from storage.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from table.reading.executor_storage import open_shipped_storage, ship_storage
from tests.support.checked_tier import NOW_MS, PARTITION, CheckedTier, flip, local_tier

LOCAL_CLASS = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


@pytest.fixture
def tier(tmp_path: Path) -> CheckedTier:
    return local_tier(tmp_path / "tier")


@pytest.fixture
def inputs(tier: CheckedTier, tmp_path: Path) -> AuditInputs:
    shipped = ship_storage(LOCAL_CLASS, {"dir": str(tmp_path / "tier")})

    def find_segment(segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return next((each for each in tier.metadatas if each.segment_id == segment_id), None)

    return AuditInputs(
        open_manager=functools.partial(open_shipped_storage, shipped),
        partitions=[AuditedPartition(partition=PARTITION, segments=tuple(tier.metadatas))],
        find_segment=find_segment,
        refresh=lambda: None,
        metadata_read_ms=NOW_MS,
    )


class Waves:
    """What a job says of its progress. `on_wave` may be made to end the job."""

    def __init__(self, last: int | None = None) -> None:
        self.told: list[tuple[int, int, int]] = []
        self._last = last

    def __call__(self, done: int, total: int, found: int) -> None:
        self.told.append((done, total, found))
        if self._last is not None and len(self.told) > self._last:
            raise KeyboardInterrupt


def kinds(result: AuditResult) -> list[FindingKind]:
    return sorted(finding.kind for finding in result.findings)


def test_what_was_deleted_meanwhile_is_not_found(spark: SparkSession, inputs: AuditInputs, tier: CheckedTier) -> None:
    deleted = tier.metadatas[0]
    for suffix in ("log", "index", "timeindex", "snapshot", "leader_epoch_checkpoint"):
        tier.path(deleted, suffix).unlink()
    assert kinds(audit(spark, inputs, None, Waves())) == [FindingKind.SEGMENT_MISSING]
    refreshed = replace(inputs, refresh=lambda: tier.metadatas.remove(deleted))
    assert audit(spark, refreshed, None, Waves()).findings == ()


def test_a_run_that_was_cut_off_goes_on_where_it_was(
    spark: SparkSession, inputs: AuditInputs, tier: CheckedTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(tier.path(tier.metadatas[2], "log"), 2060)
    whole = audit(spark, inputs, None, Waves())
    monkeypatch.setattr(audit_module, "WAVE_SEGMENTS_MAX", 1)

    def record() -> AuditRecord:
        return AuditRecord(JobFolder(spark, str(tmp_path / "report")))

    with pytest.raises(KeyboardInterrupt):
        audit(spark, inputs, record(), Waves(last=2))
    waves = Waves()
    resumed = audit(spark, inputs, record(), waves)
    assert waves.told[0][0] >= 1, "what was done and sound is not done again"
    assert waves.told[-1][:2] == (3, 3)
    assert resumed.findings == whole.findings
    again = audit(spark, inputs, record(), Waves())
    assert again.segments_checked_before == 2, "all but the one with a finding"
    assert replace(again, segments_checked_before=0) == whole
    flip(tier.path(tier.metadatas[2], "log"), 2060)
    assert audit(spark, inputs, record(), Waves()).findings == (), "it was mended"


def test_a_segment_with_other_metadata_is_checked_again(
    spark: SparkSession, inputs: AuditInputs, tier: CheckedTier, tmp_path: Path
) -> None:
    def record() -> AuditRecord:
        return AuditRecord(JobFolder(spark, str(tmp_path / "report")))

    audit(spark, inputs, record(), Waves())
    changed = replace(tier.metadatas[1], max_timestamp_ms=1)
    tier.metadatas[1] = changed
    others = replace(inputs, partitions=[AuditedPartition(partition=PARTITION, segments=tuple(tier.metadatas))])
    result = audit(spark, others, record(), Waves())
    assert result.segments_checked_before == 2
    assert kinds(result) == [FindingKind.TIMESTAMP]
