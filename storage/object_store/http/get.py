"""GETs over our own connections: HTTP/1.1, kept open, one request at a time on each. It knows neither S3 nor its SDK.

Only the plain answer is understood here: HTTP/1.1, one header a line, a body of a size that the head gives. Any other
can be read by http.client, from its first byte on (`Answer.replay`).

- Body bytes go from the socket into the caller's buffer, all that is asked for in one call: otherwise each 64 KiB that
  arrive, or each TLS record of 16 KiB, wake a thread that has to stand in line for the interpreter.
- A connection that the server closed while it was idle shows it by ending before the first byte of an answer. The
  request then goes out once more, on a new connection.
"""

import http.client
import io
import re
import socket
import ssl
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storage.object_store.http.tls import Records

HEAD_BYTES_MAX = 64 * 1024
"""http.client refuses a single line of that size."""

IDLE_S_MAX = 60.0
"""An unused connection is closed after this. Servers and load balancers close theirs after 5 to 75 seconds."""

SILENCE_PARTS = 6
"""One system call waits for a part of the silence allowed: a call that has got some bytes waits on for the others, and
only its end tells that there were any. So a body is given up at most one part later than it should be."""

_PIECE_BYTES = 4096
_HEAD_END = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)[ \r]")
_HEADERS = re.compile(
    rb"\r\n(content-length|content-range|connection|transfer-encoding)[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE
)
_NUMBER = re.compile(rb"\d{1,18}[ \t]*")

_LOOK = int(socket.MSG_PEEK)
_LOOK_NOW = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_WHOLE = int(socket.MSG_WAITALL)

OpenSocket = Callable[[], socket.socket]
"""Opens a connection, with TLS where that is spoken."""


class ConnectionEndedError(ConnectionError):
    """The server closed the connection before the whole head of an answer had come."""


class TlsBrokenError(ConnectionError):
    """TLS failed after its handshake: a record that does not verify, an alert, an end that is not TLS's. Its cause is
    the SSLError."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What the head of a plain answer says. `content_range`: None if it has none."""

    status: int
    content_length: int
    content_range: str | None
    keeps_open: bool


def plain_head(head: bytes) -> AnswerHead | None:
    """The head of an answer, its blank line included; None if it is not a plain one."""
    status = _STATUS_LINE.match(head)
    found = [(name.lower(), value) for name, value in _HEADERS.findall(head)]
    headers = dict(found)
    length = headers.get(b"content-length", b"")
    if status is None or len(headers) < len(found) or b"transfer-encoding" in headers:
        return None
    # Lines that end in another way, or go on in the next one.
    is_odd = not head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") or b"\r\n " in head or b"\r\n\t" in head
    if is_odd or _NUMBER.fullmatch(length) is None:
        return None
    content_range = headers.get(b"content-range")
    return AnswerHead(
        status=int(status[1]),
        content_length=int(length),
        content_range=None if content_range is None else content_range.decode("latin-1").rstrip(),
        keeps_open=b"close" not in headers.get(b"connection", b"").lower(),
    )


class Connection:
    """An open connection, used by one thread at a time."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        # Exactly a socket: one that decrypts is a subclass.
        self._is_plain = type(opened) is socket.socket
        self.records = Records.of(opened) if isinstance(opened, ssl.SSLSocket) else None
        self._waits_in_kernel = self._is_plain or self.records is not None
        if isinstance(opened, ssl.SSLSocket):
            # An end without TLS's own is an error.
            opened.suppress_ragged_eofs = False  # type: ignore[attr-defined]  # documented, and not in its stub
        self._ahead = b""
        self._limit_s = 0.0
        self.has_answered = False
        """Whether a byte of the last request's answer has come."""
        self.idle_since_s = 0.0
        if self._waits_in_kernel:
            # The kernel limits how long a call waits. Python's own way asks before each call, and gets what is there.
            opened.settimeout(None)

    def ask(self, request: bytes, limit_s: float) -> bytes:
        """Send a request and receive the head of its answer, its blank line included.

        Raises:
            TimeoutError: no byte came for limit_s.
            ConnectionEndedError: the server closed the connection.
            TlsBrokenError: it ended otherwise, with TLS.
            OSError: it was reset.
        """
        self.has_answered = False
        self._wait_at_most(limit_s)
        head = b""
        try:
            self.socket.sendall(request)
            while not head.endswith(_HEAD_END):
                if len(head) > HEAD_BYTES_MAX:
                    raise ConnectionEndedError(f"an answer whose head has more than {HEAD_BYTES_MAX} bytes")
                piece = self._head_piece(head)
                if not piece:
                    raise ConnectionEndedError("the connection ended before an answer")
                head += piece
                self.has_answered = True
        except ssl.SSLError as error:
            raise TlsBrokenError from error
        return head

    def receive(self, view: memoryview, silence_s: float) -> int:
        """Fill the view with what comes next: how many bytes of it, fewer than it has when the server has closed.

        Raises:
            TimeoutError: nothing came for silence_s.
            TlsBrokenError: the connection ended otherwise, with TLS.
            OSError: it was reset.
        """
        count = len(self._ahead)
        if count:
            count = min(count, len(view))
            view[:count] = self._ahead[:count]
            self._ahead = self._ahead[count:]
        try:
            if self._waits_in_kernel:
                return self._receive_whole(view, count, silence_s)
            self._wait_at_most(silence_s)
            while count < len(view):
                received = self.socket.recv_into(view[count:])
                if not received:
                    break
                count += received
        except ssl.SSLError as error:
            raise TlsBrokenError from error
        return count

    def replay(self, head: bytes, limit_s: float) -> "Replay":
        """The answer from its first byte on; it owns the connection."""
        if self._waits_in_kernel:
            self._set_receive_limit(0.0)
        if isinstance(self.socket, ssl.SSLSocket):
            # A body without a size ends as it likes.
            self.socket.suppress_ragged_eofs = True  # type: ignore[attr-defined]  # as above
        self.socket.settimeout(limit_s)
        return Replay(head + self._ahead, self.socket)

    def is_quiet(self) -> bool:
        """Return whether nothing has come since the last answer: no end of the connection, no byte that nobody asked
        for. What TLS sends for itself (tickets, new keys) is taken in, and is no reason to part."""
        if self._ahead:
            return False
        if self._is_plain:
            return self._nothing_came()
        if self.records is None:
            return self._nothing_is_said()
        if self.records.is_empty and self._nothing_came():
            return True
        return self._nothing_is_said() and self.records.is_empty

    def close(self) -> None:
        """Close it."""
        self.socket.close()

    def _nothing_came(self) -> bool:
        try:
            socket.socket.recv(self.socket, 1, _LOOK_NOW)  # not the method of a socket that decrypts
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _nothing_is_said(self) -> bool:
        """The same of what comes out of TLS."""
        self.socket.settimeout(0.0)
        try:
            self.socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(None if self._waits_in_kernel else self._limit_s)
        return False

    def _head_piece(self, head: bytes) -> bytes:
        """More of the head, never a byte of the body; b"" when the server has closed."""
        piece = self._recv(_PIECE_BYTES, _LOOK if self._is_plain else 0)
        end = (head[-3:] + piece).find(_HEAD_END)
        if end < 0:
            size_bytes = len(piece)
        else:
            size_bytes = end + len(_HEAD_END) - len(head[-3:])
        if self._is_plain:
            # What was only looked at. The body stays in the kernel, to be received where it belongs.
            return self._recv(size_bytes, 0) if piece else b""
        self._ahead = piece[size_bytes:]
        return piece[:size_bytes]

    def _recv(self, size_bytes: int, flags: int) -> bytes:
        try:
            if self.records is None:
                return self.socket.recv(size_bytes, flags)
            piece = bytearray(size_bytes)
            return bytes(piece[: self.records.receive(memoryview(piece), whole=False)])
        except BlockingIOError as error:
            raise TimeoutError("timed out") from error

    def _receive_whole(self, view: memoryview, count: int, silence_s: float) -> int:
        self._wait_at_most(silence_s / SILENCE_PARTS)
        silent_parts = 0
        while count < len(view):
            try:
                if self.records is None:
                    received = self.socket.recv_into(view[count:], 0, _WHOLE)
                else:
                    received = self.records.receive(view[count:], whole=True)
            except BlockingIOError as error:
                silent_parts += 1
                if silent_parts == SILENCE_PARTS:
                    raise TimeoutError("timed out") from error
                continue
            if not received:
                break
            count += received
            silent_parts = 0
        return count

    def _wait_at_most(self, limit_s: float) -> None:
        if limit_s == self._limit_s:
            return
        self._limit_s = limit_s
        if self._waits_in_kernel:
            self._set_receive_limit(limit_s)
        else:
            self.socket.settimeout(limit_s)

    def _set_receive_limit(self, seconds: float) -> None:
        whole_s = int(seconds)
        timeval = struct.pack("ll", whole_s, int((seconds - whole_s) * 1_000_000))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


class Replay(io.RawIOBase):
    """A connection as a file, beginning with bytes that were received already. Closing it closes the connection."""

    def __init__(self, received: bytes, connection: socket.socket) -> None:
        super().__init__()
        self._received = received
        # Named as in socket.SocketIO, whose place it takes below http.client.
        self._sock = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not self._received:
            return self._sock.recv_into(view)
        count = min(len(view), len(self._received))
        view[:count] = self._received[:count]
        self._received = self._received[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._sock.close()
        super().close()


class Answer:
    """An answer whose head has come. `head` is None if it is not a plain one.

    Exactly one of `receive` to the end followed by `finish`, `give_up` or `replay` ends it.
    """

    def __init__(self, pool: "ConnectionPool", connection: Connection, head: bytes, limit_s: float) -> None:
        self.head = plain_head(head)
        self._pool = pool
        self._connection = connection
        self._head_bytes = head
        self._limit_s = limit_s
        self._left_bytes = 0 if self.head is None else self.head.content_length

    def receive(self, view: memoryview, silence_s: float) -> int:
        """As Connection.receive; no byte behind the body."""
        count = self._connection.receive(view[: self._left_bytes], silence_s)
        self._left_bytes -= count
        return count

    def finish(self) -> None:
        """The connection serves another GET, if the body was received whole."""
        if self._left_bytes or self.head is None or not self.head.keeps_open:
            self._connection.close()
        else:
            self._pool.put(self._connection)

    def give_up(self) -> None:
        """Close the connection."""
        self._connection.close()

    def wait_at_most(self, silence_s: float) -> None:
        """Set how long to wait for further bytes, of an answer that is replayed and not a plain one."""
        self._connection.socket.settimeout(silence_s)

    def replay(self, whole_bytes_max: int) -> io.BufferedIOBase:
        """The answer as a file from its first byte on, for http.client. A plain one of at most `whole_bytes_max` bytes
        of body is received whole, so that its connection serves others.

        Raises:
            TimeoutError, OSError: as Connection.receive.
        """
        if self.head is None or self.head.content_length > whole_bytes_max:
            return io.BufferedReader(self._connection.replay(self._head_bytes, self._limit_s))
        body = bytearray(self.head.content_length)
        try:
            with memoryview(body) as view:
                count = self.receive(view, self._limit_s)
        except BaseException:
            self.give_up()
            raise
        self.finish()
        return io.BytesIO(self._head_bytes + body[:count])


@dataclass(frozen=True, slots=True)
class _File:
    """What http.client asks of a socket."""

    file: Any

    def makefile(self, _mode: str) -> Any:
        return self.file


def parsed(answer: Answer, whole_bytes_max: int) -> http.client.HTTPResponse:
    """The answer as http.client has it, whatever its form; see Answer.replay.

    Raises:
        TimeoutError, OSError: as Connection.receive.
        HTTPException: it is no HTTP.
    """
    file: Any = _File(answer.replay(whole_bytes_max))
    response = http.client.HTTPResponse(file, method="GET")
    response.begin()
    return response


class ConnectionPool:
    """Connections to one server. Thread-safe.

    As many are opened as threads need at once; `idle_max` of them wait for the next request, the one that was used last
    serves first, and those that wait for longer than IDLE_S_MAX are closed. So are all of a pool that nobody holds.
    """

    def __init__(self, open_socket: OpenSocket, *, idle_max: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._open_socket = open_socket
        self._idle_max = idle_max
        self._now_s = now_s
        self._idle: deque[Connection] = deque()
        self._is_closed = False
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def get(self, request: bytes, limit_s: float) -> Answer:
        """Send a GET and wait for the head of its answer, at most limit_s for any of its bytes.

        Raises:
            TimeoutError, OSError: as Connection.ask.
            Exception: whatever opening a connection raises.
        """
        connection = self._take()
        if connection is not None:
            try:
                return self._ask(connection, request, limit_s)
            except TimeoutError:
                raise
            except OSError:
                if connection.has_answered or self._is_closed:
                    raise
        return self._ask(Connection(self._open_socket()), request, limit_s)

    def put(self, connection: Connection) -> None:
        """A connection whose last answer was received whole."""
        now_s = connection.idle_since_s = self._now_s()
        with self._lock:
            dropped = []
            if self._is_closed:
                dropped.append(connection)
            else:
                self._idle.append(connection)
            while self._idle and (len(self._idle) > self._idle_max or now_s - self._idle[0].idle_since_s > IDLE_S_MAX):
                dropped.append(self._idle.popleft())
        for old in dropped:
            old.close()

    def close(self) -> None:
        """Close the idle ones, and each of the others as soon as its answer ends."""
        with self._lock:
            self._is_closed = True
            idle = list(self._idle)
            self._idle.clear()
        for connection in idle:
            connection.close()

    def _take(self) -> Connection | None:
        """The connection that was used last; those that ended meanwhile or waited for too long are closed."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._now_s() - connection.idle_since_s <= IDLE_S_MAX and connection.is_quiet():
                return connection
            connection.close()

    def _ask(self, connection: Connection, request: bytes, limit_s: float) -> Answer:
        try:
            head = connection.ask(request, limit_s)
        except BaseException:
            connection.close()
            raise
        return Answer(self, connection, head, limit_s)


def _close_all(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.close()


class OpenSockets:
    """The open connections. A thread that waits in one can be woken only by shutting it down. Thread-safe."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_shut_down = False
        self._lock = threading.Lock()

    def connected(self, connection: Any, connect: Callable[[], None]) -> Any:
        """Connect one of urllib3's connections, and take its socket from it."""
        connect()
        opened, connection.sock = connection.sock, None
        return opened

    def add(self, opened: socket.socket) -> None:
        """A connection was opened; one that comes too late is shut down at once."""
        with self._lock:
            self._open.add(opened)
            if self._is_shut_down:
                _shut_down(opened)

    def shut_down(self) -> None:
        """Wake all waiters."""
        with self._lock:
            self._is_shut_down = True
            for opened in self._open:
                _shut_down(opened)


def _shut_down(opened: socket.socket) -> None:
    with suppress(OSError):  # the other side may have closed it before
        # Not the method of a socket that decrypts: that takes its state away from the thread which reads.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


def noting(pools: Mapping[str, Any], sockets: OpenSockets) -> dict[str, Any]:
    """urllib3's classes of connection pools, by scheme, as ones that tell of each connection that they open."""

    def noted(pool: Any) -> Any:
        class Connection(pool.ConnectionCls):  # type: ignore[misc]  # urllib3's or an SDK's: one for each scheme
            def connect(self) -> None:
                super().connect()
                sockets.add(self.sock)

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    return {scheme: noted(pool) for scheme, pool in pools.items()}
