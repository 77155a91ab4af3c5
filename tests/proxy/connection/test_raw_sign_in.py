"""A client that signs in by bare tokens, after SaslHandshake version 0: who may speak, and what waits.

All of it failed before: every such handshake was refused.
"""

import struct
from itertools import product

import pytest

from metrics.meters import CloseCause
from tests.proxy.connection.test_before_sign_in import FETCH_ANSWER, answer_fetch, handshake
from tests.proxy.connection.test_connection import assert_closed, fetch
from tests.support.memory_transport import HEARTBEAT, Conversation, conversation, framed, request, response

PIECES = [1, 7, None]

CLIENT_FIRST, SERVER_FIRST = framed(b"n,,n=reader,r=abc"), framed(b"r=abcdef,s=c2FsdA==,i=4096")
CLIENT_FINAL, SERVER_FINAL = framed(b"c=biws,r=abcdef,p=cHJvb2Y="), framed(b"v=dmVyaWZpZXI=")
PASSWORD, NOTHING = framed(b"\0reader\0secret"), framed(b"")
BEARER, INVALID = framed(b"n,,\1auth=Bearer x\1\1"), framed(b'{"status":"invalid_token"}')
SIGN_INS = {
    "PLAIN": [(PASSWORD, NOTHING)],
    "SCRAM-SHA-256": [(CLIENT_FIRST, SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL)],
    "SCRAM-SHA-512": [(CLIENT_FIRST, SERVER_FIRST), (CLIENT_FINAL, SERVER_FINAL)],
    "OAUTHBEARER": [(BEARER, NOTHING)],
    "OAUTHBEARER again": [(BEARER, INVALID), (BEARER, NOTHING)],
}
"""By mechanism, what the client sends and what the broker answers."""


def handshake_response(correlation_id: int, error_code: int = 0) -> bytes:
    return response(correlation_id, struct.pack(">h", error_code) + b"\0\0\0\1\0\5PLAIN")


async def test_raw_tokens_pass_by_turns_and_requests_follow() -> None:
    for name, piece_bytes in product(SIGN_INS, PIECES):
        rounds = SIGN_INS[name]
        async with conversation(piece_bytes=piece_bytes, handle_fetch=answer_fetch) as talk:
            await signing_in(talk, name.split()[0])
            for token, answer in rounds:
                await talk.exchange(token, answer)
            await talk.client.send(request(HEARTBEAT, 4, 2), fetch(3))
            await talk.upstream.expect(request(HEARTBEAT, 4, 2))
            await talk.upstream.send(response(2))
            await talk.client.expect(response(2), FETCH_ANSWER)
            # Each token, and each answer to one, may make the client somebody else.
            assert talk.handlers.forgotten == 2 * len(rounds), name
            assert talk.shown_lines == [], name


@pytest.mark.parametrize("piece_bytes", PIECES)
async def test_what_is_pipelined_behind_a_raw_handshake_waits_for_the_broker(piece_bytes: int | None) -> None:
    """A token that looks like a Fetch is a token, and a Fetch behind the last one is a Fetch."""
    token = fetch(9)
    async with conversation(piece_bytes=piece_bytes, handle_fetch=answer_fetch) as talk:
        await talk.client.send(
            request(HEARTBEAT, 4, 1), handshake(2, "PLAIN", 0), token, fetch(3), request(HEARTBEAT, 4, 4)
        )
        await talk.upstream.expect(request(HEARTBEAT, 4, 1), handshake(2, "PLAIN", 0))
        await talk.upstream.expect_silence()
        await talk.pass_back(response(1))
        await talk.upstream.expect_silence()
        await talk.upstream.send(handshake_response(2))
        await talk.upstream.expect(token)
        await talk.upstream.expect_silence()
        assert talk.handlers.frames == []
        await talk.upstream.send(NOTHING)
        await talk.client.expect(handshake_response(2), NOTHING, FETCH_ANSWER)
        await talk.upstream.expect(request(HEARTBEAT, 4, 4))
        assert talk.handlers.frames == [fetch(3)]


async def test_after_a_raw_handshake_that_is_refused_no_tokens_come() -> None:
    for error_code, piece_bytes in product((33, 34), PIECES):
        async with conversation(piece_bytes=piece_bytes) as talk:
            later = handshake(2, "PLAIN", 1)
            await talk.client.send(handshake(1, "SCRAM-SHA-256", 0), later)
            await talk.upstream.expect(handshake(1, "SCRAM-SHA-256", 0))
            await talk.upstream.expect_silence()
            await talk.upstream.send(handshake_response(1, error_code))
            await talk.upstream.expect(later)
            await talk.upstream.send(handshake_response(2))
            await talk.client.expect(handshake_response(1, error_code), handshake_response(2))
            assert talk.handlers.forgotten == 0


async def signing_in(talk: Conversation, mechanism: str) -> None:
    """The handshake is accepted, and the client has been told."""
    await talk.exchange(handshake(1, mechanism, 0), handshake_response(1))


async def test_a_broker_that_refuses_a_raw_token_closes_and_so_does_the_connection() -> None:
    async with conversation() as talk:
        await signing_in(talk, "PLAIN")
        await talk.client.send(PASSWORD, request(HEARTBEAT, 4, 2))
        await talk.upstream.expect(PASSWORD)
        await talk.upstream.close()
        assert await talk.client.expect_end() == b""
        await assert_closed(talk, CloseCause.UPSTREAM)
        assert talk.refused == ["the broker closed the connection at its token"]


async def test_a_client_that_leaves_between_raw_tokens_or_inside_one() -> None:
    for sent in (b"", CLIENT_FIRST[:2], CLIENT_FIRST[:-1]):
        async with conversation() as talk:
            await signing_in(talk, "SCRAM-SHA-256")
            await talk.client.send(sent)
            await talk.client.close()
            await assert_closed(talk, CloseCause.MALFORMED_FRAME if sent else CloseCause.CLIENT)


async def test_a_raw_token_larger_than_a_broker_takes_ends_the_connection() -> None:
    for size, by_broker in product((512 * 1024 + 1, 2**31 - 1, -1), (False, True)):
        async with conversation() as talk:
            await signing_in(talk, "PLAIN")
            if by_broker:
                await talk.pass_on(PASSWORD)
            await (talk.upstream if by_broker else talk.client).send(struct.pack(">i", size) + b"x" * 1000)
            await assert_closed(talk, CloseCause.MALFORMED_FRAME if by_broker or size < 0 else CloseCause.LIMIT)
            assert await (talk.client if by_broker else talk.upstream).expect_end() == b""


async def test_a_drain_ends_a_raw_sign_in_after_the_answer_under_way() -> None:
    async with conversation() as talk:
        await signing_in(talk, "SCRAM-SHA-256")
        await talk.client.send(CLIENT_FIRST, CLIENT_FINAL)
        await talk.upstream.expect(CLIENT_FIRST)
        talk.connection.drain()
        await talk.upstream.send(SERVER_FIRST)
        assert await talk.client.expect_end() == SERVER_FIRST
        await assert_closed(talk, CloseCause.DRAIN)


async def test_a_raw_handshake_whose_tokens_cannot_be_counted_is_refused() -> None:
    """The broker would close the connection too; version 1 of the same mechanism passes."""
    async with conversation() as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1), handshake(2, "GSSAPI", 0), framed(b"a token"))
        await talk.upstream.expect(request(HEARTBEAT, 4, 1))
        await talk.client.expect_silence()
        await talk.upstream.send(response(1))
        await talk.client.expect(response(1), response(2, struct.pack(">hi", 35, 0)))
        await assert_closed(talk, CloseCause.CLIENT)
        assert await talk.upstream.expect_end() == b""
        (line,) = talk.shown_lines
        assert (line.pop("event"), line.pop("log_level")) == ("sasl_handshake_refused", "warning")
        assert line == {"client": "client", "mechanism": "GSSAPI", "version": 0}
    async with conversation() as talk:
        await talk.pass_on(handshake(1, "GSSAPI", 1))
