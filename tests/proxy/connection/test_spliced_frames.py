"""Frames between real sockets: their records go past this process, whatever either side does meanwhile."""

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.fetch.messages import PartitionAnswer
from protocol.fetch.response import encode_response
from protocol.fetch.walker import FetchResponseWalker
from protocol.wire.errors import PeerProtocolError
from proxy.connection.accounts import Account
from proxy.connection.frame_stream import ConnectionEnd, FrameStream
from proxy.upstream.transport import PlainTransport
from tests.support.memory_transport import framed, open_accounts
from tests.support.outcomes import outcomes
from tests.support.socket_pairs import connected, received
from tests.support.waiting import HANG_S_MAX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="splice is Linux's")

KIB, MIB = 1024, 1024 * 1024
VERSION = 17


@dataclass
class Relay:
    """A FrameStream between two connections, and their far ends."""

    broker: trio.SocketStream
    client: trio.SocketStream
    source: PlainTransport
    destination: PlainTransport
    account: Account
    passed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = FrameStream(self.source, self.destination, CloseCause.UPSTREAM, self.passed.append, self.account)

    async def pass_frame(self, *, is_walked: bool = True) -> None:
        while (size := self.stream.next_frame_size(frame_bytes_max=1 << 30, body_bytes_min=4)) is None:
            assert await self.stream.receive()
        if is_walked:
            await self.stream.pass_on_through(size, FetchResponseWalker(VERSION))
        else:
            await self.stream.pass_on(size)

    async def expect(self, *frames: bytes, is_walked: bool = True) -> None:
        """Relay these, and see that they come as they are."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.broker.send_all, b"".join(frames))
            nursery.start_soon(self._pass, len(frames), is_walked)
            for frame in frames:
                assert await received(self.client, len(frame)) == frame

    async def _pass(self, count: int, is_walked: bool) -> None:
        for _ in range(count):
            await self.pass_frame(is_walked=is_walked)


@asynccontextmanager
async def relay() -> AsyncIterator[Relay]:
    (broker, from_broker), (client, to_client) = await connected(), await connected()
    account = open_accounts().open(lambda _reason: None)
    made = Relay(broker, client, PlainTransport(from_broker.socket), PlainTransport(to_client.socket), account)
    try:
        yield made
    finally:
        made.stream.close()
        for end in (broker, client, from_broker, to_client):
            await trio.aclose_forcefully(end)


def answer(*sizes: int, correlation_id: int = 1) -> bytes:
    """A Fetch answer with a partition of so many bytes each."""
    partitions = [
        PartitionAnswer(None, bytes(16), number, 0, 5, 5, 0, records=[os.urandom(size)])
        for number, size in enumerate(sizes)
    ]
    return b"".join(
        encode_response(VERSION, correlation_id, throttle_time_ms=0, error_code=0, session_id=0, answers=partitions)
    )


SIZES = [
    (MIB, MIB),
    (3 * MIB, 0, 70 * KIB),
    (64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 300 * KIB),
    (10, 20, 30),
    (256 * KIB, 100, 5 * MIB + 1, 100),
]


@pytest.mark.parametrize("is_walked", [True, False])
async def test_answers_pass_as_they_are_and_are_counted(is_walked: bool) -> None:
    frames = [answer(*sizes, correlation_id=number) for number, sizes in enumerate([*SIZES, *reversed(SIZES)])]
    async with relay() as made:
        await made.expect(*frames, is_walked=is_walked)
        await made.expect(framed(b"a small frame behind them"), is_walked=False)
        assert sum(made.passed) == sum(map(len, frames)) + 29
        assert made.account.held_bytes == 0


async def test_records_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    readv, copied = os.readv, [0]

    def counted(descriptor: int, views: list[memoryview]) -> int:
        size = readv(descriptor, views)
        copied[0] += size
        return size

    async with relay() as made:
        await made.expect(answer(MIB, MIB))
        monkeypatch.setattr(os, "readv", counted)
        await made.expect(*[answer(MIB, MIB) for _ in range(10)])
    assert 0 < copied[0] < 10 * 16 * KIB


# What either side does meanwhile. The pipe is everybody's: each test ends with a relay that finds it empty.


async def begin(made: Relay, frame: bytes, sent_bytes: int) -> None:
    """Let so much of it pass."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.broker.send_all, frame[:sent_bytes])
        assert await received(made.client, sent_bytes) == frame[:sent_bytes]


@pytest.mark.parametrize("how", ["broker ends", "broker resets", "client resets", "cancelled"])
async def test_a_relay_that_is_cut_in_the_midst_of_records_leaves_nothing_behind(how: str) -> None:
    frame = answer(4 * MIB)
    async with relay() as other, relay() as made:
        await other.expect(answer(MIB))
        async with outcomes() as got:
            got.start(made.pass_frame)
            await begin(made, frame, MIB + 1)
            if how == "broker ends":
                await made.broker.send_eof()
            elif how == "cancelled":
                got.nursery.cancel_scope.cancel()
            else:
                reset(made.broker if how == "broker resets" else made.client)
                if how == "client resets":
                    await made.broker.send_all(frame[MIB + 1 :][: 16 * KIB])
        expected = {"broker ends": PeerProtocolError, "broker resets": ConnectionEnd, "client resets": TransportError}
        assert [type(error) for error in got.raised] == ([expected[how]] if how in expected else [])
        await other.expect(answer(2 * MIB, 300 * KIB))


async def test_a_head_whose_records_never_come_stays_in_no_pipe() -> None:
    async with relay() as other, relay() as made:
        await made.broker.send_all(answer(MIB)[:200])
        reset(made.broker)
        with pytest.raises(ConnectionEnd):
            await made.pass_frame()
        await other.expect(answer(2 * MIB))


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def test_a_reader_that_takes_nothing_holds_up_nobody_and_gets_its_bytes_later() -> None:
    frame = answer(64 * MIB)
    async with relay() as stalled, relay() as other, trio.open_nursery() as nursery:
        nursery.start_soon(stalled.broker.send_all, frame)
        nursery.start_soon(stalled.pass_frame)
        for _ in range(5):
            await other.expect(answer(MIB, 3 * MIB))
        assert sum(stalled.passed) < len(frame) - 12 * MIB  # which wait in front of Tidegate
        assert stalled.account.held_bytes == 0
        assert stalled.account.relayed_bytes <= 8 * KIB
        assert await received(stalled.client, len(frame)) == frame


@pytest.mark.parametrize("refused", ["pipe", "fill", "drain"])
async def test_where_there_is_no_pipe_all_is_copied(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    splice, seen = os.splice, [0]

    def refuse(source: int, destination: int, size: int, *, flags: int) -> int:
        seen[0] += 1
        if refused == "fill" or seen[0] % 2 == 0:
            raise OSError(errno.EINVAL, "refused")
        return splice(source, destination, size, flags=flags)

    def no_pipe(_flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, "no descriptor is left")

    async with relay() as made:
        with monkeypatch.context() as patch:
            patch.setattr(os, *(("pipe2", no_pipe) if refused == "pipe" else ("splice", refuse)))
            await made.expect(*[answer(MIB, 300 * KIB) for _ in range(3)])
        await made.expect(answer(MIB))
        assert made.account.held_bytes == 0


async def test_all_connections_go_through_one_pipe_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe2, made_pipes = os.pipe2, list[tuple[int, int]]()

    def noted(flags: int) -> tuple[int, int]:
        made_pipes.append(pipe2(flags))
        return made_pipes[-1]

    monkeypatch.setattr(os, "pipe2", noted)
    async with relay() as made, relay() as other:
        for _ in range(3):
            await made.expect(answer(MIB, 300 * KIB))
            await other.expect(answer(MIB))
    assert len(made_pipes) == 1


MANY = """
import encodings.idna, fcntl, os, sys, trio
from tests.proxy.connection.test_spliced_frames import KIB, answer, relay
answer(KIB)  # what is imported late is imported while it may be read
os.setgroups([]); os.setgid(65534); os.setuid(65534)
pipes = []
if sys.argv[1] == "used up":
    try:
        while len(pipes) < 200:
            pipes.append(os.pipe())
            fcntl.fcntl(pipes[-1][1], fcntl.F_SETPIPE_SZ, 1 << 20)
    except PermissionError:
        print("used up", flush=True)

async def one(frame):
    async with relay() as made:
        await made.expect(frame, frame)

async def main():
    frame = answer(200 * KIB, 100 * KIB)
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(one, frame)

trio.run(main)
print("all passed")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody without rights")
@pytest.mark.parametrize("pipes", ["free", "used up"])
def test_two_hundred_connections_of_a_user_without_rights(pipes: str) -> None:
    done = subprocess.run([sys.executable, "-c", MANY, pipes], capture_output=True, text=True, timeout=HANG_S_MAX)
    assert done.stdout.endswith("all passed\n"), done.stdout + done.stderr
