"""A way to a broker on which the answers to some clients end in the middle, and nothing comes any more.

    with cut_answers(broker_port, client_id="cut", announced_bytes=64 * KIB, given_bytes=17 * KIB) as way:
        ... way.address ...

A connection whose first request has that client id gets so many bytes of an answer; all others are the broker's.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

HOST = "127.0.0.1"
HEAD_BYTES = 4096
COPIED_BYTES = 64 * 1024
BACKLOG = 4096


@dataclass(slots=True)
class CutAnswers:
    """`given`: how many answers have been cut."""

    port: int
    given: int = 0

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


@contextmanager
def cut_answers(broker_port: int, *, client_id: str, announced_bytes: int, given_bytes: int) -> Iterator[CutAnswers]:
    """The way, until the block ends."""
    listener = socket.create_server((HOST, 0), backlog=BACKLOG)
    way = CutAnswers(listener.getsockname()[1])
    marker = struct.pack(">h", len(client_id)) + client_id.encode()
    started = threading.Event()
    scope = trio.CancelScope()
    tokens = list[trio.lowlevel.TrioToken]()

    async def handle(client: trio.SocketStream) -> None:
        async with client:
            head = await client.receive_some(HEAD_BYTES)
            if marker not in head:
                await relay(client, bytes(head))
                return
            answer = struct.pack(">i", announced_bytes) + head[8:12] + bytes(given_bytes - 8)
            await client.send_all(answer)
            way.given += 1
            await client.receive_some()

    async def relay(client: trio.SocketStream, head: bytes) -> None:
        async with await trio.open_tcp_stream(HOST, broker_port) as broker, trio.open_nursery() as nursery:
            await broker.send_all(head)
            nursery.start_soon(copy, broker, client, nursery)
            await copy(client, broker, nursery)

    async def copy(source: trio.SocketStream, sink: trio.SocketStream, nursery: trio.Nursery) -> None:
        try:
            while data := await source.receive_some(COPIED_BYTES):
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # either side has gone
        nursery.cancel_scope.cancel()

    async def guarded(client: trio.SocketStream) -> None:
        try:
            await handle(client)
        except* (OSError, trio.BrokenResourceError):
            pass  # the broker, or who came through here, has gone

    async def serve() -> None:
        listener.setblocking(False)
        tokens.append(trio.lowlevel.current_trio_token())
        with scope:
            started.set()
            await trio.serve_listeners(guarded, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))])

    thread = threading.Thread(target=trio.run, args=(serve,), name="cut answers")
    thread.start()
    started.wait()
    try:
        yield way
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=tokens[0])
        thread.join()
