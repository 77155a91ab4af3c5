"""What a client connection holds in memory for its client: charged while it is held, and who has to give way."""

import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from protocol.fetch.messages import PartitionAnswer
from protocol.fetch.response import decode_response, encode_response
from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import UpstreamWire
from proxy.upstream.transport import Bytes
from tests.proxy.connection.test_client_reads import REQUEST, SEGMENT, talking
from tests.support.memory_transport import LIMITS, conversation, request, response
from tests.support.tier import Tier
from tests.support.tier_world import client_frame

KIB = 1024
MIB = 1024 * 1024


def fetch(correlation_id: int) -> bytes:
    return request(ApiKey.FETCH, 12, correlation_id, b"body")


async def test_answers_to_our_own_questions_are_charged_until_the_exchange_is_answered() -> None:
    async def ask(_frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        frame = await (await connection.ask(1, 12, 7, request(ApiKey.FETCH, 12, 7))).frame()
        return [response(1), frame[:0]]

    async with conversation(handle_fetch=ask, lockstep=True) as talk:
        await talk.client.send(fetch(1))
        await talk.upstream.receive_frame()
        await talk.upstream.send(response(7, bytes(100_000)))
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 100_008
        await talk.client.expect(response(1))
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 0


async def test_a_rewritten_response_is_charged_until_the_client_has_it() -> None:
    body = bytes(100_000)
    async with conversation(lockstep=True) as talk:
        await talk.pass_on(request(ApiKey.API_VERSIONS, 0, 1))
        await talk.upstream.send(response(1, struct.pack(">hi", 0, 16_000) + body[:96_000]))
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held > 0
        await talk.client.receive_frame()
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 0


@pytest.mark.parametrize("side", ["request", "answer"])
async def test_an_unfinished_frame_is_charged_with_its_buffer_beyond_a_small_one(side: str) -> None:
    """Failed before: a buffer of up to 256 KiB was in no budget."""
    async with conversation() as talk:
        if side == "request":
            await talk.client.send(request(ApiKey.FETCH, 12, 1, bytes(64 * KIB))[: 17 * KIB])
        else:
            await talk.pass_on(request(ApiKey.API_VERSIONS, 0, 1))
            await talk.upstream.send(response(1, bytes(64 * KIB))[: 17 * KIB])
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 16 * KIB
    assert talk.accounts.held.held == 0


async def test_an_answer_of_ours_is_charged_until_the_client_has_it() -> None:
    """Failed before: what was made for an answer, and is not the tier's, was in no budget."""

    async def make(_frame: memoryview, _connection: UpstreamWire) -> Sequence[Bytes]:
        whole = response(1, bytes(100 * KIB))
        return [whole[: 50 * KIB], whole[50 * KIB :]]

    async with conversation(handle_fetch=make, lockstep=True) as talk:
        await talk.client.send(fetch(1))
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 84 * KIB + 8
        await talk.client.receive_frame()
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 0


async def test_twelve_bytes_take_no_more_than_that_and_a_held_request_is_charged() -> None:
    """Failed before: 12 bytes that announced 16 MiB took 16 MiB at once."""
    size = 4 * MIB
    async with conversation(limits=replace(LIMITS, request_frame_bytes_max=2 * size)) as talk:
        frame = request(ApiKey.FETCH, 12, 1, bytes(size))
        await talk.client.send(frame[:12])
        await trio.testing.wait_all_tasks_blocked()
        assert talk.accounts.held.held == 0
        await talk.client.send(frame[12 : 2 * MIB // 3])
        await trio.testing.wait_all_tasks_blocked()
        assert MIB // 3 < talk.accounts.held.held <= MIB
        await talk.client.close()
        await talk.wait_end()
    assert talk.accounts.held.held == 0
    assert len(talk.accounts) == 0


@pytest.mark.autojump
async def test_a_stuck_client_gives_its_blocks_to_others_and_gets_its_bytes_all_the_same(tier: Tier) -> None:
    """Failed before: a client that did not read ended tier reads for all, for as long as it stayed."""
    answers = tier.storage.answers
    async with talking(tier, lockstep=True) as (talk, _):
        await talk.client.send(client_frame(REQUEST))
        await tier.settled()
        await trio.testing.wait_all_tasks_blocked()
        held_bytes = answers.held
        assert held_bytes == 5000
        await answers.acquire(answers.bytes_max)  # it is let in when nothing is held
        assert answers.held == answers.bytes_max
        answers.release(answers.bytes_max)
        assert SEGMENT.log[:5000] in await talk.client.receive_frame()


async def test_of_an_answer_to_us_that_is_too_large_records_go_as_they_arrive() -> None:
    """Failed before: its connection was closed."""
    records = bytes(LIMITS.response_held_bytes_max + 1)
    answers = [
        PartitionAnswer("orders", None, number, 0, 5, 5, 0, records=[each])
        for number, each in ((0, records), (1, b"x"))
    ]
    frame = b"".join(encode_response(12, 7, throttle_time_ms=0, error_code=0, session_id=0, answers=answers))
    held: list[int] = []

    async def ask(_frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        pending = await connection.ask(1, 12, 7, request(ApiKey.FETCH, 12, 7))
        kept = decode_response(await pending.frame(), 12)
        held.append(talk.accounts.held.held)
        assert [answer.records_bytes for answer in kept.partitions] == [0, 1]
        assert pending.dropped == [len(records), 0]
        return [response(1)]

    async with conversation(handle_fetch=ask) as talk:
        await talk.client.send(fetch(1))
        await talk.upstream.receive_frame()
        await talk.upstream.send(frame)
        await talk.client.expect(response(1))
        await trio.testing.wait_all_tasks_blocked()
        assert (held, talk.accounts.held.held) == ([LIMITS.response_held_bytes_max], 0)


@pytest.mark.autojump
async def test_a_large_answer_that_arrives_is_waited_for_although_others_wait() -> None:
    """Failed before: after a second, however fast it came, the connection ended for those who waited for its memory."""

    async def ask(_frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        frame = await (await connection.ask(1, 12, 7, request(ApiKey.FETCH, 12, 7))).frame()
        return [response(1), frame[:0]]

    limits = replace(LIMITS, response_held_bytes_max=16 * MIB)
    async with conversation(handle_fetch=ask, limits=limits) as talk, trio.open_nursery() as nursery:
        await talk.client.send(fetch(1))
        await talk.upstream.receive_frame()
        frame = response(7, bytes(10 * MIB))
        await talk.upstream.send(frame[:MIB])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(talk.accounts.held.acquire, 12 * MIB)
        for at in range(MIB, len(frame), MIB):
            await trio.sleep(0.5)
            await talk.upstream.send(frame[at : at + MIB])
        await talk.client.expect(response(1))
