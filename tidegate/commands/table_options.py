"""What the command line gives to `scan` and `sql`: their arguments, and how those are read. Imports next to nothing, so
that `tidegate --help` answers at once."""

import argparse
import datetime
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tidegate.commands.cluster_options import duration_ms

FORMATS: Final = ("table", "jsonl", "csv", "arrow", "parquet")

PACKAGES: Final = {"table": ("numpy", "pyarrow"), "sql": ("numpy", "pyarrow", "duckdb")}
"""What a command imports at once, by the extra that brings it."""

VALUE_OPTIONS: Final = {
    "valueFormat": ("NAME", "avro, json or protobuf; default: bytes"),
    "valueSchemaFile": ("PATH", "the schema of values; default: the registry's"),
    "valueSchemaSubject": ("NAME", "whose newest schema gives the values their type; default: TOPIC-value"),
    "valueSchemaVersion": ("N", "that version of it, in place of the newest"),
    "valueMessage": ("NAME", "which message of a Protobuf schema"),
    "keyFormat": ("NAME", "as --value-format, for keys"),
    "keySchemaFile": ("PATH", "as --value-schema-file"),
    "keySchemaSubject": ("NAME", "as --value-schema-subject; default: TOPIC-key"),
    "keySchemaVersion": ("N", "as --value-schema-version"),
    "keyMessage": ("NAME", "as --value-message"),
    "schemaRegistry": ("URL", "where schemas are; default: FILE's schema.registry.url"),
    "deadLetter": ("NAME", "fail: end at a value that cannot be decoded; default: a column tells of it"),
}
"""The options of values (`table.planning.value_options`), each with what it takes and its help. Here `valueFormat` is
`--value-format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """`values`: as `tidegate.scan` takes them; `format`: None if it is not given; `output`: None is standard output."""

    file: Path
    catalog: Path | None = None
    values: dict[str, str] = field(default_factory=dict)
    isolation: str = "read_uncommitted"
    tail: str = "none"
    disorder: datetime.timedelta | None = None
    explains: bool = False
    format: str | None = None
    output: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions(TableOptions):
    topic: str
    where: str | None = None
    columns: tuple[str, ...] | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlOptions(TableOptions):
    query: str
    reads_files: bool = False


def missing_packages(extra: str) -> str:
    """A sentence about what an extra brings and is not here; empty: all is."""
    missing = [name for name in PACKAGES[extra] if find_spec(name) is None]
    return f"{' and '.join(missing)} cannot be imported: pip install 'tidegate[{extra}]'" if missing else ""


def add_scan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC[:PARTITION]", help="a topic, or a partition")
    parser.add_argument(
        "--where", metavar="TEXT", help="only these rows: \"timestamp >= '2026-01-31' and partition = 3\""
    )
    parser.add_argument("--columns", metavar="A,B", type=_names, help="only these columns, in this order")
    parser.add_argument("--limit", metavar="N", type=_number, help="end after so many rows")
    _add_table_arguments(parser)


def add_sql_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help='DuckDB\'s SQL; a table is a TOPIC or a "TOPIC:PARTITION"')
    parser.add_argument(
        "--files", action="store_true", dest="reads_files", help="let the query read files, too: FROM 'orders.csv'"
    )
    _add_table_arguments(parser)


def scan_options(options: argparse.Namespace) -> ScanOptions:
    """The parsed arguments of `scan`."""
    return ScanOptions(
        topic=options.topic, where=options.where, columns=options.columns, limit=options.limit, **_of_table(options)
    )


def sql_options(options: argparse.Namespace) -> SqlOptions:
    """The parsed arguments of `sql`."""
    return SqlOptions(query=options.query, reads_files=options.reads_files, **_of_table(options))


def flag_of(option: str) -> str:
    """`valueFormat` as the command line has it."""
    return "--" + re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", option)


def _of_table(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in VALUE_OPTIONS}
    return {
        "values": {name: value for name, value in given.items() if value is not None},
        **{name: getattr(options, name) for name in TableOptions.__dataclass_fields__ if name != "values"},
    }


def _add_table_arguments(parser: argparse.ArgumentParser) -> None:
    for name, (metavar, said) in VALUE_OPTIONS.items():
        parser.add_argument(flag_of(name), dest=name, metavar=metavar, help=said)
    dump = "what `tidegate metadata dump` wrote, in place of the metadata topic: no broker is asked"
    parser.add_argument("--catalog", metavar="DUMP", type=Path, help=dump)
    parser.add_argument(
        "--isolation",
        choices=("read_uncommitted", "read_committed"),
        default="read_uncommitted",
        help="read_committed leaves records of aborted transactions out",
    )
    parser.add_argument(
        "--tail", choices=("none", "broker"), default="none", help="broker: read what is not in the tier yet from there"
    )
    parser.add_argument(
        "--disorder",
        metavar="TIME",
        type=_duration,
        help="no record is older by more than that than one before it: 0s, 10m; then `timestamp <` ends the reading",
    )
    parser.add_argument("--explain", action="store_true", dest="explains", help="say what would be read, and end")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="default: what --output ends in; else a table on a terminal, and JSON lines in a pipe",
    )
    parser.add_argument("--json", action="store_const", const="jsonl", dest="format", help="the same as --format jsonl")
    parser.add_argument("--output", metavar="PATH", type=Path, help="a file in place of standard output")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _duration(text: str) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=duration_ms(text))


def _number(text: str) -> int:
    if not (text.isdecimal() and text.isascii()) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)
