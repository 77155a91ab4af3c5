"""What a scan says that it took: each offset once, planning with reading, whatever the rows are handed to."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from table.history.scan import Scan, ScanStats
from table.planning.request import ReadRequest
from table.planning.tier_view import TierViewError
from tests.support.segments import filled_segment
from tests.support.table_tier import TableTier


@pytest.fixture
def tier(tmp_path: Path) -> TableTier:
    tier = TableTier(tmp_path)
    for partition in range(2):
        tier.add(*(filled_segment(base) for base in range(0, 600, 200)), partition=partition)
    return tier


def stats_of(scan: Scan) -> ScanStats:
    scan.to_table()
    return scan.stats


def test_offsets_are_those_that_were_passed_when_a_limit_ends_it(tier: TableTier) -> None:
    """Failed before: three rows of 0 offsets, for the first task was not finished."""
    stats = stats_of(tier.scan(limit=3))
    assert (stats.rows, stats.offsets, stats.tasks_done) == (3, 200, 0)
    stats = stats_of(tier.scan(where="offset >= 150 and offset < 450 and key is null"))
    assert (stats.rows, stats.offsets) == (0, 600)


def test_offsets_of_a_segment_that_is_read_in_parts_count_once(
    tier: TableTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: each part counted the whole segment."""
    monkeypatch.setattr("table.history.scan.ReadRequest", partial(ReadRequest, bytes_per_partition=5000))
    stats = stats_of(tier.scan())
    assert stats.of_tasks > 6
    assert (stats.offsets, stats.rows, stats.tasks_done) == (1200, 1200, stats.of_tasks)


def test_an_export_has_the_stats_of_a_reading_also_when_it_goes_on(
    tier: TableTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: an export had none."""
    monkeypatch.setattr("table.history.scan.ReadRequest", partial(ReadRequest, bytes_per_partition=5000))
    expected = stats_of(tier.scan())
    scan, folder = tier.scan(), tmp_path / "out"
    (folder / ".part-00001.parquet.tmp").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        scan.to_parquet(folder)
    begun = scan.stats
    assert begun.tasks_done == 1
    (folder / ".part-00001.parquet.tmp").rmdir()
    scan.to_parquet(folder)
    assert begun.rows + scan.stats.rows == expected.rows
    again = replace(scan.stats, rows=0, offsets=0, segments=0, bytes_read=0, gets=0, tasks_done=0)
    assert again == replace(expected, rows=0, offsets=0, segments=0, bytes_read=0, gets=0, tasks_done=0)


def test_what_planning_fetches_counts(tier: TableTier) -> None:
    """Failed before: the snapshot of producers that read_committed asks each partition's last segment for did not."""
    plain, committed = stats_of(tier.scan()), stats_of(tier.scan(isolation="read_committed"))
    assert (committed.gets, committed.segments) == (plain.gets + 2, plain.segments)
    assert committed.bytes_read > plain.bytes_read


def test_a_topic_that_a_dump_has_not_is_an_error_that_says_what_it_has(tier: TableTier) -> None:
    tier.add(filled_segment(0), topic="clicks")
    for topic in ("nothing", "orders:7"):
        with pytest.raises(TierViewError, match=f"nothing of {topic.replace(':', '-')}; it has clicks, orders$"):
            tier.scan(topic).to_table()
