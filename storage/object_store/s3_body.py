"""The body of one GET from S3, from the socket into the caller's buffer.

botocore hands out a StreamingBody around urllib3's response around http.client's. Each `read` of theirs makes a bytes
object of what http.client read, and urllib3's `readinto` copies that once more. http.client's own `readinto` lets the
kernel write into the buffer that it is given. So that is what is called, on the three conditions that make it the
same: nothing is decoded (botocore never asks urllib3 to), nobody sums the bytes up (botocore does so in a subclass of
StreamingBody), and the innermost object is http.client's. Else the StreamingBody is asked, at one copy more.

What the layers in between do besides is done here: a body that ends early is an error, and a connection goes back to
its pool exactly when its response was read to the end.
"""

import http.client
from collections.abc import Callable
from typing import Any

from storage.errors import RemoteStorageError, RetriableRemoteStorageError

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
        self._closed = False

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
        source = self._body if self._response is None else self._response
        while view:
            count = source.readinto(view)
            if not count:
                read_bytes = self._size_bytes - self._left_bytes
                message = f"{self._what}: the body ended after {read_bytes} of {self._size_bytes} bytes"
                raise RetriableRemoteStorageError(message)
            self._left_bytes -= count
            view = view[count:]

    def _finish(self) -> None:
        if self._response is None:
            # A StreamingBody compares its sum when it finds the end: before the caller has the last byte.
            if self._body.readinto(bytearray(1)):
                self._give_up_connection()
        elif self._response.isclosed():
            self._raw.release_conn()
        else:
            # More than the range (the whole object), or a chunked body's last mark: not worth another read.
            self._give_up_connection()

    def _give_up_connection(self) -> None:
        self._closed = True
        self._body.close()
        release = getattr(self._raw, "release_conn", None)
        if release is not None:
            # Back to the pool, closed: it opens anew when it is used.
            release()
