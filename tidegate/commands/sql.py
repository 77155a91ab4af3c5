"""`tidegate sql FILE QUERY`: DuckDB over topics of the tier, which it reads as tables (docs/tools.md#sql).

- A table's name is TOPIC or TOPIC:PARTITION, in double quotes where SQL has no such name. DuckDB's own parser says
  which tables a query names; a name of a WITH is not a topic then.
- DuckDB hands its filters and columns to the scan, which reads no more than these need.
- A table has a scan's usual columns, and those on demand that the query names anywhere.
- A query is one SELECT. It reaches no file and no address, unless --files lets it; no extension is fetched or loaded.
- What does not fit memory is spilled to a folder of its own below the system's for temporary files.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from storage.model import is_topic_name
from table.history.arrow_dataset import HistoryDataset, HistoryScanner
from table.history.columns import ON_DEMAND_COLUMNS
from table.history.scan import Scan, ScanStats, scan
from table.planning.request import OptionsError
from tidegate.commands.row_output import write_rows
from tidegate.commands.table_failures import run_table_command, say_problems
from tidegate.commands.table_options import SqlOptions

_OWN_SCHEMAS: Final = ("information_schema", "main", "pg_catalog")


def run(options: SqlOptions) -> int:
    """Show what the query gives; the exit code."""
    try:
        return run_table_command(lambda: _run(options))
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        return say_problems([str(error).strip()])


def _run(options: SqlOptions) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-sql-") as folder,
        closing(connected(folder, reads_files=options.reads_files)) as connection,
    ):
        topics, columns = topics_and_columns(connection, options)
        tables = {name: Table(options, name, columns) for name in topics}
        for name, table in tables.items():
            connection.register(name, table)
        query = Query(connection, options.query, tables)
        if options.explains:
            print(query.explain())
            return
        write_rows(query, options)


def connected(folder: str, *, reads_files: bool) -> duckdb.DuckDBPyConnection:
    """A database in memory that reaches nothing but a folder for what it spills."""
    config: dict[str, Any] = {
        "allow_community_extensions": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "enable_external_access": reads_files,
        "python_enable_replacements": False,
        "temp_directory": folder,
    }
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


def topics_and_columns(connection: duckdb.DuckDBPyConnection, options: SqlOptions) -> tuple[list[str], list[str]]:
    """The topics, or partitions of topics, that a query names as its tables, and the columns on demand, each once.

    Raises:
        OptionsError: it is not one SELECT, or a name cannot be meant.
        duckdb.Error: it is no SQL.
    """
    connection.extract_statements(options.query)  # says where it is wrong
    [(text,)] = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [options.query]).fetchall()
    document = json.loads(text)
    if document["error"] or len(document["statements"]) != 1:
        raise OptionsError(["sql takes one SELECT"])
    named: dict[str, str] = {}
    nodes = [*_nodes_in(document)]
    for schema, name in _tables_in(nodes):
        if schema and schema not in _OWN_SCHEMAS and not options.reads_files:
            raise OptionsError([f'there is no schema {schema}: a topic with a dot is written "{schema}.{name}"'])
        if schema or not is_topic_name(name.partition(":")[0]) or (options.reads_files and Path(name).exists()):
            continue
        other = named.setdefault(name.lower(), name)
        if other != name:
            raise OptionsError([f"SQL takes {other} and {name} for one table: read them one after the other"])
    columns = _columns_in(nodes)
    return list(named.values()), [name for name in ON_DEMAND_COLUMNS if name in columns]


def _nodes_in(document: object) -> Iterator[Mapping[str, Any]]:
    """The objects in a query, in its order."""
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)


def _tables_in(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Schema and name of each table in a query, but for those that a WITH makes."""
    made = {entry["key"].lower() for node in nodes for entry in (node.get("cte_map") or {}).get("map", ())}
    found = ((node["schema_name"], node["table_name"]) for node in nodes if node.get("type") == "BASE_TABLE")
    return ((schema, name) for schema, name in found if schema or name.lower() not in made)


def _columns_in(nodes: Sequence[Mapping[str, Any]]) -> set[str]:
    """The names that stand for columns in a query, or for what they hold, in small letters as SQL takes them."""
    named = (node.get(key) or () for node in nodes for key in ("column_names", "using_columns"))
    return {name.lower() for names in named for name in names}


class Table(HistoryDataset):
    """A topic as DuckDB asks for it. DuckDB tells of a failure as text alone, so that it is kept here."""

    def __init__(self, options: SqlOptions, topic: str, on_demand: Sequence[str]) -> None:
        usual = scan(
            options.file,
            topic,
            values=options.values,
            isolation=options.isolation,
            tail=options.tail,
            disorder=options.disorder,
            catalog=options.catalog,
        )
        super().__init__(usual.with_columns([*dict.fromkeys((*usual.schema.names, *on_demand))]))
        self._is_read = not options.explains
        self.scans: list[Scan] = []
        self.planned_bytes = 0
        self.failure: Exception | None = None

    def scanner(self, *arguments: Any, **options: Any) -> HistoryScanner:
        scanner = super().scanner(*arguments, **options)
        self.scans.append(self.last)
        if self._is_read and sys.stderr.isatty():  # progress alone needs it
            self.planned_bytes += self.last.explain().bytes
        return replace(scanner, batches=self._watched(scanner.batches) if self._is_read else iter(()))

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self.failure = error
            raise


class Query:
    """What a query gives, as rows to write."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, query: str, tables: Mapping[str, Table]) -> None:
        self._connection, self._query, self._tables = connection, query, tables

    def reader(self) -> pa.RecordBatchReader:
        """The columns of the result; one of a name that another has gets a number."""
        with self._own_failures():
            found = pa.RecordBatchReader.from_stream(self._connection.sql(self._query))
        schema = _with_own_names(found.schema)
        return pa.RecordBatchReader.from_batches(schema, self._renamed(found, schema))

    def explain(self) -> str:
        """Return what each scan of the query would read."""
        self._connection.sql(self._query).fetchall()
        return "\n".join(
            f"{name}: {scanned.explain()}" for name, table in self._tables.items() for scanned in table.scans
        )

    @property
    def planned_bytes(self) -> int:
        return sum(table.planned_bytes for table in self._tables.values())

    def stats(self) -> Sequence[ScanStats]:
        return [scanned.stats for table in self._tables.values() for scanned in table.scans]

    def stop(self) -> None:
        self._connection.interrupt()

    def _renamed(self, found: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self._own_failures():
            for batch in found:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    @contextmanager
    def _own_failures(self) -> Iterator[None]:
        """Raise a scan's failure in place of what DuckDB makes of it."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError):
            failures = [table.failure for table in self._tables.values() if table.failure is not None]
            if failures:
                raise failures[0] from None
            raise


def _with_own_names(schema: pa.Schema) -> pa.Schema:
    names: list[str] = []
    for name in schema.names:
        numbered = (f"{name}_{number}" for number in count(1))
        names.append(name if name not in names else next(each for each in numbered if each not in schema.names))
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
