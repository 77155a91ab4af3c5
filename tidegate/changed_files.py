"""Seeing that files have changed: by what a path leads to, as a ConfigMap or a renewed certificate changes it.

Kubernetes changes a mounted ConfigMap by renaming one symbolic link over another, and most tools replace a file by
renaming: so device, inode, size and time of the file at the end of all links are compared, not the path's own.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class FileIdentity(NamedTuple):
    """What tells one state of a file from the next."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int


Seen = dict[Path, FileIdentity | None]


def look(paths: Iterable[Path]) -> Seen:
    """Each path's file as it is now; None where there is none to be had. May block on the disk."""
    return {path: _identity(path) for path in paths}


class FileWatch:
    """Decides when a change is worth a reload: when two looks in a row saw the same, so that it is complete."""

    def __init__(self, seen: Seen) -> None:
        self._done = seen
        self._last = seen

    @property
    def done(self) -> Seen:
        """Return what was last acted upon; empty: nothing yet."""
        return self._done

    def has_settled(self, seen: Seen) -> bool:
        """Return whether what was seen differs from what was last acted upon, and has stopped changing."""
        settled = seen == self._last
        self._last = seen
        return settled and seen != self._done

    def acted_upon(self, seen: Seen) -> None:
        """These files have been read, rightly or wrongly."""
        self._done = self._last = seen


def _identity(path: Path) -> FileIdentity | None:
    try:
        state = path.stat()
    except OSError:
        return None  # gone, or out of reach: a state like any other
    return FileIdentity(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
