"""A file of this machine as what a put is given: read while it is uploaded, never held whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from storage.errors import RemoteStorageError

PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LocalFile:
    """An iterable of the file's bytes, from its beginning each time.

    A store that sends a body of known size may open it instead. The file must not change meanwhile.
    """

    path: Path

    def __iter__(self) -> Iterator[bytes]:
        """The content in pieces of PIECE_BYTES, the last one shorter; see `pieces`."""
        return self.pieces(PIECE_BYTES)

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """The content in pieces of that size, the last one shorter.

        Raises:
            RemoteStorageError: the file cannot be read. It is not the store's fault, and a later attempt finds the
                same: the caller has to look.
        """
        with self.open() as file:
            while piece := self._read(file, piece_bytes):
                yield piece

    def size_bytes(self) -> int:
        """Return how large the file is; RemoteStorageError as above."""
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise self._unreadable(error) from error

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file, open for reading; RemoteStorageError as above."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        with file:
            yield file

    def _read(self, file: BinaryIO, size_bytes: int) -> bytes:
        try:
            return file.read(size_bytes)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> RemoteStorageError:
        return RemoteStorageError(f"cannot read the local file {self.path}: {error.strerror}")
