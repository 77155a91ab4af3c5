"""Answers on their way: the same bytes reach the client, whatever it made us give up meanwhile."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from protocol.client.errors import TransportError
from proxy.connection.accounts import Wait
from proxy.connection.client_reads import ClientReads
from proxy.connection.frame_stream import ConnectionEnd
from proxy.connection.slow_answer import AnswerSending
from proxy.upstream.transport import Bytes
from storage.errors import RemoteResourceNotFoundError
from tests.support.cases import case
from tests.support.memory_transport import MemoryTransport
from tests.support.segments import filled_segment
from tests.support.tier import Tier

SEGMENT = filled_segment(0)
BLOCK = 1000
ANSWER_BYTES = 7300
HEAD, TAIL = b"head of the frame", b"tail"
WHOLE = HEAD + SEGMENT.log[:ANSWER_BYTES] + TAIL


class Taker(MemoryTransport):
    """A client that takes `steps` bytes at a time, one step after the other is let through by `take`.

    Args:
        is_plain: as a plain socket; otherwise as TLS.
    """

    def __init__(self, *, is_plain: bool = True) -> None:
        super().__init__(trio.testing.memory_stream_pair()[0])
        self.taken = b""
        self._is_plain = is_plain
        self._permits, self._wanted = trio.open_memory_channel[int](100)

    async def take(self, size_bytes: int) -> None:
        await self._permits.send(size_bytes)
        await wait_all_tasks_blocked()

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        data = b"".join(buffers)
        del buffers
        try:
            size = self._wanted.receive_nowait() if self._is_plain else await self._wanted.receive()
        except trio.WouldBlock:
            return 0
        if size < 0:
            raise TransportError("broke")
        sent = data[:size]
        self.taken += sent
        return len(sent)

    async def wait_writable(self) -> None:
        size = await self._wanted.receive()
        await self._permits.send(size)


async def holding(tier: Tier) -> ClientReads:
    reads = ClientReads()
    reads.hold(await tier.read(0, max_bytes=ANSWER_BYTES))
    await tier.settled()
    return reads


@pytest.fixture
async def client(tier: Tier) -> ClientReads:
    return await holding(tier)


def answer_of(client: ClientReads) -> AnswerSending:
    (records,) = client.held
    return AnswerSending([HEAD, b"", *records.buffers, TAIL], client)


async def start(nursery: trio.Nursery, client: ClientReads, taker: Taker) -> AnswerSending:
    sending = answer_of(client)
    nursery.start_soon(sending.send, taker, Wait(sending))
    await wait_all_tasks_blocked()
    return sending


async def test_a_client_gets_all_of_it_in_pieces(tier: Tier, nursery: trio.Nursery) -> None:
    for is_plain in (True, False):
        taker = Taker(is_plain=is_plain)
        await start(nursery, await holding(tier), taker)
        while len(taker.taken) < len(WHOLE):
            await taker.take(777)
        assert taker.taken == WHOLE, is_plain


async def test_what_is_given_up_is_read_again_when_the_client_goes_on(tier: Tier, nursery: trio.Nursery) -> None:
    places = (0, len(HEAD), len(HEAD) + 1, len(HEAD) + BLOCK, len(HEAD) + 3 * BLOCK + 17)
    for taken_before, is_plain in itertools.product(places, (True, False)):
        with case(taken_before, is_plain):
            taker = Taker(is_plain=is_plain)
            sending = await start(nursery, await holding(tier), taker)
            if taken_before:
                await taker.take(taken_before)
            assert sending.blocks_bytes == 8 * BLOCK
            sending.release()
            await wait_all_tasks_blocked()
            assert (sending.blocks_bytes, tier.inflight_bytes) == (0, 0)
            while len(taker.taken) < len(WHOLE):
                await taker.take(400)
                assert sending.blocks_bytes <= BLOCK
            assert taker.taken == WHOLE
            assert tier.inflight_bytes == 0


async def test_nobody_keeps_what_was_given_up(client: ClientReads, nursery: trio.Nursery) -> None:
    (records,) = client.held
    block = records.buffers[0].obj
    assert isinstance(block, (bytes, bytearray, memoryview))
    sending = await start(nursery, client, Taker())
    sending.release()
    await wait_all_tasks_blocked()
    assert records.buffers == []


@pytest.mark.autojump
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tier: tier.store.flip_bit(tier.logs[0][0], position=1500), "others now"),
        (lambda tier: tier.store.fail(RemoteResourceNotFoundError("no such key")), "are gone"),
    ],
)
async def test_other_bytes_than_before_or_none_end_the_connection(
    tier: Tier, client: ClientReads, spoil: Callable[[Tier], None], said: str
) -> None:
    taker, sending = Taker(), answer_of(client)

    async def go_on() -> None:
        await wait_all_tasks_blocked()
        sending.release()
        tier.cache.drop_segment(tier.logs[0][0].segment_id.id)
        spoil(tier)
        for _ in range(20):
            await taker.take(1000)

    async with trio.open_nursery() as clients:
        clients.start_soon(go_on)
        with pytest.raises(ConnectionEnd, match=said):
            await sending.send(taker, Wait(sending))
        clients.cancel_scope.cancel()
    assert tier.inflight_bytes == client.blocks_bytes == 0
