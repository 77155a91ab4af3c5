"""A file of credentials that is read again when it changes: to rotate them, put another file in its place."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from storage.errors import StorageConfigError
from storage.limited_files import UnreadableFileError, read_limited

CREDENTIALS_FILE_BYTES_MAX = 64 * 1024

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class CredentialsFile(Generic[T]):
    """What a file holds. Thread-safe. No secret is in its text form, nor in a message.

    Args:
        key: the configuration key that names the file, for messages.
        parse: its content, or StorageConfigError whose message completes the sentence "KEY: PATH ...".
    """

    path: Path
    key: str
    parse: Callable[[bytes], T] = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _version: tuple[int, int, int] | None = field(default=None, repr=False)
    _current: T | None = field(default=None, repr=False)

    def content(self) -> T:
        """Return what the file holds now: the same object until it changes. Once it was good, a missing or unfinished
        file leaves the last good content in force.

        Raises:
            StorageConfigError: it never was good.
        """
        with self._lock:
            try:
                status = self.path.stat()
                version = (status.st_mtime_ns, status.st_size, status.st_ino)
                if version != self._version:
                    self._current = self.parse(read_limited(self.path, CREDENTIALS_FILE_BYTES_MAX))
                    self._version = version
            except (OSError, UnreadableFileError, StorageConfigError) as error:
                if self._current is None:
                    reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
                    raise StorageConfigError(f"{self.key}: {self.path} {reason}") from None
            if self._current is None:
                raise AssertionError("either read or raised")
            return self._current
