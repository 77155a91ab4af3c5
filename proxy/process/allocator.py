"""The C library's allocator, told what this process does: it frees blocks of megabytes only to ask for others.

By itself glibc gives such memory back at once and takes it anew, from many arenas. The kernel clears each page every
time: with cold reads that was a third of the processor time, and a fifth more memory. Kept, it is bounded all the same,
by the budgets (`memory.max.bytes`). Other C libraries are left alone.
"""

import ctypes
import platform

# Numbers of `malloc.h`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

_SETTINGS = (
    (_ARENA_MAX, 1),
    # As high as glibc allows: larger than any block but those of the largest chunks.
    (_MMAP_THRESHOLD, 32 * 1024 * 1024),
    (_TRIM_THRESHOLD, 2**31 - 1),
)


def keep_freed_memory() -> bool:
    """Have freed memory kept for reuse; call it before any thread starts. False where there is no such switch."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    results = [mallopt(number, value) for number, value in _SETTINGS]
    return results == [1] * len(_SETTINGS)
