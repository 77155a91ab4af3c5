"""Frames written and read by kio, the independent codec that our own is held against.

`schema` gives kio's class of a message; with `unknown_tag` a copy of it whose every structure also carries a
tagged field that no Kafka knows, which kio then writes, and finds again only if it survived. `fill` makes a
message of a class from a superset of values, so that one set of values serves all versions.
"""

import datetime
import functools
import io
import struct
import uuid
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass, make_dataclass
from types import EllipsisType
from typing import Any, Literal, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

UNKNOWN_TAG = 99
TAGGED_HEADER = b"\x01\x63\x02hi"
"""A header's tagged section with one unknown field."""

Kind = Literal["request", "response"]

_SAMPLES: Mapping[str, object] = {
    "bool": True,
    "bytes": b"bytes",
    "datetime_i64": datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC),
    "error_code": ErrorCode.none,
    "records": b"records",
    "string": "text",
    "timedelta_i64": datetime.timedelta(milliseconds=78),
    "timedelta_i32": datetime.timedelta(milliseconds=77),
    "uuid": uuid.UUID(int=7),
}
_SAMPLE_INTEGER = 7


def versions_of(api_key: int, kind: Kind = "response") -> list[int]:
    """Every version of an API that kio knows."""
    load = load_response_schema if kind == "response" else load_request_schema
    known = []
    for version in range(40):
        try:
            load(api_key, version)
        except RuntimeError:
            continue
        known.append(version)
    return known


def schema(api_key: int, api_version: int, *, kind: Kind = "response", unknown_tag: bool = False) -> Any:
    """kio's class of a message; the copy with an unknown tag only where the version is flexible."""
    plain: Any = (load_response_schema if kind == "response" else load_request_schema)(api_key, api_version)
    return _with_unknown_tag(plain) if unknown_tag and plain.__flexible__ else plain


def fill(entity_type: Any, values: Mapping[str, object]) -> Any:
    """A message whose fields are taken from `values` by name, in every structure, or else are samples.

    A structure is a mapping, an array of structures a list of mappings; either may be null.
    """
    chosen = {}
    for each in fields(entity_type):
        nested, is_array = _nested(each)
        if each.name not in values:
            chosen[each.name] = _sample(each, nested, is_array, values)
            continue
        value: Any = values[each.name]
        if nested is None or value is None:
            chosen[each.name] = value
        elif is_array:
            chosen[each.name] = tuple(fill(nested, element) for element in value)
        else:
            chosen[each.name] = fill(nested, value)
    return entity_type(**chosen)


def encode(message: Any) -> bytes:
    """The body of a message as kio writes it."""
    with io.BytesIO() as buffer:
        entity_writer(type(message))(buffer, message)
        return buffer.getvalue()


def decode(entity_type: Any, body: bytes) -> Any:
    """The message that kio reads; all of the body must be used."""
    message, size = entity_reader(entity_type)(body, 0)
    if size != len(body):
        raise ValueError(f"{len(body) - size} bytes left")
    return message


def response_header(message: Any, correlation_id: int, *, unknown_tag: bool = False) -> bytes:
    """The header that kio's schema says the response has."""
    has_tags = message.__header_schema__.__flexible__
    tags = (TAGGED_HEADER if unknown_tag else b"\x00") if has_tags else b""
    return struct.pack(">i", correlation_id) + tags


def response_frame(message: Any, correlation_id: int = 5, *, unknown_tag: bool = False) -> bytes:
    """A whole response frame."""
    return with_length(response_header(message, correlation_id, unknown_tag=unknown_tag) + encode(message))


def request_frame(
    message: Any, correlation_id: int = 5, client_id: str | None = "client", *, unknown_tag: bool = False
) -> bytes:
    """A whole request frame."""
    header_type = message.__header_schema__
    raw = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(raw)
    header = struct.pack(">hhih", message.__api_key__, message.__version__, correlation_id, length)
    tags = (TAGGED_HEADER if unknown_tag else b"\x00") if header_type.__flexible__ else b""
    return with_length(header + raw + tags + encode(message))


def nested_type(each: Field[Any]) -> Any:
    """The structure that a field holds, alone or as an array's element; None for a primitive."""
    return _nested(each)[0]


def with_length(payload: bytes) -> bytes:
    """The payload as a frame."""
    return struct.pack(">i", len(payload)) + payload


def _sample(each: Field[Any], nested: Any, is_array: bool, values: Mapping[str, object]) -> object:
    if nested is not None:
        one = fill(nested, values)
        return (one,) if is_array else one
    one = _SAMPLES.get(each.metadata["kafka_type"], _SAMPLE_INTEGER)
    return (one,) if is_array else one


def _nested(each: Field[Any]) -> tuple[Any, bool]:
    """The structure that a field holds, if any, and whether the field is an array."""
    inner: Any = each.type
    array = next((part for part in (inner, *get_args(inner)) if get_origin(part) is tuple), None)
    is_array = array is not None
    if is_array:
        inner = next(part for part in get_args(array) if not isinstance(part, EllipsisType))
    for part in (inner, *get_args(inner)):
        if isinstance(part, type) and is_dataclass(part):
            return part, is_array
    return None, is_array


@functools.cache
def _with_unknown_tag(entity_type: Any) -> Any:
    copied: list[tuple[str, Any, Any]] = []
    for each in fields(entity_type):
        nested, is_array = _nested(each)
        own_type: Any = each.type
        if nested is not None:
            own_type = _with_unknown_tag(nested)
            own_type = tuple[own_type, ...] if is_array else own_type
        if "tag" in each.metadata and (nested is None or is_array):
            copied.append((each.name, own_type, field(metadata=each.metadata, default=each.default)))
        else:
            copied.append((each.name, own_type, field(metadata=each.metadata)))
    copied.append(("unknown", str, field(metadata={"kafka_type": "string", "tag": UNKNOWN_TAG})))
    marks = {name: getattr(entity_type, name) for name in dir(entity_type) if _is_mark(name)}
    return make_dataclass(entity_type.__name__, copied, namespace=marks, frozen=True, kw_only=True)


def _is_mark(name: str) -> bool:
    return name in {"__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__"}
