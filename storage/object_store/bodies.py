"""The body of one GET, from its source into the caller's buffer, whatever the store.

A body that has begun and brings no byte for SILENCE_S_MAX is given up, so that another GET can bring the rest while
somebody still waits for it. A slow body that goes on bringing bytes is not: only silence counts, never a piece's
time.
"""

import re
from collections.abc import Callable
from typing import Protocol

from storage.errors import InvalidRangeError, RemoteStorageError, RetriableRemoteStorageError
from storage.object_store.http.get import Answer

SILENCE_S_MAX = 3.0
"""A TCP sender repeats a lost packet after 0.2 s and then after twice as long each time (Linux; RFC 6298 §5.5): 0.2,
0.6, 1.4 and 3.0 s after it was first sent. A connection that is alive, but bad enough to lose a packet three times in
a row, is heard again before this. It leaves a second GET two of the five seconds that a reader waits at most
(docs/protocol.md#l3)."""

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")

Translate = Callable[[Exception], RemoteStorageError | None]
"""From an error of the SDK, of HTTP or of a socket to one of ours; None for an error of another kind."""


class BodySource(Protocol):
    """Where a body comes from."""

    def receive(self, view: memoryview) -> int:
        """Fill the view: how many bytes of it; fewer than it has when the body has ended."""
        ...

    def finish(self) -> None:
        """The last byte that is wanted was received: the connection may serve another GET."""
        ...

    def give_up(self) -> None:
        """Close the connection."""
        ...


class BodyStream:
    """An ObjectStream; see storage.object_store.object_store.

    Args:
        source: nothing of it read yet.
        what: what was asked for, for messages.
    """

    def __init__(self, source: BodySource, size_bytes: int, *, what: str, translate: Translate) -> None:
        self.source = source
        self._size_bytes = size_bytes
        self._left_bytes = size_bytes
        self._what = what
        self._translate = translate
        self._is_finished = False
        self._closed = False

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

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
            count = self.source.receive(view)
            self._left_bytes -= count
            if count < len(view):
                read_bytes = self._size_bytes - self._left_bytes
                message = f"{self._what}: the body ended after {read_bytes} of {self._size_bytes} bytes"
                raise RetriableRemoteStorageError(message)
            if not self._left_bytes:
                self.source.finish()
                self._is_finished = True
        except Exception as error:
            self._closed = True
            self.source.give_up()
            translated = self._translate(error)
            if translated is None:
                raise
            raise translated from error

    def close(self) -> None:
        """End the GET. A connection with bytes left in it is closed, since reading them could take for ever."""
        if not self._closed:
            self._closed = True
            if not self._is_finished:
                self.source.give_up()


class AnswerBody:
    """The body of a plain answer over our own connection.

    Args:
        timeout_s: how long an answer is waited for; silence within it is waited for no longer.
    """

    def __init__(self, answer: Answer, timeout_s: float) -> None:
        self._answer = answer
        self._silence_s = min(SILENCE_S_MAX, timeout_s)

    def receive(self, view: memoryview) -> int:
        """As BodySource.receive, without a copy between the socket and the view."""
        return self._answer.receive(view, self._silence_s)

    def finish(self) -> None:
        """As BodySource.finish."""
        self._answer.finish()

    def give_up(self) -> None:
        """As BodySource.give_up."""
        self._answer.give_up()


def body_size_bytes(
    status: int, content_range: str | None, content_length: int | None, start: int, end: int, what: str
) -> int:
    """Return how many bytes of the body are the range's. An answer with other bytes than were asked for is an error."""
    cut = RetriableRemoteStorageError(f"{what}: the answer was cut in its head")
    if content_range is None:
        # A 206 names its range. http.client takes a connection's end for that of the head.
        if status == 206:
            raise cut
        # A store that knows no ranges: the whole object, of which the head may be what was asked for.
        if start or content_length is None or status != 200:
            raise RemoteStorageError(f"{what}: asked for bytes from {start}, got an answer without a range")
        return min(content_length, end)
    if content_length == 0 and content_range.endswith((f"/{start}", "--1/0")):
        # Azurite's answer to a range that begins at the object's end, where others answer 416.
        raise InvalidRangeError(f"{what}: the object ends at {start}")
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
