"""Avro: schemas as Arrow types, and a decoder by fastavro, which does Avro's schema resolution.

| Avro | Arrow, and so Spark |
|---|---|
| null | null (void in Spark) |
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| record | struct |
| array, map | array, map<string, …> |
| enum | string |
| fixed | binary |
| union with null | nullable; of one more branch, that branch's type |
| union of several others | struct with a field for each branch: member0, member1, … (as Spark's from_avro has it) |
| date | date |
| timestamp-millis, timestamp-micros | timestamp |
| local-timestamp-millis, -micros | timestamp_ntz |
| decimal, up to 38 digits | decimal(precision, scale); larger ones binary |
| uuid | string |
| time-millis, time-micros, timestamp-nanos, duration, any other | what is below them: int, bigint, bigint, binary |
| a record inside itself | string: that part as JSON |

Rules:
1. A schema is made to stand alone (`AvroSchema`): names from references are put in where they are first used. What is
   not one of the logical types that fastavro is to read goes out of it.
2. A record inside itself would end fastavro's compiled reader, and the process, at a few thousand levels, which take as
   many bytes. Such schemas are read by fastavro's Python half, which Python's own limit stops.
3. A schema in which an array's items take no bytes is refused: ten bytes could ask for 10^18 of them.
4. A value's bytes must be used up exactly.
"""

import io
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
from fastavro import _read_py as python_reader
from fastavro import parse_schema, schemaless_reader

from table.values.conversion import Converted, SchemaError, UndecodableError, convert
from table.values.registry import RegisteredSchema
from table.values.wire_format import HEADER_BYTES

NESTING_MAX: Final = 64
"""Levels of a schema. Nobody reads columns that deep, and the compiled reader needs its stack."""

DECIMAL_DIGITS_MAX: Final = 38
_DECIMAL_BYTES_MAX: Final = 16
"""What 38 digits take; turning many more into digits takes quadratic time."""

_PRIMITIVE: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMPS: Final = {
    "timestamp-millis": (pa.timestamp("us", tz="UTC"), _EPOCH, 1000),
    "timestamp-micros": (pa.timestamp("us", tz="UTC"), _EPOCH, 1),
    "local-timestamp-millis": (pa.timestamp("us"), _EPOCH.replace(tzinfo=None), 1000),
    "local-timestamp-micros": (pa.timestamp("us"), _EPOCH.replace(tzinfo=None), 1),
}

Json: TypeAlias = Any
Change: TypeAlias = Callable[[Any], Any]
"""What has to be done with a decoded value before Arrow takes it."""


class AvroSchema:
    """A schema that stands alone, with its type.

    Attributes:
        json: the schema, with references put in.
        type: how Arrow has its values.
        is_recursive: a record is inside itself.
    """

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        """`references`: names and texts of the schemas that this one refers to, and of those that they refer to.

        Raises:
            SchemaError: it is no schema, or one that is refused.
        """
        self._known: dict[str, tuple[Json, str]] = {}
        loaded = _loaded(text)
        others = [_loaded(reference) for _, reference in references]
        for other in others:
            self._collect(other, "")
        self.names_types = any(_has_wide_union(schema, 0) for schema in (loaded, *others))
        """Whether fastavro is to say which of a union's named types a value is."""
        self._open: list[str] = []
        self._types: dict[str, pa.DataType] = {}
        self._least: dict[str, int] = {}
        self._changes: dict[str, tuple[Change | None, Change | None]] = {}
        self.is_recursive = False
        self.json, self.type, _, changes = self._walked(loaded, "", 0)
        self.change, self.resolving_change = changes
        try:
            self.parsed = parse_schema(self.json)
        except Exception as error:  # fastavro has no common class for what is wrong in a schema
            raise SchemaError(f"is no Avro schema: {error}") from error

    def _collect(self, schema: Json, namespace: str) -> None:
        """Definitions by full name."""
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, namespace)
        elif isinstance(schema, dict):
            if schema.get("type") in ("record", "error", "enum", "fixed") and "name" in schema:
                full = _full_name(schema, namespace)
                self._known.setdefault(full, (schema, namespace))
                namespace = full.rpartition(".")[0]
            for inner in (schema.get("type"), schema.get("items"), schema.get("values")):
                if isinstance(inner, dict | list):
                    self._collect(inner, namespace)
            for field in schema.get("fields") or ():
                self._collect(field.get("type"), namespace)

    def _walked(self, schema: Json, namespace: str, depth: int) -> "_Walked":
        if depth > NESTING_MAX:
            raise SchemaError(f"has more than {NESTING_MAX} levels")
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return schema, _PRIMITIVE[schema], _LEAST.get(schema, 1), _NO_CHANGES
            return self._named(schema, namespace, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise SchemaError(f"is no Avro schema: {str(schema)[:60]} is no type")
        kind = schema["type"]
        if isinstance(kind, str) and kind in _PRIMITIVE:
            return _logical(schema, kind)
        complex_types = {
            "record": self._record,
            "error": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array,
            "map": self._map,
        }
        walk = complex_types.get(kind) if isinstance(kind, str) else None
        return walk(schema, namespace, depth) if walk is not None else self._walked(kind, namespace, depth + 1)

    def _enum(self, schema: Json, namespace: str, _: int) -> "_Walked":
        return self._defined(schema, namespace, pa.string(), 1, _NO_CHANGES)

    def _map(self, schema: Json, namespace: str, depth: int) -> "_Walked":
        inner, value, _, changes = self._walked(schema.get("values"), namespace, depth + 1)
        return {"type": "map", "values": inner}, pa.map_(pa.string(), value), 1, _both(changes, _of_values)

    def _named(self, name: str, namespace: str, depth: int) -> "_Walked":
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        for candidate in (full, name):
            if candidate in self._open:
                self.is_recursive = True
                return candidate, pa.string(), 0, (_as_json, _as_json)
            if candidate in self._types:
                return candidate, self._types[candidate], self._least[candidate], self._changes[candidate]
            if candidate in self._known:
                definition, around = self._known[candidate]
                return self._walked(definition, around, depth)
        raise SchemaError(f"names the type {name}, which neither it nor its references define")

    def _defined(
        self, schema: Json, namespace: str, found: pa.DataType, least: int, changes: "_Changes", **parts: Json
    ) -> "_Walked":
        full = _full_name(schema, namespace)
        if self.names_types:
            # The writer may have had a union here, out of which types come with their names.
            changes = changes[0], _unnamed(changes[1])
        self._types[full], self._least[full], self._changes[full] = found, least, changes
        kept = {name: schema[name] for name in ("symbols", "default", "size") if name in schema}
        around = full.rpartition(".")[0]
        aliases = [alias if "." in alias or not around else f"{around}.{alias}" for alias in schema.get("aliases", ())]
        return {"type": schema["type"], "name": full, "aliases": aliases, **kept, **parts}, found, least, changes

    def _record(self, schema: Json, namespace: str, depth: int) -> "_Walked":
        full = _full_name(schema, namespace)
        self._open.append(full)
        fields, types, least, changes = [], [], 0, []
        for field in schema.get("fields") or ():
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise SchemaError(f"has a field without a name in {full}")
            inner, found, size, change = self._walked(field.get("type"), full.rpartition(".")[0], depth + 1)
            kept = {name: field[name] for name in ("name", "default", "aliases") if name in field}
            fields.append({**kept, "type": inner})
            types.append(pa.field(field["name"], found))
            changes.append((field["name"], change))
            least += size
        self._open.pop()
        both = (
            _of_fields([(name, change[0]) for name, change in changes]),
            _of_fields([(name, change[1]) for name, change in changes]),
        )
        return self._defined(schema, namespace, pa.struct(types), least, both, fields=fields)

    def _fixed(self, schema: Json, namespace: str, _: int) -> "_Walked":
        size, logical = schema.get("size"), schema.get("logicalType")
        if not isinstance(size, int) or size < 0:
            raise SchemaError(f"has a fixed without a size: {schema.get('name')}")
        if logical == "decimal" and (digits := _digits(schema)):
            parts = {"logicalType": "decimal", "precision": digits[0], "scale": digits[1]}
            changes = (None, _decimal_of(digits[1]))
            return self._defined(schema, namespace, pa.decimal128(*digits), size, changes, **parts)
        if logical == "uuid" and size == 16:
            return self._defined(schema, namespace, pa.string(), size, (_uuid_text, _uuid_text))
        return self._defined(schema, namespace, pa.binary(), size, _NO_CHANGES)

    def _array(self, schema: Json, namespace: str, depth: int) -> "_Walked":
        inner, item, least, changes = self._walked(schema.get("items"), namespace, depth + 1)
        if least == 0 and item != pa.string():
            raise SchemaError("has an array whose items take no bytes, which a few bytes could make endless")
        return {"type": "array", "items": inner}, pa.list_(item), 1, _both(changes, _of_items)

    def _union(self, schema: Json, namespace: str, depth: int) -> "_Walked":
        walked = [self._walked(branch, namespace, depth + 1) for branch in schema]
        raw = [branch[0] for branch in walked]
        others = [branch for branch in walked if branch[0] != "null"]
        if not others:
            return raw, pa.null(), 1, _NO_CHANGES
        if len(others) == 1:
            _, found, _, changes = others[0]
            return raw, found, 1, (_unnamed(changes[0]) if self.names_types else changes[0], changes[1])
        members = pa.struct([pa.field(f"member{place}", branch[1]) for place, branch in enumerate(others)])
        branches = [(f"member{place}", _fits(branch[0]), branch[3]) for place, branch in enumerate(others)]
        # An int is also a long, and no float is to become less than the double that it was.
        branches.sort(key=lambda branch: branch[1] is _is_float32)
        return (
            raw,
            members,
            1,
            (
                _member([(name, fits, change[0]) for name, fits, change in branches]),
                _member([(name, fits, change[1]) for name, fits, change in branches]),
            ),
        )


_Changes: TypeAlias = tuple[Change | None, Change | None]
"""For a value read by its own schema, and of one that another schema wrote. None: Arrow takes it as it is."""
_Walked: TypeAlias = tuple[Json, pa.DataType, int, _Changes]
"""A schema that stands alone, its type, the least bytes that a value takes, and what values need."""
_Fits: TypeAlias = Callable[[str | None, Any], bool]
"""Whether a value, with its type's name if it has one, is of a union's branch."""

_NO_CHANGES: Final[_Changes] = (None, None)
_LEAST: Final = {"null": 0, "float": 4, "double": 8}


def _loaded(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        # A bare name of a primitive type is a schema that some registries keep without quotes.
        if text.strip() in _PRIMITIVE:
            return text.strip()
        raise SchemaError("is no Avro schema: it is no JSON") from error


def _full_name(schema: Json, namespace: str) -> str:
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise SchemaError(f"has a {schema.get('type')} without a name")
    if "." in name:
        return name
    around = schema.get("namespace", namespace)
    return f"{around}.{name}" if around else name


def _has_wide_union(schema: Json, depth: int) -> bool:
    """Return whether a union in it has several branches besides null."""
    if depth > 4 * NESTING_MAX:
        raise SchemaError(f"has more than {NESTING_MAX} levels")
    if isinstance(schema, list):
        return len([branch for branch in schema if branch != "null"]) > 1 or any(
            _has_wide_union(branch, depth + 1) for branch in schema
        )
    if not isinstance(schema, dict):
        return False
    inner = [schema.get(name) for name in ("type", "items", "values")]
    inner += [field.get("type") for field in schema.get("fields") or () if isinstance(field, dict)]
    return any(_has_wide_union(each, depth + 1) for each in inner)


def _digits(schema: Json) -> tuple[int, int] | None:
    """A decimal's precision and scale, where Spark has such a type."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    is_right = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision
    return (precision, scale) if is_right and 0 < precision <= DECIMAL_DIGITS_MAX else None


def _logical(schema: Json, kind: str) -> _Walked:
    """A primitive type with what it stands for."""
    logical, least = schema.get("logicalType"), _LEAST.get(kind, 1)
    if kind == "long" and logical in _TIMESTAMPS:
        found, epoch, unit_us = _TIMESTAMPS[logical]
        return {"type": kind, "logicalType": logical}, found, least, (None, _moment_of(epoch, unit_us))
    if kind == "int" and logical == "date":
        return {"type": kind, "logicalType": logical}, pa.date32(), least, _NO_CHANGES
    if kind == "bytes" and logical == "decimal" and (digits := _digits(schema)):
        parts = {"type": kind, "logicalType": logical, "precision": digits[0], "scale": digits[1]}
        return parts, pa.decimal128(*digits), least, (None, _decimal_of(digits[1]))
    return kind, _PRIMITIVE[kind], least, _NO_CHANGES


def _both(changes: _Changes, wrap: Callable[[Change], Change]) -> _Changes:
    own, resolving = changes
    return own and wrap(own), resolving and wrap(resolving)


def _of_values(change: Change) -> Change:
    return lambda found: None if found is None else {name: change(value) for name, value in found.items()}


def _of_items(change: Change) -> Change:
    return lambda found: None if found is None else [change(item) for item in found]


def _of_fields(changes: Sequence[tuple[str, Change | None]]) -> Change | None:
    needed = [(name, change) for name, change in changes if change is not None]
    if not needed:
        return None

    def changed(found: Any) -> Any:
        if found is not None:
            for name, change in needed:
                found[name] = change(found[name])
        return found

    return changed


def _unnamed(change: Change | None) -> Change:
    def changed(found: Any) -> Any:
        value = found[1] if isinstance(found, tuple) else found
        return value if change is None else change(value)

    return changed


def _member(branches: Sequence[tuple[str, _Fits, Change | None]]) -> Change:
    def changed(found: Any) -> Any:
        if found is None:
            return None
        name, value = found if isinstance(found, tuple) else (None, found)
        for member, fits, change in branches:
            if fits(name, value):
                return {member: value if change is None else change(value)}
        raise UndecodableError("a union holds a value of none of its types")

    return changed


def _fits(branch: Json) -> _Fits:
    """Return how a value of a union's branch is known."""
    if isinstance(branch, dict) and "name" in branch:
        return _named_test(branch)
    if isinstance(branch, dict) and branch["type"] in ("array", "map"):
        wanted: type | tuple[type, ...] = list if branch["type"] == "array" else dict
    elif isinstance(branch, dict):
        wanted = {"long": datetime, "int": date, "bytes": Decimal}[branch["type"]]
    elif branch in _PRIMITIVE:
        if branch in _NUMBERS:
            return _NUMBERS[branch]
        wanted = {"boolean": bool, "string": str, "bytes": bytes}.get(branch, ())
    else:
        return lambda name, _: name == branch
    return lambda name, value: name is None and isinstance(value, wanted)


def _named_test(branch: Json) -> _Fits:
    full, fields = branch["name"], {field["name"] for field in branch.get("fields", ())}
    kinds: Mapping[str, tuple[type, ...]] = {"enum": (str,), "fixed": (bytes, Decimal)}
    wanted = kinds.get(branch["type"], (dict,))

    def fits(name: str | None, value: Any) -> bool:
        if name is not None:
            return bool(name == full)
        # The writer had no union here.
        return isinstance(value, wanted) and (not isinstance(value, dict) or value.keys() == fields)

    return fits


def _is_int32(name: str | None, value: Any) -> bool:
    return _is_int64(name, value) and -(2**31) <= value < 2**31


def _is_int64(name: str | None, value: Any) -> bool:
    return name is None and isinstance(value, int) and not isinstance(value, bool)


def _is_float32(name: str | None, value: Any) -> bool:
    return name is None and isinstance(value, float)


def _is_float64(name: str | None, value: Any) -> bool:
    return name is None and isinstance(value, float)


_NUMBERS: Final[Mapping[str, _Fits]] = {
    "int": _is_int32,
    "long": _is_int64,
    "float": _is_float32,
    "double": _is_float64,
}


def _moment_of(epoch: datetime, unit_us: int) -> Change:
    """Who wrote plain numbers meant what the reader's schema says of them."""
    return lambda found: epoch + timedelta(microseconds=found * unit_us) if isinstance(found, int) else found


def _decimal_of(scale: int) -> Change:
    def changed(found: Any) -> Any:
        if not isinstance(found, bytes):
            return found
        if len(found) > _DECIMAL_BYTES_MAX:
            raise UndecodableError(f"a decimal of {len(found)} bytes")
        return Decimal(int.from_bytes(found, "big", signed=True)).scaleb(-scale)

    return changed


def _uuid_text(found: Any) -> Any:
    return str(uuid.UUID(bytes=found)) if isinstance(found, bytes) else found


def _as_json(found: Any) -> Any:
    return None if found is None else json.dumps(found, default=_plain, ensure_ascii=False)


def _plain(value: object) -> str:
    """As Avro's own JSON has it: bytes are characters up to 255."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class AvroDecoder:
    """Decodes what any writer's schema wrote, as the reader's schema has it."""

    def __init__(self, reader: AvroSchema) -> None:
        self.type = reader.type
        self._reader = reader

    def load(self, registered: RegisteredSchema) -> AvroSchema:
        """A schema that wrote values. Raises SchemaError."""
        if registered.kind != "AVRO":
            raise SchemaError(f"is {registered.kind}, not Avro")
        return AvroSchema(registered.text, registered.references)

    def decode(self, values: pa.Array, writer: AvroSchema | None, *, whole: bool = False) -> Converted:
        """The values as an array of `type`.

        Args:
            writer: what they were written with; None: the reader's schema.
            whole: they have no header.
        """
        reader = self._reader
        is_own = writer is None or writer.json == reader.json
        written = reader if writer is None else writer
        read = python_reader.schemaless_reader if written.is_recursive else schemaless_reader
        change = reader.change if is_own else reader.resolving_change
        names_types = reader.names_types
        # Looked up once: this runs for every record.
        written_with, wanted, stream = written.parsed, None if is_own else reader.parsed, io.BytesIO
        start = 0 if whole else HEADER_BYTES

        def decode(value: bytes) -> Any:
            source = stream(value)
            source.seek(start)
            found = read(source, written_with, wanted, return_named_type=names_types)
            if source.tell() != len(value):
                raise UndecodableError(f"{len(value) - source.tell()} bytes are left over")
            return found if change is None else change(found)

        return convert(values.to_pylist(), decode, lambda found: pa.array(found, self.type))
