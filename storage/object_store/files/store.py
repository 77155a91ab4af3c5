"""An object store of plain files: Aiven's FileSystemStorage, and what tests and small tiers use.

An object's key is its path below the root. Behaviour:
- A key that is no plain relative path (absolute, "..", ".", an empty part, NUL) is refused: no call leaves the root.
- A put writes under a temporary name in the object's folder, syncs, renames: no half object under a key, ever. A crash
  may leave a temporary file; no listing names it.
- A delete removes the folders that it empties, up to the root, as Aiven's does, unless the store `keeps_folders`.
- No handle outlives its stream. Nothing is created before the first put.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage.errors import (
    DeletionRefusedError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
)
from storage.object_store.object_store import ObjectHead, PendingUpload, raise_undeleted

PUT_ATTEMPTS_MAX = 20
"""How often a put recreates its folder when deletes of its neighbours take it away under its hands."""

_TEMPORARY_NAME = re.compile(r"\.tidegate-[0-9a-f]{16}\.tmp")
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FINAL = frozenset({errno.ENAMETOOLONG, errno.EEXIST, errno.EINVAL})


class FileSystemStore:
    """The five verbs over one folder; see storage.object_store.object_store for their meaning.

    Args:
        keeps_folders: a delete leaves the folders that it empties.
        overwrites: a put replaces a file of that name; otherwise it is refused.
    """

    def __init__(self, root: Path, *, keeps_folders: bool = False, overwrites: bool = True) -> None:
        self._root = Path(os.path.realpath(root))
        self._overwrites = overwrites
        self._keeps_folders = keeps_folders

    @property
    def identity(self) -> str:
        return f"filesystem:{self._root}"

    def get(self, key: str, start: int, end: int) -> "FileStream":
        """Open bytes [start, end) of a file."""
        if start < 0 or end <= start:
            raise ValueError(f"[{start}, {end}) is not a range")
        with self._errors(key):
            file_descriptor, status = self._open(key)
            try:
                if start >= status.st_size:
                    message = f"{self._name(key)}: a range from {start} of an object of {status.st_size} bytes"
                    raise InvalidRangeError(message)
                return FileStream(self._name(key), file_descriptor, start, min(end, status.st_size))
            except BaseException:
                os.close(file_descriptor)
                raise

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """Write a file, all or nothing."""
        target = self._path(key)
        with self._errors(key):
            file_descriptor, temporary = _create_beside(target)
        try:
            try:
                # The source runs outside of the translation: its errors are its caller's.
                for piece in (source,) if isinstance(source, bytes) else source:
                    with self._errors(key):
                        _write(file_descriptor, piece)
                with self._errors(key):
                    os.fsync(file_descriptor)
            finally:
                os.close(file_descriptor)
            with self._errors(key):
                if self._overwrites:
                    temporary.replace(target)
                else:
                    os.link(temporary, target)  # which fails where there is one
                _sync_folder(target.parent)
        finally:
            with self._errors(key):
                temporary.unlink(missing_ok=True)

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove files, and folders that this empties."""
        failures: dict[str, RemoteStorageError] = {}
        for key in keys:
            try:
                with self._errors(key):
                    self._delete(self._path(key))
            except RemoteResourceNotFoundError:
                continue
            except RemoteAccessDeniedError as error:
                failures[key] = DeletionRefusedError(str(error))
            except RemoteStorageError as error:
                failures[key] = error
        raise_undeleted(failures, len(keys))

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        """All files below the root whose key begins with `prefix`.

        Raises:
            RemoteResourceNotFoundError: the root does not exist, as of a bucket that does not.
        """
        with self._errors(""):
            entries = _sorted_entries(self._root)
        yield from self._walk(entries, "", prefix)

    def head(self, key: str) -> ObjectHead:
        """A file's size and time of last change."""
        with self._errors(key):
            file_descriptor, status = self._open(key)
            os.close(file_descriptor)
        return _head(key, status)

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """Temporary files that a crash left; a put that is under way writes to its own all the time."""
        for folder, _, names in os.walk(self._root):
            for name in filter(_TEMPORARY_NAME.fullmatch, names):
                path = Path(folder, name)
                handle = path.relative_to(self._root).as_posix()
                status = self._temporary(path) if handle.startswith(prefix) else None
                if status is not None:
                    yield PendingUpload(None, handle, status.st_mtime_ns // 1_000_000)

    def abort_upload(self, upload: PendingUpload) -> None:
        """Remove a temporary file."""
        *folders, name = upload.handle.split("/")
        if not _TEMPORARY_NAME.fullmatch(name) or not all(part not in ("", ".", "..") for part in folders):
            raise RemoteStorageError(f"{self._name(upload.handle)!r}: not the name of an unfinished put")
        with self._errors(upload.handle):
            self._root.joinpath(*folders, name).unlink(missing_ok=True)

    def clock_offset_ms(self) -> int | None:
        """A folder has no clock of its own."""
        return None

    def warm_up(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing is held."""

    def _walk(self, entries: Sequence[os.DirEntry[str]], folder_key: str, prefix: str) -> Iterator[ObjectHead]:
        for entry in entries:
            key = folder_key + entry.name
            with self._errors(key):
                if entry.is_dir(follow_symlinks=False):
                    below = _sorted_entries(entry) if _may_hold(f"{key}/", prefix) else []
                else:
                    status = _status(entry) if key.startswith(prefix) else None
                    if status is not None:
                        yield _head(key, status)
                    continue
            yield from self._walk(below, f"{key}/", prefix)

    def _temporary(self, path: Path) -> os.stat_result | None:
        with self._errors(str(path)):
            try:
                return path.lstat()
            except FileNotFoundError:
                return None  # its put has ended

    def _open(self, key: str) -> tuple[int, os.stat_result]:
        # Not blocking, since the open of a pipe would wait for its writer.
        file_descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(file_descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(file_descriptor)
            raise RemoteResourceNotFoundError(f"{self._name(key)}: not a file")
        return file_descriptor, status

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        if self._keeps_folders:
            return
        for folder in path.parents:
            if folder == self._root:
                return
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY):
                    raise
                if error.errno != errno.ENOENT:
                    return

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(part not in ("", ".", "..") and "\0" not in part for part in parts):
            raise RemoteStorageError(f"{self._name(key)!r}: not a key that a folder can hold")
        if _TEMPORARY_NAME.fullmatch(parts[-1]):
            raise RemoteStorageError(f"{self._name(key)}: a name that is kept for unfinished puts")
        return self._root.joinpath(*parts)

    def _name(self, key: str) -> str:
        return f"{self._root}/{key}"

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Translate the operating system's errors at the edge, by what the caller can do about them."""
        try:
            yield
        except OSError as error:
            message = f"{self._name(key)}: {error.strerror}"
            if error.errno in _ABSENT:
                if not self._root.is_dir():
                    raise RemoteStoreNotFoundError(f"{message}: {self._root}: there is no such folder") from error
                raise RemoteResourceNotFoundError(message) from error
            if error.errno in _DENIED:
                raise RemoteAccessDeniedError(f"object store on files: {message}") from error
            if error.errno in _FINAL:
                raise RemoteStorageError(message) from error
            raise RetriableRemoteStorageError(message) from error


class FileStream:
    """A range of an open file."""

    def __init__(self, name: str, file_descriptor: int, start: int, end: int) -> None:
        self._name = name
        self._file_descriptor: int | None = file_descriptor
        self._position = start
        self._end = end
        self._size_bytes = end - start

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def readinto(self, buffer: memoryview) -> None:
        """Fill the buffer from the file."""
        view = buffer.cast("B")
        if self._file_descriptor is None:
            raise ValueError(f"{self._name}: the stream is closed")
        if len(view) > self._end - self._position:
            raise ValueError(f"{len(view)} bytes of a body with {self._end - self._position} left")
        while view:
            try:
                count = os.preadv(self._file_descriptor, [view], self._position)
            except OSError as error:
                raise RetriableRemoteStorageError(f"{self._name}: {error.strerror}") from error
            if not count:
                raise RetriableRemoteStorageError(f"{self._name}: the file ended at {self._position}, before its size")
            self._position += count
            view = view[count:]

    def close(self) -> None:
        """Close the file."""
        file_descriptor, self._file_descriptor = self._file_descriptor, None
        if file_descriptor is not None:
            os.close(file_descriptor)


def _may_hold(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)


def _sorted_entries(folder: Path | os.DirEntry[str]) -> Sequence[os.DirEntry[str]]:
    """A folder's entries in the order of the keys that they begin: a folder's name counts with its slash."""
    try:
        with os.scandir(folder) as scan:
            entries = [entry for entry in scan if not _TEMPORARY_NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        if isinstance(folder, Path):
            raise
        return []  # deleted since its parent was read
    return sorted(entries, key=lambda entry: os.fsencode(entry.name) + b"/" * entry.is_dir(follow_symlinks=False))


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None for what is no file, or no longer."""
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _head(key: str, status: os.stat_result) -> ObjectHead:
    return ObjectHead(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _create_beside(target: Path) -> tuple[int, Path]:
    """Open a new temporary file in the target's folder, which is made if need be."""
    temporary = target.with_name(f".tidegate-{secrets.token_hex(8)}.tmp")
    for attempt in range(1, PUT_ATTEMPTS_MAX + 1):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), temporary
        except (FileNotFoundError, FileExistsError):
            # The second: pathlib looks again whether it is a folder, and then it is gone.
            if attempt == PUT_ATTEMPTS_MAX:
                raise
    raise AssertionError("the loop returns or raises")


def _write(file_descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(file_descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    try:
        file_descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return  # the object was deleted already, and its folder with it
    try:
        os.fsync(file_descriptor)
    finally:
        os.close(file_descriptor)
