"""The disk cache's parts, one for each worker, and what becomes of them when there are more or fewer workers.

    <cache.path>/blocks                       worker 0's, and where a single process has all of it
    <cache.path>/workers/<n>/blocks           the others'
    <cache.path>/workers/count                how many there were, if it was not one

Rule 1. While the number stays, every block stays where it is. When it changes, the blocks of each segment go to one
        part, chosen by the segment's name, before any worker runs: by renaming, so that nothing is copied or lost.
Rule 2. A worker finds what is in its own part. So after a change some blocks are with a worker that is not asked for
        them; those are fetched again, and go as room is needed. Which worker a segment will be asked of, nobody knows
        yet.
Rule 3. Trouble costs blocks, never the start. A part that another process has is left alone: its worker will say so.
"""

import contextlib
import fcntl
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

COUNT_FILE: Final = "count"

_log = structlog.get_logger(__name__)


def cache_part(path: Path, worker: int) -> Path:
    """A worker's part of `cache.path`."""
    return path if worker == 0 else path / "workers" / str(worker)


def settle(path: Path, workers: int) -> int:
    """Make parts for so many workers in `cache.path`; return how many segments' blocks were moved. May block on the
    disk."""
    folder = path / "workers"
    count_file = folder / COUNT_FILE
    try:
        before = int(count_file.read_text("ascii"))
    except (OSError, ValueError):
        before = 1
    if before == workers:
        return 0
    moved = 0
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return 0  # somebody else's, or open to others: the worker refuses it, in words
        with contextlib.ExitStack() as locks:
            parts = sorted({0, *_numbers(folder)})
            if not all(_lock(cache_part(path, part), locks) for part in parts):
                return 0
            for part in parts:
                moved += _move(path, part, workers)
            for part in parts:
                if part >= workers:
                    shutil.rmtree(cache_part(path, part) / "blocks", ignore_errors=True)
                    with contextlib.suppress(OSError):
                        cache_part(path, part).rmdir()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            count_file.write_text(str(workers), "ascii")
    except OSError as error:
        _log.warning("cache_parts_not_settled", reason=str(error))
    if moved:
        _log.info("cache_parts_settled", workers_before=before, workers=workers, segments_moved=moved)
    return moved


def _numbers(folder: Path) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.name.isdecimal() and entry.is_dir(follow_symlinks=False):
                yield int(entry.name)


def _lock(part: Path, locks: contextlib.ExitStack) -> bool:
    """Return whether nobody else has the part; it is locked until the stack is left."""
    try:
        descriptor = os.open(part / "blocks" / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # nothing is there
    locks.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _move(path: Path, part: int, workers: int) -> int:
    """Move one part's segments to where they belong; how many."""
    moved = 0
    for generation in sorted((cache_part(path, part) / "blocks").glob("v*")):
        for segment in sorted(generation.iterdir()):
            home = zlib.crc32(segment.name.encode()) % workers
            if home != part:
                blocks = cache_part(path, home) / "blocks"
                for made in (blocks, blocks / generation.name):
                    made.mkdir(mode=0o700, parents=True, exist_ok=True)
                _move_folder(segment, blocks / generation.name / segment.name)
                moved += 1
    return moved


def _move_folder(segment: Path, target: Path) -> None:
    try:
        segment.rename(target)
    except OSError:  # both had blocks of this segment: the same bytes under the same names
        for block in segment.iterdir():
            block.replace(target / block.name)
        segment.rmdir()
