"""`upload.rate.limit.bytes.per.second`: what all uploads of one manager send together, as the plug-in means it.

A piece waits until it and those before it have had their time, at that rate. What sending takes counts as waiting, up
to CATCH_UP_S: so much is made up for, and no more is saved up while nothing is sent. Clock and wait are passed in:
seconds.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from storage.errors import RemoteStorageError
from storage.object_store.retries import Wait, wait_in_thread

CATCH_UP_S = 1.0
"""The plug-in's bucket holds as much."""

PIECE_BYTES = 1024 * 1024
"""Larger pieces are cut, so that each second at the lowest rate that can be set (1 MiB) sees one."""


class UploadRate:
    """Hands out time. Thread-safe: uploads of several threads share it.

    Args:
        bytes_per_s: at least 1.
        wait: waits so many seconds; true if it was ended early, by a close.
    """

    def __init__(
        self, bytes_per_s: int, *, clock: Callable[[], float] = time.monotonic, wait: Wait = wait_in_thread
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._wait = wait
        self._free_at_s = clock()
        self._lock = threading.Lock()

    def paced(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes, each piece when its turn has come.

        Raises:
            RemoteStorageError: the wait was ended.
        """
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), PIECE_BYTES):
                part = view[start : start + PIECE_BYTES]
                self._take(len(part))
                yield piece if len(part) == len(piece) else bytes(part)

    def _take(self, size_bytes: int) -> None:
        with self._lock:
            now_s = self._clock()
            # The piece's own time passes before it goes: the last one's would otherwise be counted to nobody.
            goes_at_s = self._free_at_s = max(now_s - CATCH_UP_S, self._free_at_s) + size_bytes / self._bytes_per_s
        if goes_at_s > now_s and self._wait(goes_at_s - now_s):
            raise RemoteStorageError("the upload was ended: its storage manager is closed")
