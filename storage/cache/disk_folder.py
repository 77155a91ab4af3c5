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
import hashlib
import itertools
import os
import re
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from storage.cache.block_cipher import KEY_ID_BYTES, NONCE_BYTES, TAG_BYTES, BlockCipher, SealedBlock
from storage.errors import CorruptObjectError, StorageConfigError
from storage.model import Uuid, uuid_from_text, uuid_to_text

# A block's file: a header of 120 bytes, then the plaintext or as many bytes of ciphertext.
#
#     magic 7 · version 1 · key id 8 (zeros: plaintext) · identity digest 16 · topic id 16 · segment id 16
#     · block bytes 8 · number 8 · size 8 · nonce 12 (zeros: plaintext) · CRC-32C of the plaintext 4 · GCM tag 16
#
# Big-endian. A reader of a block knows everything before the CRC, save the nonce, and compares it: a file that
# was swapped for another's, or left by another version, is corrupt. In an encrypted file the CRC is encrypted too, as
# it tells something about the plaintext, and everything before it is authenticated.
#
# No fsync, ever: a cache may lose what a power cut takes. A file that exists under its name but lacks bytes (a rename
# can reach the disk before the data) fails its size or its checksum at the first read, as a flipped bit does.


IDENTITY_BYTES = 16
VERSION = 1

_MAGIC = b"TGBLOCK"
_ABOUT = struct.Struct(f">7sB{KEY_ID_BYTES}s{IDENTITY_BYTES}s16s16sQQQ")
_CHECKSUM = struct.Struct(">I")
HEADER_BYTES = _ABOUT.size + NONCE_BYTES + _CHECKSUM.size + TAG_BYTES

_ALLOCATION_BYTES = 4096
"""What file systems hand out: ext4, XFS, APFS and tmpfs by default."""

FILE_COST_BYTES_MIN = 2 * _ALLOCATION_BYTES
"""What `cost_bytes` says of the smallest file."""

_NO_KEY_ID = bytes(KEY_ID_BYTES)
_NO_NONCE = bytes(NONCE_BYTES)
_NO_TAG = bytes(TAG_BYTES)


class DiskBlockKey(NamedTuple):
    """A block: bytes [number * block_bytes, number * block_bytes + size_bytes) of a segment's log."""

    topic_id: Uuid
    segment_id: Uuid
    block_bytes: int
    number: int
    size_bytes: int


def identity_digest(identity: str) -> bytes:
    """Return what stands for RemoteStorageManager.identity in headers and names."""
    return hashlib.sha256(identity.encode()).digest()[:IDENTITY_BYTES]


def file_bytes(key: DiskBlockKey) -> int:
    """Return how long the block's file is."""
    return HEADER_BYTES + key.size_bytes


def cost_bytes(size_bytes: int) -> int:
    """Return what a file of this size costs the disk at most: whole allocation units, and one for its name and
    folder."""
    return (-(-size_bytes // _ALLOCATION_BYTES) + 1) * _ALLOCATION_BYTES


class BlockFiles:
    """Writes and reads files of one identity and key. Thread-safe; keeps nothing open."""

    def __init__(self, identity: bytes, cipher: BlockCipher | None) -> None:
        self._identity = identity
        self._cipher = cipher
        self._key_id = _NO_KEY_ID if cipher is None else cipher.key_id

    def write(self, path: Path, key: DiskBlockKey, data: memoryview, modified_s: float) -> None:
        """Write a new file, readable by its owner alone, that looks modified at `modified_s`.

        Raises:
            OSError: what there is of the file is left to the caller.
        """
        about = self._about(key)
        checksum = _CHECKSUM.pack(crc32c(data))
        body: memoryview | bytes | bytearray
        if self._cipher is None:
            header, body = about + _NO_NONCE + checksum + _NO_TAG, data
        else:
            nonce = os.urandom(NONCE_BYTES)
            sealed = self._cipher.seal(nonce, about + nonce, checksum, data)
            header, body = about + nonce + sealed.checksum + sealed.tag, sealed.ciphertext
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            write_buffers(descriptor, [memoryview(header), memoryview(body)])
            os.utime(descriptor, (modified_s, modified_s))
        finally:
            os.close(descriptor)

    def read(self, path: Path, key: DiskBlockKey) -> bytes | bytearray:
        """The plaintext, checked: a buffer that nobody else holds.

        Raises:
            CorruptObjectError: the file is not this block's, whole and unchanged.
            OSError: as the file system answers.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes != file_bytes(key):
                raise CorruptObjectError(f"{path} has {size_bytes} bytes, not {file_bytes(key)}")
            header = _read_whole(descriptor, HEADER_BYTES, 0, path)
            body = _read_whole(descriptor, key.size_bytes, HEADER_BYTES, path)
        finally:
            os.close(descriptor)
        checksum, plaintext = self._unsealed(path, key, header, body)
        if _CHECKSUM.pack(crc32c(plaintext)) != checksum:
            raise CorruptObjectError(f"{path}: the block's checksum does not hold")
        return plaintext

    def stamp(self, path: Path, modified_s: float) -> None:
        """Make a file look modified then: last uses outlive the process so."""
        os.utime(path, (modified_s, modified_s), follow_symlinks=False)

    def _about(self, key: DiskBlockKey) -> bytes:
        return _ABOUT.pack(
            _MAGIC,
            VERSION,
            self._key_id,
            self._identity,
            key.topic_id,
            key.segment_id,
            key.block_bytes,
            key.number,
            key.size_bytes,
        )

    def _unsealed(self, path: Path, key: DiskBlockKey, header: bytes, body: bytes) -> tuple[bytes, bytes | bytearray]:
        about, rest = header[: _ABOUT.size], header[_ABOUT.size :]
        nonce, rest = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        checksum, tag = rest[: _CHECKSUM.size], rest[_CHECKSUM.size :]
        if about != self._about(key):
            raise CorruptObjectError(f"{path} is another block's, or was written by another version or key")
        if self._cipher is not None:
            return self._cipher.unseal(nonce, about + nonce, SealedBlock(checksum, tag, body))
        if nonce != _NO_NONCE or tag != _NO_TAG:
            raise CorruptObjectError(f"{path}: a plaintext block's header has bytes where there are none")
        return checksum, body


def write_buffers(descriptor: int, buffers: list[memoryview]) -> None:
    """Write them all, one after another: every byte of the disk cache passes here.

    Raises:
        OSError: some may have been written.
    """
    while buffers:
        buffers = _behind(buffers, os.writev(descriptor, buffers))


def _read_whole(descriptor: int, size_bytes: int, position: int, path: Path) -> bytes:
    """Return so many bytes of a file, in memory that was not zeroed first."""
    data = os.pread(descriptor, size_bytes, position)
    while len(data) < size_bytes:
        more = os.pread(descriptor, size_bytes - len(data), position + len(data))
        if not more:
            raise CorruptObjectError(f"{path} became shorter while it was read")
        data += more
    return data


def _behind(buffers: list[memoryview], done_bytes: int) -> list[memoryview]:
    """Return what is left of the buffers behind their first bytes; none of it is empty."""
    left = []
    for buffer in buffers:
        skipped = min(done_bytes, len(buffer))
        done_bytes -= skipped
        if skipped < len(buffer):
            left.append(buffer[skipped:])
    return left


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
        return self._own / segment / f"{key.number}-{key.block_bytes}-{key.size_bytes}"

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
