"""The channel between supervisor and worker, over real Unix sockets: questions, given connections, and ends."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.outcomes import outcomes
from tests.support.waiting import HANG_S_MAX
from tidegate.workers.channel import Channel, ChannelClosedError
from tidegate.workers.frames import Frame, FrameKind, encode


class End:
    """One end and what it heard."""

    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[Frame] = []
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.ended = trio.Event()
        self.life = trio.CancelScope()
        self.channel = Channel(trio.socket.from_stdlib_socket(sock), answer=self._answer, hear=self._hear)

    def _hear(self, frame: Frame) -> None:
        if frame.body.get("what") == "fault":
            raise ZeroDivisionError("a fault of ours")
        self.heard.append(frame)

    async def _answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        await self.may_answer.wait()
        if question["what"] == "fault":
            raise ZeroDivisionError("a fault of ours")
        return {"to": question["what"], "size": len(question.get("text", ""))}

    async def run(self) -> None:
        with self.life:
            await self.channel.run()
        self.ended.set()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[End, End]]:
    one, other = map(End, socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM))
    with trio.fail_after(HANG_S_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            nursery.start_soon(other.run)
            yield one, other
            nursery.cancel_scope.cancel()


def accepted() -> tuple[socket.socket, trio.socket.SocketType]:
    """A client, and the accepted end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        sock, _ = server.accept()
        sock.setblocking(False)
        return client, trio.socket.from_stdlib_socket(sock)


def fill(sock: socket.socket) -> None:
    """Until nothing more can be sent."""
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            sock.send(bytes(4096))


async def test_questions_are_answered_in_both_directions_at_once() -> None:
    async with pair() as (one, other):
        text = "x" * 3_000_000  # more than any buffer between them holds
        async with outcomes() as got:
            for number in range(4):
                got.start(partial(one.channel.ask, f"one {number}", text=text))
                got.start(partial(other.channel.ask, f"other {number}", text=text))
        assert {answer["to"] for answer in got.returned} == {f"{who} {n}" for who in ("one", "other") for n in range(4)}
        assert {answer["size"] for answer in got.returned} == {len(text)}


async def test_a_given_connection_is_the_others_and_carries_on() -> None:
    async with pair() as (one, other):
        clients = []
        for number in range(100):
            client, sock = accepted()
            await one.channel.give(sock, broker=number)
            sock.close()
            clients.append(client)
        await wait_all_tasks_blocked()
        assert [frame.body["broker"] for frame in other.heard] == [*range(100)]
        for number, frame in enumerate(other.heard):
            assert frame.descriptor is not None
            with socket.socket(fileno=frame.descriptor) as taken, clients[number] as client:
                taken.sendall(str(number).encode())
                assert client.recv(10) == str(number).encode()


async def test_the_others_end_ends_questions_and_gives_nothing_more() -> None:
    async with pair() as (one, other):
        other.may_answer = trio.Event()
        client, sock = accepted()
        with client, sock:
            async with outcomes() as got:
                got.start(one.channel.ask, "never")
                await wait_all_tasks_blocked()
                other.life.cancel()
            assert [type(error) for error in got.raised] == [ChannelClosedError]
            await one.ended.wait()
            with pytest.raises(ChannelClosedError):
                await one.channel.give(sock, broker=1)
            with pytest.raises(ChannelClosedError):
                await one.channel.ask("more")
            one.channel.tell("nobody hears it")


async def test_a_full_channel_keeps_the_connection_with_its_giver() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    client, sock = accepted()
    with theirs, client, sock, trio.fail_after(HANG_S_MAX):
        end = End(mine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.run)
            end.channel.tell("long", text="x" * 3_000_000)  # the other end reads nothing
            with trio.move_on_after(0.01) as waiting:
                await end.channel.give(sock, broker=1)
            assert waiting.cancelled_caught
            theirs.close()
            await end.ended.wait()
        assert sock.fileno() >= 0


async def test_a_giver_who_is_cancelled_while_it_is_sent_keeps_its_number_until_then() -> None:
    """Failed before: the giver closed the connection, and the other end was sent what had its number next."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    client, sock = accepted()
    with theirs, client, trio.fail_after(HANG_S_MAX):
        fill(mine)
        end, giver = End(mine), trio.CancelScope()

        async def give() -> None:
            with giver, sock:
                await end.channel.give(sock, broker=1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.run)
            nursery.start_soon(give)
            await wait_all_tasks_blocked()
            giver.cancel()
            await wait_all_tasks_blocked()
            others = accepted()  # one of these would have its number
            descriptors: list[int] = []
            while not descriptors:
                await trio.lowlevel.wait_readable(theirs)
                descriptors += socket.recv_fds(theirs, 65536, 8)[1]
            theirs.close()
        with socket.socket(fileno=descriptors[0]) as taken:
            taken.sendall(b"mine")
            assert client.recv(10) == b"mine"
        assert (len(descriptors), sock.fileno()) == (1, -1)
        for each in others:
            each.close()


async def test_a_giver_who_is_cancelled_is_free_when_the_channel_ends() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    client, sock = accepted()
    with client, sock, trio.fail_after(HANG_S_MAX):
        fill(mine)
        end = End(mine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end.run)
            async with outcomes() as got:
                got.start(partial(end.channel.give, sock, broker=1))
                await wait_all_tasks_blocked()
                theirs.close()
        assert [type(error) for error in got.raised] == [ChannelClosedError]
        assert sock.fileno() >= 0


async def test_what_is_no_frame_ends_the_channel() -> None:
    for noise in (b"\xff" * 16, encode(FrameKind.GIVE, {})):  # the second has no descriptor
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            end = End(mine)
            theirs.sendall(noise)
            with trio.fail_after(HANG_S_MAX):
                await end.run()
            assert end.heard == []


@pytest.mark.parametrize("answer_first", [True, False])
async def test_an_answer_that_meets_its_askers_leaving_ends_nothing(answer_first: bool) -> None:
    async with pair() as (one, other):
        for _ in range(20):
            other.may_answer = trio.Event()
            asking = trio.CancelScope()

            async def ask(asking: trio.CancelScope = asking) -> None:
                with asking:
                    await one.channel.ask("slow")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
                steps = [other.may_answer.set, asking.cancel]
                for step in steps if answer_first else steps[::-1]:
                    step()
        assert (await one.channel.ask("again"))["to"] == "again"


async def test_what_cannot_be_heard_ends_its_channel_alone() -> None:
    """How it failed: a fault in what was heard went on to the supervisor's nursery."""
    async with pair() as (one, other):
        one.channel.tell("fault")
        await other.ended.wait()
        with pytest.raises(ChannelClosedError):
            await other.channel.ask("nobody")
