"""Connections between real sockets on this machine."""

from collections.abc import Callable

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from proxy.connection.connection import ClientConnection
from proxy.upstream.transport import PlainTransport
from tests.support.memory_transport import LIMITS, ScriptedAddresses, ScriptedHandlers, open_accounts
from tests.support.waiting import HANG_S_MAX

_READ_BYTES = 1024 * 1024


async def connected(
    prepare: Callable[[trio.socket.SocketType], None] | None = None,
) -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return both ends of a TCP connection.

    Args:
        prepare: is given the first one's socket before it connects.
    """
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        if prepare is None:
            near = await trio.open_tcp_stream(*listener.socket.getsockname())
        else:
            sock = trio.socket.socket()
            prepare(sock)
            await sock.connect(listener.socket.getsockname())
            near = trio.SocketStream(sock)
        return near, await listener.accept()


async def received(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    """Return the next bytes that come."""
    data = bytearray()
    with trio.fail_after(HANG_S_MAX):
        while len(data) < size:
            part = await stream.receive_some(min(size - len(data), _READ_BYTES))
            assert part, f"the stream ended after {len(data)} of {size} bytes"
            data += part
    return bytes(data)


def connection_between(
    client: trio.SocketStream, broker: trio.SocketStream, handlers: ScriptedHandlers | None = None
) -> ClientConnection:
    """Return what passes requests on from the one to the other; it is to be run."""
    return ClientConnection(
        PlainTransport(client.socket),
        PlainTransport(broker.socket),
        node_id=1,
        limits=LIMITS,
        addresses=ScriptedAddresses(),
        handlers=(handlers or ScriptedHandlers()).of,
        accounts=open_accounts(),
        meter=Meters(Registry()).relay,
    )
