"""One direction of a connection: frames received on one transport, passed on to another.

Nothing is copied between the two but what `FrameBuffer` moves to its front; a frame larger than the buffer is
passed on in parts, so that the slower side holds back the faster one by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from crc32c import crc32c

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.wire.errors import PeerProtocolError
from protocol.wire.framing import LENGTH_BYTES, RECEIVE_BUFFER_BYTES, FrameBuffer, frame_size
from proxy.connection.accounts import Account, Wait
from proxy.connection.request_handlers import ClientReads
from proxy.upstream.transport import IOV_MAX, Bytes, Transport
from storage.errors import RemoteStorageError
from storage.reading.reader import TierRecords

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


class FrameStream:
    """Receives from `source` into one buffer, of which it holds little while the source is silent.

    `close` must follow.

    Args:
        ended: the cause to give when the source breaks.
        on_passed: told how many bytes were passed on.
        account: charged with what the buffer holds beyond a small one, and waits for the rest of frames.
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
        buffer = self.buffer
        while (growth := buffer.beyond_small_next - self._charged_bytes) > 0:
            await self._account.hold(growth, at_once_bytes_max=0)
            self._charged_bytes += growth
        space = buffer.prepare()
        self._settle()
        buffer.received(await self._receive_into(space))

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
        if self._charged_bytes > self.buffer.beyond_small:
            self._account.let_go(self._charged_bytes - self.buffer.beyond_small)
            self._charged_bytes = self.buffer.beyond_small

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

    async def pass_on_through(
        self, size: int, destination: Transport | None, feed: Callable[[memoryview], int]
    ) -> None:
        """Like `pass_on`, through a filter that says how many of the bytes at hand may go (and may patch them); None:
        they go nowhere else."""
        buffer, left = self.buffer, size
        with self._account.waiting() as wait:
            while left:
                part = feed(buffer.view[buffer.start : buffer.start + min(left, len(buffer))]) if len(buffer) else 0
                if part:
                    if destination is not None:
                        await destination.send_all(buffer.view[buffer.start : buffer.start + part])
                        self._on_passed(part)
                    buffer.consume(part)
                    left -= part
                    wait.passed(part)
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


# An answer on its way to a client that may take its time.
#
# The tier's records in it are views, which keep whole blocks in memory. When others wait for that memory they are given
# up (`proxy.connection.accounts`, rule 2): what is left then is where the bytes were and their CRC-32C. Once the socket
# takes bytes again, each view is read again, one block at a time. The tier's bytes do not change; should they have, or
# be gone, the connection ends.


WINDOW_BYTES = 4 * 1024 * 1024
"""So much is offered to the socket at a time, or one buffer: no socket takes more at once."""


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """Bytes [start, end) of what a tier read brought, within one block."""

    records: TierRecords
    start: int
    end: int
    crc: int

    def __len__(self) -> int:
        return self.end - self.start


class AnswerSending:
    """One answer.

    Args:
        buffers: if it is a list, it changes while it is sent: a view that is given up must not be kept by it.
        client: holds what the tier's reads brought; the answer's records are among them.
    """

    def __init__(self, buffers: Sequence[Bytes], client: ClientReads) -> None:
        self._left = cast(list[Bytes | _GivenUp], buffers if isinstance(buffers, list) else list(buffers))
        self._client = client
        self._first = 0
        self._first_sent_bytes = 0
        self._again: tuple[_GivenUp, TierRecords] | None = None

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks that the answer holds."""
        again_bytes = 0 if self._again is None else self._again[1].blocks_bytes
        return self._client.blocks_bytes + again_bytes

    @property
    def made_bytes(self) -> int:
        """Bytes of the answer that are not the tier's."""
        records_bytes = sum(len(view) for records in self._client.held for view in records.buffers)
        return sum(map(len, self._left)) - records_bytes

    async def send(self, transport: Transport, wait: Wait) -> None:
        """Send all of it.

        Args:
            wait: that for the client, begun with this answer as what could be given up.

        Raises:
            TransportError: the connection broke.
            ConnectionEnd: bytes that were given up cannot be had again.
        """
        try:
            while self._first < len(self._left):
                given_up = self._left[self._first]
                if isinstance(given_up, _GivenUp):
                    await self._read_again(given_up, transport)
                else:
                    await self._send_some(transport, wait)
        finally:
            if self._client.audit is not None:
                self._client.audit.sent(self._left_bytes())
            self._end_again()

    def release(self) -> None:
        """Give the blocks up."""
        places = self._places()
        for at in range(self._first, len(self._left)):
            view = self._left[at]
            if (place := places.get(id(view))) is None or isinstance(view, _GivenUp):
                continue
            records, start = place
            skipped = self._first_sent_bytes if at == self._first else 0
            rest = memoryview(view)[skipped:]
            self._left[at] = _GivenUp(records, start + skipped, start + len(view), crc32c(rest))
            if at == self._first:
                self._first_sent_bytes = 0
        self._end_again()
        self._client.give_up()

    def _left_bytes(self) -> dict[int, int]:
        """Return what is not sent yet of each of the tier's reads, by the identity of its records."""
        left_bytes: dict[int, int] = {}
        places = self._places() if self._first < len(self._left) else {}
        for at in range(self._first, len(self._left)):
            item = self._left[at]
            records = item.records if isinstance(item, _GivenUp) else places.get(id(item), (None, 0))[0]
            if records is not None:
                skipped = self._first_sent_bytes if at == self._first else 0
                left_bytes[id(records)] = left_bytes.get(id(records), 0) + len(item) - skipped
        return left_bytes

    def _places(self) -> dict[int, tuple[TierRecords, int]]:
        """For each view of the tier, by identity: the read that brought it, and which of that read's bytes it begins
        with."""
        places: dict[int, tuple[TierRecords, int]] = {}
        for records in self._client.held:
            start = 0
            for view in records.buffers:
                if records.origin is not None:
                    places[id(view)] = records, start
                start += len(view)
        if self._again is not None:
            given_up, (view,) = self._again[0], self._again[1].buffers
            places[id(view)] = given_up.records, given_up.start
        return places

    async def _send_some(self, transport: Transport, wait: Wait) -> None:
        """Send what the client takes now; where it takes nothing, wait: nothing here keeps a view meanwhile."""
        first = self._first
        size_bytes = await transport.send_some(self._window())
        self._sent(size_bytes, wait)
        if not size_bytes and self._first == first:
            await transport.wait_writable()

    def _window(self) -> list[Bytes]:
        """Return what is offered to the socket."""
        window: list[Bytes] = []
        size_bytes = 0
        for buffer in islice(self._left, self._first, self._first + IOV_MAX):
            if isinstance(buffer, _GivenUp):
                break
            window.append(buffer)
            size_bytes += len(buffer)
            if size_bytes >= WINDOW_BYTES:
                break
        if self._first_sent_bytes:
            window[0] = memoryview(window[0])[self._first_sent_bytes :]
        return window

    def _sent(self, size_bytes: int, wait: Wait) -> None:
        wait.passed(size_bytes)
        left, at = self._left, self._first
        sent_bytes = self._first_sent_bytes + size_bytes
        while at < len(left) and sent_bytes >= (size := len(left[at])):
            sent_bytes -= size
            left[at] = b""
            at += 1
        if at > self._first:
            self._first = at
            self._end_again()
        self._first_sent_bytes = sent_bytes

    async def _read_again(self, given_up: _GivenUp, transport: Transport) -> None:
        await transport.wait_writable()  # nothing is held for a client that still takes nothing
        self._client.takes()
        assert given_up.records.origin is not None
        try:
            records = await given_up.records.origin.read(given_up.start, given_up.end)
        except RemoteStorageError as error:
            raise ConnectionEnd(CloseCause.LIMIT, f"bytes that were given up are gone: {error}") from error
        (view,) = records.buffers
        self._again = given_up, records
        if crc32c(view) != given_up.crc:
            raise ConnectionEnd(CloseCause.LIMIT, "bytes that were given up are others now")
        self._left[self._first] = view

    def _end_again(self) -> None:
        if self._again is not None:
            self._again[1].release()
            self._again = None
