"""JSON: a JSON Schema as Arrow types, and a decoder.

| JSON Schema | Arrow, and so Spark |
|---|---|
| boolean, integer, number, string | boolean, bigint, double, string |
| object with properties | struct; what a record has beyond them is left out |
| object without, and `additionalProperties` with a schema | map<string, …> |
| array with `items` | array |
| `type` with null, oneOf or anyOf of null and one more | nullable |
| enum and const of one type | that type |
| `$ref` | what it refers to: in the schema, or in a reference of the registry |
| allOf of objects | struct of all their properties |
| anything else: no type, several types, free objects, a schema inside itself | string: that part as JSON |

A schema gives columns; it is not used to validate (`minimum`, `pattern`, `format`, `required` …). What has not the
column's type is not decoded: a number where a string should be is a dead letter. A property that is absent is null.
NaN, Infinity, and numbers beyond 64 bits in a bigint, are refused too.

msgspec reads the values. What it refuses is read by Python's own reader and checked here, which has the last word: it
takes an integer that is written as 1.0, and says why it does not take the rest. So is every object that has a property
whose name msgspec cannot look for.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import GenericAlias
from typing import Annotated, Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from table.values.conversion import Converted, SchemaError, UndecodableError, convert, replaced
from table.values.registry import RegisteredSchema
from table.values.wire_format import HEADER_BYTES

NESTING_MAX: Final = 64
_REFERENCES_MAX: Final = 1000

Json: TypeAlias = Any
Check: TypeAlias = Callable[[Any], Any]
"""Gives what Arrow is to have of a value that is not null, or raises UndecodableError."""
Columns: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""An array of what msgspec read."""


class _Column(NamedTuple):
    """How one schema's values become columns.

    Attributes:
        type: as Arrow has it.
        check: for what Python's own reader has read.
        read_as: the type by which msgspec reads.
        columns: what makes arrays of what msgspec has read.
    """

    type: pa.DataType
    check: Check
    read_as: Any
    columns: Columns


class JsonSchema:
    """A schema's column."""

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        """`references`: names and texts of the schemas that this one refers to, and of those that they refer to.

        Raises:
            SchemaError: it is no JSON Schema, or refers to what is not there.
        """
        self._documents = {name: _loaded(reference) for name, reference in references}
        self._root = _loaded(text)
        for document in list(self._documents.values()):
            if isinstance(document, dict) and isinstance(document.get("$id"), str):
                self._documents.setdefault(document["$id"], document)
        self._resolved = 0
        self.column = self._column(self._root, self._root, (), 0)
        self.type = self.column.type

    def _column(self, schema: Json, document: Json, around: tuple[int, ...], depth: int) -> _Column:
        """The column of a schema that is a part of `document`; `around`: the schemas that it is inside of."""
        if depth > NESTING_MAX:
            raise SchemaError(f"has more than {NESTING_MAX} levels")
        schema, document = self._referred(schema, document)
        if not isinstance(schema, dict) or id(schema) in around:
            return _TEXT
        around = (*around, id(schema))
        choices = [branch for name in ("oneOf", "anyOf") for branch in schema.get(name) or ()]
        if choices and "properties" not in schema:
            others = [branch for branch in choices if not _is_null(branch)]
            return self._column(others[0], document, around, depth + 1) if len(others) == 1 else _TEXT
        kinds = _kinds(schema)
        if kinds == {"object"} or (not kinds and ("properties" in schema or "allOf" in schema)):
            return self._object(schema, document, around, depth)
        if kinds == {"array"}:
            return self._array(schema, document, around, depth)
        if kinds in ({"integer", "number"}, {"number"}):
            return _SIMPLE["number"]
        return _SIMPLE.get(kinds.pop(), _TEXT) if len(kinds) == 1 else _TEXT

    def _object(self, schema: Json, document: Json, around: tuple[int, ...], depth: int) -> _Column:
        columns: dict[str, _Column] = {}
        is_free = self._add_properties(schema, document, around, depth, columns)
        if columns:
            return _struct(columns)
        values = schema.get("additionalProperties")
        if is_free or not isinstance(values, dict) or not values:
            return _TEXT
        return _map(self._column(values, document, around, depth + 1))

    def _add_properties(
        self, schema: Json, document: Json, around: tuple[int, ...], depth: int, columns: dict[str, _Column]
    ) -> bool:
        """Return whether what allOf asks for is more than objects with properties."""
        properties = schema.get("properties") or {}
        if not isinstance(properties, dict):
            raise SchemaError("has properties that are no object")
        for name, inner in properties.items():
            columns[name] = self._column(inner, document, around, depth + 1)
        is_free = "patternProperties" in schema
        for part in schema.get("allOf") or ():
            found, where = self._referred(part, document)
            if not isinstance(found, dict) or id(found) in around or depth > NESTING_MAX:
                is_free = True
            else:
                is_free |= self._add_properties(found, where, (*around, id(found)), depth + 1, columns)
        return is_free

    def _array(self, schema: Json, document: Json, around: tuple[int, ...], depth: int) -> _Column:
        items = schema.get("items")
        if not isinstance(items, dict) or not items:
            return _list(_TEXT)
        return _list(self._column(items, document, around, depth + 1))

    def _referred(self, schema: Json, document: Json) -> tuple[Json, Json]:
        """Return what a `$ref` refers to, and the document that it is in."""
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            self._resolved += 1
            if self._resolved > _REFERENCES_MAX:
                raise SchemaError(f"has more than {_REFERENCES_MAX} references, or they go in a circle")
            address, fragment = urldefrag(schema["$ref"])
            if address:
                document = self._document(address, document)
            schema = _at(document, fragment)
        return schema, document

    def _document(self, address: str, document: Json) -> Json:
        base = document.get("$id") if isinstance(document, dict) else None
        for name in (address, urljoin(base, address) if isinstance(base, str) else address):
            if name in self._documents:
                return self._documents[name]
            if isinstance(self._root, dict) and self._root.get("$id") == name:
                return self._root
        raise SchemaError(f"refers to {address}, which is not there")


def _loaded(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("is no JSON Schema: it is no JSON") from error


def _at(document: Json, fragment: str) -> Json:
    """Return what a JSON pointer points at, or a `$anchor` of the document's definitions."""
    found = document
    if fragment and not fragment.startswith("/"):
        definitions = [each for name in ("$defs", "definitions") for each in (document.get(name) or {}).values()]
        for each in definitions:
            if isinstance(each, dict) and fragment in (each.get("$anchor"), str(each.get("$id", "")).removeprefix("#")):
                return each
        raise SchemaError(f"refers to #{fragment}, which is not there")
    for part in fragment.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise SchemaError(f"refers to #{fragment}, which is not there")
    return found


def _is_null(schema: Json) -> bool:
    return isinstance(schema, dict) and _kinds(schema) == {"null"}


def _kinds(schema: Mapping[str, Json]) -> set[str]:
    """The types that a schema lets through, null aside if there are more; empty: any."""
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        kinds = {kind for kind in given if isinstance(kind, str)}
    else:
        values = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
        kinds = {_KIND_OF[type(value)] for value in values}
    return kinds - {"null"} or kinds


_KIND_OF: Final = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    dict: "object",
    list: "array",
}
_INT64 = 2**63


def _refuse(value: Any, wanted: str) -> UndecodableError:
    return UndecodableError(f"{_KIND_OF[type(value)]} in place of {wanted}")


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(value, "a boolean")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        if type(value) is float and value.is_integer():
            value = int(value)
        else:
            raise _refuse(value, "an integer")
    if not -_INT64 <= value < _INT64:
        raise UndecodableError("an integer of more than 64 bits")
    found: int = value
    return found


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _refuse(value, "a number")
    return float(value)


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _refuse(value, "a string")
    return value


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Text(str):
    """What a part that stays JSON is to msgspec."""


class _Unreadable:
    """What an object is to msgspec if it cannot look for one of its properties."""


def _made_of(wanted: type, value: Any) -> _Text:
    """Return what msgspec is to have where the types above are wanted."""
    if wanted is _Unreadable:
        raise UndecodableError("a property's name is not one that msgspec reads")
    return _Text(_json_text(value))


def _plain(of_type: pa.DataType, check: Check, read_as: Any) -> _Column:
    return _Column(of_type, check, read_as, lambda values: pa.array(values, of_type))


def _integers(values: Sequence[int | None]) -> pa.Array:
    try:
        return pa.array(np.fromiter(values, np.int64, len(values)))
    except TypeError:  # one is null
        return pa.array(values, pa.int64())


_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)]
_TEXT: Final = _plain(pa.string(), _json_text, _Text)
_SIMPLE: Final[Mapping[str, _Column]] = {
    "boolean": _plain(pa.bool_(), _boolean, bool),
    "integer": _Column(pa.int64(), _integer, _Int64, _integers),
    "number": _plain(pa.float64(), _number, float),
    "string": _plain(pa.string(), _string, str),
}
_UNREADABLE_NAME: Final = re.compile(r'["\\\x00-\x1f]')


def _struct(fields: Mapping[str, _Column]) -> _Column:
    struct = pa.struct([pa.field(name, column.type) for name, column in fields.items()])
    check = _struct_check({name: column.check for name, column in fields.items()})
    if any(map(_UNREADABLE_NAME.search, fields)):
        return _plain(struct, check, _Unreadable)
    # Properties may have any other name, attributes may not.
    names = {f"field{place}": name for place, name in enumerate(fields)}
    attributes = [(attribute, fields[name].read_as | None, None) for attribute, name in names.items()]
    read_as = msgspec.defstruct("Object", attributes, rename=names, gc=False)
    makers = [column.columns for column in fields.values()]
    nothing, struct_fields = read_as(), list(struct)

    def columns(values: Sequence[Any]) -> pa.Array:
        objects, mask = values, None
        if not all(values):  # an object is true, even an empty one
            mask = pa.array([value is None for value in values])
            objects = [value or nothing for value in values]
        # One tuple lives at a time: among many, Python's garbage collector would search for cycles.
        flat: list[Any] = []
        for each in objects:
            flat += astuple(each)
        arrays = [make(flat[place :: len(makers)]) for place, make in enumerate(makers)]
        return pa.StructArray.from_arrays(arrays, fields=struct_fields, mask=mask)

    return _Column(struct, check, read_as, columns)


def _list(item: _Column) -> _Column:
    of_type = pa.list_(item.type)

    def columns(values: Sequence[Any]) -> pa.Array:
        if not pa.types.is_nested(item.type):
            return pa.array(values, of_type)
        bounds, mask, present = _bounds(values)
        items = item.columns(list(chain.from_iterable(present)))
        return pa.ListArray.from_arrays(bounds, items, type=of_type, mask=mask)

    return _Column(of_type, _list_check(item.check), GenericAlias(tuple, (item.read_as | None, ...)), columns)


def _map(value: _Column) -> _Column:
    of_type = pa.map_(pa.string(), value.type)

    def columns(values: Sequence[Any]) -> pa.Array:
        bounds, mask, present = _bounds(values)
        keys = pa.array(list(chain.from_iterable(present)), pa.string())
        items = value.columns(list(chain.from_iterable(each.values() for each in present)))
        return pa.MapArray.from_arrays(bounds, keys, items, type=of_type, mask=mask)

    return _Column(of_type, _map_check(value.check), GenericAlias(dict, (str, value.read_as | None)), columns)


def _bounds(values: Sequence[Any]) -> tuple[pa.Array, pa.Array | None, list[Any]]:
    """Return where items of each value begin and end, which values are null, and those that are not."""
    is_null = [value is None for value in values]
    bounds = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=bounds[1:])
    present = [value for value in values if value is not None]
    return pa.array(bounds), pa.array(is_null) if any(is_null) else None, present


def _struct_check(checks: Mapping[str, Check]) -> Check:
    fields = tuple(checks.items())

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _refuse(value, "an object")
        found = {}
        for name, check_field in fields:
            inner = value.get(name)
            if inner is not None:
                try:
                    found[name] = check_field(inner)
                except UndecodableError as error:
                    raise UndecodableError(f"{name}: {error}") from None
        return found

    return check


def _map_check(check_value: Check) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _refuse(value, "an object")
        return {name: None if inner is None else check_value(inner) for name, inner in value.items()}

    return check


def _list_check(check_item: Check) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise _refuse(value, "an array")
        return [None if item is None else check_item(item) for item in value]

    return check


def _no_number(text: str) -> None:
    raise UndecodableError(f"{text} is no JSON")


class JsonDecoder:
    """Decodes JSON as one schema has it, whichever version wrote it."""

    def __init__(self, schema: JsonSchema) -> None:
        self.type = schema.type
        self._check, self._columns = schema.column.check, schema.column.columns
        reader = msgspec.json.Decoder(schema.column.read_as | None, dec_hook=_made_of)
        self._read, self._read_lines = reader.decode, reader.decode_lines

    def load(self, registered: RegisteredSchema) -> None:
        """Nothing: who wrote a value does not matter."""

    def decode(self, values: pa.Array, writer: None, *, whole: bool = False) -> Converted:
        """The values as an array of `type`. JSON's null is a null without a reason.

        Args:
            writer: for other formats.
            whole: they have no header.
        """
        header_bytes = 0 if whole else HEADER_BYTES
        try:
            return self._columns(self._read_all(values, header_bytes)), {}
        except Exception:  # one of them is not as msgspec wants it: which, the next tells
            return self._one_by_one([value[header_bytes:] for value in values.to_pylist()])

    def _read_all(self, values: pa.Array, header_bytes: int) -> list[Any]:
        """Read all values as one text, a line each. Raises if one of them has to be looked at alone.

        Each begins with { and ends with }. A line break is in no string, and } and { follow each other only between
        objects that are inside of none. So each line is one object or several, and if there are as many as lines, one.
        """
        lines = pc.binary_replace_slice(values, 0, header_bytes, b"\n")
        lines.cast(pa.string())  # raises for what is no UTF-8, which msgspec skips in what it does not need
        _, offsets, data = lines.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(lines) + 1)
        text, starts, ends = np.frombuffer(data, np.uint8, bounds[-1]), bounds[:-1], bounds[1:]
        if (text[starts + 1] != ord("{")).any() or (text[ends - 1] != ord("}")).any():
            raise UndecodableError("not all are objects")
        if (ends - starts).max() > _DIGITS_MAX and _has_long_number(text):
            raise UndecodableError("a number that Python does not read")
        found = self._read_lines(text.data)
        if len(found) != len(lines):
            raise UndecodableError("a line has several objects")
        return found

    def _one_by_one(self, texts: Sequence[bytes]) -> Converted:
        found, refused = [], []
        for place, text in enumerate(texts):
            try:
                if len(text) > _DIGITS_MAX and _has_long_number(np.frombuffer(text, np.uint8)):
                    raise UndecodableError("a number that Python does not read")
                found.append(self._read(text.decode("utf-8")))
            except Exception:  # the checks say it in our words, or take the value
                found.append(None)
                refused.append(place)
        array = self._columns(found)
        return replaced(array, refused, self._checked([texts[place] for place in refused])) if refused else (array, {})

    def _checked(self, values: Sequence[bytes]) -> Converted:
        check, load = self._check, json.JSONDecoder(parse_constant=_no_number).decode

        def decode(value: bytes) -> Any:
            found = load(value.decode("utf-8"))
            return None if found is None else check(found)

        return convert(values, decode, lambda found: pa.array(found, self.type))


_DIGITS_MAX: Final = 4300
"""Python reads no integer of more (sys.get_int_max_str_digits); msgspec skips one where it needs none."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (_DIGITS_MAX + 1))
_BLOCK_BYTES: Final = _DIGITS_MAX // 2
"""One such block at least is inside as many digits, wherever they begin."""


def _has_long_number(text: npt.NDArray[np.uint8]) -> bool:
    blocks = text[: len(text) // _BLOCK_BYTES * _BLOCK_BYTES].reshape(-1, _BLOCK_BYTES)
    # Only then: the expression takes ten times as long as msgspec.
    return bool((blocks - ord("0")).max(axis=1).min() <= 9 and _LONG_NUMBER.search(text.data))
