"""On the driver: which schema each column is read by, settled once for a read, and the columns' types.

A column's type is that of the schema file, or of the subject's schema at the time of planning: of the newest, unless a
version is named. It travels to executors as text, so that all of them read alike, whatever is registered meanwhile. It
holds no credential; the registry's configuration beside it does, and is in no repr.
"""

import importlib.util
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage.config.schema_registry import SchemaRegistryConfig
from storage.limited_files import UnreadableFileError, read_limited
from table.planning.request import OptionsError, ReadRequest
from table.planning.value_options import AVRO, JSON, PROTOBUF, ColumnOptions, ValueOptions
from table.schema import DEAD_LETTER, arrow_schema
from table.tasks import TASK_BYTES_MAX
from table.values.conversion import SchemaError

if TYPE_CHECKING:
    from table.values.registry import RegisteredSchema, SchemaRegistry

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
_KINDS: Final = {AVRO: "AVRO", PROTOBUF: "PROTOBUF", JSON: "JSON"}
_LIBRARIES: Final = {AVRO: "fastavro", PROTOBUF: "protobuf", JSON: "msgspec"}
_IMPORT: Final = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledColumn:
    """One column's format and the schema that it is read by.

    Attributes:
        text: the schema's text; of Protobuf what the registry gave, to know it again.
        references: names and texts of what it refers to.
        descriptors: of Protobuf, the files as a FileDescriptorSet.
    """

    column: str
    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    descriptors: bytes = b""
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesPlan:
    """What executors get to know about values with a schema. `columns`: the rows' columns, in their order."""

    columns: tuple[str, ...]
    settled: tuple[SettledColumn, ...] = ()
    registry: SchemaRegistryConfig | None = field(default=None, repr=False)
    fails_on_dead_letter: bool = False
    dead_letter_path: str | None = None
    value_bytes_max: int = TASK_BYTES_MAX // 8
    """One that is larger is not decoded."""


def settle(
    options: ValueOptions, topics: Sequence[str] | None, config: SchemaRegistryConfig
) -> tuple[SettledColumn, ...]:
    """The schema of each column that has a format.

    Args:
        topics: those that are read; None for a pattern.

    Raises:
        OptionsError: a schema is not there, or cannot be columns.
        RegistryError: the registry does not answer.
    """
    problems: list[str] = []
    settled = []
    for column in options.columns:
        try:
            _check_library(column)
            found = _from_file(column) if column.schema_file else _from_registry(column, topics, options, config)
            type_of(found)
            settled.append(found)
        except SchemaError as error:
            problems.append(f"{_named(column, topics)} {error}")
        except OptionsError as error:
            problems += error.problems
    if problems:
        raise OptionsError(problems)
    return tuple(settled)


def type_of(settled: SettledColumn) -> pa.DataType:
    """The column's type. Raises SchemaError if the schema cannot be one."""
    from table.values.typed_columns import decoder_of

    return decoder_of(settled).type


def typed_schema(columns: Sequence[str], settled: Sequence[SettledColumn]) -> pa.Schema:
    """The rows as Arrow has them."""
    types = {each.column: type_of(each) for each in settled}
    plain = arrow_schema(columns)
    return pa.schema([pa.field(each.name, types.get(each.name, each.type)) for each in plain])


def values_plan(options: ReadRequest, settled: Sequence[SettledColumn], registry: SchemaRegistryConfig) -> ValuesPlan:
    """Return what executors get. Columns that nobody wants are not decoded."""
    wanted = [each for each in settled if each.column in options.columns or DEAD_LETTER in options.columns]
    return ValuesPlan(
        columns=options.columns,
        settled=tuple(wanted),
        registry=registry_config(options.values, registry) if wanted else None,
        fails_on_dead_letter=options.values.fails_on_dead_letter,
        dead_letter_path=options.values.dead_letter_path,
        value_bytes_max=options.task_bytes_max // 8,
    )


def registry_config(options: ValueOptions, config: SchemaRegistryConfig) -> SchemaRegistryConfig | None:
    """The registry that is asked, None if there is none: the option's address goes before the file's."""
    url = options.registry_url or config.url
    return None if url is None else replace(config, url=url)


def _check_library(column: ColumnOptions) -> None:
    library = _LIBRARIES.get(column.format)
    module = {"protobuf": "google.protobuf"}.get(library or "", library)
    try:
        is_there = module is None or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise OptionsError([f"{column.column}Format={column.format} needs the Python package {library} here"])


def _named(column: ColumnOptions, topics: Sequence[str] | None) -> str:
    """Return how a sentence about a schema begins."""
    if column.schema_file:
        return f"{column.column}SchemaFile: {column.schema_file}"
    return f"{column.column}SchemaSubject: {column.subject or _subject(column, topics)}"


def _subject(column: ColumnOptions, topics: Sequence[str] | None) -> str:
    if topics is None or len(topics) != 1:
        raise OptionsError(
            [
                f"{column.column}SchemaSubject is needed: more than one topic is read, and their subjects may differ; "
                f"or {column.column}SchemaFile"
            ]
        )
    return f"{topics[0]}-{column.column}"


def _from_registry(
    column: ColumnOptions, topics: Sequence[str] | None, options: ValueOptions, config: SchemaRegistryConfig
) -> SettledColumn:
    registry = registry_config(options, config)
    if registry is None:
        raise OptionsError(
            [
                f"{column.column}Format={column.format} needs a schema: schemaRegistry (or schema.registry.url in the "
                f"properties file), or {column.column}SchemaFile"
            ]
        )
    from table.values.registry import SchemaRegistry

    subject = column.subject or _subject(column, topics)
    with closing(SchemaRegistry(registry)) as client:
        found = _registered(client, subject, column.version)
    if found.kind != _KINDS[column.format]:
        raise SchemaError(f"is {found.kind}, and {column.column}Format is {column.format}")
    descriptors = b""
    if column.format == PROTOBUF:
        from table.values.protobuf import descriptors_of

        descriptors = descriptors_of(found.text, found.references)
    return SettledColumn(
        column=column.column,
        format=column.format,
        text=found.text,
        references=found.references,
        descriptors=descriptors,
        message=column.message,
    )


def _registered(registry: "SchemaRegistry", subject: str, version: int | None) -> "RegisteredSchema":
    from table.values.registry import UnknownSchemaError

    try:
        return registry.of_subject(subject, version)
    except UnknownSchemaError:
        what = "is no subject" if version is None else f"has no version {version}, or is no subject,"
        raise SchemaError(f"{what} of the schema registry at {registry.name}") from None


def _from_file(column: ColumnOptions) -> SettledColumn:
    assert column.schema_file is not None
    path = Path(column.schema_file)
    content = _content(path)
    text, descriptors = "", b""
    if column.format != PROTOBUF:
        text = _text(content)
    elif path.suffix == ".proto":
        from table.values.protobuf import compiled

        descriptors = compiled(_with_imports(path, _text(content)), path.name)
    else:
        descriptors = content
    return SettledColumn(
        column=column.column, format=column.format, text=text, descriptors=descriptors, message=column.message
    )


def _with_imports(path: Path, text: str) -> dict[str, str]:
    """A .proto file and what it imports from its own folder on, by name."""
    files, waiting = {path.name: text}, _IMPORT.findall(text)
    while waiting:
        name = waiting.pop()
        if name not in files and (path.parent / name).exists():
            files[name] = _text(_content(path.parent / name))
            waiting += _IMPORT.findall(files[name])
    return files


def _content(path: Path) -> bytes:
    try:
        return read_limited(path, FILE_BYTES_MAX)
    except UnreadableFileError as error:
        raise SchemaError(str(error)) from error


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError("is no UTF-8 text") from error
