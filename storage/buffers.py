"""Large buffers and the C library's allocator beneath them. Thread-safe.

Memory that a process touches for the first time costs a page fault for each 4 KiB: for a MiB that is several times what
receiving it from a socket costs. So buffers are not zeroed first (`unfilled`), and the allocator keeps what is freed
(`keep_freed_memory`). What it keeps is bounded by the budgets of those that ask (`memory.max.bytes`), and goes back to
the system when asked (`give_back`).
"""

import ctypes
import platform
from collections.abc import Callable
from typing import Any

_bytearray_of: Callable[[Any, int], bytearray] = ctypes.pythonapi.PyByteArray_FromStringAndSize
_bytearray_of.restype = ctypes.py_object  # type: ignore[attr-defined]  # a foreign function's own attributes
_bytearray_of.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)  # type: ignore[attr-defined]  # as above

# Numbers of `malloc.h`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_SETTINGS = (
    (_ARENA_MAX, 1),
    # As high as glibc allows: larger than any block but those of the largest chunks.
    (_MMAP_THRESHOLD, 32 * 1024 * 1024),
    (_TRIM_THRESHOLD, 2**31 - 1),
)


def unfilled(size_bytes: int) -> bytearray:
    """Return a bytearray of that size whose content is whatever the memory held. For a caller that fills all of it
    before anyone else sees it, and drops it if that fails.

    `bytearray(n)` writes zeros over its memory, and takes the page faults of that, while it holds the interpreter's
    lock: more processor time than receiving the bytes from a socket. CPython's own constructor copies nothing when it
    is given no bytes (PyByteArray_FromStringAndSize of its C API).

    Raises:
        ValueError: size_bytes is negative.
    """
    if size_bytes < 0:
        raise ValueError(f"a buffer of {size_bytes} bytes")
    return _bytearray_of(None, size_bytes)


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for reuse; call it before any thread starts. Return False where there is no
    such switch: other C libraries than glibc are left alone.

    By itself glibc gives large blocks back at once and takes them again, from many arenas, and the kernel clears each
    page every time: with cold reads that was a third of the processor time, and a fifth more memory.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    results = [mallopt(number, value) for number, value in _SETTINGS]
    return results == [1] * len(_SETTINGS)


def give_back() -> None:
    """Give the pages that are free within malloc's own memory back to the system. Blocks for some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it
        trim(0)
