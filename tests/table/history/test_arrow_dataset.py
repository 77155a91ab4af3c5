"""DuckDB over a scan: what it hands on is not read, and what it asks for is right."""

import datetime
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from table.history.arrow_dataset import HistoryDataset
from tests.support.segments import FIRST_TIMESTAMP_MS, filled_segment
from tests.support.table_tier import TableTier

duckdb = pytest.importorskip("duckdb")


@pytest.fixture
def orders(tmp_path: Path) -> HistoryDataset:
    tier = TableTier(tmp_path)
    for partition in range(2):
        tier.add(*(filled_segment(base) for base in range(0, 800, 200)), partition=partition)
    return tier.scan().to_dataset()


def test_filters_and_columns_are_handed_on(orders: HistoryDataset) -> None:
    asked = duckdb.sql('select partition, count(*) from orders where "offset" >= 650 and partition = 1 group by 1')
    assert asked.fetchall() == [(1, 150)]
    stats = orders.last.stats
    assert (stats.segments, stats.of_segments, stats.rows, stats.gets) == (1, 8, 150, 2)
    assert set(orders.last.schema.names) <= {"partition", "offset"}


def test_a_list_of_offsets_and_a_time_are_handed_on(orders: HistoryDataset) -> None:
    assert duckdb.sql('select "offset" from orders where "offset" in (3, 790) order by all').fetchall() == [
        *[(3,)] * 2,
        *[(790,)] * 2,
    ]
    assert orders.last.stats.rows == 4
    late = datetime.datetime.fromtimestamp((FIRST_TIMESTAMP_MS + 10_000_000) / 1000, datetime.UTC)
    assert duckdb.execute("select count(*) from orders where timestamp > ?", [late]).fetchall() == [(0,)]
    assert orders.last.stats.gets == 0


def test_what_is_not_handed_on_duckdb_does_itself(orders: HistoryDataset) -> None:
    assert duckdb.sql('select count(*) from orders where hash("offset") >= 0 and key is not null').fetchall()[0][0] >= 0
    assert duckdb.sql('select max("offset"), min("offset"), count(*) from orders').fetchall() == [(799, 0, 1600)]
    assert orders.last.schema.names == ["offset"], "which headers of batches tell"
    assert len(duckdb.sql("select * from orders limit 5").fetchall()) == 5


def test_the_interpreter_ends_when_duckdb_had_enough_rows(tmp_path: Path) -> None:
    """Failed before: a thread of Arrow's was still reading ahead, and the process was aborted, or hung."""
    tier = TableTier(tmp_path)
    tier.add(*(filled_segment(base) for base in range(0, 20_000, 200)))
    script = f"""import duckdb, tidegate
orders = tidegate.scan({tier.config!r}, "orders", catalog={str(tier.dump)!r}).to_dataset()
print(len(duckdb.sql("select * from orders limit 5").fetchall()))"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("5\n", "", 0)


def test_it_is_a_dataset_for_arrow(orders: HistoryDataset) -> None:
    few = pc.field("offset") < 3
    assert orders.count_rows() == 1600
    assert orders.count_rows(few) == 6
    assert orders.filter(few).to_table(columns=["offset"]).num_columns == 1
    assert orders.to_table(columns={"twice": pc.field("offset") * 2}, filter=few).column("twice").to_pylist()[-1] == 4
    assert orders.head(7, filter=few, columns=["offset"]).column("offset").to_pylist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(NotImplementedError):
        orders.get_fragments()


def test_a_limit_goes_before_the_filter(tmp_path: Path) -> None:
    tier = TableTier(tmp_path)
    tier.add(filled_segment(0))
    first_rows = tier.scan(limit=5).to_dataset()
    assert duckdb.sql('select count(*) from first_rows where "offset" >= 3').fetchall() == [(2,)]
    with pytest.raises(NotImplementedError, match="has a limit"):
        first_rows.filter(pc.field("offset") > 3)
