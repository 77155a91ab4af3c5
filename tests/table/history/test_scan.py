"""A scan gives the rows that were asked for, and reads no more than it must for them."""

import datetime
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate
from storage.errors import CorruptObjectError
from storage.model import uuid_to_text
from table.history.scan import Scan
from table.planning import bounds
from table.planning.request import OptionsError
from table.schema import LOG_COLUMNS
from tests.support.for_each import for_each
from tests.support.segments import FIRST_TIMESTAMP_MS, ProducerFields, build_segment, data_batch, filled_segment
from tests.support.table_tier import TableTier

OFFSETS = 600
"""Three segments of 200 in each of two partitions."""


@pytest.fixture
def tier(tmp_path: Path) -> TableTier:
    tier = TableTier(tmp_path)
    for partition in range(2):
        tier.add(*(filled_segment(base) for base in range(0, OFFSETS, 200)), partition=partition)
    return tier


def offsets(scan: Scan) -> list[int]:
    return sorted(scan.with_columns(["offset"]).to_table().column("offset").to_pylist())


def unreadable(batch: bytes) -> bytes:
    """A batch whose header is right, and no record of which can be read."""
    spoilt = bytearray(batch)
    spoilt[61:] = b"\xff" * (len(spoilt) - 61)
    spoilt[17:21] = crc32c.crc32c(spoilt[21:]).to_bytes(4, "big")
    return bytes(spoilt)


def test_all_the_rows_and_columns_are_there(tier: TableTier) -> None:
    scan = tier.scan()
    assert scan.schema.names == [
        *("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
    ]
    table = scan.to_table()
    assert table.schema == scan.schema
    assert table.num_rows == scan.stats.rows == scan.count() == 2 * OFFSETS
    assert pa.table(scan).num_rows == 2 * OFFSETS
    assert (scan.stats.segments, scan.stats.of_segments, scan.stats.offsets) == (6, 6, 2 * OFFSETS)
    assert scan.stats.bytes_read == scan.stats.of_bytes


@for_each(
    "where, holds",
    [
        ('"offset" >= 150 and offset < 250', lambda offset: 150 <= offset < 250),
        ("offset in (3, 250, 599, 1000)", lambda offset: offset in (3, 250, 599)),
        ("not (offset > 3 or offset = 1)", lambda offset: offset <= 3 and offset != 1),
        ("key is null and offset < 5", lambda offset: False),
        (pc.field("offset") == 7, lambda offset: offset == 7),
        (
            (pc.field("offset") < 20) & (pc.bit_wise_and(pc.field("offset"), 1) == 1),
            lambda offset: offset in range(1, 20, 2),
        ),
    ],
)
def test_a_filter_is_exact_whatever_of_it_saves_reading(
    tier: TableTier, where: Any, holds: Callable[[int], bool]
) -> None:
    found = offsets(tier.scan("orders:1", where=where))
    assert found == [offset for offset in range(OFFSETS) if holds(offset)]


def test_what_is_bounded_is_not_read(tier: TableTier) -> None:
    scan = tier.scan(where="partition = 1 and offset >= 405", columns=["offset"])
    explained = scan.explain()
    assert (explained.segments, explained.of_segments, explained.full_scans) == (1, 6, ())
    scan.to_table()
    assert (scan.stats.segments, scan.stats.rows) == (1, 195)
    assert scan.stats.gets == explained.gets
    late = datetime.datetime.fromtimestamp((FIRST_TIMESTAMP_MS + 10_000_000) / 1000, datetime.UTC)
    none = tier.scan(where=pc.field("timestamp") > late)
    assert (none.to_table().num_rows, none.stats.gets) == (0, 0)


def test_how_the_log_has_a_record_is_told_on_demand(tmp_path: Path) -> None:
    tier = TableTier(tmp_path)
    producer = ProducerFields(producer_id=7, producer_epoch=2, base_sequence=2**31 - 1, transactional=True)
    tier.add(
        build_segment([data_batch(0, record_count=2, leader_epoch=4), data_batch(2, record_count=2, producer=producer)])
    )
    columns = ["offset", *LOG_COLUMNS]
    first, _, third, last = tier.scan(columns=columns).to_table().to_pylist()
    segment = uuid_to_text(tier.segments[0].segment_id.id)
    size, batch = third["size_bytes"], third["batch_bytes"]
    assert list(first.values()) == [0, 4, None, None, None, False, 0, segment, size, batch]
    assert list(third.values()) == [2, 0, 7, 2, 2**31 - 1, True, 2, segment, size, batch]
    assert (last["sequence"], last["batch_offset"]) == (0, 2)


def test_rows_are_counted_by_the_headers_of_batches(tmp_path: Path) -> None:
    tier = TableTier(tmp_path)
    tier.add(build_segment([data_batch(0, record_count=10), unreadable(data_batch(10, record_count=5))]))
    scan = tier.scan()
    assert (scan.count(), scan.stats.rows, scan.stats.segments) == (15, 15, 1)
    assert tier.scan(where="offset < 8").count() == 8


def test_offsets_and_sizes_of_batches_are_told_by_their_headers(tmp_path: Path) -> None:
    """Failed before: each batch was inflated for its smallest and largest offset. A batch that has lost records, and
    offsets that are not wanted, are as exact."""
    tier = TableTier(tmp_path)
    compacted = data_batch(15, record_count=3, last_offset_delta=9)
    batches = [data_batch(0, record_count=10), unreadable(data_batch(10, record_count=5)), compacted]
    tier.add(build_segment(batches))
    columns = ["offset", "batch_bytes", "batch_offset", "leader_epoch", "timestamp_type"]
    table = tier.scan(where="offset >= 2 and offset < 17", columns=columns).to_table()
    assert table.column("offset").to_pylist() == list(range(2, 17))
    sizes = {batch.pop("batch_offset"): batch["batch_bytes"] for batch in table.to_pylist()}
    assert sizes == dict(zip((0, 10, 15), map(len, batches), strict=True))
    with pytest.raises(CorruptObjectError):
        tier.scan(columns=["size_bytes"]).to_table()


def test_an_end_in_time_ends_the_reading_where_an_order_is_declared(tier: TableTier) -> None:
    where = pc.field("timestamp") < datetime.datetime.fromtimestamp((FIRST_TIMESTAMP_MS + 100) / 1000, datetime.UTC)
    scan = tier.scan("orders:0", where=where, disorder=datetime.timedelta(milliseconds=1))
    assert (scan.explain().segments, scan.explain().full_scans) == (1, ())
    assert scan.to_table().num_rows == tier.scan("orders:0", where=where).to_table().num_rows == 100


def test_the_parts_of_a_filter_that_save_nothing_are_named(tier: TableTier) -> None:
    where = "offset > 3 and key like 'a%' and timestamp < '2100-01-01'"
    explained = tier.scan(where=where).explain()
    assert [part[:9] for part in explained.full_scans] == ["key LIKE ", "timestamp"]
    assert "looked at row by row, saves no reading: key LIKE 'a%'" in str(explained)
    assert "not known" in str(explained)


def test_rows_of_a_partition_are_in_order_of_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before: the ranges of a list, and the tail, came in the order in which Spark begins them."""
    monkeypatch.setattr(bounds, "GAP_BYTES_MAX", 1)
    tier = TableTier(tmp_path)
    tier.add(*(filled_segment(base) for base in range(0, 1000, 200)))
    wanted = [3, *range(250, 900, 20), 950]
    found = tier.scan(where=pc.field("offset").isin(wanted), columns=["offset"]).to_table()
    assert found.column("offset").to_pylist() == wanted


def test_a_limit_ends_the_reading(tier: TableTier) -> None:
    scan = tier.scan(limit=15)
    assert scan.to_table().num_rows == 15
    # The other partition is not even begun.
    assert scan.stats.segments <= 3
    assert tier.scan(limit=0).to_table().num_rows == 0
    assert tier.scan(where="offset >= 10", limit=30, columns=["offset"]).to_table().num_rows == 30


def test_tasks_are_read_anywhere(tier: TableTier) -> None:
    tasks = tier.scan(where="offset >= 300", columns=["partition"]).tasks()
    sent = [ForkingPickler.loads(ForkingPickler.dumps(task)) for task in tasks]
    rows = [row for task in sent for row in task.to_reader().read_all().to_pylist()]
    assert len(rows) == 600
    assert rows[0].keys() == {"partition"}


@for_each(
    "arguments, said",
    [
        ({"columns": ["offset", "nothing"]}, "columns names 'nothing'"),
        ({"columns": ["offset", "offset"]}, "columns names offset twice"),
        ({"isolation": "committed"}, "isolation is 'committed'"),
        ({"tail": "kafka"}, "tail is 'kafka'"),
        ({"tail": "broker"}, "no broker is asked"),
        ({"limit": -1}, "limit is -1"),
        ({"values": {"format": "avro"}}, "values names format"),
        ({"where": "nothing = 1"}, "where names 'nothing'"),
        ({"where": "lower(key) = 'a'"}, "not understood"),
        ({"where": "offset = 'a'"}, "compares 'a' with a column of type int64"),
        ({"where": "1 +"}, "no condition of SQL"),
        ({"where": pc.field("nothing") == 1}, "where does not fit the columns"),
        ({"topic": ["orders", "orders:1"]}, "take one of both"),
        ({"topic": ":1"}, "topic is ':1'"),
    ],
)
def test_what_is_wrong_is_said(tier: TableTier, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        tier.scan(**arguments)


def test_it_is_a_function_of_the_package_and_is_loaded_when_asked_for() -> None:
    assert tidegate.scan.__name__ == "scan"
    with pytest.raises(AttributeError, match="no attribute 'scans'"):
        _ = tidegate.scans
