"""A file that is in this process's user's hands alone, and is replaced as a whole, or grows by whole lines.

- A draft is written beside it and then renamed: fsync, rename, fsync of the folder. Until the rename the file before
  stays, so a kill at any moment leaves a whole one.
- The folder is made with 0700, the file with 0600. A link, and another user's file, are not read.

Synchronous, for worker threads; one writer. Every method may raise OSError.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final


class NotOwnedError(OSError):
    """What is at the path is no plain file, or another user's."""


class OwnedFile:
    """The file at `path`, in a folder of our own."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._draft_path = path.with_name(f"{path.name}.draft")

    @contextlib.contextmanager
    def draft(self) -> Iterator[BinaryIO]:
        """A draft to write, replacing an earlier one; when the block raises, none is left. Nothing of it is on disk
        for sure before `keep_draft`."""
        self._draft_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_draft()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self._draft_path, flags, 0o600), "wb") as file:
                yield file
        except BaseException:
            self._drop_draft()
            raise

    def keep_draft(self) -> None:
        """Make the draft the file, safe against a crash of the machine too."""
        try:
            _sync(self._draft_path)
            self._draft_path.replace(self.path)
        except BaseException:
            self._drop_draft()
            raise
        _sync(self.path.parent)

    def open(self) -> BinaryIO | None:
        """The file, to be read; None when there is none.

        Raises:
            NotOwnedError: it is not ours.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        self._require_owned(descriptor)
        return os.fdopen(descriptor, "rb")

    def append(self, lines: bytes) -> None:
        """Add whole lines at the end: all of them or none, also beside other processes that do so by this method. The
        file is opened again each time, so that it may be renamed or removed in between. Its folder must be there.

        Raises:
            NotOwnedError: it is not ours.
        """
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self.path, flags, 0o600)
        self._require_owned(descriptor)
        with os.fdopen(descriptor, "rb+", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes and lines and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
                lines = b"\n" + lines  # somebody was killed inside a line
            left = memoryview(lines)
            try:
                while left:
                    left = left[os.write(descriptor, left) :]
            except OSError:
                os.ftruncate(descriptor, size_bytes)
                raise

    def _require_owned(self, descriptor: int) -> None:
        """Close it if it is not ours."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            os.close(descriptor)
            raise NotOwnedError(f"{self.path}: it is not a file of this process's user")

    def _drop_draft(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._draft_path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
