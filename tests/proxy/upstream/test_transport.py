"""The transports over real sockets: pairs in one process, TLS with a certificate made here."""

import socket as stdlib_socket
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.client.errors import TransportError, UpstreamConnectionError
from proxy.connection.accounts import Wait
from proxy.connection.client_reads import ClientReads
from proxy.connection.slow_answer import AnswerSending
from proxy.upstream import transport
from proxy.upstream.transport import (
    IOV_MAX,
    Bytes,
    PlainTransport,
    TlsTransport,
    Transport,
    open_transport,
    plain_transport,
    tls_server_transport,
)
from tests.support.certificates import server_certificate
from tests.support.outcomes import outcomes
from tests.support.waiting import HANG_S_MAX


async def receive_exactly(transport: Transport, size: int) -> bytes:
    buffer = bytearray(size)
    received = 0
    while received < size:
        count = await transport.receive_into(memoryview(buffer)[received:])
        assert count > 0, f"the stream ended after {received} of {size} bytes"
        received += count
    return bytes(buffer)


Pair = tuple[Transport, Transport]
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    left, right = trio.socket.socketpair()
    made = plain_transport(left), plain_transport(right)
    yield made
    for end in made:
        end.abort()


@pytest.fixture
async def listener() -> AsyncIterator[trio.socket.SocketType]:
    with trio.socket.socket() as listening:
        await listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def contexts(folder: Path) -> Contexts:
    certificate, key = server_certificate(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))


async def connect(
    listener: trio.socket.SocketType, tls: Contexts | None = None
) -> tuple[Transport, Transport, trio.socket.SocketType]:
    """Ours, theirs, and their socket."""
    server_context, client_context = tls or (None, None)
    made: list[Transport] = []

    async def open_ours() -> None:
        address = listener.getsockname()
        made.append(await open_transport(*address, tls=client_context, server_hostname="localhost"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_ours)
        accepted, _ = await listener.accept()
        theirs = await tls_server_transport(accepted, server_context) if server_context else plain_transport(accepted)
    return made[0], theirs, accepted


@pytest.fixture
async def tls_pair(listener: trio.socket.SocketType, tmp_path: Path) -> AsyncIterator[Pair]:
    ours, theirs, _ = await connect(listener, contexts(tmp_path))
    yield ours, theirs
    ours.abort()
    theirs.abort()


async def test_bytes_arrive_as_sent_and_the_end_is_zero(pair: Pair) -> None:
    left, right = pair
    await left.send_all(b"abc")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.aclose)
        assert await receive_exactly(right, 3) == b"abc"
        assert await right.receive_into(memoryview(bytearray(10))) == 0
        await right.aclose()


async def test_closing_with_bytes_unread_loses_nothing_of_what_was_sent(
    listener: trio.socket.SocketType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Failed before: the kernel resets such a connection and drops what still lies in its send buffer.
    monkeypatch.setattr(transport, "LINGER_S", HANG_S_MAX)
    ours, theirs, _ = await connect(listener)
    answer = bytes(1_000_000)
    await ours.send_all(b"another request")

    async def answer_and_close() -> None:
        await theirs.send_all(answer)
        await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_and_close)
        await trio.testing.wait_all_tasks_blocked()
        assert await receive_exactly(ours, len(answer)) == answer
        assert await ours.receive_into(memoryview(bytearray(1))) == 0
        ours.abort()


async def test_closing_does_not_wait_long_for_a_peer_that_stays(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LINGER_S", 0.01)
    left, _ = pair
    with trio.fail_after(HANG_S_MAX):
        await left.aclose()
        await left.aclose()


async def test_a_late_receive_takes_its_view_only_when_bytes_have_come(pair: Pair) -> None:
    left, right = pair
    views: list[memoryview] = []

    def space() -> memoryview:
        views.append(memoryview(bytearray(10)))
        return views[-1]

    async with outcomes() as got:
        got.start(right.receive_late, 4, space)
        await trio.testing.wait_all_tasks_blocked()
        assert views == []
        await left.send_all(b"abcdef")
    assert (got.returned, bytes(views[0])) == ([4], b"abcd" + bytes(6))
    assert await right.receive_late(10, space) == 2
    left.abort()
    assert await right.receive_late(10, space) == 0
    right.abort()
    with pytest.raises(TransportError):
        await right.receive_late(10, space)


async def test_vectored_sends_keep_order_beyond_iov_max_with_empty_and_odd_buffers(pair: Pair) -> None:
    left, right = pair
    buffers: list[Bytes] = [bytes([number % 251]) * (number % 5) for number in range(2 * IOV_MAX + 17)]
    buffers[3] = memoryview(bytearray(b"xyz"))
    expected = b"".join(buffers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_each, left, buffers)
        assert await receive_exactly(right, len(expected)) == expected


@pytest.mark.parametrize("is_owed", [True, False])
async def test_who_owes_a_turn_yields_before_a_byte_moves(pair: Pair, is_owed: bool) -> None:
    if is_owed:
        pair[0].owe_turn()
    with trio.CancelScope() as scope:
        scope.cancel()  # seen where it yields
        await pair[0].send_some([b"!"])
    assert scope.cancelled_caught is is_owed


async def test_sending_to_a_peer_that_left_is_a_transport_error(pair: Pair) -> None:
    left, right = pair
    right.abort()
    with pytest.raises(TransportError, match="broke"):
        await left.send_all(bytes(1_000_000))


async def test_abort_wakes_waiting_receivers_and_may_be_repeated() -> None:
    for is_late in (False, True):
        left, right = map(plain_transport, trio.socket.socketpair())
        async with outcomes() as got:
            if is_late:
                got.start(left.receive_late, 1, lambda: memoryview(bytearray(1)))
            else:
                got.start(left.receive_into, memoryview(bytearray(1)))
            await trio.testing.wait_all_tasks_blocked()
            left.abort()
            left.abort()
        (error,) = got.raised
        assert isinstance(error, TransportError)
        assert "closed by us" in str(error)
        await left.aclose()
        with pytest.raises(TransportError):
            await left.send_all(b"x")
        right.abort()


async def test_tls_carries_vectored_sends_both_ways(tls_pair: Pair) -> None:
    ours, theirs = tls_pair
    buffers = [bytes([number % 251]) * (number * 37 % 5000) for number in range(200)]
    expected = b"".join(buffers)
    for sender, receiver in ((ours, theirs), (theirs, ours)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_each, sender, buffers)
            assert await receive_exactly(receiver, len(expected)) == expected
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.aclose)
        assert await theirs.receive_into(memoryview(bytearray(1))) == 0


async def test_a_late_receive_over_tls_gets_also_what_was_decrypted_already(tls_pair: Pair) -> None:
    # Waiting on the socket would hang here: both halves came in one record.
    ours, theirs = tls_pair
    await ours.send_all(b"first and second")
    view = memoryview(bytearray(20))
    for half in (b"first and", b" second"):
        with trio.fail_after(HANG_S_MAX):
            assert await theirs.receive_late(len(half), lambda: view) == len(half)
        assert bytes(view[: len(half)]) == half


async def test_one_receive_over_tls_takes_all_records_that_have_come(tls_pair: Pair) -> None:
    # Failed before: one record of 16 KiB a receive, and two or three turns of the loop for each of them.
    ours, theirs = tls_pair
    await ours.send_all(bytes(100_000))
    await socket_of(theirs).recv(100_000, stdlib_socket.MSG_PEEK | stdlib_socket.MSG_WAITALL)
    assert await theirs.receive_into(memoryview(bytearray(200_000))) == 100_000


async def test_a_tls_peer_is_told_farewell(listener: trio.socket.SocketType, tmp_path: Path) -> None:
    # Failed before: no close_notify, so a peer that is strict about it took every end for an attack.
    server, client = contexts(tmp_path)
    stream = await trio.open_tcp_stream(*listener.getsockname())
    strict = trio.SSLStream(stream, client, server_hostname="localhost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(strict.do_handshake)
        ours = await tls_server_transport((await listener.accept())[0], server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.aclose)
        assert await strict.receive_some() == b""
        await strict.aclose()


async def test_what_is_no_tls_breaks_a_tls_connection(tls_pair: Pair) -> None:
    ours, theirs = tls_pair
    await socket_of(ours).send(b"no record of TLS")
    with pytest.raises(TransportError, match="broke"):
        await theirs.receive_into(memoryview(bytearray(10)))
    theirs.abort()
    with pytest.raises(TransportError, match="broke"):
        await ours.send_all(bytes(10_000_000))


async def test_a_tls_peer_that_leaves_without_farewell_is_the_end(tls_pair: Pair) -> None:
    ours, theirs = tls_pair
    theirs.abort()
    assert await ours.receive_into(memoryview(bytearray(1))) == 0
    await ours.aclose()


async def test_an_untrusted_certificate_fails_the_connection(listener: trio.socket.SocketType, tmp_path: Path) -> None:
    (server_context, _), address = contexts(tmp_path), listener.getsockname()

    async def accept() -> None:
        sock, _ = await listener.accept()
        await tls_server_transport(sock, server_context)

    async with outcomes() as got:
        got.start(accept)
        with pytest.raises(UpstreamConnectionError, match="certificate"):
            await open_transport(*address, tls=ssl.create_default_context(), server_hostname="localhost")
    (error,) = got.raised
    assert isinstance(error, TransportError)
    assert "handshake" in str(error)


async def send_each(transport: Transport, buffers: Sequence[Bytes]) -> None:
    """All of them, as an answer is sent."""
    await AnswerSending(list(buffers), ClientReads()).send(transport, Wait(None))


def socket_of(transport: Transport) -> trio.socket.SocketType:
    assert isinstance(transport, PlainTransport | TlsTransport)
    return transport.socket


def keepalive_of(sock: trio.socket.SocketType) -> list[int]:
    options = [(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE)]
    idle = getattr(stdlib_socket, "TCP_KEEPIDLE", getattr(stdlib_socket, "TCP_KEEPALIVE", 0))  # the latter on macOS
    options += [(stdlib_socket.IPPROTO_TCP, option) for option in (idle, stdlib_socket.TCP_KEEPINTVL)]
    options += [(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPCNT)]
    return [sock.getsockopt(level, option) for level, option in options]


@pytest.mark.parametrize("is_tls", [False, True])
async def test_connections_are_kept_alive_on_both_sides_and_no_live_peer_is_given_up(
    listener: trio.socket.SocketType, tmp_path: Path, is_tls: bool
) -> None:
    # Failed before: a machine that had gone without a word kept its connection, and its slot, for ever.
    ours, theirs, accepted = await connect(listener, contexts(tmp_path) if is_tls else None)
    for sock in (accepted, socket_of(ours)):
        switched_on, *seconds_and_probes = keepalive_of(sock)
        assert switched_on
        assert seconds_and_probes == [60, 15, 4]
        if hasattr(stdlib_socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_USER_TIMEOUT) == 0
    ours.abort()
    theirs.abort()
