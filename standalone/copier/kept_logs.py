"""Logs that were staged and not copied: of an earlier process, or dropped because something failed.

Upstream may have deleted their records meanwhile; then this is the only copy. Where upstream has them still, they are
fetched again from there and not read here. What is read is taken like what a Fetch brings: each batch's CRC is checked,
and leader epochs are held against upstream's.
"""

import json
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from protocol.record_batches import BatchHeader, CorruptBatchError, iterate_batches
from standalone.copier import staging_folder

SUFFIX: Final = ".kept"
ABORTED_NAME: Final = f"{0:020}.aborted"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Kept:
    """`end_offset`: behind its last whole batch."""

    path: Path
    start_offset: int
    end_offset: int


class KeptLogs:
    """One partition's, in its staging folder. Blocking. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.aborted: list[tuple[int, int]] = []
        """What upstream had listed with these batches, of transactions that end behind them."""
        kept: dict[int, _Kept] = {}
        for left in sorted(folder.iterdir(), key=lambda path: (path.suffix != SUFFIX, path)):
            if not staging_folder.STAGED.fullmatch(left.name):
                continue
            if left.name == ABORTED_NAME:
                self.aborted = _read_aborted(left)
                continue
            if left.suffix not in (SUFFIX, ".log"):
                left.unlink()
                continue
            found, before = _Kept(left, int(left.stem), _end_offset(left)), kept.get(int(left.stem))
            if before is not None and before.end_offset >= found.end_offset:
                left.unlink()  # fetched once more and not as far
            else:
                found.path = left.rename(left.with_suffix(SUFFIX))
                kept[found.start_offset] = found
        self._files = [kept[start] for start in sorted(kept)]

    def drop_below(self, offset: int) -> None:
        """Remove those that hold nothing from the offset on."""
        for kept in [each for each in self._files if each.end_offset <= offset]:
            kept.path.unlink(missing_ok=True)
            self._files.remove(kept)
        if not self._files:
            self.aborted = []

    def clear(self) -> None:
        """Remove all: they are not upstream's log."""
        self.drop_below(2**63)

    def first_from(self, offset: int) -> int | None:
        """The first offset that is here, from this one on."""
        found = (max(offset, kept.start_offset) for kept in self._files if offset < kept.end_offset)
        return min(found, default=None)

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Batches from the one on that holds the offset, which is here; one whole batch at least, whatever its size.
        The last may be cut."""
        kept = next(each for each in self._files if each.start_offset <= offset < each.end_offset)
        return _read(kept.path, offset, bytes_max)


def cut(folder: Path, offset: int) -> None:
    """Keep of the logs in the folder what lies below the offset: upstream's log parts there from theirs. How
    transactions ended on the branch that was lost says nothing of the other one."""
    (folder / ABORTED_NAME).unlink(missing_ok=True)
    for path in [each for each in folder.glob("*") if each.suffix in (SUFFIX, ".log")]:
        end = next((position for position, header in _batches(path) if header.last_offset >= offset), None)
        if end is not None:
            os.truncate(path, end)


def write_aborted(folder: Path, aborted: Sequence[tuple[int, int]]) -> None:
    """Keep them in the folder: as a whole, or as they were before."""
    unfinished = folder / f"{1:020}.aborted"
    unfinished.write_text(json.dumps(aborted))
    unfinished.replace(folder / ABORTED_NAME)


def _read_aborted(path: Path) -> list[tuple[int, int]]:
    try:
        return [(int(producer_id), int(first)) for producer_id, first in json.loads(path.read_bytes())]
    except (ValueError, TypeError) as error:
        _log.error("kept_log_corrupt", path=str(path), reason=str(error))
        return []


def sound_batches(data: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """The whole batches before whatever is none, such as space that was not filled."""
    with suppress(CorruptBatchError):
        yield from iterate_batches([data])


def _batches(path: Path) -> Iterator[tuple[int, BatchHeader]]:
    if path.stat().st_size == 0:
        return
    with (
        path.open("rb") as log,
        mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        yield from sound_batches(view)


def _end_offset(path: Path) -> int:
    return max((header.last_offset + 1 for _, header in _batches(path)), default=-1)


def _read(path: Path, offset: int, bytes_max: int) -> bytes:
    found = next(((at, header.size_bytes) for at, header in _batches(path) if header.last_offset >= offset), None)
    if found is None:
        return b""
    position, size_bytes = found
    with path.open("rb") as log:
        return os.pread(log.fileno(), max(bytes_max, size_bytes), position)
