"""The body of one GET from S3, from the socket into the caller's buffer.

botocore hands out a StreamingBody around urllib3's response around http.client's. Each `read` of theirs makes a bytes
object of what http.client read, and urllib3's `readinto` copies that once more. http.client's own `readinto` lets the
kernel write into the buffer that it is given. So that is what is called, on the three conditions that make it the
same: nothing is decoded (botocore never asks urllib3 to), nobody sums the bytes up (botocore does so in a subclass of
StreamingBody), and the innermost object is http.client's. Else the StreamingBody is asked, at one copy more.

Where the connection is plain TCP, large pieces are received by one system call each, which returns when all of it is
there: otherwise each 64 KiB that arrive wake a thread that has to stand in line for the interpreter, and with a dozen
bodies under way that line is what the process does most. The last byte is always http.client's to read, so that it
finds its end of the body.

What the layers in between do besides is done here: a body that ends early is an error, and a connection goes back to
its pool exactly when its response was read to the end.

A body that has begun and brings no byte for SILENCE_S_MAX is given up, so that another GET can bring the rest while
somebody still waits for it. A slow body that goes on bringing bytes is not: only silence counts, never a piece's time.
"""

import http.client
import io
import re
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from storage.errors import RemoteStorageError, RetriableRemoteStorageError

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef

RECEIVE_WHOLE_BYTES_MIN = 64 * 1024
"""Below, one system call gets all that there is anyway."""

SILENCE_S_MAX = 3.0
"""A TCP sender repeats a lost packet after 0.2 s and then after twice as long each time (Linux; RFC 6298 §5.5): 0.2,
0.6, 1.4 and 3.0 s after it was first sent. A connection that is alive, but bad enough to lose a packet three times in
a row, is heard again before this. It leaves a second GET two of the five seconds that a reader waits at most (L3)."""

SILENCE_PARTS = 6
"""One system call waits for a part of the silence allowed: a call that has got some bytes waits on for the others, and
only its end tells that there were any. So a body is given up at most one part later than it should be."""

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")

Translate = Callable[[Exception], RemoteStorageError | None]
"""From an error of the SDK, of HTTP or of a socket to one of ours; None for an error of another kind."""


class S3ObjectStream:
    """An ObjectStream; see storage.object_store.object_store.

    Args:
        body: botocore's StreamingBody, nothing of it read yet.
        is_summed: botocore sums the body up while it is read, and compares at its end.
        what: what was asked for, for messages.
    """

    def __init__(self, body: Any, size_bytes: int, *, is_summed: bool, what: str, translate: Translate) -> None:
        self._body = body
        self._size_bytes = size_bytes
        self._left_bytes = size_bytes
        self._what = what
        self._translate = translate
        self._raw: Any = getattr(body, "_raw_stream", None)
        response = getattr(self._raw, "_fp", None)
        self._response = response if isinstance(response, http.client.HTTPResponse) and not is_summed else None
        self._receiver: WholeReceiver | None = None
        self._closed = False
        # The connection's own time-out is for an answer to begin; it gets it back with its next request.
        self._socket: socket.socket | None = getattr(getattr(getattr(response, "fp", None), "raw", None), "_sock", None)
        self._timeout_s = None if self._socket is None else self._socket.gettimeout()
        self._set_timeout(SILENCE_S_MAX if self._timeout_s is None else min(SILENCE_S_MAX, self._timeout_s))

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_direct(self) -> bool:
        """Whether bytes go from the socket into the buffer without a copy between."""
        return self._response is not None

    def readinto(self, buffer: memoryview) -> None:
        """Fill the buffer from the connection."""
        view = buffer.cast("B")
        if self._closed:
            raise ValueError(f"{self._what}: the stream is closed")
        if len(view) > self._left_bytes:
            raise ValueError(f"{len(view)} bytes of a body with {self._left_bytes} left")
        if not view:
            return
        try:
            self._fill(view)
            if not self._left_bytes:
                self._finish()
        except Exception as error:
            self._give_up_connection()
            translated = self._translate(error)
            if translated is None:
                raise
            raise translated from error

    def close(self) -> None:
        """End the GET. A connection with bytes left in it is closed, since reading them could take for ever."""
        if not self._closed:
            self._closed = True
            if self._left_bytes:
                self._give_up_connection()

    def _fill(self, view: memoryview) -> None:
        if self._response is not None and len(view) > RECEIVE_WHOLE_BYTES_MIN:
            view = view[self._receive_whole(self._response, view) :]
        elif self._receiver is not None:
            self._receiver.may_be_buffered = True
        source = self._body if self._response is None else self._response
        while view:
            count = source.readinto(view)
            if not count:
                read_bytes = self._size_bytes - self._left_bytes
                message = f"{self._what}: the body ended after {read_bytes} of {self._size_bytes} bytes"
                raise RetriableRemoteStorageError(message)
            self._left_bytes -= count
            view = view[count:]

    def _receive_whole(self, response: http.client.HTTPResponse, view: memoryview) -> int:
        """Fill what can be filled past http.client, the body's last byte never; how much that was."""
        if self._receiver is None:
            self._receiver = WholeReceiver.of(response)
            if self._receiver is None:
                return 0
        is_last = len(view) == self._left_bytes
        count = self._receiver.receive(view[:-1] if is_last else view)
        # Its own count of what is left of the body; it must be right for the last byte.
        response.length = (response.length or 0) - count
        self._left_bytes -= count
        if is_last:
            self._receiver.restore()
        return count

    def _finish(self) -> None:
        self._set_timeout(self._timeout_s)
        if self._response is None:
            # A StreamingBody compares its sum when it finds the end: before the caller has the last byte.
            if self._body.readinto(bytearray(1)):
                self._give_up_connection()
        elif self._response.isclosed():
            self._raw.release_conn()
        else:
            # More than the range (the whole object), or a chunked body's last mark: not worth another read.
            self._give_up_connection()

    def _set_timeout(self, timeout_s: float | None) -> None:
        # A store that keeps no connections open has closed this one with the body's last byte.
        if self._socket is not None and self._socket.fileno() >= 0:
            self._socket.settimeout(timeout_s)

    def _give_up_connection(self) -> None:
        self._closed = True
        self._body.close()
        release = getattr(self._raw, "release_conn", None)
        if release is not None:
            # Back to the pool, closed: it opens anew when it is used.
            release()


class WholeReceiver:
    """Receives past http.client's buffer, on a plain socket that blocks until all is there or it has been silent for as
    long as its time-out says."""

    def __init__(self, reader: io.BufferedReader, connection: socket.socket) -> None:
        self._reader = reader
        self._socket = connection
        self._timeout_s = connection.gettimeout()
        self._is_blocking = False
        self.may_be_buffered = True
        """Whether the reader may hold bytes: what came along with the response's head, or behind a small piece."""

    @classmethod
    def of(cls, response: http.client.HTTPResponse) -> "WholeReceiver | None":
        """None if this is not how the response is received: TLS, a chunked body, or another version's inner parts."""
        reader: Any = response.fp
        connection = getattr(getattr(reader, "raw", None), "_sock", None)
        # Exactly a socket: one that decrypts is a subclass.
        is_plain = type(connection) is socket.socket and isinstance(reader, io.BufferedReader)
        if not is_plain or response.length is None:
            return None
        return cls(reader, connection)  # type: ignore[arg-type]  # `is_plain` says what it is

    def receive(self, view: memoryview) -> int:
        """Bytes received: fewer than asked for when the other side has closed.

        Raises:
            TimeoutError: nothing came for as long as the connection's time-out says.
        """
        count = silent_parts = 0
        if self.may_be_buffered:
            count = self._take_buffered(view)
            self.may_be_buffered = count == len(view)
        if not self._is_blocking:
            self._block()
        while count < len(view):
            try:
                received = self._socket.recv_into(view[count:], 0, socket.MSG_WAITALL)
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

    def restore(self) -> None:
        """The connection as it was: the pool's next response is waited for in the usual way."""
        if self._is_blocking:
            self._is_blocking = False
            self._set_receive_timeout(0.0)
            self._socket.settimeout(self._timeout_s)

    def _take_buffered(self, view: memoryview) -> int:
        buffered = len(self._reader.peek())
        return self._reader.readinto(view[: min(buffered, len(view))])

    def _block(self) -> None:
        self._is_blocking = True
        self._socket.settimeout(None)
        self._set_receive_timeout((self._timeout_s or 0.0) / SILENCE_PARTS)

    def _set_receive_timeout(self, seconds: float) -> None:
        whole_s = int(seconds)
        timeval = struct.pack("ll", whole_s, int((seconds - whole_s) * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def body_size_bytes(answer: "GetObjectOutputTypeDef", start: int, end: int, what: str) -> int:
    """How many bytes of the body are the range's. An answer with other bytes than were asked for is an error."""
    # Absent where the store says so, whatever the stubs say.
    content_length = cast("int | None", answer.get("ContentLength"))
    content_range = cast("str | None", answer.get("ContentRange"))
    cut = RetriableRemoteStorageError(f"{what}: the answer was cut in its head")
    if content_range is None:
        # A 206 names its range. http.client takes a connection's end for that of the head.
        if answer["ResponseMetadata"]["HTTPStatusCode"] == 206:
            raise cut
        # A store that knows no ranges: the whole object, of which the head may be what was asked for.
        if start or content_length is None or answer["ResponseMetadata"]["HTTPStatusCode"] != 200:
            raise RemoteStorageError(f"{what}: asked for bytes from {start}, got an answer without a range")
        return min(content_length, end)
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None and content_length is None:
        raise cut
    if match is None or int(match[1]) != start or not start <= int(match[2]) < end:
        raise RemoteStorageError(f"{what}: asked for bytes [{start}, {end}), got {content_range[:80]!r}")
    size_bytes = int(match[2]) + 1 - start
    ends_early = start + size_bytes < end and match[3] not in ("*", str(start + size_bytes))
    if ends_early or content_length not in (None, size_bytes):
        raise RetriableRemoteStorageError(
            f"{what}: asked for bytes [{start}, {end}), got {content_range!r} in {content_length} bytes"
        )
    return size_bytes
