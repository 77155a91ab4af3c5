"""PROXY headers on connections, over sockets of this machine: whose they are, and who may send them."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from itertools import product
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from metrics.meters import CloseCause, RefusalReason
from protocol.wire.errors import PeerProtocolError
from protocol.wire.proxy_header import V2_SIGNATURE
from proxy.connection import server as server_module
from proxy.connection.peer_address import HEADER_S_MAX, ClientAddress, UntrustedPeerError, original_address, own_address
from proxy.connection.slots import SlotLimits
from tests.proxy.connection.test_server import ASK, ask, ends, world
from tests.proxy.upstream.test_transport import contexts
from tests.support.memory_transport import request
from tests.support.waiting import until

HERE, ELSEWHERE = (ip_network("127.0.0.1"),), (ip_network("192.0.2.0/24"), ip_network("2001:db8::/32"))

V1 = b"PROXY TCP4 203.0.113.7 192.0.2.9 56324 9092\r\n"
V2 = V2_SIGNATURE + b"\x21\x21" + struct.pack(">H", 36 + 300) + bytes.fromhex("20010db8" + "0" * 23 + "7") * 2
V2 += struct.pack(">HH", 56324, 9092) + b"\4\1\x29" + bytes(297)


@asynccontextmanager
async def pair(host: str = "127.0.0.1") -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    """A client's stream, and the accepted one."""
    (listener,) = await trio.open_tcp_listeners(0, host=host)
    client = await trio.open_tcp_stream(host, listener.socket.getsockname()[1])
    async with listener, client, await listener.accept() as accepted:
        yield client, accepted


async def test_the_header_names_the_client_and_is_gone() -> None:
    ipv4 = ClientAddress("203.0.113.7", "203.0.113.7:56324")
    headers = {
        V1: ipv4,
        V2: ClientAddress("2001:db8::7", "[2001:db8::7]:56324"),
        b"PROXY TCP6 ::ffff:203.0.113.7 ::1 56324 9092\r\n": ipv4,
    }
    for header, piece_bytes in product(headers, (1, 40, 4000)):
        async with pair() as (client, accepted), trio.open_nursery() as nursery:
            nursery.start_soon(send_in_pieces, client, header + b"the first request", piece_bytes)
            assert await original_address(accepted.socket, HERE) == headers[header], f"{header!r}, {piece_bytes=}"
            assert b"".join([part async for part in accepted]) == b"the first request"


async def send_in_pieces(client: trio.SocketStream, sent: bytes, piece_bytes: int) -> None:
    for start in range(0, len(sent), piece_bytes):
        await client.send_all(sent[start : start + piece_bytes])
        await trio.testing.wait_all_tasks_blocked()
    await client.send_eof()


async def test_where_it_names_nobody_the_connections_own_address_counts() -> None:
    for header in (V2_SIGNATURE + b"\x20\0\0\0", b"PROXY UNKNOWN\r\n"):
        async with pair() as (client, accepted):
            await client.send_all(header)
            own = own_address(accepted.socket)
            assert own.host == "127.0.0.1"
            assert own.name == f"127.0.0.1:{client.socket.getsockname()[1]}"
            assert await original_address(accepted.socket, HERE) == own


async def test_who_is_not_trusted_is_not_read() -> None:
    async with pair() as (client, accepted):
        await client.send_all(V1)
        with pytest.raises(UntrustedPeerError, match=r"127\.0\.0\.1:"):
            await original_address(accepted.socket, ELSEWHERE)
        assert await accepted.receive_some(1000) == V1


async def test_garbage_is_refused_and_an_end_before_the_first_byte_is_a_health_check() -> None:
    for sent, error in (
        (ASK, "does not begin with a PROXY header"),
        (b"PROXY UNKNOWN" + b"x" * 200, "does not end within 107 bytes"),
        (V1[:-1], "ended inside a PROXY header"),
        (V2[:100], "ended inside a PROXY header"),
        (V2_SIGNATURE + b"\x21\x11\xff\xff", "of 65551 bytes"),
    ):
        async with pair() as (client, accepted):
            await client.send_all(sent)
            await client.send_eof()
            with pytest.raises(PeerProtocolError, match=error):
                await original_address(accepted.socket, HERE)
    async with pair() as (client, accepted):
        await client.send_eof()
        assert await original_address(accepted.socket, HERE) is None


async def test_a_slow_header_is_given_up(autojump_clock: MockClock) -> None:
    async with pair() as (client, accepted):
        await client.send_all(V1[:20])
        with pytest.raises(PeerProtocolError, match="no PROXY header within 5 s"):
            await original_address(accepted.socket, HERE)
    assert trio.current_time() == pytest.approx(HEADER_S_MAX)


# Through the server.


async def test_a_client_behind_a_balancer_is_served_and_counted_by_its_own_address() -> None:
    slots = SlotLimits(connections_max=10, connections_max_per_address=1)
    async with world(slots=slots, proxy_trusted=HERE) as made:
        clients = []
        for host in ("203.0.113.7", "203.0.113.8"):
            client = await made.connect()
            await client.send_all(f"PROXY TCP4 {host} 192.0.2.9 5 9092\r\n".encode())
            await ask(client)
            clients.append(client)
        async with await made.connect() as refused:
            await refused.send_all(V1)
            assert await ends(refused)
        assert made.refused(RefusalReason.ADDRESS_CONNECTIONS) == 1
        (line,) = [entry for entry in made.logs if entry["event"] == "connection_refused"]
        assert line["client"] == "203.0.113.7:56324"
        await clients[0].send_all(b"\xff" * 100)
        assert await ends(clients[0])
        await until(lambda: made.closed(CloseCause.MALFORMED_FRAME))
        (line,) = [entry for entry in made.logs if entry["event"] == "connection_closed"]
        assert line["client"] == "203.0.113.7:5"
        for client in clients:
            await client.aclose()
        await made.server.wait_empty()


async def test_tls_begins_behind_the_header(tmp_path: Path) -> None:
    server_context, client_context = contexts(tmp_path)
    async with world(client_tls=server_context, proxy_trusted=HERE) as made:
        plain = await made.connect()
        await plain.send_all(V2)
        async with trio.SSLStream(plain, client_context, server_hostname="localhost", https_compatible=True) as client:
            await ask(client)
        await made.server.wait_empty()
        assert made.shown == []


async def test_who_is_not_trusted_is_closed_with_the_keys_name_once_a_spell() -> None:
    async with world(proxy_trusted=ELSEWHERE) as made:
        for _ in range(3):
            assert await made.refuses()
        assert made.refused(RefusalReason.PROXY_UNTRUSTED) == 3
        assert made.shown == ["connection_refused"]
        assert made.logs[-1]["key"] == "proxy.protocol.trusted"
        assert made.closed(CloseCause.CLIENT) == 0


async def test_one_without_a_header_is_closed_and_a_health_check_is_quiet() -> None:
    async with world(proxy_trusted=HERE) as made:
        for _ in range(2):
            async with await made.connect():
                pass
        async with await made.connect() as client:
            await client.send_all(request(12, 4, 1))
            assert await ends(client)
        assert made.refused(RefusalReason.PROXY_HEADER) == 1
        assert made.shown == ["connection_refused"]
        assert made.logs[-1]["key"] == "proxy.protocol"


async def test_those_that_have_sent_no_header_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEADERS_AWAITED_MAX", 1)
    async with world(proxy_trusted=HERE) as made:
        async with await made.connect() as silent:
            async with await made.connect() as second:
                assert await ends(second)
            assert made.server.connections == 0
            await silent.send_all(V1)
            await ask(silent)
        await until(lambda: not made.server.connections)


async def test_a_drain_does_not_wait_for_headers() -> None:
    async with world(proxy_trusted=HERE) as made:
        async with await made.connect() as silent:
            await trio.testing.wait_all_tasks_blocked()
            made.server.drain()
            assert await ends(silent)
        await made.server.wait_empty()
        assert made.shown == []
