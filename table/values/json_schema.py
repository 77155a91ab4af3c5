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
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

import pyarrow as pa

from table.values.conversion import Converted, SchemaError, UndecodableError, convert
from table.values.registry import RegisteredSchema
from table.values.wire_format import HEADER_BYTES

NESTING_MAX: Final = 64
_REFERENCES_MAX: Final = 1000

Json: TypeAlias = Any
Check: TypeAlias = Callable[[Any], Any]
"""Gives what Arrow is to have of a value that is not null, or raises UndecodableError."""
_Column: TypeAlias = tuple[pa.DataType, Check]


class JsonSchema:
    """A schema's type, and the check of its values."""

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
        self.type, self.check = self._column(self._root, self._root, (), 0)

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
            fields = [pa.field(name, found) for name, (found, _) in columns.items()]
            return pa.struct(fields), _struct_check({name: check for name, (_, check) in columns.items()})
        values = schema.get("additionalProperties")
        if is_free or not isinstance(values, dict) or not values:
            return _TEXT
        found, check = self._column(values, document, around, depth + 1)
        return pa.map_(pa.string(), found), _map_check(check)

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
            return pa.list_(pa.string()), _list_check(_json_text)
        found, check = self._column(items, document, around, depth + 1)
        return pa.list_(found), _list_check(check)

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


_TEXT: Final[_Column] = (pa.string(), _json_text)
_SIMPLE: Final[Mapping[str, _Column]] = {
    "boolean": (pa.bool_(), _boolean),
    "integer": (pa.int64(), _integer),
    "number": (pa.float64(), _number),
    "string": (pa.string(), _string),
}


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
        self._check = schema.check

    def load(self, registered: RegisteredSchema) -> None:
        """Nothing: who wrote a value does not matter."""

    def decode(self, values: Sequence[bytes], writer: None, *, whole: bool = False) -> Converted:
        """The values as an array of `type`. JSON's null is a null without a reason.

        Args:
            writer: for other formats.
            whole: they have no header.
        """
        check, start = self._check, 0 if whole else HEADER_BYTES
        load = json.JSONDecoder(parse_constant=_no_number).decode

        def decode(value: bytes) -> Any:
            found = load(value[start:].decode("utf-8"))
            return None if found is None else check(found)

        return convert(values, decode, lambda found: pa.array(found, self.type))
