"""The Kafka messages of our own connections: which APIs, which versions, and how kio builds and reads them.

One set of field values serves every version of an API: `encode_request` fills the fields that the negotiated
version has and leaves out the others (topic name or topic id, for instance). A field that the version needs and
the caller did not give is our bug and raises TypeError.

kio costs a second to import: it is imported at the first message or by `preload_schemas`, never at import of this
module.
"""

import functools
import importlib.metadata
import io
import struct
import typing
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar

from protocol.client.errors import UpstreamProtocolError, UpstreamUnsupportedError
from protocol.client.fitting import fitted
from protocol.wire.errors import ErrorCode

T = TypeVar("T")

Values = Mapping[str, object]
"""Field names of kio's dataclasses to values; nested messages are Values themselves, arrays are sequences."""


@dataclass(frozen=True, slots=True)
class Api:
    """One Kafka API and the versions of it that our clients speak: what Kafka 2.8 has up to what kio has."""

    key: int
    name: str
    version_min: int
    version_max: int


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """One request. `read` makes the answer of the response's body and the broker's name, and raises
    UpstreamProtocolError where the body answers other questions than were asked."""

    api: Api
    values: Values = field(repr=False)
    read: Callable[[Any, str], T] = field(default=lambda body, _broker_name: body, repr=False)
    version_needed: int = 0
    """The lowest version that can answer."""


PRODUCE = Api(0, "produce", 3, 13)
FETCH = Api(1, "fetch", 4, 18)
LIST_OFFSETS = Api(2, "list_offsets", 1, 11)
METADATA = Api(3, "metadata", 10, 13)  # topic ids begin at 10
SASL_HANDSHAKE = Api(17, "sasl_handshake", 1, 1)
API_VERSIONS = Api(18, "api_versions", 3, 3)  # the software name begins at 3
OFFSET_FOR_LEADER_EPOCH = Api(23, "offset_for_leader_epoch", 2, 4)
DESCRIBE_CONFIGS = Api(32, "describe_configs", 1, 4)
SASL_AUTHENTICATE = Api(36, "sasl_authenticate", 1, 2)
DESCRIBE_PRODUCERS = Api(61, "describe_producers", 0, 0)

APIS = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    SASL_HANDSHAKE,
    API_VERSIONS,
    OFFSET_FOR_LEADER_EPOCH,
    DESCRIBE_CONFIGS,
    SASL_AUTHENTICATE,
    DESCRIBE_PRODUCERS,
)

SOFTWARE_NAME = "tidegate"

_UINT32_SIZE = 4


def negotiate(api: Api, offered: Mapping[int, tuple[int, int]], broker_name: str, version_needed: int = 0) -> int:
    """The newest version of `api` that both sides speak.

    Args:
        offered: api key to (lowest, highest) version, from the broker's ApiVersions.
        version_needed: the lowest version that answers the caller's question.

    Raises:
        UpstreamUnsupportedError: no common version, or none from version_needed on.
    """
    low, high = offered.get(api.key, (0, -1))
    version = min(high, api.version_max)
    if version < max(low, api.version_min, version_needed):
        has = f"has versions {low} to {high}" if high >= 0 else "does not have it"
        need = max(api.version_min, version_needed)
        hint = ""
        if api.key == METADATA.key:
            hint = ": it may be a KRaft controller's port; name brokers' ports in its place"
            hint = hint if high < 0 else ": it is older than Kafka 2.8, which has topic ids; upgrade it"
        raise UpstreamUnsupportedError(
            f"{broker_name}: {api.name} version {need} or later is needed, the broker {has}{hint}"
        )
    return version


def encode_request(api: Api, version: int, values: Values, correlation_id: int, client_id: str) -> bytes:
    """One whole request frame, its length included."""
    from kio import index, serial  # a second of import, which only callers that talk upstream need

    request_type = index.load_request_schema(api.key, version)
    header_type: Any = request_type.__header_schema__
    header = header_type(
        request_api_key=api.key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    buffer = io.BytesIO()
    buffer.write(bytes(_UINT32_SIZE))
    serial.entity_writer(header_type)(buffer, header)
    serial.entity_writer(request_type)(buffer, build(request_type, values))
    frame = buffer.getbuffer()
    struct.pack_into(">i", frame, 0, len(frame) - _UINT32_SIZE)
    return bytes(frame)


def decode_response(api: Api, version: int, frame: bytes | bytearray | memoryview, broker_name: str) -> Any:
    """The response body in a frame (without its length), as kio's dataclass of that version.

    Raises:
        UpstreamProtocolError: the bytes are no such response, or bytes are left over.
        UpstreamUnsupportedError: the broker does not know our version of ApiVersions (older than Kafka 2.4).
    """
    from kio import index, serial  # see encode_request

    if api is API_VERSIONS and len(frame) >= 6 and int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
        # such an answer comes in version 0's shape, whatever was asked
        raise UpstreamUnsupportedError(f"{broker_name} is older than Kafka 2.8, which Tidegate needs")
    response_type = index.load_response_schema(api.key, version)
    header_type: Any = response_type.__header_schema__
    try:
        data = fitted(bytes(frame), header_type, response_type)
        _, header_size = serial.entity_reader(header_type)(data, 0)
        body, _ = serial.entity_reader(response_type)(data, header_size)
    except Exception as error:  # whatever kio makes of bytes that are no such response
        raise UpstreamProtocolError(
            f"{broker_name}: bad {api.name} response, version {version}: {type(error).__name__}: {error}"
        ) from error
    return body


def build(entity_type: Any, values: Values) -> Any:
    """An instance of one of kio's dataclasses from plain values, nested ones included."""
    nested_types = _nested_types(entity_type)
    arguments: dict[str, object] = {}
    for name, nested_type in nested_types.items():
        if name not in values:
            continue
        value = values[name]
        if nested_type is not None and isinstance(value, Mapping):
            arguments[name] = build(nested_type, value)
        elif nested_type is not None and isinstance(value, list | tuple):
            arguments[name] = tuple(build(nested_type, item) for item in value)
        else:
            arguments[name] = tuple(value) if isinstance(value, list) else value
    return entity_type(**arguments)


def preload_schemas() -> None:
    """Import kio and the newest schemas of every API here: about a second, so call it in a thread before serving."""
    from kio import index, serial

    for api in APIS:
        for entity_type in (
            index.load_request_schema(api.key, api.version_max),
            index.load_response_schema(api.key, api.version_max),
        ):
            serial.entity_reader(entity_type)
            serial.entity_writer(entity_type)


@functools.cache
def software_version() -> str:
    """The installed distribution's version, for ApiVersions; a checkout that is not installed has none."""
    try:
        return importlib.metadata.version(SOFTWARE_NAME)
    except importlib.metadata.PackageNotFoundError:
        return "0"


def kio_uuid(topic_id: bytes) -> uuid.UUID | None:
    """A topic id as kio writes it: the zero id is None there."""
    return uuid.UUID(bytes=topic_id) if any(topic_id) else None


def uuid_bytes(value: uuid.UUID | None) -> bytes:
    """A topic id as the rest of Tidegate holds it: 16 bytes."""
    return bytes(16) if value is None else value.bytes


@functools.cache
def _nested_types(entity_type: Any) -> dict[str, Any]:
    """Each field's name, and the dataclass that it or its items are made of, or None."""
    hints = typing.get_type_hints(entity_type)
    return {field.name: _dataclass_in(hints[field.name]) for field in fields(entity_type)}


def _dataclass_in(hint: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    for argument in typing.get_args(hint):
        found = _dataclass_in(argument)
        if found is not None:
            return found
    return None
