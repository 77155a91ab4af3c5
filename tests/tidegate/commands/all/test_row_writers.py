"""Rows in each format: the same values in all of them, whatever is in the records, and in bounded pieces."""

import csv
import io
import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.support.for_each import for_each
from tidegate.commands import row_writers
from tidegate.commands.row_texts import RowTexts
from tidegate.commands.row_writers import WRITERS

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
TIME_US = 1_700_000_005_000_000
TIMES = {"a": "1970-01-01T00:00:00.005", "b": None}


def batch(*rows: tuple[Any, ...], schema: pa.Schema = RECORDS) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in schema]
    return pa.record_batch(
        [pa.array(list(each), field.type) for each, field in zip(columns, schema, strict=True)], schema=schema
    )


TEXT = batch(
    ("orders", 0, 5, TIME_US, b"k-5", '{"a": "é,\n"}'.encode(), [{"key": "h", "value": b"\xff"}]),
    ("orders", 0, 6, TIME_US, None, b"", None),
)
BINARY = batch(("orders", 1, 2**62, -1000, b"\x00\xff", b"v", []))


def written(form: str, *batches: pa.RecordBatch, schema: pa.Schema = RECORDS) -> bytes:
    file = io.BytesIO()
    writer = WRITERS[form](file, schema)
    for each in batches:
        writer.write(each)
    writer.finish()
    return file.getvalue()


def test_json_lines_hold_text_or_base64_that_says_so() -> None:
    lines = [json.loads(line) for line in written("jsonl", TEXT, BINARY).splitlines()]
    assert lines[0] == {
        "topic": "orders",
        "partition": 0,
        "offset": 5,
        "timestamp": "2023-11-14T22:13:25.000Z",
        "key": "k-5",
        "value": '{"a": "é,\n"}',
        "headers": [{"key": "h", "value": "/w==", "value_encoding": "base64"}],
    }
    assert (lines[1]["key"], lines[1]["value"], lines[1]["headers"]) == (None, "", None)
    assert "key_encoding" not in lines[1]
    assert {name: lines[2][name] for name in ("offset", "timestamp", "key", "key_encoding", "value")} == {
        "offset": 2**62,
        "timestamp": "1969-12-31T23:59:59.999Z",
        "key": "AP8=",
        "key_encoding": "base64",
        "value": "v",
    }


def test_csv_tells_null_from_empty_and_has_a_column_for_the_encoding() -> None:
    text = written("csv", TEXT, BINARY).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["value"] == '{"a": "é,\n"}'
    assert json.loads(rows[0]["headers"]) == [{"key": "h", "value": "/w==", "value_encoding": "base64"}]
    assert text.splitlines()[-2].endswith(',,,"",,')
    assert (rows[2]["key"], rows[2]["key_encoding"], rows[2]["value_encoding"]) == ("AP8=", "base64", "")
    assert [row["timestamp"] for row in rows[1:]] == ["2023-11-14T22:13:25.000Z", "1969-12-31T23:59:59.999Z"]


def test_arrow_and_parquet_hold_the_rows_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pa.Table.from_batches([TEXT, BINARY])
    assert pa.ipc.open_stream(written("arrow", TEXT, BINARY)).read_all() == expected
    monkeypatch.setattr(row_writers, "ROW_GROUP_BYTES", 1)
    found = parquet.ParquetFile(io.BytesIO(written("parquet", TEXT, BINARY)))
    assert found.read() == expected
    assert found.num_row_groups == 2


def test_a_table_cuts_long_values_and_begins_again_at_each_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writers, "BLOCK_ROWS", 2)
    long = batch(("orders", 0, 7, TIME_US, b"k", b"v" * 100, None))
    lines = written("table", TEXT, BINARY, long).decode().splitlines()
    assert [line.split()[0] for line in lines] == ["topic", "orders", "orders", "topic", "orders", "orders"]
    assert "base64:AP8=" in lines[4]
    assert "v" * 59 + "…" in lines[5]
    assert "v" * 60 not in lines[5]


@for_each("form, expected", [("jsonl", b""), ("table", b"topic "), ("csv", b'"topic","partition"')])
def test_without_a_row_there_are_headings(form: str, expected: bytes) -> None:
    assert written(form).startswith(expected)
    assert len(written(form).splitlines()) == (0 if form == "jsonl" else 1)


def test_every_type_of_a_value_has_its_json() -> None:
    kinds: dict[str, tuple[pa.DataType, Any, Any]] = {
        "nanoseconds": (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
        "microseconds": (pa.timestamp("us", tz="UTC"), 1_000_001, "1970-01-01T00:00:01.000001Z"),
        "seconds": (pa.timestamp("s"), 60, "1970-01-01T00:01:00.000"),
        "beyond": (pa.timestamp("ms"), 2**60, 2**60),
        "day": (pa.date32(), date(2024, 2, 29), "2024-02-29"),
        "price": (pa.decimal128(9, 2), Decimal("1.50"), "1.50"),
        "sum": (pa.decimal128(38, 0), Decimal(10**20), 10**20),
        "nan": (pa.float64(), float("nan"), "NaN"),
        "infinite": (pa.float32(), float("-inf"), "-Infinity"),
        "ratio": (pa.float64(), 0.1, 0.1),
        "is": (pa.bool_(), True, True),
        "parts": (pa.list_(pa.binary()), [b"a", b"\xff", None], ["a", {"base64": "/w=="}, None]),
        "times": (pa.map_(pa.string(), pa.timestamp("ms")), [("a", 5), ("b", None)], TIMES),
        "numbered": (pa.map_(pa.int32(), pa.binary()), [(1, b"\xff")], {"1": "/w==", "1_encoding": "base64"}),
        "nested": (
            pa.struct([("at", pa.list_(pa.timestamp("ms", tz="UTC")))]),
            {"at": [0]},
            {"at": ["1970-01-01T00:00:00.000Z"]},
        ),
        "nothing": (pa.null(), None, None),
    }
    schema = pa.schema([(name, kind) for name, (kind, _, _) in kinds.items()])
    values = batch(tuple(value for _, value, _ in kinds.values()), (None,) * len(kinds), schema=schema)
    first, second = RowTexts(schema).documents(values)
    assert first == {name: expected for name, (_, _, expected) in kinds.items()}
    assert second == dict.fromkeys(kinds)
    for form in WRITERS:
        assert written(form, values, schema=schema)
