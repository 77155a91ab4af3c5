"""An export that was killed goes on without gap or repeat, by the plan that it began with."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from table.history import parquet_export
from table.history.scan import Scan
from table.planning.request import OptionsError
from tests.support.segments import filled_segment
from tests.support.table_tier import TableTier


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture
def tier(tmp_path: Path) -> TableTier:
    tier = TableTier(tmp_path)
    for partition in range(3):
        tier.add(filled_segment(0), filled_segment(200), partition=partition)
    return tier


def kill_at(monkeypatch: pytest.MonkeyPatch, write: int) -> None:
    """The process ends when it writes rows for that time."""
    seen = 0

    class Writer(pq.ParquetWriter):  # type: ignore[misc]  # pyarrow has no types
        def write_table(self, table: pa.Table, *arguments: object) -> None:
            nonlocal seen
            seen += 1
            if seen == write:
                raise KilledError
            super().write_table(table, *arguments)

    monkeypatch.setattr(pq, "ParquetWriter", Writer)


def rows(scan: Scan, folder: Path) -> tuple[list[Any], list[Any]]:
    key = [("partition", "ascending"), ("offset", "ascending")]
    written = ds.dataset(folder, format="parquet", exclude_invalid_files=False).to_table()
    return written.sort_by(key).to_pylist(), scan.to_table().sort_by(key).to_pylist()


def test_a_killed_export_goes_on_by_its_own_plan(
    tier: TableTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scan = tmp_path / "out", tier.scan(where="offset >= 10")
    expected = scan.to_table().num_rows
    with monkeypatch.context() as patched:
        kill_at(patched, 2)
        with pytest.raises(KilledError):
            scan.to_parquet(folder)
    assert sorted(path.name for path in folder.glob("part*")) == ["part-00000.parquet"]
    first = (folder / "part-00000.parquet").stat().st_mtime_ns
    tier.add(filled_segment(400))

    tier.scan(where="offset >= 10").to_parquet(folder)

    assert (folder / "part-00000.parquet").stat().st_mtime_ns == first
    written, _ = rows(scan, folder)
    assert len(written) == expected == len({(row["partition"], row["offset"]) for row in written})
    assert sorted(path.name for path in folder.iterdir() if path.name[0] != "p") == ["_SUCCESS"]


def test_an_export_has_the_scans_rows(tier: TableTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_export, "ROW_GROUP_BYTES", 1)
    scan = tier.scan(columns=["partition", "offset", "value", "headers", "timestamp"])
    scan.to_parquet(tmp_path / "out")
    written, read = rows(scan, tmp_path / "out")
    assert written == read


def test_a_folder_with_something_else_is_refused(tier: TableTier, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with pytest.raises(OptionsError, match="takes no limit"):
        tier.scan(limit=1).to_parquet(folder)
    folder.mkdir()
    (folder / "_scan.json").write_text('{"version": 1, "scan": "other"}')
    with pytest.raises(OptionsError, match="the plan of another scan"):
        tier.scan().to_parquet(folder)
    (folder / "_scan.json").write_text("[]")
    with pytest.raises(OptionsError, match="no plan of an export"):
        tier.scan().to_parquet(folder)
    (folder / "_scan.json").unlink()
    (folder / "a.parquet").touch()
    with pytest.raises(OptionsError, match="of no unfinished export"):
        tier.scan().to_parquet(folder)
    (folder / "_SUCCESS").touch()
    with pytest.raises(OptionsError, match="a finished export"):
        tier.scan().to_parquet(folder)
