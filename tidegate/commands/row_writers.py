"""Rows in each format of `--format`, written as they come: a batch at a time, so that memory has a limit.

| format | |
|---|---|
| table | for people: blocks of up to BLOCK_ROWS rows, long values cut |
| jsonl | an object a line (`tidegate.commands.row_texts`) |
| csv | as jsonl, with a column `…_encoding` beside each of bytes; lists and structs are JSON |
| arrow | the IPC stream |
| parquet | row groups of up to ROW_GROUP_BYTES |

Imported by who has pyarrow. What a writer gets is a binary file that it does not close.
"""

import io
from collections.abc import Callable, Mapping
from typing import BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.csv as arrow_csv

from tidegate.commands.output import Cell, print_table
from tidegate.commands.row_texts import RowTexts, Texts, is_binary, json_text

BLOCK_ROWS: Final = 1000
CELL_CHARACTERS: Final = 60
ROW_GROUP_BYTES: Final = 64 * 1024 * 1024


class RowWriter(Protocol):
    """Takes all batches of one schema, in order."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises OSError: the file cannot be written."""

    def finish(self) -> None:
        """Write what is left; not after an error."""


class TableWriter:
    """Each block has its headings and its own widths."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file, self._texts, self._names = file, RowTexts(schema), schema.names
        self._rows: list[list[Cell]] = []
        self._is_begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        for document in self._texts.documents(batch):
            self._rows.append([_cell(document, name) for name in self._names])
            if len(self._rows) == BLOCK_ROWS:
                self._print()

    def finish(self) -> None:
        if self._rows or not self._is_begun:
            self._print()

    def _print(self) -> None:
        block = io.StringIO()
        print_table(block, self._names, self._rows)
        self._file.write(block.getvalue().encode())
        self._file.flush()
        self._rows.clear()
        self._is_begun = True


class JsonLinesWriter:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file, self._texts = file, RowTexts(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        for document in self._texts.documents(batch):
            self._file.write(json_text(document).encode() + b"\n")
        self._file.flush()  # who reads the pipe sees each batch at once

    def finish(self) -> None:
        self._file.flush()


class CsvWriter:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._texts = RowTexts(schema)
        self._are_own = {field.name: _is_of_csv(field.type) for field in schema}
        fields: list[pa.Field] = []
        for field in schema:
            fields.append(field if self._are_own[field.name] else pa.field(field.name, pa.string()))
            if is_binary(field.type):
                fields.append(pa.field(f"{field.name}_encoding", pa.string()))
        self._schema = pa.schema(fields)
        self._writer = arrow_csv.CSVWriter(file, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns: list[pa.Array] = []
        for texts, column in zip(self._texts.columns(batch), batch.columns, strict=True):
            columns.append(column if self._are_own[texts.name] else _text_array(texts))
            if is_binary(column.type):
                columns.append(pa.array(texts.marks or [None] * len(column), pa.string()))
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def finish(self) -> None:
        self._writer.close()


class ArrowWriter:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_stream(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> None:
        self._writer.close()


class ParquetWriter:
    """Memory: a row group."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        import pyarrow.parquet as parquet  # the other formats need none of it

        self._writer = parquet.ParquetWriter(file, schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        if self._waiting:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0


WRITERS: Final[Mapping[str, Callable[[BinaryIO, pa.Schema], RowWriter]]] = {
    "table": TableWriter,
    "jsonl": JsonLinesWriter,
    "csv": CsvWriter,
    "arrow": ArrowWriter,
    "parquet": ParquetWriter,
}


def _cell(document: Mapping[str, object], name: str) -> Cell:
    value = document[name]
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else json_text(value)
    if document.get(f"{name}_encoding") is not None:
        text = f"base64:{text}"
    return text if len(text) <= CELL_CHARACTERS else f"{text[: CELL_CHARACTERS - 1]}…"


def _is_of_csv(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_string(kind))


def _text_array(texts: Texts) -> pa.Array:
    shown = [value if value is None or isinstance(value, str) else json_text(value) for value in texts.values]
    return pa.array(shown, pa.string())
