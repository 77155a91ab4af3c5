"""Clients so cheap that there may be thousands: a socket and a task of trio's each, signed in by SCRAM.

    async with CrowdClient.signed_in(address, credentials, limiter=limiter) as client:
        await client.send_fetch(known, number, max_bytes, max_wait_ms)
        error_code, records = await client.take_fetched(known)
        number = known.follows(number, records)

`KnownLog` is what the broker itself has given of a partition.
"""

import itertools
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import trio

from protocol.client.conversation import drive_async
from protocol.client.sasl import Compute, SaslCredentials, Step, sign_in
from protocol.record_batches import iterate_batches
from tests.support.kio_frames import fill, schema
from tests.support.raw_client import API_VERSIONS, RawClient, decode_frame, fetch_request, fetch_result, request_frame

VERSION = 17
READ_BYTES = 256 * 1024
KNOWN_BYTES = 1024 * 1024
"""Asked of the broker at once."""
_LENGTH = struct.Struct(">i")


class ClosedError(Exception):
    """The connection was ended by the other side."""


class WrongBytesError(Exception):
    """Other records than the broker's own, or an error code that sends no client away for a moment."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A partition as its broker gives it. `batches` are base offsets and positions in `log`, and its end last."""

    topic: str
    topic_id: bytes
    partition: int
    log: bytes
    batches: Sequence[tuple[int, int]]

    @classmethod
    def read(cls, broker: tuple[str, int], topic: str, partition: int, end_offset: int) -> Self:
        """Read all of it up to an offset, over one connection that needs no sign-in."""
        log, batches, offset = bytearray(), list[tuple[int, int]](), 0
        with RawClient(*broker) as client:
            topic_id = client.topic_id(topic)
            while offset < end_offset:
                target = topic, topic_id, partition, offset, KNOWN_BYTES
                (answer,) = client.patient_fetch(VERSION, [target]).partitions
                assert answer.error_code == 0
                for position, header in iterate_batches([answer.records]):
                    batches.append((header.base_offset, len(log)))
                    log += answer.records[position : position + header.size_bytes]
                    offset = header.last_offset + 1
        return cls(topic, topic_id, partition, bytes(log), [*batches, (offset, len(log))])

    def follows(self, number: int, records: bytes) -> int:
        """Return the number of the batch that comes next, after records from this one on; 0 after the last.

        Raises:
            WrongBytesError: they are not the broker's.
        """
        begin = self.batches[number][1]
        if memoryview(self.log)[begin : begin + len(records)] != records:
            raise WrongBytesError(
                f"other bytes of {self.topic}-{self.partition} than its broker's from {self.batches[number]} on"
            )
        ends = begin + len(records)
        while number < len(self.batches) - 1 and self.batches[number + 1][1] <= ends:
            number += 1
        return number if number < len(self.batches) - 1 else 0


class CrowdClient:
    """One connection. What ends it raises ClosedError."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._correlation_ids = itertools.count(1)
        self._received = bytearray()

    @classmethod
    @asynccontextmanager
    async def signed_in(
        cls,
        address: tuple[str, int],
        credentials: SaslCredentials,
        *,
        limiter: trio.CapacityLimiter,
        receive_buffer_bytes: int | None = None,
    ) -> AsyncIterator[Self]:
        """Connect and sign in.

        Args:
            limiter: how many do so at once.
            receive_buffer_bytes: a small one is soon full.
        """
        connected = trio.socket.socket()
        if receive_buffer_bytes is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        async with trio.SocketStream(connected) as stream:
            client = cls(stream)
            async with limiter:
                await connected.connect(address)
                await client.sign_in(credentials)
            yield client

    async def sign_in(self, credentials: SaslCredentials) -> None:
        """Sign in.

        Raises:
            UpstreamAuthenticationError: the broker refuses the credentials.
        """
        await drive_async(sign_in(credentials), self._take_step)

    async def question(self) -> None:
        """Ask for what needs no work, ApiVersions, and take the answer."""
        await self._ask(API_VERSIONS, 3, {"client_software_name": "crowd", "client_software_version": "1"})

    async def send_fetch(self, known: KnownLog, number: int, max_bytes: int, max_wait_ms: int) -> None:
        """Ask for a batch and those behind it, without taking the answer."""
        target = known.topic, known.topic_id, known.partition, known.batches[number][0], max_bytes
        message = fetch_request(VERSION, [target], max_bytes=max_bytes, max_wait_ms=max_wait_ms)
        await self._send(request_frame(message, next(self._correlation_ids), None))

    async def take_fetched(self, known: KnownLog) -> tuple[int, bytes]:
        """Return error code and records of the answer to `send_fetch`."""
        (answer,) = fetch_result(await self._frame(), VERSION, {known.topic_id: known.topic}).partitions
        return answer.error_code, answer.records

    async def _take_step(self, step: Step) -> Any:
        if isinstance(step, Compute):
            return step.work()
        return await self._ask(step.api.key, step.api.version_max, step.values)

    async def _ask(self, api_key: int, api_version: int, values: Any) -> Any:
        message = fill(schema(api_key, api_version, kind="request"), values)
        await self._send(request_frame(message, next(self._correlation_ids), None))
        return decode_frame(api_key, api_version, await self._frame())

    async def _send(self, frame: bytes) -> None:
        try:
            await self._stream.send_all(frame)
        except trio.BrokenResourceError as error:
            raise ClosedError(str(error.__cause__ or error)) from error

    async def _frame(self) -> bytes:
        """Return the next frame, its length field included."""
        received = self._received
        while len(received) < _LENGTH.size or len(received) < _LENGTH.unpack_from(received)[0] + _LENGTH.size:
            try:
                more = await self._stream.receive_some(READ_BYTES)
            except trio.BrokenResourceError as error:
                raise ClosedError(str(error.__cause__ or error)) from error
            if not more:
                raise ClosedError(f"the connection ended after {len(received)} bytes of an answer")
            received += more
        frame = bytes(received)
        received.clear()
        return frame
