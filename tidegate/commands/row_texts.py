"""Rows of Arrow as JSON and as text: what people and programs read that know no Arrow. Imported by who has pyarrow.

- Bytes are text where they are UTF-8; otherwise base64, and a member `…_encoding` says so, as in `tidegate cat`. In a
  list, where no member can say it, they are `{"base64": …}`.
- Times are ISO 8601 with milliseconds, or as many digits as they have more; those with a zone are UTC and end in Z.
- Decimals and intervals are text, so that no digit is lost; a decimal without a fraction is a number.
- No number of JSON is NaN or infinite: these are text, as in Protobuf's JSON.
"""

import base64
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa

from tidegate.commands.output import text_or_base64

Convert = Callable[[Any], Any]
"""Takes a value of `to_pylist` that is not None; gives what JSON has."""

Put = Callable[[dict[str, Any], str, Any], None]
"""Adds a member to an object."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EACH_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True, slots=True)
class Texts:
    """One column of a batch as JSON has it. `marks`: "base64" where a value is that; None: it is nowhere."""

    name: str
    values: list[Any]
    marks: list[str | None] | None = None


class RowTexts:
    """Converts batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [(field.name, _plain(field.type), _convert(field.type)) for field in schema]

    def columns(self, batch: pa.RecordBatch) -> list[Texts]:
        return [
            _binary_texts(name, column) if is_binary(column.type) else Texts(name, _values(column, plain, convert))
            for column, (name, plain, convert) in zip(batch.columns, self._columns, strict=True)
        ]

    def documents(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        """Each row as an object; its members are in the columns' order."""
        members: dict[str, list[Any]] = {}
        marks: list[str] = []
        for column in self.columns(batch):
            members[column.name] = column.values
            if column.marks is not None:
                marks.append(f"{column.name}_encoding")
                members[marks[-1]] = column.marks
        for row in zip(*members.values(), strict=True):
            document = dict(zip(members, row, strict=True))
            for name in marks:
                if document[name] is None:
                    del document[name]
            yield document


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values of the type are bytes."""
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def json_text(value: Any) -> str:
    """A value on one line."""
    return _ENCODER.encode(value)


def _values(column: pa.Array, plain: pa.DataType, convert: Convert | None) -> list[Any]:
    values: list[Any] = (column if column.type == plain else column.cast(plain)).to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _binary_texts(name: str, column: pa.Array) -> Texts:
    try:
        return Texts(name, column.cast(pa.string()).to_pylist())
    except pa.ArrowInvalid:  # one at least is no UTF-8
        documents = [text_or_base64("", value) for value in column.to_pylist()]
        return Texts(name, [each[""] for each in documents], [each.get("_encoding") for each in documents])


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for times: Python's end at the year 9999, and a producer may write any."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date64(kind):
        return pa.int64()
    if types.is_date32(kind):
        return pa.int32()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind


def _put(kind: pa.DataType) -> Put:
    if is_binary(kind):
        return lambda document, name, value: document.update(text_or_base64(name, value))
    convert = _convert(kind)
    if convert is None:
        return dict.__setitem__

    def put(document: dict[str, Any], name: str, value: Any) -> None:
        document[name] = None if value is None else convert(value)

    return put


def _convert(kind: pa.DataType) -> Convert | None:
    """None: values are JSON's own."""
    types = pa.types
    if types.is_timestamp(kind):
        return _time_of(kind.unit, "" if kind.tz is None else "Z")
    if types.is_date32(kind):
        return lambda days: _day(days) or days
    if types.is_date64(kind):
        return lambda ms: _day(ms // 86_400_000) or ms
    if types.is_struct(kind):
        return _object_of({field.name: _put(field.type) for field in kind})
    if types.is_map(kind):
        return _map_of(_put(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list_of(_element(kind.value_type))
    if types.is_floating(kind):
        return _number
    if types.is_decimal(kind) and kind.scale <= 0:
        return int
    is_own = types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind) or _is_text(kind)
    return None if is_own else str


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_dictionary(kind)
    )


def _object_of(puts: Mapping[str, Put]) -> Convert:
    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for name, put in puts.items():
            put(document, name, value[name])
        return document

    return convert


def _map_of(put: Put) -> Convert:
    def convert(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for key, value in pairs:
            put(document, key if isinstance(key, str) else _bytes_or_number(key), value)
        return document

    return convert


def _bytes_or_number(key: Any) -> str:
    return str(text_or_base64("", key)[""]) if isinstance(key, bytes) else str(key)


def _element(kind: pa.DataType) -> Convert | None:
    return _bytes_of_list if is_binary(kind) else _convert(kind)


def _bytes_of_list(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _list_of(convert: Convert | None) -> Convert:
    if convert is None:
        return list
    return lambda values: [None if value is None else convert(value) for value in values]


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time_of(unit: str, zone: str) -> Convert:
    each_second = _EACH_SECOND[unit]

    def convert(count: int) -> str | int:
        microseconds, rest = divmod(count * 1_000_000, each_second)
        try:
            at = _EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            return count
        if rest:
            return f"{at.isoformat(timespec='microseconds')}{rest // 1_000_000:03}{zone}"
        return at.isoformat(timespec="microseconds" if microseconds % 1000 else "milliseconds") + zone

    return convert


def _day(days: int) -> str | None:
    try:
        return date.fromordinal(_EPOCH_DAY + days).isoformat()
    except (OverflowError, ValueError):
        return None
