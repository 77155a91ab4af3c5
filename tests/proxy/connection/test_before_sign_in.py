"""A connection whose upstream demands SASL: what a client gets before it has signed in, when it has, and once more.

Most of it failed before: who had not signed in was served like anybody else, up to the broker's refusal.
"""

import dataclasses
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from metrics.meters import CloseCause
from protocol.wire.framing import IDLE_BUFFER_BYTES
from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import UpstreamWire
from proxy.upstream.transport import Bytes
from tests.proxy.connection.test_connection import fetch
from tests.support.for_each import for_each
from tests.support.memory_transport import HEARTBEAT, LIMITS, Conversation, conversation, framed, request, response
from tests.support.virtual_time import for_each_run

KIB = 1024
DEMANDING = dataclasses.replace(LIMITS, demands_sign_in=True, unauthenticated_frame_bytes_max=64 * KIB)
FETCH_ANSWER = framed(b"an exchange that asks upstream nothing")
SERVER_FIRST, SERVER_FINAL = b"r=abcdef,s=c2FsdA==,i=4096", b"v=dmVyaWZpZXI="
BEARER_ERROR = b'{"status":"invalid_token"}'
GREETED = response(1, struct.pack(">hihh", 0, 0, 0, 0))
"""ApiVersions v0 with nothing in it."""
ROUNDS = {"PLAIN": [b""], "SCRAM-SHA-256": [SERVER_FIRST, SERVER_FINAL], "OAUTHBEARER": [BEARER_ERROR, b""]}
"""By mechanism, what the broker says in its answers."""
PIECES = [1, None]


async def answer_fetch(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
    return [FETCH_ANSWER]


@asynccontextmanager
async def demanding(*, piece_bytes: int | None = None) -> AsyncIterator[Conversation]:
    async with conversation(limits=DEMANDING, piece_bytes=piece_bytes, handle_fetch=answer_fetch) as talk:
        yield talk


def handshake(correlation_id: int, mechanism: str, api_version: int = 1) -> bytes:
    return request(ApiKey.SASL_HANDSHAKE, api_version, correlation_id, framed(mechanism.encode())[2:])


def authenticate(correlation_id: int) -> bytes:
    return request(ApiKey.SASL_AUTHENTICATE, 1, correlation_id, framed(b"a token"))


def authenticated(correlation_id: int, token: bytes, error_code: int = 0) -> bytes:
    """SaslAuthenticate v1: error code, no message, token, lifetime."""
    return response(correlation_id, struct.pack(">hh", error_code, -1) + framed(token) + bytes(8))


async def shake(talk: Conversation, mechanism: str, api_version: int = 1) -> None:
    """The broker accepts the mechanism."""
    await talk.exchange(handshake(2, mechanism, api_version), response(2, struct.pack(">hi", 0, 0)))


async def sign_in(talk: Conversation) -> None:
    await shake(talk, "PLAIN")
    await talk.exchange(authenticate(3), authenticated(3, b""))
    assert talk.connection.is_signed_in


async def assert_served(talk: Conversation, is_served: bool) -> None:
    """Check whether a Fetch is given to its handler, or relayed unread; the broker has no answer in that case."""
    talk.handlers.frames.clear()
    await talk.client.send(fetch(90))
    if is_served:
        await talk.client.expect(FETCH_ANSWER)
        assert talk.handlers.frames == [fetch(90)]
    else:
        await talk.upstream.expect(fetch(90))
        assert talk.handlers.frames == []
    assert talk.connection.is_signed_in is is_served
    assert talk.signed_in == [True] * is_served


async def closed_by_limit(talk: Conversation) -> str:
    """The connection has ended with one line for the operator: what it says."""
    assert await talk.wait_end() is CloseCause.LIMIT
    (line,) = talk.shown_lines
    assert (line["event"], line["client"]) == ("connection_closed", "client")
    return str(line["detail"])


@for_each("piece_bytes", PIECES)
@for_each_run("api_key", [ApiKey.FETCH, ApiKey.LIST_OFFSETS])
async def test_what_would_cost_us_work_is_relayed_unread(api_key: ApiKey, piece_bytes: int | None) -> None:
    nonsense = request(api_key, 7, 2, b"\xff" * (300 if piece_bytes == 1 else IDLE_BUFFER_BYTES + 100))
    async with demanding(piece_bytes=piece_bytes) as talk:
        await talk.exchange(request(ApiKey.API_VERSIONS, 0, 1), GREETED)
        await talk.exchange(nonsense, response(2, b"whatever"))
        await talk.pass_on(nonsense)
        await talk.upstream.close()
        assert await talk.wait_end() is CloseCause.UPSTREAM
        assert (talk.handlers.frames, talk.signed_in, talk.shown_lines) == ([], [], [])


@for_each_run("mechanism", ROUNDS)
async def test_the_answer_that_means_success_signs_in_before_the_client_hears_it(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with demanding() as talk:
        told: list[bool] = []
        send_all = talk.client_transport.send_all

        async def note(data: Bytes) -> None:
            told.append(talk.connection.is_signed_in)
            await send_all(data)

        monkeypatch.setattr(talk.client_transport, "send_all", note)
        await talk.exchange(request(ApiKey.API_VERSIONS, 0, 1), GREETED)
        await shake(talk, mechanism)
        for token in ROUNDS[mechanism]:
            assert talk.signed_in == []
            await talk.exchange(authenticate(3), authenticated(3, token))
        assert told == [False] * (len(told) - 1) + [True]
        await assert_served(talk, True)


@for_each("piece_bytes", PIECES)
@for_each_run("mechanism", ROUNDS)
async def test_so_does_the_last_raw_token(mechanism: str, piece_bytes: int | None) -> None:
    async with demanding(piece_bytes=piece_bytes) as talk:
        await shake(talk, mechanism, 0)
        for token in ROUNDS[mechanism]:
            assert talk.signed_in == []
            await talk.exchange(framed(b"a token"), framed(token))
        await assert_served(talk, True)


async def test_a_fetch_behind_the_last_raw_token_is_decided_when_that_is_answered() -> None:
    async with demanding() as talk:
        await shake(talk, "PLAIN", 0)
        await talk.client.send(framed(b"a token"), fetch(4))
        await talk.upstream.expect(framed(b"a token"))
        await talk.upstream.expect_silence()
        assert talk.handlers.frames == []
        await talk.upstream.send(framed(b""))
        await talk.client.expect(framed(b""), FETCH_ANSWER)


@for_each_run(
    "mechanism, token, error_code",
    [
        ("PLAIN", b"", 58),
        ("SCRAM-SHA-256", SERVER_FIRST, 0),
        ("SCRAM-SHA-256", b"e=invalid-proof", 0),
        ("SCRAM-SHA-256", SERVER_FINAL, 58),
        ("OAUTHBEARER", BEARER_ERROR, 0),
        ("OAUTHBEARER", b"", 58),
        ("GSSAPI", b"", 0),
    ],
)
async def test_nothing_else_signs_in(mechanism: str, token: bytes, error_code: int) -> None:
    async with demanding() as talk:
        await shake(talk, mechanism)
        await talk.exchange(authenticate(3), authenticated(3, token, error_code))
        assert talk.refused == ([f"error code {error_code}"] if error_code else [])
        await assert_served(talk, False)


async def test_where_success_does_not_show_the_first_other_answer_signs_in() -> None:
    async with demanding() as talk:
        await shake(talk, "GSSAPI")
        await talk.exchange(authenticate(3), authenticated(3, b"\x60token"))
        await talk.exchange(request(ApiKey.API_VERSIONS, 0, 1), GREETED)
        await talk.exchange(authenticate(4), authenticated(4, b""))
        assert talk.signed_in == []
        await talk.exchange(request(HEARTBEAT, 4, 5), response(5))
        await assert_served(talk, True)


async def test_a_fetch_behind_the_last_token_is_relayed_unread_until_that_is_answered() -> None:
    async with demanding() as talk:
        await shake(talk, "PLAIN")
        await talk.pass_on(authenticate(3), fetch(4))
        assert (talk.handlers.frames, talk.signed_in) == ([], [])
        await talk.pass_back(authenticated(3, b""), response(4))
        await assert_served(talk, True)


async def test_where_nobody_has_to_sign_in_everybody_has_from_the_start() -> None:
    async with conversation(handle_fetch=answer_fetch) as talk:
        await trio.testing.wait_all_tasks_blocked()
        assert talk.signed_in == [True]
        await assert_served(talk, True)
        await shake(talk, "PLAIN")
        await talk.exchange(authenticate(3), authenticated(3, b""))
        await assert_served(talk, True)


@for_each_run("token, error_code", [(b"", 0), (b"", 58)])
async def test_signing_in_again_holds_what_was_and_ends_good_probes(token: bytes, error_code: int) -> None:
    async with demanding() as talk:
        await sign_in(talk)
        forgotten = talk.handlers.forgotten
        await shake(talk, "PLAIN")
        await assert_served(talk, True)
        await talk.client.send(authenticate(3), fetch(4))
        await talk.upstream.expect(authenticate(3))
        await trio.testing.wait_all_tasks_blocked()
        # Judged as one who has signed in, though not by what was good before.
        assert talk.handlers.frames == [fetch(90), fetch(4)]
        assert talk.handlers.forgotten == forgotten + 1
        await talk.upstream.send(authenticated(3, token, error_code))
        await talk.client.expect(authenticated(3, token, error_code), FETCH_ANSWER)
        assert talk.handlers.forgotten == forgotten + 2
        await assert_served(talk, True)


# How large.


@for_each("piece_bytes", PIECES)
@for_each("api_key", [HEARTBEAT, ApiKey.FETCH, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
@for_each_run("length", [64 * KIB + 1, LIMITS.request_frame_bytes_max + 1, 2**31 - 1])
async def test_a_larger_one_ends_the_connection_before_a_byte_of_it_passes(
    length: int, api_key: int, piece_bytes: int | None
) -> None:
    async with demanding(piece_bytes=piece_bytes) as talk:
        await talk.client.send(struct.pack(">ihhi", length, api_key, 1, 1))
        said = await closed_by_limit(talk)
        assert (
            said == f"a request before sign-in of {length} bytes exceeds expert.proxy.frame.unauthenticated.bytes.max"
        )
        assert await talk.upstream.expect_end() == b""


@for_each("demands_sign_in", [False, True])
@for_each_run(
    "api_key, api_version, what",
    [(ApiKey.SASL_HANDSHAKE, 1, "a SaslHandshake request"), (ApiKey.API_VERSIONS, 9, "an ApiVersions request")],
)
async def test_what_is_held_of_a_sign_in_is_small_at_any_time(
    api_key: ApiKey, api_version: int, what: str, demands_sign_in: bool
) -> None:
    # Failed before: such a request was held up to 16 MiB.
    limits = dataclasses.replace(DEMANDING, demands_sign_in=demands_sign_in)
    async with conversation(limits=limits) as talk:
        if demands_sign_in:
            await sign_in(talk)
        await talk.client.send(struct.pack(">ihhi", 64 * KIB + 1, api_key, api_version, 4))
        expected = f"{what} of {64 * KIB + 1} bytes exceeds expert.proxy.frame.unauthenticated.bytes.max"
        assert await closed_by_limit(talk) == expected


async def test_a_raw_token_has_the_same_limit() -> None:
    async with demanding() as talk:
        await shake(talk, "PLAIN", 0)
        await talk.client.send(struct.pack(">i", 64 * KIB + 1))
        expected = f"a SASL token of {64 * KIB + 1} bytes exceeds expert.proxy.frame.unauthenticated.bytes.max"
        assert await closed_by_limit(talk) == expected


async def test_the_largest_frame_before_sign_in_passes() -> None:
    head = len(request(HEARTBEAT, 4, 1)) - 4
    async with demanding() as talk, trio.open_nursery() as nursery:
        largest = request(HEARTBEAT, 4, 1, bytes(64 * KIB - head))
        nursery.start_soon(talk.client.send, largest)
        await talk.upstream.expect(largest)
