"""FakeKafka on real sockets, for what connects to addresses: the whole application, or a client program.

async with wire_kafka(2) as kafka:
    kafka.addresses[3] = ("127..0.01", 9092)        # a broker that nobody can reach, and that is advertised
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from proxy.upstream.transport import plain_transport
from tests.support.fake_kafka import FakeBroker, FakeKafka


@asynccontextmanager
async def wire_kafka(brokers: int = 1) -> AsyncIterator[FakeKafka]:
    """Brokers 1, 2, … at 127.0.0.1, until the block ends."""
    async with trio.open_nursery() as nursery:
        kafka = FakeKafka(nursery)
        for node_id in range(1, brokers + 1):
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            broker = kafka.add(node_id, "127.0.0.1", listener.socket.getsockname()[1])
            nursery.start_soon(trio.serve_listeners, partial(_serve, broker), [listener])
        yield kafka
        nursery.cancel_scope.cancel()


async def _serve(broker: FakeBroker, stream: trio.SocketStream) -> None:
    await broker.serve(plain_transport(stream.socket))
