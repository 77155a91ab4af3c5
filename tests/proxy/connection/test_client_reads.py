"""What an answer holds of the tier: from the read until it is sent, and the very bytes all the way."""

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from protocol.fetch.messages import key_of
from proxy.connection.client_reads import ClientReads
from proxy.connection.request_handlers import UpstreamWire
from proxy.fetch.answer import BrokersWord, assemble, encode_answer, tier_answer
from proxy.fetch.authorities import Authority
from proxy.fetch.frontiers import Frontier
from proxy.fetch.plan import TierPart
from proxy.upstream.transport import Bytes
from storage.cache.byte_budget import ByteBudget
from storage.reading.reader import TierRecords
from tests.support.memory_transport import Conversation, conversation, open_accounts
from tests.support.segments import filled_segment
from tests.support.tier import PARTITION, Tier
from tests.support.tier_world import ask, client_frame, fetch_of

SEGMENT = filled_segment(0)
BLOCK = 1000
REQUEST = fetch_of([ask(PARTITION, 0)])
AUTHORITY = Authority(1500, 1490, 0, 5, 1000, 0.0)
PART = TierPart(REQUEST.partitions[0], PARTITION, Frontier(1000, 1500, 5, 0.0))


async def test_what_is_held_is_released_once(tier: Tier) -> None:
    client = ClientReads()
    client.release()
    for _ in range(2):
        client.hold(await tier.read(0, max_bytes=2500))
        client.hold(await tier.read(50, max_bytes=2500))
        client.hold(TierRecords([], 0, first_batch_too_large=True))
        await tier.settled()
        assert tier.inflight_bytes > 0
        client.release()
        client.release()
        assert tier.inflight_bytes == 0


async def test_what_is_dropped_counts_no_longer_and_the_rest_is_held(tier: Tier) -> None:
    client = ClientReads()
    # Equal, and not the same.
    one, other = [await tier.read(0, max_bytes=2500) for _ in range(2)]
    client.hold(one)
    client.hold(other)
    client.drop(other)
    client.drop(other)
    await tier.settled()  # it may have looked further ahead than its answer reaches
    assert tier.inflight_bytes == 3 * BLOCK
    client.release()
    assert tier.inflight_bytes == 0


async def test_who_takes_what_it_gets_is_not_kept_waiting_by_those_who_do_not(nursery: trio.Nursery) -> None:
    """By what it did last: took an answer, gave one up, took bytes again, went."""
    answers = ByteBudget(100)
    client = ClientReads(open_accounts(answers).open(lambda _: None))

    async def is_first() -> bool:
        admitted = list[Hashable]()

        async def wait(owner: Hashable) -> None:
            await answers.acquire(100, owner)
            admitted.append(owner)

        assert answers.try_acquire(100)
        for owner in ("somebody", client.identity):
            nursery.start_soon(wait, owner)
            await wait_all_tasks_blocked()
        for _ in range(3):
            answers.release(100)
            await wait_all_tasks_blocked()
        return admitted[0] == client.identity

    seen = [await is_first()]
    client.hold(TierRecords([], 0))
    for step in (client.release, client.give_up, client.takes, client.close):
        step()
        seen.append(await is_first())
    assert seen == [False, True, False, True, False]


# --- on a connection ---


class Handle:
    """A Fetch answered from the tier; `buffers` are those of the last answer's records."""

    def __init__(self, tier: Tier) -> None:
        self.buffers: list[memoryview] = []
        self.client = ClientReads()
        """The connection's, once there is one."""
        self._tier = tier

    async def __call__(self, _frame: memoryview, _wire: UpstreamWire) -> Sequence[Bytes]:
        records = await self._tier.read(0, max_bytes=5000)
        self.client.hold(records)
        self.buffers = [*records.buffers]
        answer = tier_answer(REQUEST, PART, AUTHORITY, records)
        return encode_answer(REQUEST, assemble(REQUEST, {key_of(answer): answer}, BrokersWord()))


@asynccontextmanager
async def talking(tier: Tier, *, lockstep: bool = False) -> AsyncIterator[tuple[Conversation, Handle]]:
    handle = Handle(tier)
    async with conversation(handle_fetch=handle, answers=tier.storage.answers, lockstep=lockstep) as talk:
        handle.client = talk.handlers.reads
        yield talk, handle


async def test_views_of_blocks_reach_the_transport_as_they_are(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    await tier.read_bytes(0)  # from here on it is warm
    sent: list[Bytes] = []
    async with talking(tier) as (talk, handle):
        send_some = talk.client_transport.send_some

        async def noted(buffers: Sequence[Bytes]) -> int:
            sent.extend(buffers)
            return await send_some(buffers)

        monkeypatch.setattr(talk.client_transport, "send_some", noted)
        await talk.client.send(client_frame(REQUEST))
        frame = await talk.client.receive_frame()
    assert SEGMENT.log[:5000] in frame
    assert len(handle.buffers) == 5
    assert [buffer for buffer in sent if isinstance(buffer, memoryview)] == handle.buffers
    assert {id(buffer) for buffer in handle.buffers} <= {id(buffer) for buffer in sent}
    blocks, _ = await tier.cache.blocks(tier.source(), 0, 4)
    assert [buffer.obj for buffer in handle.buffers] == [block.data.obj for block in blocks]
    assert all(buffer.obj is block.data.obj for buffer, block in zip(handle.buffers, blocks, strict=True))


@pytest.mark.parametrize("is_taken", [True, False])
async def test_blocks_are_held_until_the_answer_is_taken_or_the_client_goes(tier: Tier, is_taken: bool) -> None:
    async with talking(tier, lockstep=True) as (talk, _):
        await talk.client.send(client_frame(REQUEST))
        await tier.settled()
        await wait_all_tasks_blocked()
        assert tier.inflight_bytes == 5 * BLOCK
        if is_taken:
            await talk.client.receive_frame()
            await wait_all_tasks_blocked()
        else:
            await talk.client.close()
            await talk.wait_end()
        assert tier.inflight_bytes == 0
