"""Buffers that are not zeroed first."""

import ctypes
from collections.abc import Callable
from typing import Any

_bytearray_of: Callable[[Any, int], bytearray] = ctypes.pythonapi.PyByteArray_FromStringAndSize
_bytearray_of.restype = ctypes.py_object  # type: ignore[attr-defined]  # a foreign function's own attributes
_bytearray_of.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)  # type: ignore[attr-defined]  # as above


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
    return _bytearray_of(None, size_bytes)
