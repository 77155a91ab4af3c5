"""Batches in, batches out: writers by id, values without a header, dead letters, and what limits memory.

The registry is one in memory that counts what it is asked; a real one is in test_registry and tests/spark.
"""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from storage.config.schema_registry import SchemaRegistryConfig
from storage.errors import RemoteStorageError
from table.schema import DEAD_LETTER, SCHEMA_ID
from table.tasks import TailTask
from table.values import typed_columns
from table.values.conversion import SchemaError
from table.values.dead_letters import UndecodableValueError
from table.values.registry import RegisteredSchema, RegistryError, UnknownSchemaError
from table.values.settled import SettledColumn, ValuesPlan
from table.values.typed_columns import SLICE_BYTES, SLICE_ROWS, UNKNOWN_MAX, typed_batches

OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
NEW = {**OLD, "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "int", "default": 9}]}
TASK = TailTask(topic="orders", partition=3, first_offset=10, end_offset=20)
COLUMNS = ("value", "offset", SCHEMA_ID, DEAD_LETTER)
REGISTRY = SchemaRegistryConfig(url="http://registry")


class Registry:
    """Knows 1 (OLD) and 2 (NEW); 3 is no Avro."""

    def __init__(self, _: SchemaRegistryConfig) -> None:
        self.asked: list[int] = []
        self.is_down = False
        made.append(self)

    def by_id(self, schema_id: int) -> RegisteredSchema:
        self.asked.append(schema_id)
        if self.is_down:
            raise RegistryError("gone")
        known = {1: ("AVRO", json.dumps(OLD)), 2: ("AVRO", json.dumps(NEW)), 3: ("JSON", "{}")}
        if schema_id not in known:
            raise UnknownSchemaError(f"the schema registry has no schemas/ids/{schema_id}")
        return RegisteredSchema(*known[schema_id])


made: list[Registry] = []


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made.clear()
    typed_columns._typed.cache_clear()
    monkeypatch.setattr(typed_columns, "SchemaRegistry", Registry)
    yield
    typed_columns._typed.cache_clear()


def plan(**changes: Any) -> ValuesPlan:
    value = SettledColumn(column="value", format="avro", text=json.dumps(NEW))
    return ValuesPlan(**{"columns": COLUMNS, "settled": (value,), "registry": REGISTRY, **changes})


def avro(schema: dict[str, Any], header: int | None, **fields: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, fields)
    return (b"" if header is None else b"\0" + header.to_bytes(4, "big")) + out.getvalue()


def typed(
    values: list[bytes | None], a_plan: ValuesPlan, key: list[bytes | None] | None = None
) -> list[dict[str, Any]]:
    columns = {
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(10, 10 + len(values)), pa.int64()),
        "key": pa.array(key or [None] * len(values), pa.binary()),
    }
    batches = typed_batches(iter([pa.RecordBatch.from_pydict(columns)]), TASK, a_plan)
    (batch,) = batches
    assert tuple(batch.schema.names) == a_plan.columns
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def test_writers_of_all_kinds_in_one_batch_are_told_apart() -> None:
    """Given old and new values, some without a header, an unknown schema and one of another kind, mixed, then each row
    has its own; and the registry is asked once for each id."""
    values = [
        avro(OLD, 1, a=1),
        avro(NEW, 2, a=2, b=3),
        None,
        avro(NEW, None, a=4, b=5),
        b"\0\0\0\0\x09\xff",
        b"\0\0\0\0\3{}",
        avro(OLD, 1, a=6),
    ]
    rows = typed(values, plan())
    expected = [(1, 9), (2, 3), None, (4, 5), None, None, (6, 9)]
    assert [row["value"] and tuple(row["value"].values()) for row in rows] == expected
    assert [row[SCHEMA_ID] for row in rows] == [1, 2, None, None, 9, 3, 1]
    letters = {row["offset"]: row[DEAD_LETTER] for row in rows if row[DEAD_LETTER] is not None}
    assert {offset: (letter["column"], letter["data"]) for offset, (letter,) in letters.items()} == {
        14: ("value", values[4]),
        15: ("value", values[5]),
    }
    assert letters[14][0]["reason"] == "the schema registry has no schemas/ids/9"
    assert letters[15][0]["reason"] == "schema 3 is JSON, not Avro"
    typed(values, plan())
    assert [sorted(each.asked) for each in made] == [[1, 2, 3, 9]]


def test_avro_that_looks_like_a_header_is_tried_as_a_whole() -> None:
    """Given a value without a header that begins with 0, then it is read where the registry knows no such schema."""
    value = avro(NEW, None, a=0, b=0)
    wide = {"type": "record", "name": "W", "fields": [{"name": f"f{n}", "type": "int"} for n in range(6)]}
    column = SettledColumn(column="value", format="avro", text=json.dumps(wide))
    row_value = bytes([0, 2, 4, 6, 8, 10])
    for registry_config in (REGISTRY, None):
        (row,) = typed([row_value], plan(settled=(column,), registry=registry_config))
        assert row["value"] == {f"f{n}": n for n in range(6)}
    assert typed([value], plan())[0]["value"] == {"a": 0, "b": 0}


def test_a_registry_that_is_down_fails_the_task_and_is_asked_again() -> None:
    typed([avro(NEW, None, a=1, b=1)], plan())
    made[0].is_down = True
    with pytest.raises(RegistryError):
        typed([avro(OLD, 1, a=1)], plan())
    made[0].is_down = False
    assert typed([avro(OLD, 1, a=1)], plan())[0]["value"] == {"a": 1, "b": 9}


def test_noise_asks_the_registry_a_limited_number_of_times() -> None:
    values: list[bytes | None] = [
        b"\0" + (100 + number).to_bytes(4, "big") + b"\xff" for number in range(2 * UNKNOWN_MAX)
    ]
    rows = typed(values, plan())
    assert len(made[0].asked) == UNKNOWN_MAX
    assert all(row[DEAD_LETTER] is not None for row in rows)
    assert "was not asked for" in rows[-1][DEAD_LETTER][0]["reason"]


def test_large_batches_are_decoded_in_slices_and_large_values_not_at_all() -> None:
    many: list[bytes | None] = [avro(OLD, 1, a=number) for number in range(2 * SLICE_ROWS + 3)]
    assert [row["value"]["a"] for row in typed(many, plan())] == list(range(len(many)))
    text = SettledColumn(column="value", format="json", text='{"type": "string"}')
    long = json.dumps("x" * SLICE_BYTES).encode()
    rows = typed([long, b'"y"', long + b" " * 100], plan(settled=(text,), value_bytes_max=len(long)))
    assert [row["value"] and len(row["value"]) for row in rows] == [SLICE_BYTES, 1, None]
    assert "bytes are more than are decoded" in rows[2][DEAD_LETTER][0]["reason"]


def test_dead_letters_are_counted_once_a_task_and_written_where_it_is_wanted(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    for _ in range(2):
        with capture_logs() as logs:
            typed([avro(OLD, 1, a=1), b"\xff", b"\xfe"], plan(dead_letter_path=str(folder)))
        (event,) = logs
        assert (event["event"], event["count"], event["offset"]) == ("dead_letters", 2, 11)
    (file,) = folder.iterdir()
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert file.name == "orders-3-00000000000000000010-tail.jsonl"
    assert [(entry["offset"], base64.b64decode(entry["data"])) for entry in entries] == [(11, b"\xff"), (12, b"\xfe")]
    with pytest.raises(RemoteStorageError, match="deadLetterPath: cannot write dead letters to"):
        typed([b"\xff"], plan(dead_letter_path=str(file)))


def test_a_dead_letter_fails_the_task_if_it_is_told_to() -> None:
    with pytest.raises(UndecodableValueError, match="orders-3: the value at offset 10 cannot be decoded: "):
        typed([b"\xff"], plan(fails_on_dead_letter=True, columns=("value", "offset")))


def test_ids_without_a_format_and_schemas_without_a_registry() -> None:
    rows = typed([b"\0\0\0\0\7", b"x", None], ValuesPlan(columns=(SCHEMA_ID, "value")))
    assert [row[SCHEMA_ID] for row in rows] == [7, None, None]
    rows = typed([avro(NEW, 77, a=1, b=2), avro(NEW, None, a=3, b=4)], plan(registry=None))
    assert [row["value"] for row in rows] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert made == []
    assert issubclass(UnknownSchemaError, SchemaError)
