"""Bytes that no honest peer sends, and faults of ours: that connection ends with exactly one line for the operator."""

import struct
from collections.abc import Sequence

import trio

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.wire.identifiers import ApiKey
from proxy.connection.connection import HELD_REQUEST_BYTES_MAX
from proxy.connection.request_handlers import UpstreamWire
from proxy.upstream.transport import Bytes
from tests.proxy.connection.test_connection import assert_closed
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.memory_transport import HEARTBEAT, LIMITS, Conversation, conversation, framed, request, response
from tests.support.virtual_time import for_each_run

FETCH_ONE = request(ApiKey.FETCH, 12, 1)

BAD_REQUESTS = {
    "a negative length": struct.pack(">i", -1),
    "the least length": struct.pack(">i", -(2**31)),
    "a length of nothing": bytes(4),
    "a length below a header's": struct.pack(">i", 7),
    "a length above the limit": struct.pack(">i", LIMITS.request_frame_bytes_max + 1),
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303"),
    "an unknown api key": request(93, 0, 1),
    "a negative api key": request(-1, 0, 1),
    "a version that is not announced": request(ApiKey.FETCH, 19, 1),
    "a negative version": request(HEARTBEAT, -1, 1),
    "a Produce that ends before its acks": request(ApiKey.PRODUCE, 3, 1, b"\xff\xff"),
    "a Produce whose client id goes beyond its end": framed(struct.pack(">hhih", ApiKey.PRODUCE, 3, 1, 30000) + b"c"),
    "a ListOffsets of nonsense": request(ApiKey.LIST_OFFSETS, 7, 1, b"\xff" * 9),
    "a SaslHandshake of nonsense": request(ApiKey.SASL_HANDSHAKE, 1, 1, b"\x7f\xff"),
    "a SaslHandshake of no version": request(ApiKey.SASL_HANDSHAKE, 9, 1, b"\0\5PLAIN"),
}


async def one_line(talk: Conversation, cause: CloseCause, *, level: str = "warning") -> str:
    """The connection has ended for that cause with one line; its detail."""
    await assert_closed(talk, cause)
    (line,) = talk.shown_lines
    assert (line["event"], line["log_level"], line["cause"]) == ("connection_closed", level, cause.value)
    assert line["client"] == "client"
    malformed = 1 if cause is CloseCause.MALFORMED_FRAME else 0
    assert talk.registry.sample_value("tidegate_malformed_frames_total") == malformed
    return str(line["detail"])


@for_each("piece_bytes", [1, None])
@for_each_run("bad", BAD_REQUESTS.values())
async def test_a_bad_request_ends_its_connection(bad: bytes, piece_bytes: int | None) -> None:
    async with conversation(piece_bytes=piece_bytes) as talk:
        await talk.exchange(request(HEARTBEAT, 4, 1), response(1))
        await talk.client.send(bad)
        assert await one_line(talk, CloseCause.MALFORMED_FRAME)
        assert await talk.upstream.expect_end() == b""


@for_each_run("sent", [1, 3, 4, 11, 12, 5000])
async def test_a_request_cut_short_ends_its_connection(sent: int) -> None:
    # Failed before: cut behind what was passed on already, it was no line at all.
    async with conversation() as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1, bytes(9000))[:sent])
        await trio.testing.wait_all_tasks_blocked()
        await talk.client.send_eof()
        assert "ended inside a frame" in await one_line(talk, CloseCause.MALFORMED_FRAME)


async def test_a_request_too_large_to_be_read_passes_with_its_beginning_held() -> None:
    frame = request(ApiKey.FETCH, 12, 1, bytes(4 * HELD_REQUEST_BYTES_MAX))
    async with conversation() as talk:
        await talk.pass_on(frame)
        assert talk.handlers.frames == [frame[:HELD_REQUEST_BYTES_MAX]]


async def test_of_a_request_too_large_to_be_read_that_is_answered_the_rest_is_dropped() -> None:
    async def answer(_frame: memoryview, _wire: UpstreamWire) -> Sequence[Bytes]:
        return [response(1)]

    async with conversation(handle_fetch=answer) as talk:
        await talk.client.send(request(ApiKey.FETCH, 12, 1, bytes(4 * HELD_REQUEST_BYTES_MAX)))
        await talk.client.expect(response(1))
        await talk.pass_on(request(HEARTBEAT, 4, 2))


BAD_RESPONSES = {
    "another correlation id": response(2),
    "a negative length": struct.pack(">i", -1),
    "a length below a header's": struct.pack(">i", 3),
    "addresses of nonsense": response(1, b"\xff" * 40),
}


@for_each("piece_bytes", [1, None])
@for_each_run("bad", BAD_RESPONSES.values())
async def test_a_bad_response_ends_its_connection(bad: bytes, piece_bytes: int | None) -> None:
    async with conversation(piece_bytes=piece_bytes) as talk:
        await talk.pass_on(request(ApiKey.METADATA, 12, 1))
        await talk.upstream.send(bad)
        assert await one_line(talk, CloseCause.MALFORMED_FRAME)
        assert await talk.client.expect_end() == b""


async def test_a_response_that_nobody_asked_for_ends_its_connection() -> None:
    async with conversation() as talk:
        await talk.upstream.send(response(7))
        assert "answered 7" in await one_line(talk, CloseCause.MALFORMED_FRAME)


@for_each_run("sent", [2, 8, 100])
async def test_a_response_cut_short_ends_its_connection(sent: int) -> None:
    async with conversation() as talk:
        await talk.pass_on(request(HEARTBEAT, 4, 1))
        await talk.upstream.send(response(1, bytes(200))[:sent])
        await trio.testing.wait_all_tasks_blocked()
        await talk.upstream.send_eof()
        assert "ended inside a frame" in await one_line(talk, CloseCause.MALFORMED_FRAME)


async def test_a_large_fetch_response_that_contradicts_itself_ends_its_connection() -> None:
    async with conversation() as talk:
        await talk.pass_on(request(ApiKey.FETCH, 17, 1))
        await talk.upstream.send(response(1, b"\xff" * (LIMITS.relay_rewrite_bytes_max + 1)))
        assert await one_line(talk, CloseCause.MALFORMED_FRAME)


@for_each_run(
    "api_key, api_version",
    [(ApiKey.SHARE_FETCH, 1), (ApiKey.SHARE_ACKNOWLEDGE, 1), (ApiKey.METADATA, 12), (ApiKey.API_VERSIONS, 3)],
)
async def test_a_response_too_large_to_be_held_ends_its_connection(api_key: ApiKey, api_version: int) -> None:
    async with conversation() as talk:
        await talk.pass_on(request(api_key, api_version, 1))
        await talk.upstream.send(struct.pack(">ii", LIMITS.response_held_bytes_max + 1, 1))
        detail = await one_line(talk, CloseCause.LIMIT)
        assert f"api key {int(api_key)} exceeds expert.proxy.response.held.bytes.max" in detail


async def test_a_fault_of_ours_ends_only_its_connection() -> None:
    # Failed before: it was two lines.
    async def fail(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        async with trio.open_nursery():
            raise ZeroDivisionError("bug")

    async with conversation(handle_fetch=fail) as talk, conversation() as other:
        await talk.client.send(FETCH_ONE)
        await talk.wait_end()
        await other.pass_on(request(HEARTBEAT, 4, 1))
        assert talk.cause is CloseCause.FAULT


async def test_a_broker_that_is_withheld_is_left_out_of_the_answer() -> None:
    # Failed before: the connection ended, and every other one that asked.
    def brokers(*node_ids: int, host: str = "k") -> bytes:
        named = [{"node_id": node_id, "host": host, "port": 19092 + node_id, "rack": None} for node_id in node_ids]
        values = {"brokers": named, "topics": []}
        return kio_frames.response_frame(kio_frames.fill(kio_frames.schema(ApiKey.METADATA, 12), values), 1)

    async with conversation() as talk:
        talk.addresses.withheld = {7}
        await talk.pass_on(request(ApiKey.METADATA, 12, 1))
        await talk.upstream.send(brokers(6, 7, 8))
        await talk.client.expect(brokers(6, 8, host="advertised"))


async def test_an_exchange_that_fails_while_the_connection_ends_is_no_fault() -> None:
    # Failed before: an error beside a cancellation went past the guard and was logged as a fault of ours.
    async def fail_when_cancelled(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise TransportError("upstream broke")

    async with conversation(handle_fetch=fail_when_cancelled) as talk:
        await talk.client.send(FETCH_ONE)
        await trio.testing.wait_all_tasks_blocked()
        await talk.upstream.close()
        assert await talk.wait_end() is CloseCause.UPSTREAM
        assert talk.shown_lines == []
