"""Protobuf: messages as Arrow types, and a decoder that makes whole columns of many messages.

| Protobuf | Arrow, and so Spark |
|---|---|
| int32, sint32, sfixed32 | int |
| int64, sint64, sfixed64, uint32, fixed32 | bigint |
| uint64, fixed64 | decimal(20, 0) |
| float, double, bool, string, bytes | float, double, boolean, string, binary |
| enum | string: the name, or the number where no name has it |
| message, group | struct |
| repeated | array |
| map | map |
| oneof | its fields, of which one is not null |
| google.protobuf.Timestamp | timestamp |
| google.protobuf.Duration | interval day to second |
| google.protobuf.Int32Value and the other wrappers | nullable value |
| google.protobuf.Struct, Value, ListValue, and a message inside itself | string: that part as JSON |
| google.protobuf.Any | struct<type_url, value> |

A field that knows whether it is set (a message, one of a oneof, `optional`, proto2) is null where it is not, or has the
default that the file gives it; any other is 0, false or empty, as Protobuf has it.

Records are decoded with the reader's message, whatever version wrote them: Protobuf's own resolution is by field
number. The writer's file only tells which message the header's indexes name; another message is not decoded.
"""

import base64
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from table.decoding.varint_lanes import Flags
from table.values.conversion import Converted, SchemaError, UndecodableError, convert, replaced
from table.values.protobuf_wire import FREE, MOMENTS, SCALARS, WRAPPERS, MessageColumns, UncoveredError, wire_of
from table.values.registry import RegisteredSchema
from table.values.wire_format import HEADER_BYTES, message_indexes

NESTING_MAX: Final = 64
COMPILE_S_MAX: Final = 60.0
WIRE_ROWS_MIN: Final = 256
"""Fewer are read sooner by the library: numpy's and Arrow's calls take 2 ms, and hardly more for twice as many rows."""
_FILES_MAX: Final = 1000

Columns: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""An array of values of one type, and of None."""

_F = FieldDescriptor
_MICROSECONDS: Final = 1_000_000


class ProtobufSchema:
    """A schema's file with all that it imports.

    Attributes:
        name: of its file.
    """

    def __init__(self, files: bytes) -> None:
        """`files`: a serialized FileDescriptorSet, imported files first, the schema's own last.

        Raises:
            SchemaError: it is none, or a file that it imports is missing.
        """
        self.files = files
        try:
            descriptors = descriptor_pb2.FileDescriptorSet.FromString(files)
            if not descriptors.file:
                raise SchemaError("is no set of Protobuf descriptors: it has no file")
            pool = DescriptorPool()
            for file in _with_well_known(descriptors.file):
                pool.Add(file)
            self.name = descriptors.file[-1].name
            self._pool = pool
            self._file = pool.FindFileByName(self.name)
        except SchemaError:
            raise
        except Exception as error:  # each implementation has its own for what is wrong in a file
            raise SchemaError(f"is no set of Protobuf descriptors: {error}") from error

    def message(self, name: str | None) -> Descriptor:
        """A message by its name, with or without its package; None: the only one of the file.

        Raises:
            SchemaError: there is none.
        """
        top = list(self._file.message_types_by_name.values())
        if name is None:
            if len(top) != 1:
                names = ", ".join(found.full_name for found in top) or "none"
                raise SchemaError(f"has several messages, or none, and no option says which one is meant: {names}")
            return top[0]
        for found in _all_messages(top):
            if name in (found.full_name, found.full_name.removeprefix(f"{self._file.package}.")):
                return found
        known = ", ".join(found.full_name for found in top)
        raise SchemaError(f"has no message {name} in {self.name}; its messages are {known}")

    def messages_at(self, indexes: Sequence[int]) -> list[Descriptor]:
        """The message that such a path means to Java's serializer, and what it means to others, if that is another.

        A map field has a hidden message of its own. Java does not count it, Python does.
        """
        found = [self._walk(indexes, counts_entries=False), self._walk(indexes, counts_entries=True)]
        return [message for message in found if message is not None]

    def _walk(self, indexes: Sequence[int], *, counts_entries: bool) -> Descriptor | None:
        found: Descriptor | None = None
        # Dictionaries of a descriptor are in the file's order.
        inner: Sequence[Descriptor] = list(self._file.message_types_by_name.values())
        for index in indexes:
            if index >= len(inner):
                return None
            found = inner[index]
            nested = found.nested_types
            inner = [each for each in nested if counts_entries or not each.GetOptions().map_entry]
        return found


def _all_messages(messages: Sequence[Descriptor]) -> Iterator[Descriptor]:
    waiting = list(messages)
    while waiting:
        found = waiting.pop(0)
        yield found
        waiting += found.nested_types


def _with_well_known(
    files: Sequence[descriptor_pb2.FileDescriptorProto],
) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """The files in an order in which each comes after what it imports, with Google's own where they are missing."""
    given = {file.name: file for file in files}
    done: set[str] = set()

    def visit(name: str, depth: int) -> Iterator[descriptor_pb2.FileDescriptorProto]:
        if name in done or depth > _FILES_MAX:
            return
        done.add(name)
        file = given.get(name) or _googles_file(name)
        for imported in file.dependency:
            yield from visit(imported, depth + 1)
        yield file

    for file in files:
        yield from visit(file.name, 0)


def _googles_file(name: str) -> descriptor_pb2.FileDescriptorProto:
    """A file that protoc brings along, out of the library that has it too."""
    match = re.fullmatch(r"google/protobuf/(\w+)\.proto", name)
    if match and importlib.util.find_spec(f"google.protobuf.{match[1]}_pb2") is not None:
        found = descriptor_pb2.FileDescriptorProto()
        importlib.import_module(f"google.protobuf.{match[1]}_pb2").DESCRIPTOR.CopyToProto(found)
        return found
    raise SchemaError(f"imports {name}, which is not there")


def descriptors_of(text: str, references: Sequence[tuple[str, str]] = (), *, name: str = "schema.proto") -> bytes:
    """The FileDescriptorSet of a schema as a registry has it: serialized (base64), or as .proto text.

    Args:
        references: names and texts of the files that it imports, and of those that they import.
        name: of the schema's own file.

    Raises:
        SchemaError: it is neither, or text that cannot be compiled here.
    """
    found = [_serialized(imported, path) for path, imported in references]
    own = _serialized(text, name)
    if own is not None and all(file is not None for file in found):
        files = [file for file in found if file is not None]
        return descriptor_pb2.FileDescriptorSet(file=[*files, own]).SerializeToString()
    if own is not None or any(file is not None for file in found):
        raise SchemaError("is partly text and partly serialized")
    return compiled({**dict(references), name: text}, name)


def _serialized(text: str, name: str) -> descriptor_pb2.FileDescriptorProto | None:
    if re.fullmatch(r"[A-Za-z0-9+/\s]*=*\s*", text) is None:
        return None  # text of a file has a quote, a brace or a semicolon
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=False))
    except Exception as error:  # binascii's and the library's
        raise SchemaError(f"is neither .proto text nor a serialized file: {error}") from error
    # Confluent's registry calls a schema's own file "default"; it is imported by the reference's name.
    file.name = name
    return file


def compiled(files: Mapping[str, str], name: str) -> bytes:
    """The FileDescriptorSet of .proto text, by protoc in a process of its own: text may be hostile.

    Raises:
        SchemaError: protoc refuses it, or is not installed.
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise SchemaError(
            "is .proto text, for which the Python package grpcio-tools is needed on driver and executors; or give "
            "a serialized FileDescriptorSet (protoc --include_imports --descriptor_set_out=…)"
        )
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        root = Path(folder, "files")
        for path, text in files.items():
            place = (root / path).resolve()
            if not place.is_relative_to(root.resolve()):
                raise SchemaError(f"imports {path}, which is no path of a file")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, "utf-8")
        target = Path(folder, "set")
        program = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", "--include_imports"]
        try:
            done = subprocess.run(
                [*program, f"--descriptor_set_out={target}", name],
                capture_output=True,
                text=True,
                timeout=COMPILE_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SchemaError(f"takes protoc longer than {COMPILE_S_MAX:.0f} s") from error
        if done.returncode != 0:
            raise SchemaError(f"does not compile: {' '.join(done.stderr.split())[:500]}")
        return target.read_bytes()


class ProtobufDecoder:
    """Decodes the bytes of one message's type: as table.values.protobuf_wire does, or by the library."""

    def __init__(self, schema: ProtobufSchema, message: Descriptor) -> None:
        """Raises SchemaError for a message that cannot be columns."""
        self.name = message.full_name
        self.type, self._columns = _message(message, (), 0)
        self._schema = schema
        self._class = message_factory.GetMessageClass(message)
        try:
            self._quick = MessageColumns(message) if pa.types.is_struct(self.type) else None
        except UncoveredError:
            self._quick = None

    def load(self, registered: RegisteredSchema) -> ProtobufSchema:
        """A schema that wrote values. Raises SchemaError."""
        if registered.kind != "PROTOBUF":
            raise SchemaError(f"is {registered.kind}, not Protobuf")
        return ProtobufSchema(descriptors_of(registered.text, registered.references))

    def decode(self, values: pa.Array, writer: ProtobufSchema | None, *, whole: bool = False) -> Converted:
        """The values as an array of `type`.

        Args:
            writer: whose header's indexes they have; None: the reader's own.
            whole: they have no header.
        """
        schema = self._schema if writer is None else writer
        if self._quick is None or len(values) < WIRE_ROWS_MIN:
            return self._by_library(values, schema, whole=whole)
        try:
            array, is_odd = self._read(self._quick, values, schema, whole=whole)
        except Exception:  # which value it is, and why, the library says
            return self._by_library(values, schema, whole=whole)
        odd = np.flatnonzero(is_odd)
        if not len(odd):
            return array, {}
        return replaced(array, odd, self._by_library(values.take(pa.array(odd)), schema, whole=whole))

    def _read(
        self, columns: MessageColumns, values: pa.Array, schema: ProtobufSchema, *, whole: bool
    ) -> tuple[pa.Array, Flags]:
        """Return the values, and which of them the library is to read. Raises whatever it likes if it is all."""
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        wire = wire_of(np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]])
        starts, ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
        if whole:
            return columns.read(wire, starts, ends)
        # Nearly always all have the header of the first, but for the schema's id.
        first = values[0].as_py()
        indexes, size = message_indexes(first, HEADER_BYTES)
        self._check(schema.messages_at(indexes))
        differ = ends - starts < size
        for place in range(HEADER_BYTES, size):
            differ |= wire.content[starts + place] != first[place]
        starts = np.where(differ, ends, starts + size)
        array, is_odd = columns.read(wire, starts, ends)
        return array, is_odd | differ

    def _by_library(self, values: pa.Array, schema: ProtobufSchema, *, whole: bool) -> Converted:
        others: dict[tuple[int, ...], Sequence[Descriptor]] = {}
        """By indexes: the messages that they name."""

        def decode(value: bytes) -> Message:
            if whole:
                return self._class.FromString(value)
            indexes, start = message_indexes(value, HEADER_BYTES)
            if indexes not in others:
                others[indexes] = schema.messages_at(indexes)
            self._check(others[indexes])
            return self._class.FromString(value[start:])

        return convert(values.to_pylist(), decode, self._columns)

    def _check(self, named: Sequence[Descriptor]) -> None:
        names = [message.full_name for message in named]
        if self.name not in names:
            other = names[0] if names else "message that its file has not"
            raise UndecodableError(f"it is a {other}, not a {self.name}")


_Column: TypeAlias = tuple[pa.DataType, Columns]


def _message(message: Descriptor, around: tuple[str, ...], depth: int) -> _Column:
    """A message's type, and what makes an array of messages."""
    name = message.full_name
    if depth > NESTING_MAX:
        raise SchemaError(f"has more than {NESTING_MAX} levels at {name}")
    if name in around or name in FREE:
        return pa.string(), _json_texts
    if name in MOMENTS:
        return MOMENTS[name], _moments(MOMENTS[name])
    if name in WRAPPERS:
        found, columns = _scalar(message.fields_by_name["value"])
        return found, lambda messages: columns([None if each is None else each.value for each in messages])
    fields = [(field, *_field(field, (*around, name), depth + 1)) for field in message.fields]
    struct = pa.struct([pa.field(field.name, found) for field, found, _ in fields])
    makers = [(_getter(field), columns) for field, _, columns in fields]

    def columns_of(messages: Sequence[Any]) -> pa.Array:
        is_null = np.fromiter((each is None for each in messages), bool, len(messages))
        if not makers:
            # An array of structs without fields has no length of its own.
            return pa.array([None if each is None else {} for each in messages], struct)
        arrays = [columns(get(messages)) for get, columns in makers]
        mask = pa.array(is_null) if is_null.any() else None
        return pa.StructArray.from_arrays(arrays, fields=list(struct), mask=mask)

    return struct, columns_of


def _field(field: FieldDescriptor, around: tuple[str, ...], depth: int) -> _Column:
    if not field.is_repeated:
        return _single(field, around, depth)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key_type, keys = _single(entry.fields_by_name["key"], around, depth)
        value_type, values = _single(entry.fields_by_name["value"], around, depth)
        return pa.map_(key_type, value_type), _maps(keys, values, pa.map_(key_type, value_type))
    item_type, items = _single(field, around, depth)
    return pa.list_(item_type), _lists(items, pa.list_(item_type))


def _single(field: FieldDescriptor, around: tuple[str, ...], depth: int) -> _Column:
    if field.message_type is not None:
        return _message(field.message_type, around, depth)
    return _scalar(field)


def _scalar(field: FieldDescriptor) -> _Column:
    if field.type == _F.TYPE_BYTES:
        return pa.binary(), lambda values: pa.array(values, pa.binary())
    found = SCALARS[field.cpp_type]
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return found, lambda values: pa.array(
            [None if each is None else names.get(each) or str(each) for each in values], found
        )
    if pa.types.is_decimal(found):
        return found, lambda values: pa.array([None if each is None else Decimal(each) for each in values], found)
    return found, lambda values: pa.array(values, found)


def _getter(field: FieldDescriptor) -> Callable[[Sequence[Any]], list[Any]]:
    """A field's values of many messages, in one go."""
    name = field.name
    if field.is_repeated or not field.has_presence:
        return lambda messages: [None if each is None else getattr(each, name) for each in messages]
    if field.has_default_value:
        return lambda messages: [None if each is None else getattr(each, name) for each in messages]
    return lambda messages: [
        getattr(each, name) if each is not None and each.HasField(name) else None for each in messages
    ]


def _lists(items: Columns, found: pa.DataType) -> Columns:
    def columns(lists: Sequence[Any]) -> pa.Array:
        bounds, is_null = _bounds(lists)
        flat = [item for each in lists if each is not None for item in each]
        return pa.ListArray.from_arrays(bounds, items(flat), type=found, mask=is_null)

    return columns


def _maps(keys: Columns, values: Columns, found: pa.DataType) -> Columns:
    def columns(maps: Sequence[Any]) -> pa.Array:
        bounds, is_null = _bounds(maps)
        entries = [(key, each[key]) for each in maps if each is not None for key in each]
        flat = keys([key for key, _ in entries]), values([value for _, value in entries])
        return pa.MapArray.from_arrays(bounds, *flat, type=found, mask=is_null)

    return columns


def _bounds(found: Sequence[Any]) -> tuple[pa.Array, pa.Array | None]:
    sizes = np.fromiter((0 if each is None else len(each) for each in found), np.int32, len(found))
    bounds = np.zeros(len(found) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    is_null = np.fromiter((each is None for each in found), bool, len(found))
    return pa.array(bounds), pa.array(is_null) if is_null.any() else None


def _moments(found: pa.DataType) -> Columns:
    """Return Timestamp and Duration as microseconds; finer ones are cut."""

    def columns(messages: Sequence[Any]) -> pa.Array:
        numbers = [None if each is None else each.seconds * _MICROSECONDS + int(each.nanos / 1000) for each in messages]
        return pa.array(numbers, pa.int64()).cast(found)

    return columns


def _json_texts(messages: Sequence[Any]) -> pa.Array:
    return pa.array(
        [
            None
            if each is None
            else json.dumps(json_format.MessageToDict(each, preserving_proto_field_name=True), ensure_ascii=False)
            for each in messages
        ],
        pa.string(),
    )
