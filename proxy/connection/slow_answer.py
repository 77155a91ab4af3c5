"""An answer on its way to a client that may take its time.

The tier's records in it are views, which keep whole blocks in memory. When others wait for that memory they are given
up (`proxy.connection.accounts`, rule 2): what is left then is where the bytes were and their CRC-32C. Once the socket
takes bytes again, each view is read again, one block at a time. The tier's bytes do not change; should they have, or
be gone, the connection ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from crc32c import crc32c

from metrics.meters import CloseCause
from proxy.connection.accounts import Wait
from proxy.connection.client_reads import ClientReads
from proxy.connection.frame_stream import ConnectionEnd
from proxy.upstream.transport import IOV_MAX, Bytes, Transport
from storage.errors import RemoteStorageError
from storage.reading.reader import TierRecords


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
        self._offered_max = IOV_MAX
        self._again: tuple[_GivenUp, TierRecords] | None = None

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks that the answer holds."""
        again_bytes = 0 if self._again is None else self._again[1].blocks_bytes
        return self._client.blocks_bytes + again_bytes

    @property
    def made_bytes(self) -> int:
        """Bytes of the answer that are not the tier's."""
        records_bytes = sum([records.size_bytes for records in self._client.held])
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
        self._offered_max = 1  # what stands behind may be given up
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
        window = cast(list[Bytes], self._left[self._first : self._first + self._offered_max])
        if self._first_sent_bytes:
            window[0] = memoryview(window[0])[self._first_sent_bytes :]
        return window

    def _sent(self, size_bytes: int, wait: Wait) -> None:
        wait.passed(size_bytes)
        first, sent_bytes = self._first, self._first_sent_bytes + size_bytes
        for at in range(first, len(self._left)):
            size = len(self._left[at])
            if sent_bytes < size:
                break
            sent_bytes -= size
            self._left[at] = b""
            self._first = at + 1
        if self._first > first:
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
