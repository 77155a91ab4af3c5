"""On executors: batches with binary keys and values in, batches with typed ones out; what cannot be decoded is kept.

Values are decoded a slice at a time, and in a slice all values of one schema together. What is remembered of a read
lives as long as the process: Python workers run many tasks.

Rules:
1. A value that cannot be decoded is null, and its bytes and the reason are in the row's `deadLetter`. With
   `deadLetter=fail` it fails the task, which names the offset.
2. A value's header names the schema that wrote it; one without a header was written with the reader's. Avro's own
   bytes may look like a header: where the registry does not know the schema, or there is no registry and what follows
   cannot be decoded, all the bytes are tried.
3. Memory: a slice has at most SLICE_BYTES of values, or one value; one of more than `value_bytes_max` is not decoded.
   WRITERS_MAX ids of other schemas are remembered, known or not. UNKNOWN_MAX ids that the registry does not know are
   asked for, in all: a topic of noise costs no more requests than that.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from storage.bounded_map import BoundedMap
from table.planning.value_options import AVRO, PROTOBUF
from table.schema import DEAD_LETTER, KEY_SCHEMA_ID, OFFSET, SCHEMA_ID, arrow_schema
from table.tasks import Task
from table.values.conversion import Converted, SchemaError
from table.values.dead_letters import DeadLetters
from table.values.registry import RegisteredSchema, SchemaRegistry, UnknownSchemaError
from table.values.settled import SettledColumn, ValuesPlan
from table.values.wire_format import headers, schema_ids

SLICE_ROWS: Final = 4096
SLICE_BYTES: Final = 1024 * 1024
"""Bytes of values; decoded, they are Python objects of some ten times that."""
WRITERS_MAX: Final = 1000
UNKNOWN_MAX: Final = 1000

_ID_COLUMNS: Final = {SCHEMA_ID: "value", KEY_SCHEMA_ID: "key"}

_Rows: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Decoder(Protocol):
    """One column's format. `writer` is what `load` gives for a registered schema."""

    type: pa.DataType

    def load(self, registered: RegisteredSchema) -> Any:
        """A schema that wrote values. Raises SchemaError."""

    def decode(self, values: pa.Array, writer: Any, *, whole: bool) -> Converted:
        """The values, none of them null; `writer` None: written with the reader's schema; `whole`: without a header."""


@functools.lru_cache(maxsize=8)
def decoder_of(settled: SettledColumn) -> Decoder:
    """Imports the format's library. Raises SchemaError if the schema cannot be columns."""
    if settled.format == AVRO:
        from table.values.avro import AvroDecoder, AvroSchema

        return AvroDecoder(AvroSchema(settled.text, settled.references))
    if settled.format == PROTOBUF:
        from table.values.protobuf import ProtobufDecoder, ProtobufSchema

        schema = ProtobufSchema(settled.descriptors)
        return ProtobufDecoder(schema, schema.message(settled.message))
    from table.values.json_schema import JsonDecoder, JsonSchema

    return JsonDecoder(JsonSchema(settled.text, settled.references))


class Writers:
    """The schemas that wrote a column's values, by the ids of their headers."""

    def __init__(self, settled: SettledColumn, decoder: Decoder, registry: SchemaRegistry | None) -> None:
        self._settled, self._decoder, self._registry = settled, decoder, registry
        self._known: BoundedMap[int, tuple[Any, str | None]] = BoundedMap(WRITERS_MAX)
        self._unknown = 0

    @property
    def has_registry(self) -> bool:
        return self._registry is not None

    def find(self, schema_id: int) -> tuple[Any, str | None]:
        """Return what the decoder is to be given, and why there is no such schema, if there is none.

        Raises:
            RegistryError: the registry does not answer.
        """
        if self._registry is None:
            return None, None
        found = self._known.use(schema_id)
        if found is None:
            found = self._known[schema_id] = self._ask(self._registry, schema_id)
        return found

    def _ask(self, registry: SchemaRegistry, schema_id: int) -> tuple[Any, str | None]:
        if self._unknown >= UNKNOWN_MAX:
            return None, f"schema {schema_id} was not asked for: {UNKNOWN_MAX} others were not known"
        try:
            registered = registry.by_id(schema_id)
            if registered.text == self._settled.text and registered.references == self._settled.references:
                return None, None
            return self._decoder.load(registered), None
        except UnknownSchemaError as error:
            self._unknown += 1
            return None, str(error)
        except SchemaError as error:
            return None, f"schema {schema_id} {error}"


class TypedColumn:
    """Makes one column's binary arrays typed ones."""

    def __init__(self, settled: SettledColumn, plan: ValuesPlan) -> None:
        self.column = settled.column
        self._decoder = decoder_of(settled)
        self.type = self._decoder.type
        registry = None if plan.registry is None else SchemaRegistry(plan.registry)
        self._writers = Writers(settled, self._decoder, registry)
        self._needs_writer = settled.format in (AVRO, PROTOBUF)
        self._may_lack_header = settled.format == AVRO
        self._value_bytes_max = plan.value_bytes_max

    def convert(self, values: pa.Array) -> Converted:
        """The typed array, and by row why a value could not be decoded."""
        arrays, reasons = [], {}
        for start, end in _slices(values):
            array, found = self._convert(values[start:end])
            arrays.append(array)
            reasons.update({start + row: reason for row, reason in found.items()})
        if len(arrays) == 1:
            return arrays[0], reasons
        return (pa.concat_arrays(arrays) if arrays else pa.nulls(0, self.type)), reasons

    def _convert(self, values: pa.Array) -> Converted:
        sizes, are_there, ids = headers(values)
        parts = _Parts(len(values), self.type)
        is_large = sizes > self._value_bytes_max
        for row in np.flatnonzero(is_large).tolist():
            parts.reasons[row] = f"its {sizes[row]} bytes are more than are decoded ({self._value_bytes_max})"
        with_header = are_there & ~is_large
        without = np.flatnonzero((sizes >= 0) & ~with_header & ~is_large)
        self._decode(parts, values, without, None, whole=True)
        if not self._needs_writer:
            self._decode(parts, values, np.flatnonzero(with_header), None, whole=False)
            return parts.joined()
        for schema_id in np.unique(ids[with_header]).tolist():
            rows = np.flatnonzero(with_header & (ids == schema_id))
            writer, unknown = self._writers.find(schema_id)
            if unknown is None:
                self._decode(parts, values, rows, writer, whole=False)
            else:
                parts.reasons.update(dict.fromkeys(rows.tolist(), unknown))
            if self._may_lack_header and (unknown is not None or not self._writers.has_registry):
                failed = np.array([row for row in rows.tolist() if row in parts.reasons], np.int64)
                self._decode(parts, values, failed, None, whole=True, is_second_try=True)
        return parts.joined()

    def _decode(
        self, parts: "_Parts", values: pa.Array, rows: _Rows, writer: Any, *, whole: bool, is_second_try: bool = False
    ) -> None:
        if not len(rows):
            return
        some = values if len(rows) == len(values) else values.take(pa.array(rows))
        array, reasons = self._decoder.decode(some, writer, whole=whole)
        parts.add(rows, array, reasons, keeps_first_reason=is_second_try)


class _Parts:
    """Arrays of some rows each, that become one of all rows."""

    def __init__(self, row_count: int, of_type: pa.DataType) -> None:
        self._arrays: list[pa.Array] = [pa.nulls(1, of_type)]
        self._length = 1
        # Where each row is in all arrays joined; the first place is a null.
        self._places = np.zeros(row_count, np.int64)
        self._is_whole = False
        self.reasons: dict[int, str] = {}

    def add(self, rows: _Rows, array: pa.Array, reasons: dict[int, str], *, keeps_first_reason: bool) -> None:
        """These rows' array; a row that is added again, without a reason, had one before."""
        self._is_whole = len(rows) == len(self._places) and not keeps_first_reason
        self._places[rows] = np.arange(self._length, self._length + len(array))
        self._arrays.append(array)
        self._length += len(array)
        for place, row in enumerate(rows.tolist() if (reasons or self.reasons) else ()):
            if place not in reasons:
                self.reasons.pop(row, None)
            elif not keeps_first_reason or row not in self.reasons:
                self.reasons[row] = reasons[place]

    def joined(self) -> Converted:
        """One array, and the rows that are null for a reason."""
        if self._is_whole:
            return self._arrays[-1], self.reasons
        return pa.concat_arrays(self._arrays).take(pa.array(self._places)), self.reasons


def _slices(values: pa.Array) -> Iterator[tuple[int, int]]:
    """Ranges of rows with no more than SLICE_ROWS and SLICE_BYTES, but for one value that is larger."""
    bounds = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    start = 0
    while start < len(values):
        by_bytes = int(np.searchsorted(bounds, int(bounds[start]) + SLICE_BYTES, side="right")) - 1
        end = min(start + SLICE_ROWS, max(by_bytes, start + 1), len(values))
        yield start, end
        start = end


@functools.lru_cache(maxsize=8)
def _typed(plan: ValuesPlan) -> tuple[TypedColumn, ...]:
    return tuple(TypedColumn(settled, plan) for settled in plan.settled)


def typed_batches(batches: Iterator[pa.RecordBatch], task: Task, plan: ValuesPlan) -> Iterator[pa.RecordBatch]:
    """The batches with the plan's columns.

    Raises:
        RegistryError: the registry does not answer, or refuses our credentials.
        UndecodableValueError: see there.
        RemoteStorageError: dead letters cannot be written.
    """
    typed = _typed(plan)
    letters = DeadLetters(task, plan)
    try:
        for batch in batches:
            yield _typed_batch(batch, typed, plan, letters)
        letters.finish()
    finally:
        letters.close()


def _typed_batch(
    batch: pa.RecordBatch, typed: Sequence[TypedColumn], plan: ValuesPlan, letters: DeadLetters
) -> pa.RecordBatch:
    made: dict[str, pa.Array] = {}
    found: dict[int, list[dict[str, Any]]] = {}
    for column in typed:
        raw = batch.column(column.column)
        made[column.column], reasons = column.convert(raw)
        for row in sorted(reasons):
            reason, data = reasons[row], raw[row].as_py()
            letters.add(column.column, reason, data, batch.column(OFFSET)[row].as_py())
            found.setdefault(row, []).append({"column": column.column, "reason": reason, "data": data})
    if DEAD_LETTER in plan.columns:
        of_type = arrow_schema([DEAD_LETTER]).field(0).type
        made[DEAD_LETTER] = _dead_letters(found, batch.num_rows, of_type)
    for name, column_name in _ID_COLUMNS.items():
        if name in plan.columns:
            made[name] = schema_ids(batch.column(column_name))
    arrays = [made[name] if name in made else batch.column(name) for name in plan.columns]
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, list(plan.columns))


def _dead_letters(found: dict[int, list[dict[str, Any]]], row_count: int, of_type: pa.DataType) -> pa.Array:
    if not found:
        return pa.nulls(row_count, of_type)
    return pa.array([found.get(row) for row in range(row_count)], of_type)
