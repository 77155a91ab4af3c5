"""Many TLS records in one call.

Python's ssl gives one record of at most 16 KiB a call, and after each a thread stands in line for the interpreter.
OpenSSL itself goes on until a buffer is full: its buffering BIO does, over the connection that Python's ssl has opened.
ctypes calls it without the interpreter's lock. Connections, handshakes and certificates are Python's ssl as ever: all
that is done here is to receive.

It takes where CPython keeps OpenSSL's own object: one place from 3.6 to 3.15, and what lies beside it is compared each
time. Where that differs, or OpenSSL's functions are not to be had (linked into Python itself), `library` gives none,
and Python's ssl receives, as it does where `tier.tls.native` says so. A read that fails raises what it would raise.
"""

import ctypes
import errno
import functools
import importlib
import os
import ssl
from typing import Any

READ_AHEAD_BYTES = 64 * 1024
"""What one system call receives. By itself OpenSSL takes a record's head and then its body. More than a core's nearest
caches hold is slower again."""

NATIVE_KEY = "tier.tls.native"
"""Handed on among the storage manager's own keys, so that it reaches Spark's executors too."""

is_native = True
"""What that key says: set when a store is opened, and one for the process, which has one tier."""

_POINTER, _INT, _LONG, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_size_t
_CODE = ctypes.c_ulong
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
    "ERR_peek_error": (_CODE,),
    "ERR_reason_error_string": (ctypes.c_char_p, _CODE),
    "SSL_get_error": (_INT, _POINTER, _INT),
    "SSL_get_fd": (_INT, _POINTER),
    "SSL_has_pending": (_INT, _POINTER),
    "SSL_set_default_read_buffer_len": (None, _POINTER, _SIZE),
    "SSL_set_quiet_shutdown": (None, _POINTER, _INT),
    "SSL_set_read_ahead": (None, _POINTER, _INT),
}
"""Result and arguments of each, by OpenSSL's manual."""

# Numbers of `openssl/bio.h`.
_CTRL_PENDING, _C_SET_SSL = 10, 109
_FLAGS_SHOULD_RETRY = 0x08

_NO_ERRORS = (0, errno.EAGAIN, errno.EINTR)
"""The system's errors that end no connection: the thread's last one may be older than the read that failed."""
_EOF = "unexpected eof while reading"
"""OpenSSL 3's words for a connection that ends without TLS's own end; before, it had no words for that."""


class Records:
    """What one connection receives. The connection is a blocking one, whose waits the kernel limits (SO_RCVTIMEO)."""

    def __init__(self, openssl: ctypes.CDLL, opened: ssl.SSLSocket, connection: int) -> None:
        self._openssl = openssl
        self._connection = connection
        self._keeps_alive: Any = opened._sslobj  # type: ignore[attr-defined]  # `connection` lives as long as this
        self._failure: OSError | None = None
        openssl.SSL_set_quiet_shutdown(connection, 1)  # nothing is sent where the BIOs are freed
        openssl.SSL_set_default_read_buffer_len(connection, READ_AHEAD_BYTES)
        openssl.SSL_set_read_ahead(connection, 1)
        self._single = openssl.BIO_new(openssl.BIO_f_ssl())
        openssl.BIO_ctrl(self._single, _C_SET_SSL, 0, connection)
        self._all = openssl.BIO_push(openssl.BIO_new(openssl.BIO_f_buffer()), self._single)

    @classmethod
    def of(cls, opened: ssl.SSLSocket) -> "Records | None":
        """None: they have to be received by the socket itself."""
        openssl, inner = library() if is_native else None, getattr(opened, "_sslobj", None)
        if openssl is None or inner is None:
            return None
        connection = _inside(openssl, inner, opened.fileno())
        return None if connection is None else cls(openssl, opened, connection)

    def __del__(self) -> None:
        self._openssl.BIO_free_all(self._all)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing that came waits here, decrypted or not."""
        openssl = self._openssl
        return not openssl.BIO_ctrl(self._all, _CTRL_PENDING, 0, None) and not openssl.SSL_has_pending(self._connection)

    def receive(self, view: memoryview, *, whole: bool) -> int:
        """Return how many bytes came; 0: the server has ended TLS.

        Args:
            whole: fill the view; fewer bytes come if it ends or falls silent. Otherwise one record's.

        Raises:
            BlockingIOError: nothing came in the time that the kernel waits.
            SSLError, OSError: as Python's ssl, for each way in which a connection breaks.
        """
        if self._failure is not None:
            raise self._failure
        bio = self._all if whole else self._single
        self._openssl.ERR_clear_error()  # OpenSSL asks the thread's list of errors whether this call failed
        received: int = self._openssl.BIO_read(bio, ctypes.addressof(ctypes.c_char.from_buffer(view)), len(view))
        if received == len(view) or (received > 0 and not whole):
            return received
        waits = self._openssl.BIO_test_flags(bio, _FLAGS_SHOULD_RETRY)
        if not waits:
            # OpenSSL names the reason once, which may be behind bytes that are still given out.
            self._failure = self._reason(ctypes.get_errno())
        if received > 0:
            return received
        if waits:
            raise BlockingIOError
        if self._failure is not None:
            raise self._failure
        return 0

    def _reason(self, error_number: int) -> OSError | None:
        """Why the read that was just made brought less; None: the server has ended TLS."""
        openssl = self._openssl
        kind = openssl.SSL_get_error(self._connection, -1)
        words = (openssl.ERR_reason_error_string(openssl.ERR_peek_error()) or b"").decode()
        openssl.ERR_clear_error()
        ctypes.set_errno(0)
        if kind == ssl.SSL_ERROR_ZERO_RETURN:
            return None
        if kind == ssl.SSL_ERROR_SSL and words != _EOF:
            return ssl.SSLError(kind, words)
        if kind == ssl.SSL_ERROR_SYSCALL and error_number not in _NO_ERRORS:
            return OSError(error_number, os.strerror(error_number))
        return ssl.SSLEOFError(ssl.SSL_ERROR_EOF, _EOF)


def why_python(is_native: bool) -> str | None:
    """Return why Python's ssl receives, to follow a colon; None: OpenSSL does."""
    if not is_native:
        return f"{NATIVE_KEY}=false"
    return "this Python has OpenSSL built in, or keeps it elsewhere" if library() is None else None


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library that Python's ssl uses; None: Python's ssl has to receive."""
    try:
        found = ctypes.CDLL(importlib.import_module("_ssl").__file__, use_errno=True)
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tried: Any = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="none")
    return None if _inside(found, tried._sslobj, -1) is None else found


def _inside(openssl: ctypes.CDLL, inner: Any, descriptor: int) -> int | None:
    """OpenSSL's object inside of Python's; None: something else is in its place. `descriptor`: −1 without a socket."""
    place = id(inner) + object.__basicsize__ + ctypes.sizeof(_POINTER)
    connection, context = (_POINTER * 2).from_address(place)
    is_it = context == id(inner.context) and openssl.SSL_get_fd(connection) == descriptor
    return connection if is_it else None
