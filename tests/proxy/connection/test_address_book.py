"""Listeners that stand for brokers: bound in time, at the port that was configured, following brokers that move."""

import dataclasses
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
import trio.testing
from trio.testing import MockClock

from metrics.troubles import TroubleId
from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import RETRY_S, AddressBook, Target
from proxy.readiness import Readiness
from proxy.settings import ProxyConfig
from storage.config.model import HostPort
from tools.demo.kafka_cluster import free_port

ONE, TWO = NodeAddress(1, "kafka-1", 9092), NodeAddress(2, "kafka-2", 9092)


def proxy_config(**changes: Any) -> ProxyConfig:
    """Any free ports on the loopback address, save what is changed."""
    config = ProxyConfig(
        listen=HostPort("127.0.0.1", 0),
        advertised_host="127.0.0.1",
        broker_port_start=0,
        broker_ports={},
        held_bytes_max=1 << 24,
    )
    return dataclasses.replace(config, **changes)


@asynccontextmanager
async def open_book(
    *, readiness: Readiness | None = None, ports: Mapping[int, int] | None = None, **changes: Any
) -> AsyncIterator[tuple[AddressBook, list[Target]]]:
    """A book, and the targets whose listeners were told to accept; what they accept is greeted with a node id."""
    targets: list[Target] = []

    async def serve(listeners: list[trio.SocketListener], target: Target) -> None:
        targets.append(target)

        async def greet(stream: trio.SocketStream) -> None:
            await stream.send_all(str(target.node_id).encode())

        await trio.serve_listeners(greet, listeners)

    async with trio.open_nursery() as nursery:
        yield (
            AddressBook(proxy_config(**changes), nursery, serve, readiness=readiness or Readiness(), ports=ports),
            targets,
        )
        nursery.cancel_scope.cancel()


async def greeting(address: tuple[str, int]) -> bytes:
    async with await trio.open_tcp_stream(*address) as stream:
        return bytes(await stream.receive_some())


async def test_a_listener_is_bound_when_advertise_returns() -> None:
    async with open_book() as (book, _):
        told = await book.advertise([ONE, TWO])
        # No turn of the loop in between: a client may connect the moment it reads the answer.
        for host, port in told.values():
            socket.create_connection((host, port), timeout=1).close()
        assert book.advertised == told
        assert await greeting(told[1]) == b"1"
        assert await greeting(told[2]) == b"2"


async def test_a_broker_keeps_its_listener() -> None:
    async with open_book() as (book, targets):
        first = await book.advertise([ONE])
        assert await book.advertise([ONE, TWO, ONE]) == {**first, 2: book.advertised[2]}
        await trio.testing.wait_all_tasks_blocked()
        assert len(targets) == 2


async def test_many_that_ask_at_once_get_one_listener() -> None:
    told: list[dict[int, tuple[str, int]]] = []
    async with open_book() as (book, targets):

        async def ask() -> None:
            told.append(await book.advertise([ONE, TWO]))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert [told[0]] * 10 == told
        assert len(targets) == 2


async def test_ports_are_the_rules_or_a_brokers_own_and_clients_get_the_advertised() -> None:
    port = free_port()
    async with open_book(broker_port_start=port - 2, broker_id_min=1000) as (book, _):
        assert await book.advertise([NodeAddress(1002, "k", 1)]) == {1002: ("127.0.0.1", port)}
    port = free_port()
    async with open_book(broker_port_start=1, broker_ports={2: port}) as (book, _):
        assert await book.advertise([TWO]) == {2: ("127.0.0.1", port)}
    advertised: dict[str, Any] = {"advertised_host": "broker-$(nodeId).example.org", "advertised_port_start": 30000}
    async with open_book(**advertised, broker_id_min=1) as (book, _):
        told = await book.advertise([ONE, TWO])
        assert told == {1: ("broker-1.example.org", 30000), 2: ("broker-2.example.org", 30001)}


async def test_a_port_out_of_range_names_broker_and_key() -> None:
    # An advertised port out of range failed before: clients were told port 66000.
    out_of_range: list[tuple[dict[str, Any], str]] = [
        ({"broker_port_start": 65000, "broker_id_min": 0}, "proxy.broker.ports"),
        ({"broker_port_start": 20000, "broker_id_min": 1001}, "proxy.broker.id.min"),
        ({"advertised_port_start": 65000}, "proxy.advertised.port.start"),
        ({"advertised_port_start": 20000, "broker_id_min": 1001}, "proxy.advertised.port.start"),
    ]
    for changes, key in out_of_range:
        readiness = Readiness()
        async with open_book(readiness=readiness, **changes) as (book, targets):
            assert await book.advertise([NodeAddress(1000, "k", 1)]) == {}
            assert key in readiness.by_number(TroubleId.BROKER_WITHHELD)[1000]
            assert any("broker 1000: " in complaint for complaint in readiness.complaints)
            await trio.testing.wait_all_tasks_blocked()
            assert (targets, book.advertised) == ([], {}), changes


async def test_a_taken_port_withholds_its_broker_alone() -> None:
    # Failed before: an answer that named this broker reached nobody, so no client could bootstrap.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with open_book(broker_ports={1: int(taken.getsockname()[1])}) as (book, _):
            told = await book.advertise([ONE, TWO])
            assert told.keys() == {2}
            assert await greeting(told[2]) == b"2"


async def test_a_taken_port_is_tried_again(mock_clock: MockClock) -> None:
    readiness = Readiness()
    with socket.create_server(("127.0.0.1", 0)) as taken, structlog.testing.capture_logs() as logs:
        port = int(taken.getsockname()[1])
        async with open_book(readiness=readiness, broker_ports={1: port}) as (book, _):
            assert await book.advertise([ONE]) == {}
            mock_clock.jump(RETRY_S)
            await book.retry_withheld()
            taken.close()
            # One attempt for all the answers of a moment.
            assert await book.advertise([ONE]) == {}
            mock_clock.jump(RETRY_S)
            await book.retry_withheld()
            assert await book.advertise([ONE]) == {1: ("127.0.0.1", port)}
            assert (book.withheld, readiness.complaints) == ({}, [])
    events = [entry["event"] for entry in logs]
    assert events == ["broker_withheld", "trouble_begun", "trouble_ended", "broker_listening"]


async def test_the_brokers_that_are_followed_have_listeners_before_any_answer_names_them() -> None:
    # Failed before: after a restart clients that remembered a broker were refused until somebody bootstrapped.
    async with open_book() as (book, _):
        await book.follow([ONE, TWO])
        assert await greeting(book.advertised[1]) == b"1"
        await book.follow([TWO])
        assert book.advertised.keys() == {2}


async def test_brokers_get_the_free_ports_of_the_last_run() -> None:
    async with open_book() as (book, _):
        await book.follow([ONE, TWO])
        before, ports = book.advertised, dict(book.free_ports)
    async with open_book(ports=ports) as (book, _):
        await book.follow([ONE])
        await book.follow([ONE, TWO])
        assert book.advertised == before


async def test_a_broker_that_left_has_no_listener() -> None:
    async with open_book() as (book, _):
        told = await book.advertise([ONE, TWO])
        book.retire_all_but([2])
        assert book.advertised == {2: told[2]}
        with pytest.raises(OSError, match=str(told[1][1])):
            await trio.open_tcp_stream(*told[1])
        assert await greeting(told[2]) == b"2"


async def test_a_broker_that_comes_back_at_once_has_its_port_again() -> None:
    # Failed before: with fixed ports its own listener, about to be closed, stood in the way; with free ones it got
    # another, and clients that remembered the old one knocked in vain.
    for ports in ({}, {1: free_port()}):
        async with open_book(broker_ports=ports) as (book, _):
            told = await book.advertise([ONE])
            book.retire_all_but([])
            assert await book.advertise([ONE]) == told
            assert await greeting(told[1]) == b"1"


async def test_a_broker_that_comes_back_to_a_taken_port_gets_another() -> None:
    async with open_book() as (book, _):
        told = await book.advertise([ONE])
        await trio.testing.wait_all_tasks_blocked()
        book.retire_all_but([])
        with socket.create_server(told[1]):
            again = await book.advertise([ONE])
            assert again != told
            assert await greeting(again[1]) == b"1"


async def test_a_withheld_broker_that_leaves_is_no_problem_any_more() -> None:
    readiness = Readiness()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with open_book(readiness=readiness, broker_ports={1: int(taken.getsockname()[1])}) as (book, _):
            await book.follow([ONE, TWO])
            assert readiness.by_number(TroubleId.BROKER_WITHHELD).keys() == {1}
            await book.follow([TWO])
            assert (book.withheld, readiness.by_number(TroubleId.BROKER_WITHHELD)) == ({}, {})


async def test_a_broker_that_moves_keeps_its_listener_and_new_connections_follow() -> None:
    async with open_book() as (book, targets):
        told = await book.advertise([ONE])
        await trio.testing.wait_all_tasks_blocked()
        with structlog.testing.capture_logs() as logs:
            assert await book.advertise([NodeAddress(1, "elsewhere", 9093)]) == told
        assert list(targets[0].addresses) == [("elsewhere", 9093)]
        assert [entry["event"] for entry in logs] == ["broker_moved"]
