"""`tidegate scan FILE TOPIC`: a topic's rows, read from the tier (docs/tools.md#scan).

The rows are `tidegate.scan`'s: what a consumer at the broker gets, as far as it is in the tier. `tidegate cat` shows a
partition's objects instead: it asks no broker, shows what upstream has lost, and needs no pyarrow.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from table.history.scan import Scan, ScanStats, scan
from tidegate.commands.row_output import say_stats, write_rows
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
        disorder=options.disorder,
        limit=options.limit,
        catalog=options.catalog,
    )
    if options.explains:
        print(scanned.explain())
        return
    path = options.output
    if path is not None and options.format == "parquet" and path.suffix != ".parquet":
        _export(scanned, path)
    else:
        write_rows(ScannedRows(scanned), options)


def _export(scanned: Scan, folder: Path) -> None:
    """It is `Scan.to_parquet`, which goes on where it was ended: the last line says what was read this time."""
    try:
        scanned.to_parquet(folder)
    finally:
        say_stats([scanned.stats])


class ScannedRows:
    """One scan."""

    def __init__(self, scanned: Scan) -> None:
        self._scan = scanned
        self.planned_bytes = 0

    def reader(self) -> pa.RecordBatchReader:
        if sys.stderr.isatty():  # progress alone needs it
            self.planned_bytes = self._scan.explain().bytes
        return self._scan.to_reader()

    def stats(self) -> Sequence[ScanStats]:
        return [self._scan.stats]

    def stop(self) -> None:
        """It ends between two batches by itself."""
