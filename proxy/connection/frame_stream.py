"""One direction of a connection: frames received on one transport, passed on to another.

Nothing is copied between the two but what `FrameBuffer` moves to its front. Long runs of bytes that nobody looks at,
which are records, are not even received where both sides are plain (`proxy.upstream.pipe`).

A frame is passed on in parts. Each is what the destination certainly takes at once (`proxy.upstream.send_room`), or
HEAD_BYTES. So a side that takes nothing leaves the frame in the socket that it came by, and HEAD_BYTES of it here.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES, RECEIVE_BUFFER_BYTES, SMALL_BUFFER_BYTES, FrameBuffer, frame_size
from proxy.connection.accounts import Account
from proxy.upstream.pipe import PIPE_BYTES, Pipe, the_pipe
from proxy.upstream.transport import PlainTransport, Transport

# Why a client connection ended: an exception that its two loops end by, and what other errors amount to.


class ConnectionEnd(Exception):
    """The connection is over. `detail` goes into the one log line; empty when there is nothing to say.

    `fault` is an error that nobody expected: the log line shows it as such.
    """

    def __init__(self, cause: CloseCause, detail: str = "", *, fault: Exception | None = None) -> None:
        super().__init__(detail or cause.value)
        self.cause = cause
        self.detail = detail
        self.fault = fault


def end_of(group: BaseExceptionGroup[Exception], destination: CloseCause) -> ConnectionEnd:
    """Why a loop ended; a fault of ours wins over what came with it.

    Args:
        group: groups may hold groups: an exchange has nurseries inside nurseries.
        destination: the side that broke when a send failed; a receive says itself which side it was.
    """
    ends = [_end_of_one(error, destination) for error in _leaves(group)]
    return next((end for end in ends if end.fault is not None), ends[0])


def _end_of_one(error: Exception, destination: CloseCause) -> ConnectionEnd:
    match error:
        case ConnectionEnd():
            return error
        case PeerProtocolError():
            return ConnectionEnd(CloseCause.MALFORMED_FRAME, str(error))
        case TransportError():
            return ConnectionEnd(destination, str(error))
        case _:
            return ConnectionEnd(CloseCause.FAULT, repr(error), fault=error)


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


CORRELATION_ID_BYTES = 4

SPLICED_BYTES_MIN = 64 * 1024
"""A shorter run costs as much to splice as to copy."""

HEAD_BYTES = 4 * 1024
"""Behind a run that was spliced so much is received: the next run's head, and little of what would be copied. So much
is received too for a destination that takes nothing."""


class Filter(Protocol):
    """What a frame passes through; `FetchResponseWalker` is one."""

    unseen_bytes: int
    """Bytes that come next and need not be fed."""

    def feed(self, view: memoryview) -> int:
        """Return how many of the bytes at hand may go; it may patch them."""
        ...

    def pass_unseen(self, size: int) -> None:
        """Note how many of them have gone."""
        ...


class FrameStream:
    """Receives from `source` into one buffer, of which it holds little while the source is silent.

    `close` must follow.

    Args:
        destination: what frames are passed on to.
        ended: the cause to give when the source breaks.
        on_passed: is given how many bytes were passed on.
        account: charged with what the buffer holds beyond a small one, and waits for the rest of frames.
    """

    def __init__(
        self,
        source: Transport,
        destination: Transport,
        ended: CloseCause,
        on_passed: Callable[[int], None],
        account: Account,
    ) -> None:
        self.buffer = FrameBuffer()
        self._source = source
        self._destination = destination
        self._room = destination.room
        self._room.fill_from(source.room)
        self._ended = ended
        self._on_passed = on_passed
        self._account = account
        self._charged_bytes = 0
        self._received_bytes_max = RECEIVE_BUFFER_BYTES
        account.buffers.append(self.buffer)

    async def receive(self) -> bool:
        """Receive more bytes, between frames or in the first bytes of one; False at the source's end between frames.

        Raises:
            PeerProtocolError: the source ended inside a frame.
            ConnectionEnd: it broke.
        """
        buffer = self.buffer
        buffer.rest()
        self._settle()
        if (size_max := self._received_bytes_max) > self._room.sure_bytes:
            size_max = self._little()
        try:
            if buffer.is_resting:
                size = await self._source.receive_late(size_max, buffer.prepare)
            else:
                size = await self._source.receive_into(buffer.prepare()[:size_max])
        except TransportError as error:
            raise ConnectionEnd(self._ended, str(error)) from error
        if size:
            self._received(size)
            return True
        if len(buffer):
            raise PeerProtocolError(f"the stream ended inside a frame, after {len(buffer)} bytes of it")
        return False

    async def receive_inside(self, size_max: int = RECEIVE_BUFFER_BYTES) -> None:
        """Receive more bytes of a frame that has begun, at most so many.

        Raises:
            PeerProtocolError: the source ended.
            ConnectionEnd: it broke.
        """
        buffer = self.buffer
        while (growth := buffer.beyond_small_next - self._charged_bytes) > 0:
            await self._account.hold(growth, at_once_bytes_max=0)
            self._charged_bytes += growth
        space = buffer.prepare()[:size_max]
        self._settle()
        self._received(await self._receive_into(space))

    async def _receive_to_pass(self) -> None:
        """Receive more bytes of a frame that is passed on."""
        if (size_max := self._received_bytes_max) > self._room.sure_bytes:
            size_max = self._little()
        await self.receive_inside(size_max)

    def _little(self) -> int:
        """Return how much to receive where the destination may not take as much as usual at once."""
        room = self._room
        if room.sure_bytes < SMALL_BUFFER_BYTES:
            room.ask()
        return min(self._received_bytes_max, max(HEAD_BYTES, room.sure_bytes))

    async def hold(self, size: int) -> memoryview:
        """The whole frame of `size` bytes that begins at the buffer's start; not consumed yet.

        Raises:
            PeerProtocolError, ConnectionEnd: as `receive_inside`.
        """
        buffer = self.buffer
        if len(buffer) < size:
            buffer.reserve(size)
            with self._account.waiting():
                while len(buffer) < size:
                    await self.receive_inside()
        return buffer.view[buffer.start : buffer.start + size]

    async def take(self, size: int) -> memoryview:
        """The whole frame of `size` bytes that begins at the buffer's start, in memory of its own, which the account
        has been charged with.

        Raises:
            PeerProtocolError, ConnectionEnd: as `receive_inside`.
        """
        with self._account.waiting() as wait:
            buffer, frame = self.buffer, memoryview(bytearray(size))
            at = min(size, len(buffer))
            frame[:at] = buffer.view[buffer.start : buffer.start + at]
            buffer.consume(at)
            while at < size:
                received = await self._receive_into(frame[at:])
                wait.passed(received)
                at += received
        return frame

    def close(self) -> None:
        """The connection has ended: what was received and not passed on is lost."""
        self.buffer.close()
        self._settle()

    async def _receive_into(self, view: memoryview) -> int:
        try:
            size = await self._source.receive_into(view)
        except TransportError as error:
            raise ConnectionEnd(self._ended, str(error)) from error
        if not size:
            raise PeerProtocolError("the stream ended inside a frame")
        return size

    def _settle(self) -> None:
        """Release what the buffer holds no more."""
        if self._charged_bytes and (released_bytes := self._charged_bytes - self.buffer.beyond_small) > 0:
            self._account.let_go(released_bytes)
            self._charged_bytes -= released_bytes

    async def pass_on(self, size: int) -> None:
        """Pass on the frame of `size` bytes that begins at the buffer's start, as it arrives."""
        left = size
        while left:
            if left > self._room.sure_bytes < SPLICED_BYTES_MIN:
                await self._wait_room(left)
            head = self.buffer.first(left)
            if not (part := await self._send(head, left - len(head))):
                await self._receive_to_pass()
                continue
            left -= part
            self._on_passed(part)

    async def pass_on_through(self, size: int, through: Filter) -> None:
        """Like `pass_on`, through a filter."""
        left = size
        with self._account.waiting() as wait:
            while left:
                if left > self._room.sure_bytes < SPLICED_BYTES_MIN:
                    await self._wait_room(left)
                if head := self.buffer.first(left):
                    head = head[: through.feed(head)]
                if not (part := await self._send(head, through.unseen_bytes)):
                    await self._receive_to_pass()
                    continue
                through.pass_unseen(part - len(head))
                self._on_passed(part)
                left -= part
                wait.passed(part)

    async def _wait_room(self, wanted_bytes: int) -> None:
        """Wait until the destination takes bytes, with as little in memory as may be."""
        room = self._room
        room.ask()
        if room.sure_bytes < min(wanted_bytes, SPLICED_BYTES_MIN):
            self.buffer.shrink()
            room.limit_unsent()
            await self._destination.wait_writable()
            room.ask()

    async def drop_through(self, size: int, through: Filter) -> None:
        """Give the frame of `size` bytes that begins at the buffer's start to a filter, as it arrives; pass on nothing.

        Raises:
            PeerProtocolError, ConnectionEnd: as `receive_inside`.
        """
        left = size
        with self._account.waiting() as wait:
            while left:
                head = self.buffer.first(left)
                if not (part := through.feed(head) if head else 0):
                    await self.receive_inside()
                    continue
                self.buffer.consume(part)
                left -= part
                wait.passed(part)

    async def _send(self, head: memoryview, unseen_bytes: int) -> int:
        """Pass on what is at hand, and of the next `unseen_bytes`, which nobody looks at, what has come if they are to
        be spliced; return how many bytes went. 0: what comes next is to be received."""
        source, destination, head_bytes = self._source, self._destination, len(head)
        run_bytes_min = 1 if self._received_bytes_max == HEAD_BYTES else SPLICED_BYTES_MIN
        is_run = unseen_bytes >= run_bytes_min and head_bytes <= HEAD_BYTES
        if (
            is_run
            and isinstance(source, PlainTransport)
            and isinstance(destination, PlainTransport)
            and the_pipe() is not None
            and (size_max := self._spliced_bytes(head_bytes + unseen_bytes))
        ):
            try:
                await (source.be_fair() if head else source.wait_readable())
            except TransportError as error:
                raise ConnectionEnd(self._ended, str(error)) from error
            if (pipe := the_pipe()) is not None:
                return await self._splice(head, size_max, source, destination, pipe)
        if head_bytes:
            await destination.send_all(head)
            self.buffer.consume(head_bytes)
        return head_bytes

    def _spliced_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes to splice; 0: too few for it are sure to go."""
        room, wanted_bytes = self._room, min(wanted_bytes, PIPE_BYTES)
        if room.sure_bytes < wanted_bytes:
            room.ask()
        size = min(wanted_bytes, room.sure_bytes)
        return size if size >= min(wanted_bytes, SPLICED_BYTES_MIN) else 0

    async def _splice(
        self, head: memoryview, size_max: int, source: PlainTransport, destination: PlainTransport, pipe: Pipe
    ) -> int:
        """In one turn of the loop: the head, all that has come behind it, and what comes meanwhile."""
        left, rest, piped_bytes = size_max, b"", pipe.put(head)
        self.buffer.consume(piped_bytes)
        self._received_bytes_max = HEAD_BYTES
        while left and not rest:
            try:
                piped_bytes += source.fill(pipe, left - piped_bytes)
            except TransportError as error:
                raise ConnectionEnd(self._ended, str(error)) from error
            if not piped_bytes:
                break
            rest = destination.drain(pipe, piped_bytes)
            left, piped_bytes = left - piped_bytes, 0
            if left > self._room.sure_bytes:
                break
        if rest:
            self._account.hold_relayed(len(rest))
            await destination.send_all(rest)
            self._account.let_go_relayed(len(rest))
        return size_max - left

    def _received(self, size: int) -> None:
        if size == self._received_bytes_max:
            self._received_bytes_max = RECEIVE_BUFFER_BYTES  # more than a head, perhaps
        self.buffer.received(size)

    async def discard(self, size: int) -> None:
        """Drop the frame of `size` bytes that begins at the buffer's start, as it arrives.

        Raises:
            PeerProtocolError, ConnectionEnd: as `receive_inside`.
        """
        buffer, left = self.buffer, size
        while True:
            part = min(left, len(buffer))
            buffer.consume(part)
            left -= part
            if not left:
                return
            await self.receive_inside()

    def next_frame_size(self, *, frame_bytes_max: int, body_bytes_min: int) -> int | None:
        """The whole size of the frame at the buffer's start, or None until its first bytes are here."""
        buffer = self.buffer
        at_hand_bytes = buffer.end - buffer.start
        if at_hand_bytes < LENGTH_BYTES:
            return None
        size = frame_size(buffer.view, buffer.start, frame_bytes_max=frame_bytes_max, body_bytes_min=body_bytes_min)
        return size if at_hand_bytes >= LENGTH_BYTES + body_bytes_min else None
