"""What is relayed to a peer that takes nothing stays in the socket that it came by (docs/protocol.md#l6).

Between real sockets: how much a socket takes is the system's own doing.
"""

import errno
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from metrics.kip405 import Kip405Names
from metrics.meters import CloseCause, Meters
from metrics.registry import Registry
from protocol.client.errors import TransportError
from protocol.fetch.messages import PartitionAnswer
from protocol.fetch.response import encode_response
from protocol.wire.framing import IDLE_BUFFER_BYTES
from protocol.wire.identifiers import ApiKey
from proxy.connection.accounts import Accounts, AccountSettings
from proxy.connection.connection import ClientConnection
from proxy.connection.frame_stream import FrameStream
from proxy.upstream.pipe import Pipe
from proxy.upstream.send_room import UNKNOWN_BYTES, SendRoom
from proxy.upstream.transport import PlainTransport, TlsTransport, tls_server_transport
from storage.cache.byte_budget import ByteBudget
from tests.support.memory_transport import LIMITS, ScriptedAddresses, ScriptedHandlers, open_accounts, request
from tests.support.socket_broker import BothSides, both_sides
from tests.support.socket_pairs import connected, received

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a socket's room")

KIB, MIB = 1024, 1024 * 1024
VERSION, PRODUCE_VERSION = 17, 8

HELD_BYTES_MAX = 4 * MIB
"""As `memory.max.bytes` of 192 MiB gives."""

RELAYED_BYTES_MAX = 8 * KIB
"""For each connection."""


def fetch_answer(*sizes: int) -> bytes:
    """A Fetch answer, of correlation id 1, with a partition of so many bytes each."""
    partitions = [
        PartitionAnswer(None, bytes(16), number, 0, 5, 5, 0, records=[os.urandom(size)])
        for number, size in enumerate(sizes)
    ]
    return b"".join(encode_response(VERSION, 1, throttle_time_ms=0, error_code=0, session_id=0, answers=partitions))


FETCH = request(ApiKey.FETCH, VERSION, 1)


@dataclass
class Peers:
    """A relaying connection and both far ends."""

    client: trio.abc.Stream
    broker: trio.SocketStream
    to_client: PlainTransport | TlsTransport
    connection: ClientConnection
    causes: list[CloseCause] = field(default_factory=list)

    async def run(self) -> None:
        self.causes.append(await self.connection.run())


@dataclass
class Crowd:
    """Connections with one set of accounts."""

    accounts: Accounts
    registry: Registry
    peers: list[Peers] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return len(self.accounts) == len(self.peers) and not any(each.causes for each in self.peers)


@asynccontextmanager
async def crowd(
    count: int,
    prepare: Callable[[trio.socket.SocketType], None],
    *,
    is_client: bool = True,
    send_buffer_bytes: int | None = None,
    tls: BothSides | None = None,
) -> AsyncIterator[Crowd]:
    """
    Args:
        prepare: is given the sockets of the clients, or of the brokers, before they connect.
        send_buffer_bytes: what Tidegate's sockets to clients have; None: what the system gives them.
        tls: between clients and Tidegate.
    """
    registry = Registry(Kip405Names.CURRENT)
    meter = Meters(registry).relay
    held, answers = ByteBudget(HELD_BYTES_MAX, meter.on_held_bytes), ByteBudget(HELD_BYTES_MAX)
    made = Crowd(Accounts(held, answers, AccountSettings(30.0), meter), registry)
    meter.relay_held_bytes_from(lambda: made.accounts.relayed_bytes)
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        nursery.start_soon(made.accounts.run)
        for _ in range(count):
            far_client, from_client = await connected(prepare if is_client else None)
            far_broker, to_broker = await connected(None if is_client else prepare)
            if send_buffer_bytes is not None:
                from_client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            for end in (far_client, far_broker):
                stack.push_async_callback(trio.aclose_forcefully, end)
            to_client, client = await secured(far_client, from_client, tls)
            connection = ClientConnection(
                to_client,
                PlainTransport(to_broker.socket),
                node_id=1,
                limits=LIMITS,
                addresses=ScriptedAddresses(),
                handlers=ScriptedHandlers().of,
                accounts=made.accounts,
                meter=meter,
            )
            made.peers.append(Peers(client, far_broker, to_client, connection))
            nursery.start_soon(made.peers[-1].run)
        yield made
        nursery.cancel_scope.cancel()


async def secured(
    far: trio.SocketStream, near: trio.SocketStream, tls: BothSides | None
) -> tuple[PlainTransport | TlsTransport, trio.abc.Stream]:
    """Return Tidegate's end of a connection, and the client's."""
    if tls is None:
        return PlainTransport(near.socket), far
    client, made = trio.SSLStream(far, tls.client, server_hostname="localhost"), list[TlsTransport]()

    async def accept() -> None:
        made.append(await tls_server_transport(near.socket, tls.server))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await client.do_handshake()
    return made[0], client


def little_receive_buffer(sock: trio.socket.SocketType) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)


ANSWERS = {
    "one long run": lambda: fetch_answer(5 * MIB),
    "many short runs": lambda: fetch_answer(*[12 * KIB] * 430),
    "short and long": lambda: fetch_answer(*[12 * KIB, 300 * KIB] * 17),
}
"""5 MiB each: more than the sockets of both sides take."""


@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_clients_do_not_take_is_not_held(answer: str, mock_clock: MockClock) -> None:
    """How it failed: some were left after four seconds; the others had held what their sockets had not taken."""
    async with crowd(60, little_receive_buffer) as made:
        await stall_and_read(made, ANSWERS[answer](), mock_clock)


@pytest.mark.parametrize("send_buffer_bytes", [4 * KIB, 64 * KIB, 256 * KIB])
async def test_small_send_buffers_hold_no_more(send_buffer_bytes: int, mock_clock: MockClock) -> None:
    async with crowd(12, little_receive_buffer, send_buffer_bytes=send_buffer_bytes) as made:
        await stall_and_read(made, fetch_answer(3 * MIB, 20 * KIB, 300 * KIB), mock_clock)


async def test_what_clients_do_not_take_over_tls_is_not_held(tmp_path: Path, mock_clock: MockClock) -> None:
    async with crowd(12, little_receive_buffer, tls=both_sides(tmp_path)) as made:
        await stall_and_read(made, fetch_answer(3 * MIB, 20 * KIB, 300 * KIB), mock_clock)


async def stall_and_read(made: Crowd, frame: bytes, clock: MockClock) -> None:
    """Each asks, and is answered by this frame; nobody takes anything for a minute, and then each all of it."""
    async with trio.open_nursery() as nursery:
        for each in made.peers:
            await each.client.send_all(FETCH)
            assert await received(each.broker, len(FETCH)) == FETCH
            nursery.start_soon(each.broker.send_all, frame)
        await wait_until_stalled(made, clock)
        check_little_is_held(made)
        for each in made.peers:
            assert await received(each.client, len(frame)) == frame
    assert made.is_whole


def check_little_is_held(made: Crowd) -> None:
    assert made.is_whole
    assert max(buffers_bytes(made)) <= RELAYED_BYTES_MAX
    assert held_by_metrics(made) == (0, made.accounts.relayed_bytes)


async def test_what_a_broker_does_not_take_is_not_held(mock_clock: MockClock) -> None:
    head = struct.pack(">hhi", -1, 1, 1000)
    frame = request(ApiKey.PRODUCE, PRODUCE_VERSION, 1, head + os.urandom(7 * MIB))
    async with crowd(20, little_receive_buffer, is_client=False) as made, trio.open_nursery() as nursery:
        for each in made.peers:
            nursery.start_soon(each.client.send_all, frame)
        await wait_until_stalled(made, mock_clock)
        check_little_is_held(made)
        for each in made.peers:
            assert await received(each.broker, len(frame)) == frame
        assert made.is_whole


async def test_a_client_that_stalls_after_it_was_quick_gives_its_large_buffer_back(mock_clock: MockClock) -> None:
    short, long = fetch_answer(*[12 * KIB] * 200), fetch_answer(*[12 * KIB] * 1500)
    async with crowd(4, little_receive_buffer) as made, trio.open_nursery() as nursery:
        for each in made.peers:
            for frame in (short, short, short):
                await each.client.send_all(FETCH)
                await received(each.broker, len(FETCH))
                nursery.start_soon(each.broker.send_all, frame)
                assert await received(each.client, len(frame)) == frame
            await each.client.send_all(FETCH)
            await received(each.broker, len(FETCH))
            nursery.start_soon(each.broker.send_all, long)
        await wait_until_stalled(made, mock_clock)
        assert max(buffers_bytes(made)) <= RELAYED_BYTES_MAX
        for each in made.peers:
            assert await received(each.client, len(long)) == long


async def wait_until_stalled(made: Crowd, clock: MockClock | None) -> None:
    """Let all pass that passes; then, by a clock, nobody takes anything for a minute."""
    passed = -1
    while passed != (passed := sum(each.connection.answered for each in made.peers) + made.accounts.relayed_bytes):
        await wait_all_tasks_blocked(0.05)
    for _ in range(60 if clock else 0):
        assert clock is not None
        clock.jump(1.0)
        await wait_all_tasks_blocked()


def buffers_bytes(made: Crowd) -> list[int]:
    """Return what the buffers of each connection are in memory, but for the idle one of the other direction."""
    return [sum(buffer.capacity_bytes for buffer in account.buffers) - IDLE_BUFFER_BYTES for account in made.accounts]


def held_by_metrics(made: Crowd) -> tuple[float, float]:
    """Return what is held of requests and responses, and of what is relayed, as a scrape shows it."""
    samples = {sample.name: sample.value for family in made.registry.collect() for sample in family.samples}
    return samples["tidegate_held_bytes"], samples["tidegate_relay_held_bytes"]


# What a socket certainly takes.


@pytest.mark.parametrize("is_spliced", [True, False])
@pytest.mark.parametrize("parts_bytes", [50, 1000, 32 * KIB])
@pytest.mark.parametrize("receive_buffer_bytes", [4 * KIB, None])
@pytest.mark.parametrize("send_buffer_bytes", [8 * KIB, 128 * KIB, None])
@pytest.mark.parametrize("segment_bytes", [536, 1448, None])
async def test_a_socket_takes_what_is_sure(
    segment_bytes: int | None,
    send_buffer_bytes: int | None,
    receive_buffer_bytes: int | None,
    parts_bytes: int,
    is_spliced: bool,
) -> None:
    def prepare(sock: trio.socket.SocketType) -> None:
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        if segment_bytes is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)

    (client, to_client), (broker, from_broker) = await connected(prepare), await connected()
    source, destination = PlainTransport(from_broker.socket), PlainTransport(to_client.socket)
    if send_buffer_bytes is not None:
        to_client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    pipe, room, space = Pipe(), destination.room, memoryview(bytearray(256 * KIB))
    try:
        for _ in range(1000):
            with trio.move_on_after(0) as full:
                while True:
                    await broker.send_all(bytes(parts_bytes))
            assert full.cancelled_caught
            room.ask()
            if room.sure_bytes <= 0:
                return
            if is_spliced:
                size = source.fill(pipe, min(room.sure_bytes, MIB))
                assert destination.drain(pipe, size) == b""
            else:
                size = source.receive_now(space[: room.sure_bytes]) or 0
                assert destination.send_now((space[:size],)) == size
    finally:
        pipe.close()
        for end in (client, to_client, broker, from_broker):
            await trio.aclose_forcefully(end)


async def test_where_the_system_is_short_little_is_held_and_nobody_is_ended(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """The system is short of memory for TCP: one socket takes less than what was sure, and all of them may."""
    frame = fetch_answer(5 * MIB)
    ask = SendRoom.ask

    def lie(room: SendRoom) -> None:
        ask(room)
        if room is first.to_client.room:
            room.sure_bytes = 8 * MIB

    stalled = crowd(2, little_receive_buffer, send_buffer_bytes=256 * KIB)
    async with stalled as made, trio.open_nursery() as nursery:
        first, other = made.peers
        with monkeypatch.context() as patch:
            patch.setattr(SendRoom, "ask", lie)
            await first.client.send_all(FETCH)
            nursery.start_soon(first.broker.send_all, frame)
            await wait_until_stalled(made, None)
        held_bytes, relayed_bytes = held_by_metrics(made)
        assert 0 < held_bytes <= relayed_bytes <= held_bytes + RELAYED_BYTES_MAX
        assert [each.to_client.room.sure_bytes <= 0 for each in made.peers] == [True, True]

        await other.client.send_all(FETCH)
        nursery.start_soon(other.broker.send_all, frame)
        await wait_until_stalled(made, None)
        assert held_by_metrics(made) == (held_bytes, made.accounts.relayed_bytes)
        assert made.accounts.relayed_bytes <= held_bytes + 2 * RELAYED_BYTES_MAX

        made.accounts.overdraw(HELD_BYTES_MAX)  # others hold all there is
        mock_clock.jump(60)
        await wait_all_tasks_blocked()
        assert made.is_whole
        made.accounts.held.release(HELD_BYTES_MAX)
        for each in made.peers:
            assert await received(each.client, len(frame)) == frame
        await wait_all_tasks_blocked()
        assert held_by_metrics(made)[0] == 0


@pytest.mark.parametrize("answer", [OSError(errno.ENOPROTOOPT, "not here"), bytes(100)])
def test_a_system_that_does_not_say_gives_little_room(answer: OSError | bytes) -> None:
    class Emulated:
        def getsockopt(self, _level: int, option: int, _size: int = 0) -> int | bytes:
            if isinstance(answer, OSError):
                raise answer
            return 1448 if option == socket.TCP_MAXSEG else answer

    room = SendRoom(cast(trio.socket.SocketType, Emulated()))
    room.ask()
    assert room.sure_bytes == UNKNOWN_BYTES


async def test_passing_on_to_a_closed_socket_ends_with_its_error() -> None:
    (client, to_client), (broker, from_broker) = await connected(), await connected()
    source, destination = PlainTransport(from_broker.socket), PlainTransport(to_client.socket)
    account = open_accounts().open(lambda _reason: None)
    stream = FrameStream(source, destination, CloseCause.UPSTREAM, lambda _size: None, account)
    await broker.send_all(fetch_answer(1000))
    assert await stream.receive()
    destination.abort()
    with pytest.raises(TransportError, match="closed by us"):
        await stream.pass_on(1000)
    stream.close()
    for end in (client, broker, from_broker):
        await trio.aclose_forcefully(end)
