"""A client connection between scripted ends: what passes, in which order, and how it ends."""

import itertools
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from metrics.meters import CloseCause
from protocol.api_versions import encode_unsupported_version
from protocol.fetch.messages import PartitionAnswer
from protocol.fetch.response import encode_response
from protocol.wire.endpoints import NodeAddress
from protocol.wire.framing import IDLE_BUFFER_BYTES
from protocol.wire.identifiers import ApiKey
from proxy.connection.connection import LAST_ANSWER_STALL_S, ConnectionLimits
from proxy.connection.request_handlers import Relay, UpstreamWire
from proxy.upstream.transport import Bytes
from tests.support import kio_frames
from tests.support.for_each import for_each
from tests.support.memory_transport import (
    HEARTBEAT,
    LIMITS,
    Conversation,
    MemoryTransport,
    RemoteEnd,
    conversation,
    framed,
    request,
    response,
)
from tests.support.virtual_time import for_each_run

NODE = NodeAddress(3, "kafka-3.internal", 9092)
PIECES = [1, 7, None]


def fetch(correlation_id: int, api_version: int = 12, body: bytes = b"body") -> bytes:
    return request(ApiKey.FETCH, api_version, correlation_id, body)


def produce(correlation_id: int, acks: int, records: bytes = b"records") -> bytes:
    """v3: no transactional id, then acks."""
    return request(ApiKey.PRODUCE, 3, correlation_id, struct.pack(">hh", -1, acks) + records)


def metadata_response(correlation_id: int, host: str, port: int) -> bytes:
    values = {"brokers": [{"node_id": NODE.node_id, "host": host, "port": port, "rack": None}], "topics": []}
    return kio_frames.response_frame(kio_frames.fill(kio_frames.schema(ApiKey.METADATA, 12), values), correlation_id)


async def answer_nothing(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes] | None:
    """An exchange that asks upstream nothing."""
    return [frame[:4], b"exchanged " + bytes(frame[8:12])]


def exchanged(correlation_id: int, size: int = len(fetch(1)) - 4) -> bytes:
    return struct.pack(">i", size) + b"exchanged " + struct.pack(">i", correlation_id)


async def take_slowly(receiver: RemoteEnd, size: int, source: MemoryTransport, sink: MemoryTransport) -> None:
    """Check that what was received and not yet sent stays within one buffer."""
    received_before, sent_before = source.received_bytes, sink.sent_bytes
    while size:
        size -= len(await receiver.receive_exactly(min(size, 100_000)))
        await trio.testing.wait_all_tasks_blocked()
        assert (source.received_bytes - received_before) - (sink.sent_bytes - sent_before) <= 256 * 1024


# What passes.


@for_each("piece_bytes", PIECES)
@for_each_run("pipelined", [False, True])
async def test_frames_pass_both_ways_in_any_pieces(piece_bytes: int | None, pipelined: bool) -> None:
    longest_bytes = 400 if piece_bytes == 1 else IDLE_BUFFER_BYTES + 100
    bodies = [b"", b"x", b"y" * longest_bytes, b"z" * 300]
    requests = [request(HEARTBEAT, 4, number, body) for number, body in enumerate(bodies)]
    responses = [response(number, body[::-1]) for number, body in enumerate(bodies)]
    async with conversation(piece_bytes=piece_bytes) as talk:
        if pipelined:
            await talk.pass_on(*requests)
            await talk.pass_back(*responses)
        else:
            for asked, answered in zip(requests, responses, strict=True):
                await talk.exchange(asked, answered)
        await talk.client.expect_silence()


@for_each_run("piece_bytes", PIECES)
async def test_a_produce_without_acks_has_no_place_among_the_answers(piece_bytes: int | None) -> None:
    requests = [produce(1, acks=0), request(HEARTBEAT, 4, 2), produce(3, acks=0), produce(4, acks=-1)]
    async with conversation(piece_bytes=piece_bytes) as talk:
        await talk.pass_on(*requests)
        await talk.pass_back(response(2), response(4))


@for_each_run("piece_bytes", PIECES)
async def test_api_versions_that_we_do_not_know_are_refused_without_upstream(piece_bytes: int | None) -> None:
    async with conversation(piece_bytes=piece_bytes) as talk:
        await talk.client.send(request(ApiKey.API_VERSIONS, 5, 1, b"whatever v5 may hold"), request(HEARTBEAT, 4, 2))
        await talk.upstream.expect(request(HEARTBEAT, 4, 2))
        await talk.client.expect(encode_unsupported_version(1))


async def test_addresses_are_replaced_and_their_listeners_bound_first() -> None:
    async with conversation() as talk:
        talk.addresses.gate = trio.Event()
        await talk.pass_on(request(ApiKey.METADATA, 12, 1))
        await talk.upstream.send(metadata_response(1, NODE.host, NODE.port))
        await talk.client.expect_silence()
        assert talk.addresses.asked == [NODE]
        talk.addresses.gate.set()
        await talk.client.expect(metadata_response(1, "advertised", 19095))


@for_each_run("piece_bytes", PIECES)
async def test_a_small_fetch_answer_is_rewritten_and_a_large_one_loses_its_addresses(piece_bytes: int | None) -> None:
    def answer(correlation_id: int, records: bytes, endpoint: tuple[str, int]) -> bytes:
        host, port = endpoint
        partitions = [{"records": records, "aborted_transactions": []}]
        values = {
            "responses": [{"partitions": partitions}],
            "node_endpoints": [{"node_id": 3, "host": host, "port": port, "rack": None}],
        }
        return kio_frames.response_frame(kio_frames.fill(kio_frames.schema(ApiKey.FETCH, 17), values), correlation_id)

    small = answer(1, b"r" * 100, (NODE.host, NODE.port))
    large = answer(2, b"r" * LIMITS.relay_rewrite_bytes_max, (NODE.host, NODE.port))
    async with conversation(piece_bytes=piece_bytes) as talk:
        await talk.pass_on(fetch(1, 17), fetch(2, 17))
        await talk.upstream.send(small, large)
        await talk.client.expect(answer(1, b"r" * 100, ("advertised", 19095)))
        walked = await talk.client.receive_exactly(len(large))

    changed = [position for position in range(len(large)) if walked[position] != large[position]]
    (position,) = changed
    assert (large[position], walked[position]) == (0, 127)
    assert large[position + 1 :].find(NODE.host.encode()) > 0


@for_each_run("to_upstream", [True, False])
async def test_large_frames_stream_in_bounded_memory(to_upstream: bool) -> None:
    """The receiver's end takes a byte now and then: what was received and not yet sent stays within one buffer."""
    body = b"b" * (5 * 1024 * 1024)
    async with conversation(lockstep=True) as talk, trio.open_nursery() as nursery:
        source, sink = talk.client_transport, talk.upstream_transport
        sender, receiver, frame = talk.client, talk.upstream, request(HEARTBEAT, 4, 1, body)
        if not to_upstream:
            await talk.pass_on(request(HEARTBEAT, 4, 1))
            source, sink = sink, source
            sender, receiver, frame = receiver, sender, response(1, body)
        nursery.start_soon(sender.send, frame)
        await take_slowly(receiver, len(frame), source, sink)
        assert source.largest_receive_bytes <= 256 * 1024


# Order: exchanges among relays.


async def test_an_exchange_that_asks_upstream_nothing_waits_its_turn() -> None:
    async with conversation(handle_fetch=answer_nothing) as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1), fetch(2), request(HEARTBEAT, 4, 3))
        await talk.upstream.expect(request(HEARTBEAT, 4, 1))
        await talk.client.expect_silence()
        await talk.upstream.send(response(1))
        await talk.client.expect(response(1), exchanged(2))
        await talk.upstream.expect(request(HEARTBEAT, 4, 3))
        await talk.pass_back(response(3))


async def test_an_exchange_asks_in_its_place_and_its_answers_stay_with_us() -> None:
    async def ask(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        first, second = connection.next_correlation_id(), connection.next_correlation_id()
        pending = [await connection.ask(1, 12, number, response(number)) for number in (first, second)]
        answers = [await each.frame() for each in pending]
        return [b"".join(answer[8:] for answer in answers)]

    async with conversation(handle_fetch=ask) as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1), fetch(2), request(HEARTBEAT, 4, 3))
        await talk.upstream.expect(request(HEARTBEAT, 4, 1))
        own = [struct.unpack_from(">i", await talk.upstream.receive_frame(), 4)[0] for _ in range(2)]
        assert len(set(own)) == 2
        await talk.upstream.expect_silence()  # the third request waits for the exchange
        await talk.upstream.send(response(1), response(own[0], b"one "), response(own[1], b"two"))
        await talk.client.expect(response(1), b"one two")
        await talk.upstream.expect(request(HEARTBEAT, 4, 3))


@for_each_run("body_bytes, piece_bytes", [*itertools.product((0, 3), PIECES), (300, 1), (9000, 7), (9000, None)])
async def test_a_response_head_is_seen_and_patched_before_it_goes_on(body_bytes: int, piece_bytes: int | None) -> None:
    heads: list[bytes] = []

    def on_head(head: memoryview) -> None:
        heads.append(bytes(head))
        head[-1:] = b"!"

    async def relay(frame: memoryview, connection: UpstreamWire) -> Relay:
        return Relay(16, on_head)

    async with conversation(handle_fetch=relay, piece_bytes=piece_bytes) as talk:
        await talk.pass_on(fetch(1))
        answer = response(1, b"x" * body_bytes)
        await talk.upstream.send(answer)
        head = answer[:16]
        await talk.client.expect(head[:-1] + b"!" + answer[16:])
        assert heads == [head]


class ToldNine:
    """A PartitionEditor: OFFSET_OUT_OF_RANGE becomes 9, and each log start 7."""

    def begin_topic(self, topic: bytes | str) -> bool:
        return True

    def edited(self, partition: int, error_code: int, log_start_offset: int) -> tuple[int, int]:
        return (9 if error_code == 1 else error_code), 7


# Byte by byte no more than is needed to be too large to be held.
@for_each("records_bytes, piece_bytes", [(0, 1), (0, 7), (0, None), (2100, 1), (9000, 7), (9000, None)])
@for_each_run("version", [4, 11, 12, 15, 16, 18])
async def test_a_fetch_response_is_edited_as_it_passes_held_or_not(
    version: int, records_bytes: int, piece_bytes: int | None
) -> None:
    async def relay(frame: memoryview, connection: UpstreamWire) -> Relay:
        return Relay(editor=ToldNine())

    topic: tuple[str | None, bytes | None] = (None, b"i" * 16) if version >= 13 else ("orders", None)

    def answer(error_code: int, log_start_offset: int) -> bytes:
        answers = [
            PartitionAnswer(*topic, 0, error_code, -1, -1, log_start_offset),
            PartitionAnswer(*topic, 1, 0, 70, 60, log_start_offset, records=[b"r" * records_bytes]),
        ]
        return b"".join(encode_response(version, 1, throttle_time_ms=0, error_code=0, session_id=0, answers=answers))

    async with conversation(handle_fetch=relay, piece_bytes=piece_bytes) as talk:
        await talk.pass_on(fetch(1, version))
        await talk.upstream.send(answer(1, 1000))
        await talk.client.expect(answer(9, 7))


async def test_no_more_requests_are_taken_than_may_be_in_flight() -> None:
    requests = [request(HEARTBEAT, 4, number) for number in range(LIMITS.inflight_requests_max + 1)]
    async with conversation() as talk:
        await talk.client.send(*requests)
        await talk.upstream.expect(*requests[:-1])
        await talk.upstream.expect_silence()
        await talk.upstream.send(response(0))
        await talk.upstream.expect(requests[-1])


@for_each_run("api_key", [ApiKey.DELETE_RECORDS, ApiKey.DELETE_TOPICS])
async def test_deletions_end_good_probes_when_asked_and_when_answered(api_key: ApiKey) -> None:
    async with conversation() as talk:
        await talk.pass_on(request(api_key, 1, 1))
        assert talk.handlers.log_starts_moved == 1
        await talk.pass_back(response(1))
        await trio.testing.wait_all_tasks_blocked()
        assert (talk.handlers.log_starts_moved, talk.handlers.forgotten) == (2, 0)


@for_each_run("api_key", [ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH])
async def test_requests_about_borders_are_exchanges_where_something_answers_them(api_key: ApiKey) -> None:
    asked = request(api_key, 2, 1, b"body")
    async with conversation(handle_fetch=answer_nothing) as talk:
        await talk.exchange(asked, response(1))
        assert not talk.handlers.frames
    async with conversation(handle_fetch=answer_nothing) as talk:
        talk.handlers.exchanges[api_key] = talk.handlers.fetch
        await talk.client.send(asked)
        await talk.client.expect(exchanged(1, len(asked) - 4))
        assert talk.handlers.frames == [asked]
        talk.handlers.handle_fetch = None
        await talk.exchange(asked, response(1))
    async with conversation(limits=replace(LIMITS, demands_sign_in=True)) as talk:
        talk.handlers.exchanges[api_key] = talk.handlers.fetch
        await talk.exchange(asked, response(1))
        assert not talk.handlers.frames, "who has not signed in costs no work"


async def test_signing_in_ends_good_probes_also_for_what_is_pipelined_behind_it() -> None:
    # Failed before: only the answer ended them, so a Fetch sent right behind was served under the old principal.
    seen: list[int] = []

    async def note(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes] | None:
        seen.append(talk.handlers.forgotten)
        return None

    async with conversation(handle_fetch=note) as talk:
        await talk.client.send(request(ApiKey.SASL_AUTHENTICATE, 2, 1), fetch(2))
        await talk.upstream.receive_frame()
        await talk.upstream.expect(fetch(2))
        assert seen == [1]
        await talk.pass_back(response(1))
        await trio.testing.wait_all_tasks_blocked()
        assert talk.handlers.forgotten == 2


# How it ends.


async def assert_closed(talk: Conversation, cause: CloseCause) -> None:
    assert await talk.wait_end() is cause
    assert talk.client_transport.is_aborted
    assert talk.upstream_transport.is_aborted


async def test_a_client_that_leaves_takes_the_upstream_connection_with_it() -> None:
    async with conversation() as talk:
        await talk.client.close()
        await assert_closed(talk, CloseCause.CLIENT)
        assert await talk.upstream.expect_end() == b""
        assert talk.shown_lines == []


async def test_a_client_that_stops_sending_still_gets_its_answers() -> None:
    async with conversation(handle_fetch=answer_nothing) as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1), fetch(2))
        await talk.client.send_eof()
        await talk.upstream.expect(request(HEARTBEAT, 4, 1))
        await talk.client.expect_silence()
        await talk.upstream.send(response(1))
        assert await talk.client.expect_end() == response(1) + exchanged(2)
        await assert_closed(talk, CloseCause.CLIENT)
        assert talk.client_transport.is_closed


async def test_an_upstream_that_leaves_takes_the_client_connection_with_it() -> None:
    async with conversation() as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1), request(HEARTBEAT, 4, 2))
        await talk.upstream.receive_frame()
        await talk.upstream.send(response(1))
        await talk.upstream.close()
        assert await talk.client.expect_end() == response(1)
        await assert_closed(talk, CloseCause.UPSTREAM)


async def test_an_answer_of_ours_that_is_being_sent_arrives_although_upstream_left() -> None:
    # Failed before: the client got the first half of it.
    async def large(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        return [b"a" * 100_000]

    async with conversation(handle_fetch=large, lockstep=True) as talk, trio.open_nursery() as nursery:
        nursery.start_soon(talk.client.send, fetch(1))
        await talk.client.receive_exactly(10)
        await talk.upstream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        assert await talk.client.expect_end() == b"a" * 99_990
        assert await talk.wait_end() is CloseCause.UPSTREAM


async def test_who_broke_is_named_by_which_send_failed() -> None:
    # Failed before: a client that vanished while an answer was sent was counted as upstream's end, and vice versa.
    async with conversation() as talk:
        await talk.client.send(request(HEARTBEAT, 4, 1))
        talk.client_transport.abort()
        await talk.upstream.send(response(1))
        assert await talk.wait_end() is CloseCause.CLIENT
    async with conversation() as talk:
        talk.upstream_transport.abort()
        await talk.client.send(request(HEARTBEAT, 4, 1))
        assert await talk.wait_end() is CloseCause.UPSTREAM


@pytest.mark.autojump
async def test_a_client_that_takes_nothing_of_its_last_answer_is_given_up() -> None:
    """Failed before: a stuck client kept its slot, and what its answer held, after the broker had gone."""

    async def answer(_frame: memoryview, _connection: UpstreamWire) -> Sequence[Bytes]:
        return [response(1, bytes(1000))]

    async with conversation(handle_fetch=answer, lockstep=True) as talk:
        await talk.client.send(fetch(1))
        await trio.testing.wait_all_tasks_blocked()
        await talk.upstream.close()
        await talk.ended.wait()
        assert talk.cause is CloseCause.UPSTREAM
        assert trio.current_time() == pytest.approx(LAST_ANSWER_STALL_S)


async def test_an_idle_connection_that_drains_ends_at_once_also_before_it_runs() -> None:
    async with conversation() as talk:
        await trio.testing.wait_all_tasks_blocked()
        talk.connection.drain()
        await assert_closed(talk, CloseCause.DRAIN)
    async with conversation(start=False) as talk, trio.open_nursery() as nursery:
        talk.connection.drain()
        nursery.start_soon(talk.run)
        await assert_closed(talk, CloseCause.DRAIN)


async def test_a_drain_answers_what_has_begun_and_takes_nothing_more() -> None:
    async with conversation() as talk:
        await talk.pass_on(request(HEARTBEAT, 4, 1))
        talk.connection.drain()
        await talk.client.send(request(HEARTBEAT, 4, 2))
        await talk.upstream.expect_silence()
        await talk.upstream.send(response(1))
        assert await talk.client.expect_end() == response(1)
        await assert_closed(talk, CloseCause.DRAIN)
        assert talk.client_transport.is_closed


def test_cancelled_at_any_point_it_closes_both_sides() -> None:
    """Whole conversations, each cancelled one scheduling step later than the one before, until one ends by itself."""
    survived = False
    step = 0
    while not survived:
        step += 1
        survived = trio.run(_cancelled_at, step, clock=trio.testing.MockClock(autojump_threshold=0))
        assert step < 500
    assert step > 40


async def _cancelled_at(step: int) -> bool:
    """Return whether the conversation ended before the cancellation came."""

    async def ask(frame: memoryview, connection: UpstreamWire) -> Sequence[Bytes]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            return [framed(bytes((await (await connection.ask(1, 12, 7, response(7))).frame())[4:]))]

    async with conversation(handle_fetch=ask, start=False) as talk:

        async def play() -> None:
            await talk.client.send(request(HEARTBEAT, 4, 1), fetch(2), request(ApiKey.METADATA, 12, 3))
            await talk.upstream.receive_frame()
            await talk.upstream.receive_frame()
            await talk.upstream.send(response(1), response(7))
            await talk.upstream.receive_frame()
            await talk.upstream.send(metadata_response(3, NODE.host, NODE.port))
            await talk.client.send_eof()
            await talk.client.expect_end()

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                trio.lowlevel.add_instrument(CancelAt(step, scope))
                nursery.start_soon(talk.run)
                nursery.start_soon(play)
        assert talk.client_transport.is_aborted
        assert talk.upstream_transport.is_aborted
        assert talk.shown_lines == []
        return not scope.cancelled_caught


class CancelAt(trio.abc.Instrument):
    """Cancels a scope before the given step of any task."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._steps_left = step
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps_left -= 1
        if self._steps_left == 0:
            self._scope.cancel()


async def test_a_drain_takes_no_request_that_waits_for_others_to_be_answered() -> None:
    # Failed before: a request held back by the in-flight limit was passed on in the midst of a drain.
    requests = [request(HEARTBEAT, 4, number) for number in range(2)]
    async with conversation(limits=ConnectionLimits(1 << 20, 1 << 20, 1 << 16, 1)) as talk:
        await talk.client.send(*requests)
        await talk.upstream.expect(requests[0])
        talk.connection.drain()
        await talk.upstream.send(response(0))
        assert await talk.client.expect_end() == response(0)
        await assert_closed(talk, CloseCause.DRAIN)
