"""One direction of a connection: whole frames held, large ones passed in parts, and what an idle one costs."""

import itertools

import trio
import trio.testing

from metrics.meters import CloseCause
from protocol.wire.framing import IDLE_BUFFER_BYTES, RECEIVE_BUFFER_BYTES
from proxy.connection.frame_stream import FrameStream
from tests.support.memory_transport import MemoryTransport, framed, open_accounts
from tests.support.virtual_time import for_each_run

MIB = 1024 * 1024


class Ends:
    """A FrameStream from `source`, a destination, and what was counted as passed."""

    def __init__(self, *, piece_bytes: int | None = None) -> None:
        self.source, near = trio.testing.memory_stream_pair()
        far, self.sink = trio.testing.memory_stream_pair()
        self.transport = MemoryTransport(near, piece_bytes=piece_bytes)
        self.destination = MemoryTransport(far)
        self.passed: list[int] = []
        self.accounts = open_accounts()
        self.ended_for: list[str] = []
        self.account = self.accounts.open(self.ended_for.append)
        self.stream = FrameStream(
            self.transport, self.destination, CloseCause.UPSTREAM, self.passed.append, self.account
        )

    async def feed(self, data: bytes, *, end: bool = True) -> None:
        await self.source.send_all(data)
        if end:
            await self.source.send_stream.aclose()

    async def taken(self) -> bytes:
        self.destination.abort()
        data = b""
        while part := await self.sink.receive_some():
            data += bytes(part)
        return data

    async def frame_begun(self) -> int:
        """Receive until a frame's size is known."""
        while (size := self.stream.next_frame_size(frame_bytes_max=64 * MIB, body_bytes_min=4)) is None:
            assert await self.stream.receive()
        return size


@for_each_run(
    "size, piece_bytes", [*itertools.product((4, 100, 5000), (1, 1000, None)), (300_000, 1000), (300_000, None)]
)
async def test_a_frame_passes_as_it_came_and_is_counted(size: int, piece_bytes: int | None) -> None:
    ends = Ends(piece_bytes=piece_bytes)
    frame = framed(bytes(range(256)) * (size // 256) + bytes(size % 256))
    await ends.feed(frame + framed(b"next"))

    await ends.stream.pass_on(await ends.frame_begun())

    assert await ends.frame_begun() == 8
    assert await ends.taken() == frame
    assert sum(ends.passed) == len(frame)


async def test_a_filter_decides_how_much_passes_and_may_patch_it() -> None:
    ends = Ends(piece_bytes=1000)
    frame = framed(b"a" * 5000)

    class Capitals:
        """Holds back 100 bytes until the end, and capitalizes."""

        unseen_bytes = 0

        def feed(self, view: memoryview) -> int:
            for position in range(len(view)):
                if view[position] == ord("a"):
                    view[position] = ord("A")
            return len(view) if sum(ends.passed) + len(view) == len(frame) else max(0, len(view) - 100)

        def pass_unseen(self, size: int) -> None:
            assert size == 0

    await ends.feed(frame)
    await ends.stream.pass_on_through(await ends.frame_begun(), Capitals())

    assert await ends.taken() == framed(b"A" * 5000)


async def test_a_silent_stream_gives_its_big_buffer_back() -> None:
    # Failed before: each connection that had seen one large frame held 256 KiB a direction until it closed.
    ends = Ends()
    for _ in range(2):
        await ends.feed(framed(bytes(MIB)), end=False)
        await ends.stream.pass_on(await ends.frame_begun())
        assert ends.stream.buffer.capacity_bytes == RECEIVE_BUFFER_BYTES
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ends.stream.receive)
                await trio.testing.wait_all_tasks_blocked()
                assert ends.stream.buffer.capacity_bytes == 0
                scope.cancel()


async def test_a_stream_in_the_midst_of_a_frame_keeps_its_buffer() -> None:
    ends = Ends()
    await ends.feed(framed(bytes(MIB))[:-1], end=False)
    size = await ends.frame_begun()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ends.stream.pass_on, size)
        await trio.testing.wait_all_tasks_blocked()
        assert ends.stream.buffer.capacity_bytes == RECEIVE_BUFFER_BYTES
        nursery.cancel_scope.cancel()


async def test_a_stream_of_small_frames_stays_small() -> None:
    ends = Ends()
    for _ in range(200):
        await ends.feed(framed(b"heartbeat"), end=False)
        await ends.stream.pass_on(await ends.frame_begun())
    assert ends.stream.buffer.capacity_bytes == IDLE_BUFFER_BYTES
