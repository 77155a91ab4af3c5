"""Reads the tasks of a scan, here or in another process: it and they can be pickled, with the tier's credentials."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from table.history.metered_storage import MeteredStorage, StoreMeter
from table.reading.executor_storage import open_shipped_storage
from table.reading.read_task import TaskReader
from table.tasks import Task

if TYPE_CHECKING:
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class RowReader:
    """`needed`: the names of what the tasks' reader gives, `offset` among them; `schema`: of the rows. Rows are those
    for which `expression` is true."""

    reader: TaskReader
    needed: tuple[str, ...]
    schema: pa.Schema
    expression: "pc.Expression | None" = None

    def read(self, task: Task, meter: StoreMeter | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a task, in order of offset. Raises as TaskReader.read."""
        storage = None if meter is None else MeteredStorage(open_shipped_storage(self.reader.storage), meter)
        for batch in self.reader.read(task, storage):
            named = batch.rename_columns(self.needed)
            if meter is not None:
                meter.on_rows(task, named.column("offset")[-1].as_py() + 1)
            if self.expression is None:
                yield named.select(self.schema.names)
                continue
            rows = pa.Table.from_batches([named]).filter(self.expression).select(self.schema.names)
            yield from rows.to_batches()
        if meter is not None:
            meter.on_end(task)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """A part of a scan's rows, of one partition."""

    rows: RowReader
    task: Task

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they are read."""
        return self.rows.read(self.task)

    def to_reader(self) -> pa.RecordBatchReader:
        """The same for Arrow."""
        return pa.RecordBatchReader.from_batches(self.rows.schema, self.batches())
