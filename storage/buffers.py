"""Buffers that are not zeroed first, in memory that was used before where there is some.

Memory that a process touches for the first time costs a page fault for each 4 KiB: for a MiB that is several times what
receiving it from a socket costs. So large buffers of equal size are kept when they have been dropped, and handed out
again. The reference count tells which are free: a buffer that only this module knows is nobody's. A view of a buffer,
or a view of that, counts as a reference to it.
"""

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_bytearray_of: Callable[[Any, int], bytearray] = ctypes.pythonapi.PyByteArray_FromStringAndSize
_bytearray_of.restype = ctypes.py_object  # type: ignore[attr-defined]  # a foreign function's own attributes
_bytearray_of.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)  # type: ignore[attr-defined]  # as above

KEPT_BYTES_MIN = 256 * 1024
"""Smaller ones malloc hands out again by itself."""

KEPT_BYTES_UNIT = 64 * 1024
"""Others are the ends of segments: there is hardly ever a second one of that size."""

LOOK_MAX = 64
"""Buffers that are looked at for a free one. Who was handed out first is dropped first, more often than not."""

_FREE = 3
"""References to a free buffer while it is looked at: the queue's, the variable's and the argument's."""

_lock = threading.Lock()
_kept: dict[int, deque[bytearray]] = {}


def unfilled(size_bytes: int) -> bytearray:
    """A bytearray of that size whose content is whatever the memory held. For a caller that fills all of it before
    anyone else sees it, and drops it if that fails.

    `bytearray(n)` writes zeros over its memory, and takes the page faults of that, while it holds the interpreter's
    lock: more processor time than receiving the bytes from a socket. CPython's own constructor copies nothing when it
    is given no bytes (PyByteArray_FromStringAndSize of its C API).

    Raises:
        ValueError: size_bytes is negative.
    """
    if size_bytes < 0:
        raise ValueError(f"a buffer of {size_bytes} bytes")
    if size_bytes < KEPT_BYTES_MIN or size_bytes % KEPT_BYTES_UNIT:
        return _bytearray_of(None, size_bytes)
    with _lock:
        kept = _kept.setdefault(size_bytes, deque())
        for _ in range(min(LOOK_MAX, len(kept))):
            buffer = kept[0]
            kept.rotate(-1)
            if sys.getrefcount(buffer) == _FREE:
                return buffer
        buffer = _bytearray_of(None, size_bytes)
        kept.append(buffer)
        return buffer


def give_back() -> None:
    """Give back to the system what the process does not use at the moment: free buffers, and the pages that are free
    within malloc's own memory, which it keeps otherwise for as long as anything behind them is in use. Blocks for some
    milliseconds."""
    drop_free()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it
        trim(0)


def drop_free() -> int:
    """Give back the memory of buffers that nobody has at the moment; how many bytes that is. To be called now and then:
    otherwise as much is kept as was ever in use at once."""
    dropped_bytes = 0
    with _lock:
        for size_bytes, kept in tuple(_kept.items()):
            for _ in range(len(kept)):
                buffer = kept.popleft()
                # The queue has let go of it.
                if sys.getrefcount(buffer) == _FREE - 1:
                    dropped_bytes += size_bytes
                else:
                    kept.append(buffer)
            if not kept:
                del _kept[size_bytes]
    return dropped_bytes
