"""Produce requests between real sockets: from the client to the broker their records go past this process too."""

import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.lowlevel

from metrics.meters import CloseCause
from protocol.wire.identifiers import ApiKey
from proxy.connection.connection import ClientConnection
from tests.support.memory_transport import HEARTBEAT, request, response
from tests.support.socket_pairs import connected, connection_between, received
from tests.support.waiting import HANG_S_MAX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="splice is Linux's")

KIB, MIB = 1024, 1024 * 1024
VERSION = 8


@dataclass
class Producer:
    """A client's connection, and both far ends."""

    client: trio.SocketStream
    broker: trio.SocketStream
    connection: ClientConnection
    causes: list[CloseCause] = field(default_factory=list)

    async def run(self) -> None:
        self.causes.append(await self.connection.run())

    async def expect(self, *frames: bytes) -> None:
        """The broker gets these as they are."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.client.send_all, b"".join(frames))
            for frame in frames:
                assert await received(self.broker, len(frame)) == frame


@asynccontextmanager
async def producer() -> AsyncIterator[Producer]:
    (client, from_client), (broker, to_broker) = await connected(), await connected()
    made = Producer(client, broker, connection_between(from_client, to_broker))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()
    for end in (client, broker):
        await trio.aclose_forcefully(end)


def produce(records_bytes: int, correlation_id: int = 1, acks: int = 1) -> bytes:
    """A request whose records are any bytes: nobody looks at them."""
    head = struct.pack(">hhi", -1, acks, 1000)
    return request(ApiKey.PRODUCE, VERSION, correlation_id, head + os.urandom(records_bytes))


async def test_requests_pass_as_they_are_and_are_answered() -> None:
    sizes = [10, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 300 * KIB, 3 * MIB, 100]
    async with producer() as made:
        for acks in (1, 0, -1):
            frames = [produce(size, number, acks) for number, size in enumerate(sizes)]
            await made.expect(*frames, request(HEARTBEAT, 4, 99))
            answers = [response(number) for number in range(len(sizes) if acks else 0)]
            await made.broker.send_all(b"".join([*answers, response(99)]))
            for answer in (*answers, response(99)):
                assert await received(made.client, len(answer)) == answer
        assert made.causes == []


async def test_records_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    readv, copied = os.readv, [0]

    def counted(descriptor: int, views: list[memoryview]) -> int:
        size = readv(descriptor, views)
        copied[0] += size
        return size

    async with producer() as made:
        await made.expect(produce(MIB, acks=0))
        monkeypatch.setattr(os, "readv", counted)
        await made.expect(*[produce(MIB, acks=0) for _ in range(10)])
    assert 0 < copied[0] < 10 * 16 * KIB


@pytest.mark.parametrize("how", ["client ends", "client resets", "broker resets"])
async def test_a_request_that_is_cut_in_the_midst_of_its_records_leaves_nothing_behind(how: str) -> None:
    frame = produce(4 * MIB)
    async with producer() as other, producer() as made:
        await other.expect(produce(MIB))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.client.send_all, frame[: MIB + 1])
            assert await received(made.broker, MIB + 1) == frame[: MIB + 1]
        if how == "client ends":
            await made.client.send_eof()
        else:
            cut = made.client if how == "client resets" else made.broker
            cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            cut.socket.close()
        with trio.fail_after(HANG_S_MAX):
            while not made.causes:
                await trio.lowlevel.checkpoint()
        expected = {"client ends": CloseCause.MALFORMED_FRAME, "client resets": CloseCause.CLIENT}
        assert made.causes == [expected.get(how, CloseCause.UPSTREAM)]
        await other.expect(produce(2 * MIB, 2), produce(300 * KIB, 3))
