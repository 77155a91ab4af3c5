"""Slots at work, over sockets of this machine: gone clients, idle ones, newcomers, limits of an address.

The policy's own tables are in test_slots; here is shown that what it closes is closed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from metrics.meters import CloseCause, RefusalReason
from proxy.connection.request_handlers import UpstreamWire
from proxy.connection.slots import GRACE_S, LOOK_S, STUCK_S, SlotLimits
from proxy.upstream.transport import Bytes
from tests.proxy.test_server import ANSWER, ASK, World, ask, ends, exactly, world
from tests.proxy.upstream.test_transport import contexts
from tests.support.memory_transport import ScriptedHandlers, request
from tests.support.waiting import until

FETCH = request(1, 12, 1, b"body")


async def passes(clock: MockClock, seconds: float) -> None:
    """Time in which the server looks at its connections."""
    for _ in range(int(seconds / LOOK_S)):
        clock.jump(LOOK_S)
        await trio.testing.wait_all_tasks_blocked()


async def passes_until(clock: MockClock, condition: Callable[[], object], *, seconds_max: float) -> None:
    end_s = trio.current_time() + seconds_max

    def a_look_later() -> object:
        clock.jump(LOOK_S)
        return condition()

    await until(a_look_later)
    assert trio.current_time() <= end_s


async def served(made: World, count: int) -> list[trio.SocketStream]:
    """So many clients that have signed in: one after the other, as slots may be few."""
    clients = []
    for _ in range(count):
        clients.append(await trio.open_tcp_stream(*made.address))
        await ask(clients[-1])
    return clients


async def wait_for_upstream(frame: memoryview, wire: UpstreamWire) -> Sequence[Bytes]:
    """An exchange whose question the broker never answers."""
    pending = await wire.ask(1, 12, wire.next_correlation_id(), ASK)
    return [await pending.frame()]


@pytest.mark.parametrize("asked", [ASK, ASK + ASK + ASK, FETCH])
async def test_clients_that_have_gone_leave_a_hung_brokers_slots(asked: bytes, mock_clock: MockClock) -> None:
    # Failed before: the broker was waited for without limit, by an exchange (FETCH) and without one.
    async with world(connections_max=3, handlers=lambda: ScriptedHandlers(wait_for_upstream)) as made:
        clients = await served(made, 3)
        made.answering = trio.Event()
        for client in clients:
            await client.send_all(asked)
        await made.held.wait()
        async with await trio.open_tcp_stream(*made.address) as refused:
            assert await ends(refused)
        for client in clients:
            await client.aclose()
        await passes_until(mock_clock, lambda: not made.server.connections, seconds_max=STUCK_S)
        assert made.closed(CloseCause.CLIENT) == 3
        assert made.shown == ["connections_full"]


async def test_tls_clients_that_have_gone_leave_them_too(tmp_path: Path, mock_clock: MockClock) -> None:
    server_context, client_context = contexts(tmp_path)
    async with world(connections_max=1, client_tls=server_context) as made:
        made.answering = trio.Event()
        plain = await trio.open_tcp_stream(*made.address)
        client = trio.SSLStream(plain, client_context, server_hostname="localhost", https_compatible=True)
        await client.send_all(ASK)
        await made.held.wait()
        await client.aclose()
        await passes_until(mock_clock, lambda: not made.server.connections, seconds_max=STUCK_S)
        assert made.closed(CloseCause.CLIENT) == 1


async def test_a_client_that_only_stops_sending_gets_its_last_answer(mock_clock: MockClock) -> None:
    async with world() as made:
        made.answering = trio.Event()
        async with await trio.open_tcp_stream(*made.address) as client:
            await client.send_all(ASK)
            await made.held.wait()
            await client.send_eof()
            await passes(mock_clock, GRACE_S - 2 * LOOK_S)
            made.answering.set()
            assert await exactly(client, len(ANSWER)) == ANSWER
            assert await ends(client)
        await made.server.wait_empty()


async def test_an_idle_connection_is_closed(mock_clock: MockClock) -> None:
    async with world(slots=SlotLimits(connections_max=1, idle_s_max=60)) as made:
        async with await trio.open_tcp_stream(*made.address) as client:
            await ask(client)
            await passes(mock_clock, 50)
            await ask(client)
            await passes(mock_clock, 50)
            assert made.server.connections == 1
            await passes_until(mock_clock, lambda: not made.server.connections, seconds_max=15)
            assert await ends(client)
        assert made.closed(CloseCause.IDLE) == 1
        assert made.shown == []


async def test_a_newcomer_takes_the_slot_of_the_oldest_that_waits_for_its_broker() -> None:
    async with world(connections_max=2, connect_wait_s_max=30, demands_sign_in=True) as made:
        gone = await trio.open_tcp_listeners(0, host="127.0.0.1")
        dead = gone[0].socket.getsockname()
        await gone[0].aclose()
        made.target.addresses = (dead,)
        first = await trio.open_tcp_stream(*made.address)
        await until(lambda: made.server.connections == 1)
        second = await trio.open_tcp_stream(*made.address)
        assert await ends(first)
        assert made.closed(CloseCause.NOT_SIGNED_IN) == 1
        assert made.shown.count("slots_taken_from_not_signed_in") == 1
        made.target.addresses = (made.broker,)
        await ask(second)
        third = await trio.open_tcp_stream(*made.address)
        await ask(third)
        assert await ends(second)  # it has a broker by now, and has not signed in
        assert made.closed(CloseCause.NOT_SIGNED_IN) == 2
        for client in (first, second, third):
            await client.aclose()
        await made.server.wait_empty()


async def test_where_nobody_signs_in_who_waits_for_its_broker_keeps_its_slot() -> None:
    async with world(connections_max=2, connect_wait_s_max=30) as made:
        gone = await trio.open_tcp_listeners(0, host="127.0.0.1")
        dead = gone[0].socket.getsockname()
        await gone[0].aclose()
        made.target.addresses = (dead,)
        waiting = [await trio.open_tcp_stream(*made.address) for _ in range(2)]
        await until(lambda: made.server.connections == 2)
        async with await trio.open_tcp_stream(*made.address) as refused:
            assert await ends(refused)
        assert (made.refused(RefusalReason.FULL), made.closed(CloseCause.NOT_SIGNED_IN)) == (1, 0)
        made.target.addresses = (made.broker,)
        for client in waiting:
            await ask(client)
            await client.aclose()


async def test_a_newcomer_takes_the_slot_of_a_silent_client_in_its_tls_handshake(tmp_path: Path) -> None:
    server_context, client_context = contexts(tmp_path)
    async with world(connections_max=1, client_tls=server_context) as made:
        silent = await trio.open_tcp_stream(*made.address)
        await until(lambda: made.server.connections == 1)
        plain = await trio.open_tcp_stream(*made.address)
        async with trio.SSLStream(plain, client_context, server_hostname="localhost", https_compatible=True) as client:
            await ask(client)
            assert await ends(silent)
            await silent.aclose()
        await made.server.wait_empty()
        assert made.closed(CloseCause.NOT_SIGNED_IN) == 1


async def test_newcomers_take_slots_of_a_hung_broker(mock_clock: MockClock) -> None:
    async with world(connections_max=2) as made, trio.open_nursery() as nursery:
        stuck = await served(made, 2)
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
        async with await trio.open_tcp_stream(*made.address) as refused:
            assert await ends(refused)
        await passes(mock_clock, 4 * LOOK_S)
        async with await trio.open_tcp_stream(*made.address) as newcomer:
            await ask(newcomer)
            assert made.closed(CloseCause.BROKER_HUNG) == 1
            async with await trio.open_tcp_stream(*made.address) as refused:
                assert await ends(refused)
        assert made.shown == ["connections_full", "slots_taken_from_hung_broker"]
        for client in stuck:
            await client.aclose()
        nursery.cancel_scope.cancel()


async def test_an_address_has_so_many_connections() -> None:
    async with world(slots=SlotLimits(connections_max=10, connections_max_per_address=2)) as made:
        clients = await served(made, 2)
        for _ in range(3):
            async with await trio.open_tcp_stream(*made.address) as refused:
                assert await ends(refused)
        assert made.refused(RefusalReason.ADDRESS_CONNECTIONS) == 3
        assert made.shown == ["connection_refused"]
        assert made.logs[-1]["key"] == "proxy.connections.max.per.ip"
        await clients.pop().aclose()
        await until(lambda: made.server.connections == 1)
        async with await trio.open_tcp_stream(*made.address) as client:
            await ask(client)
        await clients.pop().aclose()


async def test_an_address_connects_so_often() -> None:
    async with world(slots=SlotLimits(connections_max=10, rate_max_per_address=1)) as made:
        for _ in range(5):
            async with await trio.open_tcp_stream(*made.address) as client:
                await ask(client)
        async with await trio.open_tcp_stream(*made.address) as refused:
            assert await ends(refused)
        assert made.refused(RefusalReason.ADDRESS_RATE) >= 1
        assert made.shown == ["connection_refused"]
        assert [entry["key"] for entry in made.logs if "key" in entry] == ["proxy.connections.rate.per.ip"]


async def test_a_drain_goes_on_to_wait_for_answers(mock_clock: MockClock) -> None:
    async with world() as made:
        made.answering = trio.Event()
        async with await trio.open_tcp_stream(*made.address) as client:
            await client.send_all(ASK)
            await made.held.wait()
            made.server.drain()
            await passes(mock_clock, 3600)
            made.answering.set()
            assert await exactly(client, len(ANSWER)) == ANSWER
            assert await ends(client)
        await made.server.wait_empty()
        assert made.closed(CloseCause.DRAIN) == 1
