"""The options of values with a schema, read as `table.planning.option_values` reads its own: one sentence a problem.

`schemaRegistry` is an address alone. The credentials for it are in the file of `config`: options show in Spark's plan.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage.config.schema_registry import parse_registry_url

if TYPE_CHECKING:
    from table.planning.option_values import OptionReader

VALUE_OPTION_NAMES: Final = (
    *("valueFormat", "valueSchemaFile", "valueSchemaSubject", "valueSchemaVersion", "valueMessage"),
    *("keyFormat", "keySchemaFile", "keySchemaSubject", "keySchemaVersion", "keyMessage"),
    *("schemaRegistry", "deadLetter", "deadLetterPath"),
)
BINARY: Final = "binary"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
JSON: Final = "json"
FORMATS: Final = (BINARY, AVRO, PROTOBUF, JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """How one column, `key` or `value`, is decoded: by a file's schema, or by one of a registry's subject."""

    column: str
    format: str
    schema_file: str | None = None
    subject: str | None = None
    """None: the topic's name and -key or -value."""
    version: int | None = None
    """The subject's; None: the newest."""
    message: str | None = None
    """For Protobuf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """What is decoded, and what becomes of what cannot be."""

    columns: tuple[ColumnOptions, ...] = ()
    """Without those that stay binary."""
    registry_url: str | None = None
    fails_on_dead_letter: bool = False
    dead_letter_path: str | None = None

    def formats(self, column: str) -> bool:
        """Return whether this column gets a type."""
        return any(each.column == column for each in self.columns)


def read_value_options(reader: "OptionReader") -> ValueOptions:
    """Return what is given; problems are added to the reader's."""
    url = _registry_url(reader)
    columns = [found for column in ("value", "key") if (found := _column(reader, column)) is not None]
    fails = reader.choice("deadLetter", ("column", "fail")) == "fail"
    path = reader.text("deadLetterPath") or None
    if not columns:
        reader.problems += [
            f"{name} is given, and neither valueFormat nor keyFormat is"
            for name in ("schemaRegistry", "deadLetter", "deadLetterPath")
            if reader.has(name)
        ]
    if fails and path is not None:
        reader.problems.append("deadLetterPath is given, and deadLetter is fail")
    return ValueOptions(columns=tuple(columns), registry_url=url, fails_on_dead_letter=fails, dead_letter_path=path)


def _registry_url(reader: "OptionReader") -> str | None:
    if not reader.has("schemaRegistry"):
        return None
    try:
        return parse_registry_url(reader.text("schemaRegistry"))
    except ValueError as error:
        # Never with its value: there may be a password in it.
        reader.problems.append(f"schemaRegistry {error}")
        return None


def _column(reader: "OptionReader", column: str) -> ColumnOptions | None:
    form = reader.choice(f"{column}Format", FORMATS)
    found = {name: reader.text(f"{column}{name}") or None for name in ("SchemaFile", "SchemaSubject", "Message")}
    version_name = f"{column}SchemaVersion"
    if form == BINARY:
        reader.problems += [
            f"{column}{name} is given, and {column}Format is not"
            for name in (*found, "SchemaVersion")
            if reader.has(f"{column}{name}")
        ]
        return None
    if found["SchemaFile"] and found["SchemaSubject"]:
        reader.problems.append(f"{column}SchemaFile and {column}SchemaSubject are given: keep one of them")
    version = reader.number(version_name, minimum=1) if reader.has(version_name) else None
    if found["SchemaFile"] and version is not None:
        reader.problems.append(f"{column}SchemaFile and {version_name} are given: keep one of them")
    if found["Message"] and form != PROTOBUF:
        reader.problems.append(f"{column}Message is given, and {column}Format is not protobuf")
    return ColumnOptions(
        column=column,
        format=form,
        schema_file=found["SchemaFile"],
        subject=found["SchemaSubject"],
        version=version,
        message=found["Message"],
    )
