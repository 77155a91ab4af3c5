"""The transports over real sockets: pairs in one process, TLS with a certificate made here."""

import socket as stdlib_socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.client.errors import TransportError, UpstreamConnectionError
from proxy.connection.accounts import Wait
from proxy.connection.frame_stream import AnswerSending
from proxy.connection.request_handlers import ClientReads
from proxy.upstream import transport
from proxy.upstream.transport import (
    IOV_MAX,
    Bytes,
    PlainTransport,
    TlsTransport,
    Transport,
    joined,
    open_transport,
    plain_transport,
    tls_server_transport,
)
from tests.support.certificates import server_certificate
from tests.support.waiting import HANG_S_MAX


async def receive_exactly(transport: Transport, size: int) -> bytes:
    buffer = bytearray(size)
    received = 0
    while received < size:
        count = await transport.receive_into(memoryview(buffer)[received:])
        assert count > 0, f"the stream ended after {received} of {size} bytes"
        received += count
    return bytes(buffer)


def plain_pair() -> tuple[Transport, Transport]:
    left, right = trio.socket.socketpair()
    return plain_transport(left), plain_transport(right)


async def listening() -> tuple[trio.socket.SocketType, int]:
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    port: int = listener.getsockname()[1]
    return listener, port


async def test_bytes_arrive_as_sent_and_the_end_is_zero() -> None:
    left, right = plain_pair()
    await left.send_all(b"abc")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.aclose)
        assert await receive_exactly(right, 3) == b"abc"
        assert await right.receive_into(memoryview(bytearray(10))) == 0
        await right.aclose()


async def test_closing_with_bytes_unread_loses_nothing_of_what_was_sent() -> None:
    # Failed before: the kernel resets such a connection and drops what still lies in its send buffer.
    listener, port = await listening()
    ours = await open_transport("127.0.0.1", port)
    accepted, _ = await listener.accept()
    theirs = plain_transport(accepted)
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
    listener.close()


async def test_closing_does_not_wait_long_for_a_peer_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LINGER_S", 0.01)
    left, right = plain_pair()
    with trio.fail_after(HANG_S_MAX):
        await left.aclose()
        await left.aclose()
    right.abort()


async def test_a_late_receive_takes_its_view_only_when_bytes_have_come() -> None:
    left, right = plain_pair()
    views: list[memoryview] = []

    def space() -> memoryview:
        views.append(memoryview(bytearray(10)))
        return views[-1]

    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            assert await right.receive_late(4, space) == 4

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        assert views == []
        await left.send_all(b"abcdef")
    assert bytes(views[0]) == b"abcd" + bytes(6)
    assert await right.receive_late(10, space) == 2
    left.abort()
    assert await right.receive_late(10, space) == 0
    right.abort()
    with pytest.raises(TransportError):
        await right.receive_late(10, space)


async def test_abort_wakes_a_late_receiver() -> None:
    left, right = plain_pair()
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(TransportError, match="closed by us"):
                await left.receive_late(1, lambda: memoryview(bytearray(1)))

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        left.abort()
    right.abort()


async def test_vectored_sends_keep_order_beyond_iov_max_with_empty_and_odd_buffers() -> None:
    left, right = plain_pair()
    buffers: list[Bytes] = [bytes([number % 251]) * (number % 5) for number in range(2 * IOV_MAX + 17)]
    buffers[3] = memoryview(bytearray(b"xyz"))
    expected = b"".join(buffers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_each, left, buffers)
        assert await receive_exactly(right, len(expected)) == expected
    left.abort()
    right.abort()


async def test_a_send_larger_than_the_socket_buffer_is_continued_after_partial_sends() -> None:
    left, right = plain_pair()
    blocks = [bytes([number]) * 300_001 for number in range(20)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_each, left, blocks)
        assert await receive_exactly(right, 20 * 300_001) == b"".join(blocks)
    left.abort()
    right.abort()


async def test_an_empty_send_is_only_a_checkpoint() -> None:
    left, right = plain_pair()
    assert await left.send_some([b""]) == 0
    await left.send_all(b"")
    await left.send_all(b"x")
    assert await receive_exactly(right, 1) == b"x"
    left.abort()
    right.abort()


async def test_a_second_sender_is_refused_while_one_is_under_way() -> None:
    left, right = plain_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(left.send_all, bytes(10_000_000))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await left.send_all(b"x")
        nursery.cancel_scope.cancel()
    left.abort()
    right.abort()


async def test_sending_to_a_peer_that_left_is_a_transport_error() -> None:
    left, right = plain_pair()
    right.abort()
    with pytest.raises(TransportError, match="broke"):
        await left.send_all(bytes(1_000_000))
    left.abort()


async def test_abort_wakes_a_waiting_receiver_and_may_be_repeated() -> None:
    left, right = plain_pair()
    woken: list[TransportError] = []

    async def receive() -> None:
        with pytest.raises(TransportError, match="closed by us") as caught:
            await left.receive_into(memoryview(bytearray(1)))
        woken.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        left.abort()
        left.abort()
    await left.aclose()
    assert len(woken) == 1
    with pytest.raises(TransportError):
        await left.send_all(b"x")
    right.abort()


async def test_tcp_connections_have_no_delay_and_a_peer_name() -> None:
    listener, port = await listening()
    ours = await open_transport("127.0.0.1", port)
    accepted, _ = await listener.accept()
    theirs = plain_transport(accepted)
    assert ours.peer_name == f"127.0.0.1:{port}"
    assert theirs.peer_name.startswith("127.0.0.1:")
    assert accepted.getsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY) != 0
    ours.abort()
    theirs.abort()
    listener.close()


async def test_nobody_listening_is_a_connection_error_that_names_the_address() -> None:
    listener, port = await listening()
    listener.close()
    with pytest.raises(UpstreamConnectionError, match=f"127.0.0.1:{port}"):
        await open_transport("127.0.0.1", port)


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certificate, key = server_certificate(folder)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))


async def tls_pair(folder: Path) -> tuple[Transport, Transport]:
    server_context, client_context = contexts(folder)
    listener, port = await listening()
    accepted: list[Transport] = []

    async def accept() -> None:
        sock, _ = await listener.accept()
        accepted.append(await tls_server_transport(sock, server_context))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        ours = await open_transport("127.0.0.1", port, tls=client_context, server_hostname="localhost")
    listener.close()
    return ours, accepted[0]


async def test_tls_carries_vectored_sends_both_ways(tmp_path: Path) -> None:
    ours, theirs = await tls_pair(tmp_path)
    buffers = [bytes([number % 251]) * (number * 37 % 5000) for number in range(200)]
    expected = b"".join(buffers)
    for sender, receiver in ((ours, theirs), (theirs, ours)):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_each, sender, buffers)
            assert await receive_exactly(receiver, len(expected)) == expected
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.aclose)
        assert await theirs.receive_into(memoryview(bytearray(1))) == 0
    theirs.abort()


async def test_a_late_receive_over_tls_gets_also_what_was_decrypted_already(tmp_path: Path) -> None:
    # Waiting on the socket would hang here: both halves came in one record.
    ours, theirs = await tls_pair(tmp_path)
    await ours.send_all(b"first and second")
    view = memoryview(bytearray(20))
    for half in (b"first and", b" second"):
        with trio.fail_after(HANG_S_MAX):
            assert await theirs.receive_late(len(half), lambda: view) == len(half)
        assert bytes(view[: len(half)]) == half
    ours.abort()
    theirs.abort()


async def test_a_tls_peer_that_leaves_without_farewell_is_the_end(tmp_path: Path) -> None:
    ours, theirs = await tls_pair(tmp_path)
    theirs.abort()
    assert await ours.receive_into(memoryview(bytearray(1))) == 0
    await ours.aclose()


async def test_an_untrusted_certificate_fails_the_connection(tmp_path: Path) -> None:
    server_context, _ = contexts(tmp_path)
    listener, port = await listening()

    async def accept() -> None:
        sock, _ = await listener.accept()
        with pytest.raises(TransportError, match="handshake"):
            await tls_server_transport(sock, server_context)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        with pytest.raises(UpstreamConnectionError, match="certificate"):
            await open_transport("127.0.0.1", port, tls=ssl.create_default_context(), server_hostname="localhost")
    listener.close()


async def test_a_cancelled_handshake_closes_the_socket(tmp_path: Path) -> None:
    server_context, _ = contexts(tmp_path)
    left, right = trio.socket.socketpair()
    with trio.move_on_after(0.05):
        await tls_server_transport(left, server_context)
    assert left.fileno() == -1
    right.close()


async def test_plain_bytes_to_a_tls_listener_are_a_transport_error(tmp_path: Path) -> None:
    server_context, _ = contexts(tmp_path)
    left, right = trio.socket.socketpair()
    await right.send(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(TransportError, match="handshake"):
        await tls_server_transport(left, server_context)
    right.close()


@given(st.lists(st.binary(max_size=20)), st.integers(1, 30))
def test_joined_copies_the_first_bytes_and_no_more_than_allowed(buffers: list[bytes], bytes_max: int) -> None:
    assert joined(buffers, bytes_max) == b"".join(buffers)[:bytes_max]


async def send_each(transport: Transport, buffers: Sequence[Bytes]) -> None:
    """All of them, as an answer is sent."""
    await AnswerSending(list(buffers), ClientReads()).send(transport, Wait(None))


def keepalive_of(sock: trio.socket.SocketType) -> list[int]:
    options = [(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE)]
    idle = getattr(stdlib_socket, "TCP_KEEPIDLE", getattr(stdlib_socket, "TCP_KEEPALIVE", 0))  # the latter on macOS
    options += [(stdlib_socket.IPPROTO_TCP, option) for option in (idle, stdlib_socket.TCP_KEEPINTVL)]
    options += [(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_KEEPCNT)]
    return [sock.getsockopt(level, option) for level, option in options]


async def test_connections_are_kept_alive_on_both_sides_and_no_live_peer_is_given_up(tmp_path: Path) -> None:
    # Failed before: a machine that had gone without a word kept its connection, and its slot, for ever.
    server_context, client_context = contexts(tmp_path)
    listener, port = await listening()
    for tls in (False, True):
        accepted: list[trio.socket.SocketType] = []
        made: list[Transport] = []

        async def accept(tls: bool, accepted: list[trio.socket.SocketType], made: list[Transport]) -> None:
            sock, _ = await listener.accept()
            accepted.append(sock)
            made.append(await tls_server_transport(sock, server_context) if tls else plain_transport(sock))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept, tls, accepted, made)
            context = client_context if tls else None
            made.append(await open_transport("127.0.0.1", port, tls=context, server_hostname="localhost"))
        (ours,) = (connection for connection in made if connection.peer_name == f"127.0.0.1:{port}")
        if isinstance(ours, TlsTransport):
            sockets = [accepted[0], ours._stream.transport_stream.socket]
        else:
            assert isinstance(ours, PlainTransport)
            sockets = [accepted[0], ours._socket]
        for sock in sockets:
            switched_on, *seconds_and_probes = keepalive_of(sock)
            assert switched_on
            assert seconds_and_probes == [60, 15, 4]
            if hasattr(stdlib_socket, "TCP_USER_TIMEOUT"):
                assert sock.getsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_USER_TIMEOUT) == 0
        for connection in made:
            connection.abort()
    listener.close()


async def test_a_peer_may_be_given_another_name(tmp_path: Path) -> None:
    left, right = trio.socket.socketpair()
    named = plain_transport(left, "203.0.113.7:5")
    assert named.peer_name == "203.0.113.7:5"
    right.close()
    with pytest.raises(TransportError, match=r"203\.0\.113\.7:5"):
        await named.send_all(b"x")
    named.abort()
