"""One direction of a connection: frames received on one transport, passed on to another.

Nothing is copied between the two but what `FrameBuffer` moves to its front; a frame larger than the buffer is
passed on in parts, so that the slower side holds back the faster one by itself.
"""

from collections.abc import Callable

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES, RECEIVE_BUFFER_BYTES, FrameBuffer, frame_size
from proxy.connection.accounts import Account
from proxy.connection.stream_end import ConnectionEnd
from proxy.upstream.transport import Transport

CORRELATION_ID_BYTES = 4


class FrameStream:
    """Receives from `source` into one buffer, of which it holds little while the source is silent.

    `close` must follow.

    Args:
        ended: the cause to give when the source breaks.
        on_passed: told how many bytes were passed on.
        account: charged with what is held beyond the buffer of a busy stream, and waits for the rest of frames.
    """

    def __init__(
        self, source: Transport, ended: CloseCause, on_passed: Callable[[int], None], account: Account
    ) -> None:
        self.buffer = FrameBuffer()
        self._source = source
        self._ended = ended
        self._on_passed = on_passed
        self._account = account
        self._charged_bytes = 0

    async def receive(self) -> bool:
        """Receive more bytes, between frames or in the first bytes of one; False at the source's end between frames.

        Raises:
            PeerProtocolError: the source ended inside a frame.
            ConnectionEnd: it broke.
        """
        buffer = self.buffer
        buffer.rest()
        self._settle()
        try:
            if buffer.is_resting:
                size = await self._source.receive_late(RECEIVE_BUFFER_BYTES, buffer.prepare)
            else:
                size = await self._source.receive_into(buffer.prepare())
        except TransportError as error:
            raise ConnectionEnd(self._ended, str(error)) from error
        if size:
            buffer.received(size)
            return True
        if len(buffer):
            raise PeerProtocolError(f"the stream ended inside a frame, after {len(buffer)} bytes of it")
        return False

    async def receive_inside(self) -> None:
        """Receive more bytes of a frame that has begun.

        Raises:
            PeerProtocolError: the source ended.
            ConnectionEnd: it broke.
        """
        self.buffer.received(await self._receive_into(self.buffer.prepare()))

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
                    await self._charge(min(size, 2 * len(buffer)) - RECEIVE_BUFFER_BYTES)
                    await self.receive_inside()
        return buffer.view[buffer.start : buffer.start + size]

    async def take(self, size: int) -> memoryview:
        """The whole frame of `size` bytes that begins at the buffer's start, in memory of its own. The account is
        charged with all of it; to let that go is the caller's affair.

        Raises:
            PeerProtocolError, ConnectionEnd: as `receive_inside`.
        """
        with self._account.waiting():
            await self._account.hold(size)
            buffer, frame = self.buffer, memoryview(bytearray(size))
            at = min(size, len(buffer))
            frame[:at] = buffer.view[buffer.start : buffer.start + at]
            buffer.consume(at)
            while at < size:
                at += await self._receive_into(frame[at:])
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

    async def _charge(self, size_bytes: int) -> None:
        if size_bytes > self._charged_bytes:
            await self._account.hold(size_bytes - self._charged_bytes)
            self._charged_bytes = size_bytes

    def _settle(self) -> None:
        """What the buffer holds no more is free."""
        if self._charged_bytes and self.buffer.capacity_bytes <= RECEIVE_BUFFER_BYTES:
            self._account.let_go(self._charged_bytes)
            self._charged_bytes = 0

    async def pass_on(self, size: int, destination: Transport) -> None:
        """Pass on the frame of `size` bytes that begins at the buffer's start, as it arrives."""
        buffer, left = self.buffer, size
        while True:
            part = min(left, len(buffer))
            if part:
                await destination.send_all(buffer.view[buffer.start : buffer.start + part])
                buffer.consume(part)
                left -= part
                self._on_passed(part)
            if not left:
                return
            await self.receive_inside()

    async def pass_on_through(self, size: int, destination: Transport, feed: Callable[[memoryview], int]) -> None:
        """Like `pass_on`, through a filter that says how many of the bytes at hand may go (and may patch them)."""
        buffer, left = self.buffer, size
        while left:
            part = feed(buffer.view[buffer.start : buffer.start + min(left, len(buffer))]) if len(buffer) else 0
            if part:
                await destination.send_all(buffer.view[buffer.start : buffer.start + part])
                buffer.consume(part)
                left -= part
                self._on_passed(part)
            if left and (not part or not len(buffer)):
                await self.receive_inside()

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
        if len(buffer) < LENGTH_BYTES:
            return None
        size = frame_size(buffer.view, buffer.start, frame_bytes_max=frame_bytes_max, body_bytes_min=body_bytes_min)
        return size if len(buffer) >= LENGTH_BYTES + body_bytes_min else None
