"""Blocks on disk, within a byte budget that holds at every moment; they survive a restart (docs/protocol.md#blocks).

Rule 1. A block costs its file, header and what file systems round up to included, and room is made for it (files
        deleted) before it is written. What a reader has open at that moment is given back when it closes it.
Rule 2. At the start names are listed, no more. A block is checked whenever it is read, against its header, its
        checksum and the key that it was asked for by; what does not hold is dropped.
Rule 3. Blocks of another identity or key are dropped at the start, not kept until room is needed: no process with this
        configuration can ever read them, and what they hold may have been encrypted for a reason.
Rule 4. Trouble with the disk is counted and never raised. The disk rests, Tidegate serves without it, and some write
        tries again later (`disk_health`). A folder that vanished, or in whose place there is another, is created again.
Rule 5. Files are read, written and deleted outside of the locks: `holds` never waits for a disk.

Hits and misses are the caller's to count; all else is counted here.
"""

import errno
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import structlog

from metrics.cache_meters import CacheLevel, CacheMeter, DiskErrorCause
from storage.cache.block_cipher import BlockCipher
from storage.cache.block_file import BlockFiles, DiskBlockKey, cost_bytes, file_bytes, identity_digest
from storage.cache.disk_folder import DiskFolder, FolderInUseError, ListedFile
from storage.cache.disk_health import DiskHealth, cause_of
from storage.cache.disk_index import DiskEntry, DiskIndex, Doomed, Room
from storage.errors import CorruptObjectError, StorageConfigError
from storage.model import Uuid

__all__ = ["BlockCipher", "DiskBlockKey", "DiskBlocks"]

SURVIVABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""With such a disk Tidegate starts, and waits for it. Anything else at the start is a wrong configuration."""

MODIFIED_INTERVAL_S = 60.0
"""A file's time of last use is brought up to date no more often: one system call a minute for the busiest block."""

_log = structlog.get_logger(__name__)


class DiskBlocks:
    """The disk cache. Synchronous and thread-safe; all but `holds`, `find` and `available` may block on the disk.

    Nothing is held or written until `load` has returned.

    Args:
        path: `cache.path`; one process at a time.
        bytes_max: `cache.disk.bytes`.
        identity: RemoteStorageManager.identity.
        cipher: None: plaintext.
        retention_s: blocks that nobody has read for so long are dropped; None: only when room is needed.
        clock: seconds since the epoch; last uses are compared across restarts.

    Raises:
        StorageConfigError: `path` is somebody else's, open to others, or cannot be made. That another process has it is
            trouble like any other: a killed supervisor's workers keep it until they have drained.
    """

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        identity: str,
        cipher: BlockCipher | None,
        retention_s: float | None,
        meter: CacheMeter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        digest = identity_digest(identity)
        self._meter = meter
        self._clock = clock
        self._files = BlockFiles(digest, cipher)
        self.folder = DiskFolder(path, digest, b"" if cipher is None else cipher.key_id)
        self.index = DiskIndex(bytes_max, retention_s)
        self.health = DiskHealth(meter, clock)
        self._folder_lock = threading.Lock()
        """Hold it to open, list or close the folder."""
        self._is_begun = False
        """`load` has returned."""
        self._is_loaded = False
        """The index has what is in the folder."""
        self._is_closed = False
        try:
            self.folder.open()
        except (OSError, FolderInUseError) as error:
            if isinstance(error, OSError) and error.errno not in SURVIVABLE:
                raise StorageConfigError(f"cache.path: {path}: {error.strerror}") from error
            self.health.on_trouble(cause_of(error), error)

    @property
    def available(self) -> bool:
        """Return whether a block is worth offering. True also when the disk has rested and nobody has tried it
        since."""
        return self._is_begun and not self._is_closed and self.health.may_write

    def load(self) -> bool:
        """Make what is missing of the folder. If its files are not known, list them; drop what nobody can read, what
        has expired, what is over budget. False: the disk is in trouble, or closed."""
        with self._folder_lock:
            try:
                return not self._is_closed and self._load()
            except (OSError, StorageConfigError) as error:
                self.health.on_trouble(cause_of(error), error)
                return False
            finally:
                self._is_begun = True

    def holds(self, key: DiskBlockKey) -> bool:
        """Return whether the block is on disk, as far as known without looking. No I/O."""
        return self._is_loaded and self.health.may_read and self.index.holds(key, self._clock())

    def find(self, segment_id: Uuid, number: int) -> DiskBlockKey | None:
        """The key of the segment's block of that number, whatever its size; None if it is not on disk. No I/O."""
        if not self._is_loaded or not self.health.may_read:
            return None
        return self.index.find(segment_id, number, self._clock())

    def read(self, key: DiskBlockKey, reader: Hashable | None = None) -> memoryview | None:
        """The block's bytes, checked, in memory that nobody else holds; None if it is not there or bad."""
        now_s = self._clock()
        if not self._is_loaded or not self.health.may_read:
            return None
        entry = self.index.use(key, reader, now_s)
        if entry is None:
            return None
        path = self.folder.path_of(key)
        try:
            data = self._files.read(path, key)
        except (CorruptObjectError, OSError) as error:
            self._on_unreadable(self.index.take_read(key, entry), error)
            return None
        self._stamp(entry, path, now_s)
        return data

    def write(self, key: DiskBlockKey, data: memoryview | bytes | bytearray, reader: Hashable | None = None) -> bool:
        """Keep a block. False if it is not kept: the disk rests, is busy with this very block, or has no room.

        `data` is the whole block; it is not kept.
        """
        view = memoryview(data)
        assert len(view) == key.size_bytes > 0, "a block is as long as its key says"
        if self.holds(key):
            return True
        room = self.index.reserve(key, cost_bytes(file_bytes(key)), self._clock()) if self._may_write() else None
        if room is None or not self._write_into(room, key, view, reader):
            self._meter.on_disk_skipped()
            return False
        return True

    def drop(self, key: DiskBlockKey) -> None:
        """Forget a block, if it is there or just being written. Without I/O: `index.take`, and `delete` later."""
        self.delete(self.index.take([key]))

    def delete(self, room: Room) -> bool:
        """Delete what is doomed for this room. False if some is still there: the block it is for cannot be written."""
        undeleted: list[Doomed] = []
        for doomed in room.doomed:
            path = doomed.file if isinstance(doomed.file, Path) else self.folder.path_of(doomed.file)
            try:
                self.folder.delete(path)
            except OSError as error:
                undeleted.append(doomed)
                self.health.on_trouble(cause_of(error), error)
        self._meter.on_evicted(CacheLevel.DISK, room.evictions)
        self.index.settle(room, undeleted)
        self._meter.on_resident(CacheLevel.DISK, self.index.size_bytes)
        return not undeleted

    def drop_segments(self, segment_ids: Iterable[Uuid]) -> int:
        """Forget segments' blocks; how many there were."""
        dropped = 0
        for segment_id in segment_ids:
            room = self.index.take_segment(segment_id)
            self.delete(room)
            dropped += len(room.doomed)
        return dropped

    def drop_unknown(self, known_among: Callable[[frozenset[Uuid]], AbstractSet[Uuid]]) -> int:
        """Forget the blocks of segments that are not known; how many there were. Loads first."""
        self.load()
        segments = frozenset(self.index.segments())
        return self.drop_segments(segments - known_among(segments))

    def expire(self) -> int:
        """Drop the blocks that nobody has read for `retention_s`; how many there were."""
        room = self.index.take_idle(self._clock())
        self.delete(room)
        self._meter.on_expired(CacheLevel.DISK, len(room.doomed))
        return len(room.doomed)

    def close(self) -> None:
        """Leave the folder to another process; nothing is held or written any more. Idempotent."""
        with self._folder_lock:
            self._is_closed = True
            self._is_loaded = False
            self.folder.close()

    def _may_write(self) -> bool:
        if not self._is_begun or self._is_closed or not self.health.try_write():
            return False
        # The folder may be gone even if a write that was under way then has just succeeded.
        return self._is_there() if self._is_loaded and self.health.is_good else self.load()

    def _load(self) -> bool:
        if not self.folder.open() and self._is_loaded:
            return True
        self._is_loaded = False
        self.index.clear()
        usable: list[tuple[float, DiskBlockKey]] = []
        for file in self.folder.listing():
            modified_s = min(file.modified_s, self._clock())
            if file.key is not None and self._is_usable(file, file.key, modified_s):
                usable.append((modified_s, file.key))
            else:
                self.delete(Room([Doomed(file.path, cost_bytes(file.size_bytes))]))
        for modified_s, key in sorted(usable):
            self.index.add_listed(key, cost_bytes(file_bytes(key)), modified_s)
        self.delete(self.index.shrink())
        self._is_loaded = True
        _log.info("disk_cache_loaded", blocks=len(self.index.entries), size_bytes=self.index.size_bytes)
        return True

    def _is_usable(self, file: ListedFile, key: DiskBlockKey, modified_s: float) -> bool:
        if file.size_bytes != file_bytes(key):
            self._meter.on_disk_error(DiskErrorCause.CORRUPT)
            return False
        if self.index.is_idle(modified_s, self._clock()):
            self._meter.on_expired(CacheLevel.DISK)
            return False
        return True

    def _write_into(self, room: Room, key: DiskBlockKey, view: memoryview, reader: Hashable | None) -> bool:
        if not self.delete(room):
            return False
        temporary = self.folder.temporary_path()
        now_s = self._clock()
        try:
            self._files.write(temporary, key, view, now_s)
            self.folder.publish(temporary, key)
        except BaseException as error:
            self._abandon(room, temporary)
            if not isinstance(error, OSError):
                raise
            self.health.on_trouble(cause_of(error), error)
            return False
        unwanted = self.index.publish(room, key, reader, now_s)
        self.health.on_written()
        self._meter.on_resident(CacheLevel.DISK, self.index.size_bytes)
        if unwanted is not None:
            self.delete(unwanted)
        return unwanted is None

    def _abandon(self, room: Room, temporary: Path) -> None:
        leftover = None
        try:
            self.folder.delete(temporary)
        except OSError as error:
            _log.warning("half_block_left_on_disk", detail=str(error))
            leftover = temporary
        self.index.release(room, leftover)
        self._meter.on_resident(CacheLevel.DISK, self.index.size_bytes)

    def _on_unreadable(self, room: Room, error: CorruptObjectError | OSError) -> None:
        if not room.doomed:
            # Evicted or dropped between the look into the index and the look for the file.
            return
        self.delete(room)
        if isinstance(error, CorruptObjectError):
            self._meter.on_quarantined()
            self._meter.on_disk_error(DiskErrorCause.CORRUPT)
            _log.warning("corrupt_block_dropped", detail=str(error))
        elif not isinstance(error, FileNotFoundError):
            self.health.on_trouble(cause_of(error), error)
        elif self._is_there():
            self._meter.on_disk_error(DiskErrorCause.MISSING)

    def _is_there(self) -> bool:
        """Return whether the folder still is the one that was listed. If it is not, the disk rests; then the folder is
        made, or listed if it came back as it was, like a disk that is mounted again."""
        try:
            if self.folder.is_held():
                return True
        except OSError as error:
            self.health.on_trouble(cause_of(error), error)
            return False
        self._is_loaded = False
        self.index.clear()
        self._meter.on_resident(CacheLevel.DISK, self.index.size_bytes)
        self.health.on_trouble(DiskErrorCause.MISSING, "the folder is gone")
        return False

    def _stamp(self, entry: DiskEntry, path: Path, now_s: float) -> None:
        if not self.health.is_good or 0 <= now_s - entry.stamped_at_s < MODIFIED_INTERVAL_S:
            return
        entry.stamped_at_s = now_s
        try:
            self._files.stamp(path, now_s)
        except FileNotFoundError:
            # Evicted since it was read.
            return
        except OSError as error:
            self.health.on_trouble(cause_of(error), error)
