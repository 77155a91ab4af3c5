"""Rows of Arrow to where `--format` and `--output` say, with progress on a terminal and a last line about what it took.

- A file is written beside its place, as `PATH.partial`, and moved there when it is whole.
- Reading and writing have a thread of their own: DuckDB gives its first row when it has read all, and the main thread
  shows progress and hears Ctrl-C meanwhile.
- The last line is on standard error always, also if the reading failed; but not where the reader of a pipe has enough.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import pyarrow as pa

from table.history.scan import ScanStats
from tidegate.commands.output import Progress
from tidegate.commands.row_writers import WRITERS
from tidegate.commands.table_options import FORMATS, TableOptions

PROGRESS_S: Final = 0.2
STOP_S: Final = 5.0
"""A reader that is to stop gets this long: one GET may be under way."""

_ENDINGS: Final = {".jsonl": "jsonl", ".csv": "csv", ".arrow": "arrow", ".arrows": "arrow", ".parquet": "parquet"}


class Rows(Protocol):
    """What is read."""

    @property
    def planned_bytes(self) -> int:
        """Return how much that is, for who sees the progress; 0: it is not known yet."""

    def reader(self) -> pa.RecordBatchReader:
        """Begin to read."""

    def stats(self) -> Sequence[ScanStats]:
        """One for each scan so far; from another thread than `reader`."""

    def stop(self) -> None:
        """End what `reader` does, soon; from another thread."""


def write_rows(rows: Rows, options: TableOptions) -> None:
    """Write them all, and the last line.

    Raises:
        KeyboardInterrupt: after Ctrl-C; what was written to a pipe or a terminal stays.
        Exception: as `rows`, or OSError of the file.
    """
    form = format_of(options)
    is_shown = options.output is None and sys.stdout.isatty()
    with Progress("reading", "bytes") as progress:

        def write(is_ended: Callable[[], bool]) -> None:
            with opened_output(options.output) as file, rows.reader() as reader:
                writer = WRITERS[form](file, reader.schema)
                for batch in reader:
                    if is_ended():
                        raise KeyboardInterrupt
                    if is_shown:
                        progress.close()  # it would stand between the rows
                    writer.write(batch)
                writer.finish()

        run_interruptibly(write, rows, progress)


def run_interruptibly(work: Callable[[Callable[[], bool]], None], rows: Rows, progress: Progress) -> None:
    """Run it in a thread, and say what was read. `work` takes what tells whether it is to end.

    Raises: as `write_rows`.
    """
    ended = threading.Event()
    result: Future[None] = Future()

    def run() -> None:
        try:
            work(ended.is_set)
        except BaseException as error:  # raised in the main thread
            result.set_exception(error)
        else:
            result.set_result(None)

    try:  # Ctrl-C may come before `start` returns, when the thread has already opened its file
        threading.Thread(target=run, name="rows", daemon=True).start()
        while not wait([result], PROGRESS_S).done:
            progress.told(sum(each.bytes_read for each in rows.stats()), rows.planned_bytes)
        result.result()
    except BrokenPipeError:
        raise
    except BaseException:
        ended.set()
        rows.stop()
        wait([result], STOP_S)
        progress.close()
        say_stats(rows.stats())
        raise
    progress.close()
    say_stats(rows.stats())


def say_stats(stats: Sequence[ScanStats]) -> None:
    """Say on standard error what it took."""
    sums = {each.name: sum(getattr(one, each.name) for one in stats) for each in fields(ScanStats)}
    total = ScanStats(**sums)
    print(
        f"tidegate: {total.rows:,} rows of {total.offsets:,} offsets; {total.segments:,} of {total.of_segments:,} "
        f"segments, {total.bytes_read / 1e6:,.1f} of {total.of_bytes / 1e6:,.1f} MB, {total.gets:,} GETs; "
        f"{total.not_tiered_offsets:,} offsets are not in the tier yet",
        file=sys.stderr,
    )


def format_of(options: TableOptions) -> str:
    """One of FORMATS: as given, by the ending of --output, or by who reads standard output."""
    if options.format is not None:
        assert options.format in FORMATS
        return options.format
    if options.output is not None:
        return _ENDINGS.get(options.output.suffix.lower(), "jsonl")
    return "table" if sys.stdout.isatty() else "jsonl"


@contextmanager
def opened_output(path: Path | None) -> Iterator[BinaryIO]:
    """The file, or standard output. Raises OSError."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # a pipe, or a device
        with path.open("wb") as file:
            yield file
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(path)
