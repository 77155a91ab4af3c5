"""Values with a schema to Arrow columns: the decoder beside the bare library that reads the same bytes.

    python benchmarks/value_decoding.py [--rounds 5] [--rows 20000] [--json]

The values are orders of 0.3 to 1 kB: twelve fields, one of them nested and one a list, some null, behind the header of
a registry. The floors: pyarrow.json reads the same texts into the same columns in one call; Protobuf's and Avro's
libraries make an object of each value, and no columns. Both sides take turns within one run; a figure is the median of
the rounds, in CPU time. Exit code 1 when a row is not the order that was written, or when a format's decoder reaches
less of its floor than `SHARES` has.
"""

import io
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fastavro
import pyarrow as pa
import pyarrow.json
from google.protobuf import message_factory

from benchmarks.support.decoders import parsed, rates, show
from table.values.protobuf import ProtobufSchema, compiled
from table.values.settled import SettledColumn, ValuesPlan
from table.values.typed_columns import TypedColumn

SHARES: Final = {"json": 0.6, "protobuf": 0.25, "avro": 0.6}
"""Rows a core-second beside the floor's."""
HEADER: Final = b"\0\0\0\0\1"

_ADDRESS: Final = ("street", "city", "country")
_STATES: Final = ("NEW", "PAID", "SENT", "RETURNED")
_WORDS: Final = [random.Random(number).randbytes(4).hex() for number in range(300)]

_JSON_TYPES: Final = {"long": "integer", "int": "integer", "double": "number"}
_PROTOBUF_TYPES: Final = {"long": "int64", "int": "int32", "boolean": "bool"}
FIELDS: Final = {
    "id": "long",
    "customer": "string",
    "state": "string",
    "price": "double",
    "currency": "string",
    "count": "int",
    "is_gift": "boolean",
    "ordered_at": "long",
    "voucher": "string",
    "note": "string",
}
"""Beside them: the address and the tags. `voucher` and `note` may be null."""
NULLABLE: Final = ("voucher", "note")


@dataclass(frozen=True, slots=True)
class Cell:
    """One format. Rows per second of CPU time of each side."""

    format: str
    value_bytes: int
    decoder_rows_per_s: float
    floor_rows_per_s: float
    are_equal: bool

    @property
    def share(self) -> float:
        return self.decoder_rows_per_s / self.floor_rows_per_s

    @property
    def holds(self) -> bool:
        return self.are_equal and self.share >= SHARES[self.format]


def main() -> int:
    options = parsed(
        "Values to Arrow columns: the decoder beside the bare libraries.",
        size="rows",
        default=20_000,
        size_help="values of each format",
    )
    cells = measure(options.rounds, options.rows)
    headings = ("format", "value", "decoder", "", "floor", "share")
    show("values to Arrow columns, one core", headings, cells, figures, as_json=options.json)
    return 0 if all(cell.holds for cell in cells) else 1


def measure(rounds: int, row_count: int) -> list[Cell]:
    """Every format over the same orders."""
    rng = random.Random(1)
    orders = [order(rng, number) for number in range(row_count)]
    return [measure_format(rounds, name, *make(orders), orders) for name, make in FORMATS.items()]


def measure_format(
    rounds: int,
    name: str,
    settled: SettledColumn,
    values: Sequence[bytes],
    floor: Callable[[], object],
    orders: Sequence[dict[str, Any]],
) -> Cell:
    """Both sides over the same values."""
    column = TypedColumn(settled, ValuesPlan(columns=("value",)))
    array = pa.array([HEADER + value for value in values], pa.binary())
    found, reasons = column.convert(array)
    sides: dict[str, Callable[[], object]] = {"decoder": lambda: column.convert(array), "floor": floor}
    found_rates = rates(rounds, len(values), sides)
    return Cell(
        name,
        sum(map(len, values)) // len(values),
        decoder_rows_per_s=found_rates["decoder"],
        floor_rows_per_s=found_rates["floor"],
        are_equal=not reasons and found.to_pylist() == orders,
    )


# --- the formats: a schema, the values, and what the floor does with them ---

_Made = tuple[SettledColumn, list[bytes], Callable[[], object]]


def as_json(orders: Sequence[dict[str, Any]]) -> _Made:
    """Text by Python's own encoder; what is null is left out in every second order."""
    properties: dict[str, Any] = {name: {"type": _JSON_TYPES.get(kind, kind)} for name, kind in FIELDS.items()}
    address = {"type": "object", "properties": {name: {"type": "string"} for name in _ADDRESS}}
    tags = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": {**properties, "address": address, "tags": tags}}
    settled = SettledColumn(column="value", format="json", text=json.dumps(schema))
    values = [
        json.dumps({key: value for key, value in each.items() if value is not None or each["id"] % 2}).encode()
        for each in orders
    ]
    text = b"\n".join(values)
    of_type = TypedColumn(settled, ValuesPlan(columns=("value",))).type
    reading = pyarrow.json.ReadOptions(use_threads=False)
    parsing = pyarrow.json.ParseOptions(explicit_schema=pa.schema(list(of_type)), unexpected_field_behavior="ignore")
    return settled, values, lambda: pyarrow.json.read_json(io.BytesIO(text), reading, parsing)


def as_protobuf(orders: Sequence[dict[str, Any]]) -> _Made:
    """Messages of proto3."""
    fields = [
        f"{'optional ' if name in NULLABLE else ''}{_PROTOBUF_TYPES.get(kind, kind)} {name} = {number};"
        for number, (name, kind) in enumerate(FIELDS.items(), 1)
    ]
    inner = " ".join(f"string {name} = {number};" for number, name in enumerate(_ADDRESS, 1))
    text = (
        f'syntax = "proto3"; message Order {{ message Address {{ {inner} }} {" ".join(fields)} Address address = 20; '
        "repeated string tags = 21; }"
    )
    descriptors = compiled({"order.proto": text}, "order.proto")
    parsed = message_factory.GetMessageClass(ProtobufSchema(descriptors).message(None))
    bare = [parsed(**each).SerializeToString() for each in orders]
    settled = SettledColumn(column="value", format="protobuf", text="", descriptors=descriptors)
    return settled, [b"\0" + value for value in bare], lambda: [parsed.FromString(value) for value in bare]


def as_avro(orders: Sequence[dict[str, Any]]) -> _Made:
    """Records of the schema that they are read by."""
    fields: list[dict[str, Any]] = [
        {"name": name, "type": ["null", kind] if name in NULLABLE else kind} for name, kind in FIELDS.items()
    ]
    inner = [{"name": name, "type": "string"} for name in _ADDRESS]
    address = {"type": "record", "name": "Address", "fields": inner}
    fields += [
        {"name": "address", "type": ["null", address]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    schema = {"type": "record", "name": "Order", "fields": fields}
    parsed = fastavro.parse_schema(schema)
    values = []
    for each in orders:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, each)
        values.append(out.getvalue())
    settled = SettledColumn(column="value", format="avro", text=json.dumps(schema))
    return settled, values, lambda: [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in values]


FORMATS: Final[dict[str, Callable[[Sequence[dict[str, Any]]], _Made]]] = {
    "json": as_json,
    "protobuf": as_protobuf,
    "avro": as_avro,
}


def order(rng: random.Random, number: int) -> dict[str, Any]:
    """One order; its note makes 0.3 to 1 kB of it, as JSON."""
    note = " ".join(rng.choices(_WORDS, k=rng.randrange(60)))
    address = {"street": f"{rng.choice(_WORDS)} street {number % 100}", "city": rng.choice(_WORDS), "country": "NL"}
    return {
        "id": 10**12 + number,
        "customer": f"customer-{rng.randrange(10**9):09d}",
        "state": rng.choice(_STATES),
        "price": rng.randrange(10**6) / 100,
        "currency": "EUR",
        "count": rng.randrange(20),
        "is_gift": rng.random() < 0.1,
        "ordered_at": 1_700_000_000_000 + rng.randrange(10**10),
        "voucher": None if rng.random() < 0.7 else rng.choice(_WORDS),
        "note": note or None,
        "address": None if rng.random() < 0.1 else address,
        "tags": rng.choices(_WORDS, k=rng.randrange(5)),
    }


# --- the report ---


def figures(cell: Cell) -> tuple[str, ...]:
    """A row of the table."""
    return (
        cell.format,
        f"{cell.value_bytes} B",
        f"{cell.decoder_rows_per_s:,.0f} rows/s",
        f"{cell.decoder_rows_per_s * cell.value_bytes / 1e6:,.0f} MB/s",
        f"{cell.floor_rows_per_s:,.0f} rows/s",
        f"{cell.share:.2f}",
    )


if __name__ == "__main__":
    sys.exit(main())
