"""Slots at work, over sockets of this machine: gone clients, idle ones, newcomers, limits of an address.

The policy's own tables are in test_slots; here is shown that what it closes is closed.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio
import trio.testing
from trio.testing import MockClock

from metrics.meters import CloseCause
from proxy.connection.request_handlers import UpstreamWire
from proxy.connection.slots import LOOK_S, STUCK_S, SlotLimits
from proxy.upstream.transport import Bytes
from tests.proxy.connection.test_server import ANSWER, ASK, World, ask, ends, exactly, world
from tests.proxy.upstream.test_transport import contexts
from tests.support.memory_transport import LIMITS, ScriptedHandlers, request
from tests.support.waiting import until
from tools.demo.kafka_cluster import free_port

FETCH = request(1, 12, 1, b"body")


async def passes(clock: MockClock, seconds: float) -> None:
    """Time in which the server looks at its connections."""
    for _ in range(int(seconds / LOOK_S)):
        clock.jump(LOOK_S)
        await trio.testing.wait_all_tasks_blocked()


async def until_empty(clock: MockClock, made: World, *, seconds_max: float) -> None:
    end_s = trio.current_time() + seconds_max

    def a_look_later() -> bool:
        clock.jump(LOOK_S)
        return not made.server.connections

    await until(a_look_later)
    assert trio.current_time() <= end_s


async def wait_for_upstream(frame: memoryview, wire: UpstreamWire) -> Sequence[Bytes]:
    """An exchange whose question the broker never answers."""
    pending = await wire.ask(1, 12, wire.next_correlation_id(), ASK)
    return [await pending.frame()]


async def test_clients_that_have_gone_leave_a_hung_brokers_slots(mock_clock: MockClock) -> None:
    # Failed before: the broker was waited for without limit, by an exchange (FETCH) and without one.
    slots = SlotLimits(connections_max=3)
    for asked in (ASK, ASK + ASK + ASK, FETCH):
        async with world(slots=slots, handlers=lambda: ScriptedHandlers(wait_for_upstream)) as made:
            clients = [await made.served() for _ in range(3)]
            made.answering = trio.Event()
            for client in clients:
                await client.send_all(asked)
            await made.held.wait()
            assert await made.refuses()
            for client in clients:
                await client.aclose()
            await until_empty(mock_clock, made, seconds_max=STUCK_S)
            assert made.closed(CloseCause.CLIENT) == 3
            assert made.shown == ["connections_full"]


async def test_tls_clients_that_have_gone_leave_them_too(tmp_path: Path, mock_clock: MockClock) -> None:
    server_context, client_context = contexts(tmp_path)
    async with world(slots=SlotLimits(connections_max=1), client_tls=server_context) as made:
        made.answering = trio.Event()
        client = await made.connect_by_tls(client_context)
        await client.send_all(ASK)
        await made.held.wait()
        await client.aclose()
        await until_empty(mock_clock, made, seconds_max=STUCK_S)
        assert made.closed(CloseCause.CLIENT) == 1


async def test_an_idle_connection_is_closed(mock_clock: MockClock) -> None:
    async with world(slots=SlotLimits(connections_max=1, idle_s_max=60)) as made:
        async with await made.served() as client:
            await passes(mock_clock, 50)
            await ask(client)
            await passes(mock_clock, 50)
            assert made.server.connections == 1
            await until_empty(mock_clock, made, seconds_max=15)
            assert await ends(client)
        assert made.closed(CloseCause.IDLE) == 1
        assert made.shown == []


async def test_a_newcomer_takes_the_slot_of_the_oldest_that_waits_for_its_broker() -> None:
    demanding = replace(LIMITS, demands_sign_in=True)
    async with world(slots=SlotLimits(connections_max=2), connect_wait_s_max=30, limits=demanding) as made:
        made.target.addresses = (("127.0.0.1", free_port()),)
        first = await made.connect()
        await until(lambda: made.server.connections == 1)
        second = await made.connect()
        assert await ends(first)
        assert made.closed(CloseCause.NOT_SIGNED_IN) == 1
        assert made.shown.count("slots_taken_from_not_signed_in") == 1
        made.target.addresses = (made.broker,)
        await ask(second)
        third = await made.served()
        assert await ends(second)  # it has a broker by now, and has not signed in
        assert made.closed(CloseCause.NOT_SIGNED_IN) == 2
        for client in (first, second, third):
            await client.aclose()
        await made.server.wait_empty()


async def test_a_newcomer_takes_the_slot_of_a_silent_client_in_its_tls_handshake(tmp_path: Path) -> None:
    server_context, client_context = contexts(tmp_path)
    async with world(slots=SlotLimits(connections_max=1), client_tls=server_context) as made:
        silent = await made.connect()
        await until(lambda: made.server.connections == 1)
        async with await made.connect_by_tls(client_context) as client:
            await ask(client)
            assert await ends(silent)
            await silent.aclose()
        await made.server.wait_empty()
        assert made.closed(CloseCause.NOT_SIGNED_IN) == 1


async def test_newcomers_take_slots_of_a_hung_broker(mock_clock: MockClock) -> None:
    async with world(slots=SlotLimits(connections_max=2)) as made, trio.open_nursery() as nursery:
        stuck = [await made.served() for _ in range(2)]
        made.answering = trio.Event()
        for client in stuck:
            await client.send_all(ASK)
        await made.held.wait()

        async def be_healthy(stream: trio.SocketStream) -> None:
            while await stream.receive_some(len(ASK)):
                await stream.send_all(ANSWER)

        (healthy,) = await nursery.start(partial(trio.serve_tcp, be_healthy, 0, host="127.0.0.1"))
        made.target.addresses = (("127.0.0.1", healthy.socket.getsockname()[1]),)
        await passes(mock_clock, STUCK_S - 2 * LOOK_S)
        assert await made.refuses()
        await passes(mock_clock, 4 * LOOK_S)
        async with await made.connect() as newcomer:
            await ask(newcomer)
            assert made.closed(CloseCause.BROKER_HUNG) == 1
            assert await made.refuses()
        assert made.shown == ["connections_full", "slots_taken_from_hung_broker"]
        for client in stuck:
            await client.aclose()
        nursery.cancel_scope.cancel()


async def test_a_drain_goes_on_to_wait_for_answers(mock_clock: MockClock) -> None:
    async with world() as made:
        made.answering = trio.Event()
        async with await made.connect() as client:
            await client.send_all(ASK)
            await made.held.wait()
            made.server.drain()
            await passes(mock_clock, 3600)
            made.answering.set()
            assert await exactly(client, len(ANSWER)) == ANSWER
            assert await ends(client)
        await made.server.wait_empty()
        assert made.closed(CloseCause.DRAIN) == 1
