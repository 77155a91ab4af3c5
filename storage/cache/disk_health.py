"""Whether the disk is used or left alone for a while.

After trouble the disk rests for RETRY_S; then one write tries it, and the rest follow once that has succeeded. A disk
that is full or read-only is still read from; any other trouble also stops reads for as long.
"""

import errno
import threading
from collections.abc import Callable

import structlog

from metrics.cache_meters import CacheMeter, DiskErrorCause
from storage.cache.disk_folder import FolderInUseError
from storage.errors import StorageConfigError

_log = structlog.get_logger(__name__)

RETRY_S = 10.0
"""Long enough that a disk which answers errors slowly costs little, short against what it takes to fill a disk."""

_CAUSES = {
    errno.ENOSPC: DiskErrorCause.FULL,
    errno.EDQUOT: DiskErrorCause.FULL,
    errno.EFBIG: DiskErrorCause.FULL,
    errno.EROFS: DiskErrorCause.READ_ONLY,
    errno.ENOENT: DiskErrorCause.MISSING,
    errno.ENOTDIR: DiskErrorCause.MISSING,
    errno.ESTALE: DiskErrorCause.MISSING,
    errno.ENODEV: DiskErrorCause.MISSING,
    errno.ENXIO: DiskErrorCause.MISSING,
    errno.EACCES: DiskErrorCause.DENIED,
    errno.EPERM: DiskErrorCause.DENIED,
}

_STILL_READABLE = (DiskErrorCause.FULL, DiskErrorCause.READ_ONLY)


def cause_of(error: OSError | StorageConfigError) -> DiskErrorCause:
    """Return what the file system's answer says about the disk."""
    if isinstance(error, StorageConfigError):
        return DiskErrorCause.IN_USE if isinstance(error, FolderInUseError) else DiskErrorCause.DENIED
    return _CAUSES.get(error.errno or 0, DiskErrorCause.OTHER)


class DiskHealth:
    """Thread-safe."""

    def __init__(self, meter: CacheMeter, clock: Callable[[], float]) -> None:
        self._meter = meter
        self._clock = clock
        self._lock = threading.Lock()
        self._cause: DiskErrorCause | None = None
        self._detail = ""
        self._failed_at_s = 0.0
        meter.on_disk_available(True)

    @property
    def is_good(self) -> bool:
        """Return whether the last that is known of the disk is good."""
        return self._cause is None

    @property
    def trouble(self) -> str | None:
        """Return what is wrong with the disk, for people."""
        with self._lock:
            return None if self._cause is None else f"{self._cause.value}: {self._detail}"

    @property
    def may_write(self) -> bool:
        """Return whether a write is worth a try."""
        return self._cause is None or self._has_rested()

    @property
    def may_read(self) -> bool:
        return self._cause is None or self._cause in _STILL_READABLE or self._has_rested()

    def try_write(self) -> bool:
        """Return whether the caller may write; of those who come after a rest, only the first until that is over."""
        with self._lock:
            if self._cause is None:
                return True
            if not self._has_rested():
                return False
            self._failed_at_s = self._clock()
            return True

    def on_trouble(self, cause: DiskErrorCause, detail: object) -> None:
        """The disk failed us: count it and let it rest."""
        with self._lock:
            was_good = self._cause is None
            # Trouble while it rests does not make the rest longer: reads go on, and may go on failing.
            if was_good or self._has_rested():
                self._failed_at_s = self._clock()
            self._cause, self._detail = cause, str(detail)
        self._meter.on_disk_error(cause)
        self._meter.on_disk_available(False)
        if was_good:
            _log.warning("disk_cache_suspended", cause=cause.value, detail=str(detail), retry_s=RETRY_S)

    def on_written(self) -> None:
        """The disk took a block."""
        with self._lock:
            was_good = self._cause is None
            self._cause = None
        if not was_good:
            self._meter.on_disk_available(True)
            _log.info("disk_cache_resumed")

    def _has_rested(self) -> bool:
        # Also when the clock was set back: nobody may wait for a time that is years away.
        return not 0 <= self._clock() - self._failed_at_s < RETRY_S
