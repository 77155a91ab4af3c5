"""`tidegate scan FILE TOPIC`: a topic's rows, read from the tier (docs/tools.md#scan).

The rows are `tidegate.scan`'s: what a consumer at the broker gets, as far as it is in the tier. `tidegate cat` shows a
partition's objects instead: it asks no broker, shows what upstream has lost, and needs no pyarrow.
"""

from collections.abc import Sequence

import pyarrow as pa

from table.history.scan import Scan, ScanStats, scan
from tidegate.commands.row_output import write_rows
from tidegate.commands.table_failures import run_table_command
from tidegate.commands.table_options import ScanOptions


def run(options: ScanOptions) -> int:
    """Show them; the exit code."""
    return run_table_command(lambda: _run(options))


def _run(options: ScanOptions) -> None:
    scanned = scan(
        options.file,
        options.topic,
        where=options.where,
        columns=options.columns,
        values=options.values,
        isolation=options.isolation,
        tail=options.tail,
        limit=options.limit,
        catalog=options.catalog,
    )
    if options.explains:
        print(scanned.explain())
        return
    write_rows(ScannedRows(scanned), options)


class ScannedRows:
    """One scan."""

    def __init__(self, scanned: Scan) -> None:
        self._scan = scanned

    def reader(self) -> pa.RecordBatchReader:
        return self._scan.to_reader()

    def stats(self) -> Sequence[ScanStats]:
        return [self._scan.stats]

    def stop(self) -> None:
        """It ends between two batches by itself."""
