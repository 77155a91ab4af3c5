"""The disk cache's folder: who may use it, how files are named, what is there.

    <cache.path>/blocks/lock
    <cache.path>/blocks/writing/<n>.part
    <cache.path>/blocks/v1-<identity digest>-<key id or "plain">/<topic id>.<segment id>/<number>-<block bytes>-<size>

Rule 1. Names alone say whose a block is: format version, identity and key in the folder's name, the rest below. So a
        listing finds what can be read, without opening a file.
Rule 2. Only names of these shapes below `blocks` are ever touched. Anything else is somebody else's and stays.
Rule 3. `blocks` and what is in it belong to this process's user alone: folders 0700, files 0600. `cache.path` itself
        may be readable by others, but neither theirs nor writable by them.
Rule 4. One process at a time: a flock on `lock`. The kernel ends it with the process, however that ends.
Rule 5. A file gets its name by rename, so that a name never stands for a file that is being written.
"""

import contextlib
import fcntl
import itertools
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from storage.cache.block_file import VERSION, DiskBlockKey
from storage.errors import StorageConfigError
from storage.model import Uuid, uuid_from_text, uuid_to_text

_GENERATION = re.compile(r"v\d{1,3}-[0-9a-f]{32}-(?:plain|[0-9a-f]{16})", re.ASCII)
_SEGMENT = re.compile(r"([A-Za-z0-9_-]{22})\.([A-Za-z0-9_-]{22})", re.ASCII)
_BLOCK = re.compile(r"(0|[1-9]\d{0,17})-([1-9]\d{0,17})-([1-9]\d{0,17})", re.ASCII)
_TEMPORARY = re.compile(r"\d{1,18}\.part", re.ASCII)

_FOLDER_MODE = 0o700


class ListedFile(NamedTuple):
    """A file of ours. `key` is None for one that nobody will read: half written, or of another identity or key."""

    path: Path
    key: DiskBlockKey | None
    size_bytes: int
    modified_s: float


class FolderInUseError(StorageConfigError):
    """Another process has the folder: one that was killed and ends, or one that is there to stay."""


class DiskFolder:
    """One generation (identity and key) in `cache.path`. Thread-safe once open, but for `open` and `close`.

    Args:
        key_id: empty for plaintext.
    """

    def __init__(self, path: Path, identity: bytes, key_id: bytes) -> None:
        self._path = path
        self._root = path / "blocks"
        self._writing = self._root / "writing"
        self._own = self._root / f"v{VERSION}-{identity.hex()}-{key_id.hex() or 'plain'}"
        self._lock_path = self._root / "lock"
        self._lock: int | None = None
        self._lock_identity: tuple[int, int] | None = None
        self._temporary_numbers = itertools.count()
        self._folders_lock = threading.Lock()
        """Between the making of a segment's folder and the rename into it nobody may find it empty and remove it."""

    def open(self) -> bool:
        """Make what is missing of the folder and lock it. True if it was not held before: then its files are news.

        Raises:
            StorageConfigError: it is somebody else's, or open to others.
            FolderInUseError: another process has it.
            OSError: as the file system answers.
        """
        was_held = self.is_held()
        if not was_held:
            self.close()
        with contextlib.suppress(FileExistsError):
            self._path.mkdir(mode=_FOLDER_MODE, parents=True)
        _refuse_foreign(self._path, self._path.stat())
        _make_private(self._root)
        if not was_held:
            self._lock = _lock(self._lock_path, self._path)
            self._lock_identity = _identity(os.fstat(self._lock))
        _make_private(self._writing)
        _make_private(self._own)
        return not was_held

    def is_held(self) -> bool:
        """Return whether `cache.path` still is the folder that was locked: neither gone, nor put in another's place."""
        try:
            # No other file gets this identity as long as the descriptor is open.
            return _identity(os.stat(self._lock_path, follow_symlinks=False)) == self._lock_identity
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Let another process have the folder. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            self._lock_identity = None

    def path_of(self, key: DiskBlockKey) -> Path:
        """Return where the block's file is, if there is one."""
        segment = f"{uuid_to_text(key.topic_id)}.{uuid_to_text(key.segment_id)}"
        return self._own.joinpath(segment, f"{key.number}-{key.block_bytes}-{key.size_bytes}")

    def temporary_path(self) -> Path:
        """A path of its own for a file that is to be written."""
        return self._writing / f"{next(self._temporary_numbers)}.part"

    def publish(self, temporary: Path, key: DiskBlockKey) -> None:
        """Give a written file its name.

        Raises:
            OSError: it still has its old one.
        """
        path = self.path_of(key)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            with self._folders_lock:
                self._own.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                path.parent.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                os.replace(temporary, path)

    def delete(self, path: Path) -> None:
        """Delete one of our files, if it is there, and the folders that this leaves empty.

        Raises:
            OSError: it is still there.
        """
        path.unlink(missing_ok=True)
        if path.parent == self._writing:
            return
        with self._folders_lock:
            if _remove_empty(path.parent) and path.parent.parent != self._own:
                _remove_empty(path.parent.parent)

    def listing(self) -> Iterator[ListedFile]:
        """All files of ours. They may be deleted as they are listed.

        Raises:
            OSError: as the file system answers.
        """
        for entry in _entries(self._writing):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield _listed(entry, None)
        for generation in _entries(self._root):
            if _GENERATION.fullmatch(generation.name) and generation.is_dir(follow_symlinks=False):
                yield from self._listing_of(Path(generation.path))

    def _listing_of(self, generation: Path) -> Iterator[ListedFile]:
        segments = _entries(generation)
        for segment in segments:
            ids = _segment_ids(segment.name)
            if ids is None or not segment.is_dir(follow_symlinks=False):
                continue
            blocks = _entries(Path(segment.path))
            if not blocks:
                with self._folders_lock:
                    _remove_empty(Path(segment.path))
            for block in blocks:
                key = _block_key(*ids, block.name)
                if key is not None and block.is_file(follow_symlinks=False):
                    yield _listed(block, key if generation == self._own else None)
        if not segments and generation != self._own:
            _remove_empty(generation)


def examine_folder(path: Path) -> None:
    """Check that `cache.path` could be opened as a cache, as far as that shows without making or changing anything.

    Raises:
        StorageConfigError: it is somebody else's, open to others, or (FolderInUseError) another process has it.
        OSError: as the file system answers; that it does not exist yet is no error.
    """
    with contextlib.suppress(FileNotFoundError):
        _refuse_foreign(path, path.stat())
        _refuse_foreign(path / "blocks", (path / "blocks").stat(follow_symlinks=False))
        os.close(_lock(path / "blocks" / "lock", path, os.O_RDONLY))


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        raise StorageConfigError(f"cache.path: {path} is not a folder")
    if status.st_uid != os.geteuid():
        raise StorageConfigError(
            f"cache.path: {path} belongs to user {status.st_uid}, and this process is user {os.geteuid()}: "
            "name a folder of its own"
        )
    if mode & 0o022:
        raise StorageConfigError(
            f"cache.path: {path} can be written by others (mode {mode:04o}): name a folder of its own, or chmod go-w it"
        )


def _make_private(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_FOLDER_MODE)
    status = path.stat(follow_symlinks=False)
    _refuse_foreign(path, status)
    if stat.S_IMODE(status.st_mode) != _FOLDER_MODE:
        path.chmod(_FOLDER_MODE)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock(lock_path: Path, path: Path, flags: int = os.O_RDONLY | os.O_CREAT) -> int:
    # Not to be written: a read-only disk can be locked too and served from, and one in use be made read-only.
    descriptor = os.open(lock_path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise FolderInUseError(
                f"cache.path: {path} is in use by another process: name a folder for this one"
            ) from error
        raise
    return descriptor


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """A folder's entries, read to the end first, so that the listing does not depend on what is deleted meanwhile."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _listed(entry: os.DirEntry[str], key: DiskBlockKey | None) -> ListedFile:
    status = entry.stat(follow_symlinks=False)
    return ListedFile(Path(entry.path), key, status.st_size, status.st_mtime)


def _segment_ids(name: str) -> tuple[Uuid, Uuid] | None:
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    topic_id, segment_id = uuid_from_text(match[1]), uuid_from_text(match[2])
    # 22 characters hold four bits too many: a name that is not ours can still decode.
    is_ours = (uuid_to_text(topic_id), uuid_to_text(segment_id)) == match.groups()
    return (topic_id, segment_id) if is_ours else None


def _block_key(topic_id: Uuid, segment_id: Uuid, name: str) -> DiskBlockKey | None:
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    number, block_bytes, size_bytes = (int(group) for group in match.groups())
    if size_bytes > block_bytes:
        return None
    return DiskBlockKey(topic_id, segment_id, block_bytes, number, size_bytes)


def _remove_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        # Not empty, or gone: as it should be. Any other trouble shows at the next file.
        return False
    return True
