"""A scan as a dataset of pyarrow: DuckDB and others ask it for a scanner, with columns and a filter.

Its rows are read again for each scanner, as they are then. What a dataset does without a scanner works on files, of
which a scan has none.

A scanner of Arrow's own reads ahead in threads, also when DuckDB has enough. One that is in Python when the interpreter
ends aborts the process, or hangs it. So the scanner is ours, and rows are read by who asks for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from table.history.scan import Scan


@dataclass(frozen=True, slots=True)
class HistoryScanner:
    """Has of Arrow's Scanner what DuckDB, Polars and Arrow's datasets call. It is read once."""

    projected_schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, as they are read."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The same."""
        return self.batches

    def to_table(self) -> pa.Table:
        """All of them."""
        return self.to_reader().read_all()


class HistoryDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """`last`: the scan that the last scanner reads, for its stats."""

    def __init__(self, scan: "Scan") -> None:
        self._scan = scan
        self.last = scan

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._scan.schema

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002  # pyarrow's name
        **_options: Any,
    ) -> HistoryScanner:
        """Rows with these columns for which the filter is true; what is read is only what may be needed for both."""
        wanted = self._scan
        if wanted.limit is not None:
            # A limit goes before the filter.
            return _computed(wanted, columns, filter)
        if filter is not None:
            wanted = wanted.narrowed(filter)
        if columns is not None and not isinstance(columns, Mapping):
            wanted = wanted.with_columns(columns)
        self.last = wanted
        if isinstance(columns, Mapping):
            return _computed(wanted, columns, None)
        return HistoryScanner(wanted.schema, wanted.batches())

    def filter(self, expression: pc.Expression) -> "HistoryDataset":
        """The rows for which this is true as well."""
        return HistoryDataset(self._narrowed(expression))

    def count_rows(self, filter: pc.Expression | None = None, **_options: Any) -> int:  # noqa: A002  # pyarrow's name
        """Return how many rows there are."""
        return self._narrowed(filter).count()

    def head(self, num_rows: int, columns: Any = None, **options: Any) -> pa.Table:
        """The first rows that come, at most num_rows."""
        return HistoryDataset(self._narrowed(options.get("filter")).limited(num_rows)).scanner(columns).to_table()

    def _narrowed(self, expression: pc.Expression | None) -> "Scan":
        if expression is None:
            return self._scan
        if self._scan.limit is not None:
            raise NotImplementedError("the scan has a limit, and a filter would go before it")
        return self._scan.narrowed(expression)

    def get_fragments(self, filter: Any = None) -> Any:  # noqa: A002  # pyarrow's name
        """Raises NotImplementedError, as all that works on fragments."""
        raise NotImplementedError("a scan has no fragments: tasks() of the scan are its parts")

    replace_schema = join = join_asof = sort_by = get_fragments
    partition_expression = property(get_fragments)


def _computed(
    scan: "Scan", columns: Sequence[str] | Mapping[str, pc.Expression] | None, condition: pc.Expression | None
) -> HistoryScanner:
    """The rows that Arrow makes of each batch of a scan."""

    def scanner(*batches: pa.RecordBatch) -> ds.Scanner:
        return ds.Scanner.from_batches(batches, schema=scan.schema, columns=columns, filter=condition)

    computed = (made for batch in scan.batches() for made in scanner(batch).to_table().to_batches())
    return HistoryScanner(scanner().projected_schema, computed)
