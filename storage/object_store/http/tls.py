"""Many TLS records in one call.

Python's ssl gives one record of at most 16 KiB a call, and after each a thread stands in line for the interpreter.
OpenSSL itself goes on until a buffer is full: its buffering BIO does, over the connection that Python's ssl has opened.
ctypes calls it without the interpreter's lock. Connections, handshakes and certificates are Python's ssl as ever: all
that is done here is to receive.

It takes where CPython keeps OpenSSL's own object: one place from 3.6 to 3.15, and what lies beside it is compared each
time. Where that differs, or OpenSSL's functions are not to be had (linked into Python itself), `Records.of` gives none,
and Python's ssl receives.
"""

import ctypes
import functools
import importlib
import ssl
from typing import Any

READ_AHEAD_BYTES = 64 * 1024
"""What one system call receives. By itself OpenSSL takes a record's head and then its body. More than a core's nearest
caches hold is slower again."""

_POINTER, _INT, _LONG, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_size_t
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "BIO_ctrl": (_LONG, _POINTER, _INT, _LONG, _POINTER),
    "BIO_f_buffer": (_POINTER,),
    "BIO_f_ssl": (_POINTER,),
    "BIO_free_all": (None, _POINTER),
    "BIO_new": (_POINTER, _POINTER),
    "BIO_push": (_POINTER, _POINTER, _POINTER),
    "BIO_read": (_INT, _POINTER, _POINTER, _INT),
    "BIO_test_flags": (_INT, _POINTER, _INT),
    "ERR_clear_error": (None,),
    "SSL_get_fd": (_INT, _POINTER),
    "SSL_set_default_read_buffer_len": (None, _POINTER, _SIZE),
    "SSL_set_quiet_shutdown": (None, _POINTER, _INT),
    "SSL_set_read_ahead": (None, _POINTER, _INT),
}
"""Result and arguments of each, by OpenSSL's manual."""

# Numbers of `openssl/bio.h`.
_CTRL_PENDING, _C_SET_SSL = 10, 109
_FLAGS_SHOULD_RETRY = 0x08


class Records:
    """What one connection receives. The connection is a blocking one, whose waits the kernel limits (SO_RCVTIMEO)."""

    def __init__(self, openssl: ctypes.CDLL, opened: ssl.SSLSocket, connection: int | None) -> None:
        self._openssl = openssl
        self._keeps_alive: Any = opened._sslobj  # type: ignore[attr-defined]  # `connection` lives as long as this
        openssl.SSL_set_quiet_shutdown(connection, 1)  # nothing is sent where the BIOs are freed
        openssl.SSL_set_default_read_buffer_len(connection, READ_AHEAD_BYTES)
        openssl.SSL_set_read_ahead(connection, 1)
        self._single = openssl.BIO_new(openssl.BIO_f_ssl())
        openssl.BIO_ctrl(self._single, _C_SET_SSL, 0, connection)
        self._all = openssl.BIO_push(openssl.BIO_new(openssl.BIO_f_buffer()), self._single)

    @classmethod
    def of(cls, opened: ssl.SSLSocket) -> "Records | None":
        """None: they have to be received by the socket itself."""
        openssl, inner = library(), getattr(opened, "_sslobj", None)
        if openssl is None or inner is None:
            return None
        place = id(inner) + object.__basicsize__ + ctypes.sizeof(_POINTER)
        connection, context = (_POINTER * 2).from_address(place)
        if context != id(inner.context) or openssl.SSL_get_fd(connection) != opened.fileno():
            return None
        return cls(openssl, opened, connection)

    def __del__(self) -> None:
        self._openssl.BIO_free_all(self._all)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing that was decrypted waits to be received."""
        return not self._openssl.BIO_ctrl(self._all, _CTRL_PENDING, 0, None)

    def receive(self, view: memoryview, *, whole: bool) -> int:
        """Return how many bytes came; 0: the connection has ended.

        Args:
            whole: fill the view; fewer bytes come if it ends or falls silent. Otherwise one record's.

        Raises:
            BlockingIOError: nothing came in the time that the kernel waits.
        """
        bio = self._all if whole else self._single
        self._openssl.ERR_clear_error()  # OpenSSL asks the thread's list of errors whether this call failed
        received: int = self._openssl.BIO_read(bio, ctypes.addressof(ctypes.c_char.from_buffer(view)), len(view))
        if received > 0:
            return received
        self._openssl.ERR_clear_error()
        if self._openssl.BIO_test_flags(bio, _FLAGS_SHOULD_RETRY):
            raise BlockingIOError
        return 0


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library that Python's ssl uses."""
    try:
        found = ctypes.CDLL(importlib.import_module("_ssl").__file__)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError):
        return None
    return found
