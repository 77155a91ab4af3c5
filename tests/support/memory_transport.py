"""A client connection in memory: `ClientConnection` between two scripted ends.

    async with conversation() as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1))
        await talk.upstream.expect(request(HEARTBEAT, 4, 1))
        await talk.upstream.send(response(1))
        await talk.client.expect(response(1))

`MemoryTransport` is a Transport over trio's memory streams that can cut what it receives into pieces and that keeps
count: of bytes, of the largest views, of sends that run at once, of how it was closed.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio
import trio.testing

from metrics.kip405 import Kip405Names
from metrics.meters import CloseCause, Meters, RelayMeter
from metrics.registry import Registry
from protocol.client.errors import TransportError
from protocol.list_offsets import decode_request as decode_list_offsets
from protocol.wire.addresses import NodeAddress
from protocol.wire.identifiers import ApiKey
from protocol.wire.request_headers import decode_request_header
from proxy.connection.accounts import Accounts, AccountSettings
from proxy.connection.audit import Audit
from proxy.connection.client_reads import ClientReads
from proxy.connection.connection import ClientConnection, ConnectionLimits
from proxy.connection.names import Groups
from proxy.connection.request_handlers import RELAY, Answer, Exchange, Relay, RequestHandlers, UpstreamWire
from proxy.upstream.send_room import SendRoom
from proxy.upstream.transport import Bytes
from storage.cache.byte_budget import ByteBudget
from tests.support.waiting import HANG_S_MAX

HEARTBEAT = 12
"""An api that is never looked into."""

LIMITS = ConnectionLimits(
    request_frame_bytes_max=8 * 1024 * 1024,
    response_held_bytes_max=256 * 1024,
    relay_rewrite_bytes_max=2 * 1024,
    inflight_requests_max=8,
)
HELD_BYTES_MAX = 16 * 1024 * 1024

AnyStream = trio.StapledStream[Any, Any]
"""From memory_stream_pair or lockstep_stream_pair; the halves of both have `close`."""

Handle = Callable[[memoryview, UpstreamWire], Awaitable[Answer | Relay | None]]


class MemoryTransport:
    """A Transport over one end of a stream pair.

    Args:
        piece_bytes: receive at most so many bytes at a time; None: as many as there are.
    """

    def __init__(self, stream: AnyStream, *, name: str = "memory", piece_bytes: int | None = None) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.largest_receive_bytes = 0
        self.is_aborted = False
        self.is_closed = False
        self._stream = stream
        self._name = name
        self._piece_bytes = piece_bytes
        self._sending = False
        self.room = SendRoom(None)

    @property
    def peer_name(self) -> str:
        return self._name

    async def receive_into(self, view: memoryview) -> int:
        assert len(view) > 0
        self.largest_receive_bytes = max(self.largest_receive_bytes, len(view))
        return await self.receive_late(len(view), lambda: view)

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        try:
            data = await self._stream.receive_some(min(size_max, self._piece_bytes or size_max))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError(f"{self._name} broke") from error
        if data:
            space()[: len(data)] = data
        self.received_bytes += len(data)
        return len(data)

    async def send_all(self, data: Bytes) -> None:
        if self._sending:
            raise trio.BusyResourceError(f"another task is sending to {self._name}")
        self._sending = True
        try:
            await self._stream.send_all(bytes(data))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError(f"{self._name} broke") from error
        finally:
            self._sending = False
        self.sent_bytes += len(data)

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        data = b"".join(buffers)
        await self.send_all(data)
        return len(data)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def owe_turn(self) -> None:
        """Each call lets others run."""

    async def aclose(self) -> None:
        self.is_closed = True
        await self._stream.aclose()

    def abort(self) -> None:
        self.is_aborted = True
        for side in (self._stream.send_stream, self._stream.receive_stream):
            side.close()


def transport_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Both ends of one connection."""
    ours, theirs = trio.testing.memory_stream_pair()
    return MemoryTransport(ours), MemoryTransport(theirs)


class RemoteEnd:
    """What stands at the other end of `transport`, driven by the test; a step within HANG_S_MAX, or it has failed."""

    def __init__(self, stream: AnyStream, transport: MemoryTransport) -> None:
        self._stream = stream
        self._transport = transport
        self._received_bytes = 0

    async def send(self, *frames: bytes) -> None:
        with trio.fail_after(HANG_S_MAX):
            await self._stream.send_all(b"".join(frames))

    async def receive_exactly(self, size: int) -> bytes:
        parts = []
        with trio.fail_after(HANG_S_MAX):
            while size:
                part = await self._stream.receive_some(size)
                assert part, f"the stream ended with {size} bytes to come"
                parts.append(part)
                size -= len(part)
                self._received_bytes += len(part)
        return b"".join(parts)

    async def receive_frame(self) -> bytes:
        head = await self.receive_exactly(4)
        return head + await self.receive_exactly(struct.unpack(">i", head)[0])

    async def expect(self, *frames: bytes) -> None:
        """Receive just these."""
        for frame in frames:
            assert await self.receive_exactly(len(frame)) == frame

    async def expect_end(self) -> bytes:
        """Return what still comes before the end."""
        rest = b""
        with trio.fail_after(HANG_S_MAX):
            try:
                while data := await self._stream.receive_some(1 << 20):
                    rest += data
            except trio.BrokenResourceError:
                pass
        return rest

    async def expect_silence(self) -> None:
        """Nothing has been sent here that was not received, now that all else stands still."""
        await trio.testing.wait_all_tasks_blocked()
        assert self._transport.sent_bytes == self._received_bytes

    async def send_eof(self) -> None:
        await self._stream.send_stream.aclose()

    async def close(self) -> None:
        await self._stream.aclose()


@dataclass
class ScriptedHandlers:
    """What a connection is given: `handle_fetch` decides about a Fetch, None relays it; ListOffsets are relayed."""

    handle_fetch: Handle | None = None
    frames: list[bytes] = field(default_factory=list)
    reads: ClientReads = field(default_factory=ClientReads)
    """The connection's, once it has them."""
    forgotten: int = 0
    log_starts_moved: int = 0

    def __post_init__(self) -> None:
        self.exchanges: dict[int, Exchange] = {ApiKey.FETCH: self.fetch, ApiKey.LIST_OFFSETS: self.list_offsets}

    def of(self, reads: ClientReads) -> RequestHandlers:
        """Return what a connection makes of these."""
        self.reads = reads
        return RequestHandlers(
            self.exchanges,
            on_answered=self.release,
            close=self.release,
            forget_authority=self.forget_authority,
            on_log_start_moved=self.on_log_start_moved,
        )

    async def fetch(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        self.frames.append(bytes(frame))
        await trio.lowlevel.checkpoint()
        outcome = None if self.handle_fetch is None else await self.handle_fetch(frame, wire)
        return RELAY if outcome is None else outcome

    async def list_offsets(self, frame: memoryview, wire: UpstreamWire) -> Answer | Relay:
        decode_list_offsets(frame, decode_request_header(frame))
        return RELAY

    def release(self) -> None:
        self.reads.release()

    def forget_authority(self) -> None:
        self.forgotten += 1

    def on_log_start_moved(self) -> None:
        self.log_starts_moved += 1


@dataclass
class ScriptedAddresses:
    """An Advertiser: broker N is at advertised:19092+N; `gate` holds answers back, `withheld` are left out."""

    asked: list[NodeAddress] = field(default_factory=list)
    gate: trio.Event | None = None
    withheld: set[int] = field(default_factory=set)

    async def advertise(self, nodes: Sequence[NodeAddress]) -> dict[int, tuple[str, int]]:
        self.asked.extend(nodes)
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        told = [node.node_id for node in nodes if node.node_id not in self.withheld]
        return {node_id: ("advertised", 19092 + node_id) for node_id in told}


@dataclass
class Conversation:
    """The connection, its two ends as the test drives them, its two transports, and how it ended.

    `signed_in`: for each call of `on_signed_in`, whether the connection said the same at that moment.
    """

    client: RemoteEnd
    upstream: RemoteEnd
    client_transport: MemoryTransport
    upstream_transport: MemoryTransport
    connection: ClientConnection
    handlers: ScriptedHandlers
    accounts: Accounts
    addresses: ScriptedAddresses
    registry: Registry
    logs: list[dict[str, object]]
    signed_in: list[bool]
    refused: list[str]
    """Why the broker refused sign-ins."""
    cause: CloseCause | None = None
    ended: trio.Event = field(default_factory=trio.Event)

    async def pass_on(self, *requests: bytes) -> None:
        """The client sends these, and upstream gets them as they are."""
        await self.client.send(*requests)
        await self.upstream.expect(*requests)

    async def pass_back(self, *responses: bytes) -> None:
        """Upstream sends these, and the client gets them as they are."""
        await self.upstream.send(*responses)
        await self.client.expect(*responses)

    async def exchange(self, asked: bytes, answered: bytes) -> None:
        """A request that passes, and its answer, which the client gets as it is."""
        await self.pass_on(asked)
        await self.pass_back(answered)

    async def wait_end(self) -> CloseCause:
        with trio.fail_after(HANG_S_MAX):
            await self.ended.wait()
        assert self.cause is not None
        return self.cause

    @property
    def shown_lines(self) -> list[dict[str, object]]:
        """Log lines that an operator sees, debug left out."""
        return [entry for entry in self.logs if entry["log_level"] != "debug"]

    async def run(self) -> None:
        self.cause = await self.connection.run()
        self.ended.set()


def open_accounts(
    answers: ByteBudget | None = None, send_stall_s: float = 30.0, meter: RelayMeter | None = None
) -> Accounts:
    """Accounts whose `run` is not running; nothing of `held` is in use."""
    meter = meter or Meters(Registry(Kip405Names.CURRENT)).relay
    held = ByteBudget(HELD_BYTES_MAX, meter.on_held_bytes)
    return Accounts(held, answers or ByteBudget(HELD_BYTES_MAX), AccountSettings(send_stall_s), meter)


@asynccontextmanager
async def conversation(
    *,
    limits: ConnectionLimits = LIMITS,
    piece_bytes: int | None = None,
    lockstep: bool = False,
    handle_fetch: Handle | None = None,
    start: bool = True,
    answers: ByteBudget | None = None,
    audit: Audit | None = None,
    groups: Groups | None = None,
) -> AsyncIterator[Conversation]:
    """A running connection; it must have ended, or is cancelled, when the block is left.

    Args:
        lockstep: a send ends only when the other end has received it all, as with full socket buffers.
        start: False leaves `run` to the test.
        answers: of the tier's blocks.
    """
    make: Callable[[], tuple[AnyStream, AnyStream]] = (
        trio.testing.lockstep_stream_pair if lockstep else trio.testing.memory_stream_pair
    )
    client_end, client_stream = make()
    upstream_stream, upstream_end = make()
    client_transport = MemoryTransport(client_stream, name="client", piece_bytes=piece_bytes)
    upstream_transport = MemoryTransport(upstream_stream, name="upstream", piece_bytes=piece_bytes)
    handlers, addresses = ScriptedHandlers(handle_fetch), ScriptedAddresses()
    registry, signed_in, refused = Registry(Kip405Names.CURRENT), list[bool](), list[str]()
    meter = Meters(registry).relay
    accounts = open_accounts(answers, meter=meter)
    connection = ClientConnection(
        client_transport,
        upstream_transport,
        node_id=1,
        limits=limits,
        addresses=addresses,
        handlers=handlers.of,
        accounts=accounts,
        meter=meter,
        on_signed_in=lambda: signed_in.append(connection.is_signed_in),
        on_sign_in_refused=lambda reason, _who: refused.append(reason),
        audit=audit,
        groups=groups,
    )
    with structlog.testing.capture_logs() as logs:
        talk = Conversation(
            RemoteEnd(client_end, client_transport),
            RemoteEnd(upstream_end, upstream_transport),
            client_transport,
            upstream_transport,
            connection,
            handlers,
            accounts,
            addresses,
            registry,
            logs,  # type: ignore[arg-type]  # structlog's are mutable mappings, and dicts in fact
            signed_in,
            refused,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accounts.run)
            if start:
                nursery.start_soon(talk.run)
            yield talk
            nursery.cancel_scope.cancel()


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(api_key: int, api_version: int, correlation_id: int, body: bytes = b"") -> bytes:
    """A request frame with client id "c"; the body begins right behind it."""
    return framed(struct.pack(">hhih", api_key, api_version, correlation_id, 1) + b"c" + body)


def response(correlation_id: int, body: bytes = b"") -> bytes:
    return framed(struct.pack(">i", correlation_id) + body)
