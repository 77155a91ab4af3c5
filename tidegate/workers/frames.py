"""What supervisor and worker say to each other, as bytes and file descriptors; no input or output.

A frame is a head of nine bytes (big-endian: the body's length 4 · kind 1 · id 4) and a body, which is JSON.

- TELL: something that wants no answer. The body has `what`. Its id is 0.
- ASK: a question; the ANSWER to it has the same id. Each side counts its own questions.
- GIVE: an accepted connection, as one file descriptor beside the bytes (SCM_RIGHTS). It is sent with the frame's first
  byte, so that it has come when the frame has; no receive goes beyond the bytes that one came with. A process without
  an open file left gets the frame alone, and the connection is lost.

Both ends are the same build of the same program, forked from one process; so a frame has no version. What does not fit
all the same is an error that ends the channel, and with it the worker: never a connection at the wrong broker.
"""

import enum
import json
import struct
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

BODY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Samples of 100,000 topics, the most that `metrics.topics.max` allows, with a dozen series each."""

DESCRIPTORS_MAX: Final = 64
"""In one receive. A GIVE has about 80 bytes: this many fit into 5 KiB."""

_HEAD: Final = struct.Struct(">IBI")
HEAD_BYTES: Final = _HEAD.size


class FrameError(Exception):
    """The other end sent something that is no frame, or a connection's descriptor is missing."""


class FrameKind(enum.IntEnum):
    """What a frame is."""

    TELL = 1
    ASK = 2
    ANSWER = 3
    GIVE = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. `descriptor` is an open file of the receiver's, who closes it; only a GIVE has one, unless it was
    lost."""

    kind: FrameKind
    body: Mapping[str, Any]
    id: int = 0
    descriptor: int | None = None


def encode(kind: FrameKind, body: Mapping[str, Any], id_: int = 0) -> bytes:
    """The frame's bytes; a GIVE's descriptor goes beside them.

    Raises:
        FrameError: the body is too long.
    """
    text = json.dumps(body, separators=(",", ":")).encode()
    if len(text) > BODY_BYTES_MAX:
        raise FrameError(f"a message of {len(text)} bytes: at most {BODY_BYTES_MAX}")
    return _HEAD.pack(len(text), kind, id_) + text


class FrameDecoder:
    """Bytes and descriptors in, frames out, however they were cut."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._descriptors: deque[int | None] = deque()

    def receive(self, data: bytes, descriptors: Iterable[int] = (), *, has_lost_one: bool = False) -> list[Frame]:
        """The frames that are whole now. Descriptors without a frame yet are kept.

        Args:
            has_lost_one: a descriptor that these bytes came with could not be had.

        Raises:
            FrameError: it is no frame, or a GIVE without a descriptor; the channel is of no more use.
        """
        self._received += data
        self._descriptors += descriptors
        if has_lost_one:
            self._descriptors.append(None)
        frames: list[Frame] = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def left_descriptors(self) -> list[int]:
        """Those that no frame has taken, for the receiver to close at the channel's end."""
        left = [descriptor for descriptor in self._descriptors if descriptor is not None]
        self._descriptors.clear()
        return left

    def _next(self) -> Frame | None:
        if len(self._received) < HEAD_BYTES:
            return None
        length, number, id_ = _HEAD.unpack_from(self._received)
        try:
            kind = FrameKind(number)
        except ValueError:
            raise FrameError(f"no kind of message has number {number}") from None
        if length > BODY_BYTES_MAX:
            raise FrameError(f"a message of {length} bytes: at most {BODY_BYTES_MAX}")
        if len(self._received) < HEAD_BYTES + length:
            return None
        body = _body(bytes(self._received[HEAD_BYTES : HEAD_BYTES + length]))
        del self._received[: HEAD_BYTES + length]
        if kind is not FrameKind.GIVE:
            return Frame(kind, body, id_)
        if not self._descriptors:
            raise FrameError("a connection came without its descriptor")
        return Frame(kind, body, id_, self._descriptors.popleft())


def _body(text: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a message that is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise FrameError("a message that is no object")
    return body
