"""A scripted broker in memory: whole Kafka frames over trio's memory streams, answers from plain functions.

`FakeBroker` answers ApiVersions by itself; everything else is a handler per API. A handler takes kio's request
and gives the response's values (as `messages.build` takes them), raw bytes to send as the frame instead, or
None for no answer at all. `FakeNetwork` puts several of them behind host and port.
"""

import io
import struct
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

import trio
import trio.testing
from kio import index, serial

from protocol.client.errors import TransportError, UpstreamConnectionError
from protocol.client.messages import API_VERSIONS, APIS, Api, Values, build
from proxy.upstream.transport import Bytes, Transport

Handler = Callable[[Any], Awaitable[Values | bytes | None]]

MemoryStream = trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]

NO_TIME = timedelta(0)


class MemoryTransport:
    """A Transport over one end of a memory stream pair."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    @property
    def peer_name(self) -> str:
        return "memory"

    async def receive_into(self, view: memoryview) -> int:
        try:
            data = await self._stream.receive_some(len(view))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError("broken in memory") from error
        view[: len(data)] = data
        return len(data)

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        return await self.receive_into(space()[:size_max])

    async def send_all(self, data: Bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError("broken in memory") from error

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        data = b"".join(buffers)
        await self.send_all(data)
        return len(data)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        self._stream.send_stream.close()
        self._stream.receive_stream.close()


def transport_pair() -> tuple[MemoryTransport, MemoryTransport]:
    ours, theirs = trio.testing.memory_stream_pair()
    return MemoryTransport(ours), MemoryTransport(theirs)


H = TypeVar("H")


class ScriptedBroker(Generic[H]):
    """A handler `H` for each API, and what was asked. ApiVersions has an answer of its own."""

    def __init__(self, *, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.versions = versions or {api.key: (api.version_min, api.version_max) for api in APIS}
        self.handlers: dict[int, H] = {}
        self.requests: list[Any] = []
        self.client_ids: list[str] = []

    def on(self, api: Api, handler: H) -> None:
        self.handlers[api.key] = handler

    def asked(self, api: Api) -> list[Any]:
        return [request for request in self.requests if request.__api_key__ == api.key]

    def take(self, frame: bytes) -> tuple[Any, Callable[[Values | bytes | None], bytes | None]]:
        """kio's request, which is remembered, and what makes a frame of its answer."""
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        request_type = index.load_request_schema(key, version)
        header_type: Any = request_type.__header_schema__
        header, size = serial.entity_reader(header_type)(frame, 0)
        request, _ = serial.entity_reader(request_type)(frame, size)
        self.client_ids.append(header.client_id)
        self.requests.append(request)

        def encode(values: Values | bytes | None) -> bytes | None:
            if values is None or isinstance(values, bytes):
                return values
            return encode_response(key, version, correlation_id, values)

        return request, encode

    def handler_of(self, request: Any) -> H | None:
        """None: the answer is `api_versions_values(self.versions)`."""
        key = request.__api_key__
        return self.handlers[key] if key != API_VERSIONS.key or key in self.handlers else None


class FakeBroker(ScriptedBroker[Handler]):
    """Serves connections one request after another, as brokers do; remembers what it was asked."""

    def __init__(self, *, versions: dict[int, tuple[int, int]] | None = None) -> None:
        super().__init__(versions=versions)
        self.connections: list[Transport] = []

    def answer(self, api: Api, values: Values) -> None:
        """Always this answer."""

        async def handler(_request: object) -> Values:
            await trio.lowlevel.checkpoint()
            return values

        self.handlers[api.key] = handler

    async def serve(self, transport: Transport) -> None:
        self.connections.append(transport)
        try:
            while True:
                frame = await _exactly(transport, struct.unpack(">i", await _exactly(transport, 4))[0])
                answer = await self._answer(frame)
                if answer is not None:
                    await transport.send_all(struct.pack(">i", len(answer)) + answer)
        except TransportError:
            transport.abort()

    def disconnect_all(self) -> None:
        for transport in self.connections:
            transport.abort()
        self.connections.clear()

    async def _answer(self, frame: bytes) -> bytes | None:
        request, encode = self.take(frame)
        handler = self.handler_of(request)
        return encode(api_versions_values(self.versions) if handler is None else await handler(request))


class FakeNetwork:
    """Brokers by address, in place of `open_transport`."""

    def __init__(self, nursery: trio.Nursery | None = None) -> None:
        """Without a nursery brokers run as system tasks, for code that calls trio.run itself."""
        self.brokers: dict[tuple[str, int], FakeBroker] = {}
        self.attempts: list[tuple[str, int]] = []
        self._nursery = nursery

    async def open_transport(self, host: str, port: int, **_tls: object) -> Transport:
        await trio.lowlevel.checkpoint()
        self.attempts.append((host, port))
        broker = self.brokers.get((host, port))
        if broker is None:
            raise UpstreamConnectionError(f"cannot connect to {host}:{port}: refused")
        ours, theirs = transport_pair()
        if self._nursery is None:
            trio.lowlevel.spawn_system_task(broker.serve, theirs)
        else:
            self._nursery.start_soon(broker.serve, theirs)
        return ours


def api_versions_values(versions: dict[int, tuple[int, int]]) -> Values:
    from kio.schema.errors import ErrorCode

    keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
    return {"error_code": ErrorCode.none, "api_keys": keys, "throttle_time": NO_TIME}


def encode_response(key: int, version: int, correlation_id: int, values: Values) -> bytes:
    """A response frame without its length."""
    response_type = index.load_response_schema(key, version)
    header_type: Any = response_type.__header_schema__
    buffer = io.BytesIO()
    serial.entity_writer(header_type)(buffer, header_type(correlation_id=correlation_id))
    serial.entity_writer(response_type)(buffer, build(response_type, {"throttle_time": NO_TIME, **values}))
    return buffer.getvalue()


async def _exactly(transport: Transport, size: int) -> bytes:
    buffer = bytearray(size)
    received = 0
    while received < size:
        count = await transport.receive_into(memoryview(buffer)[received:])
        if count == 0:
            raise TransportError("end")
        received += count
    return bytes(buffer)
