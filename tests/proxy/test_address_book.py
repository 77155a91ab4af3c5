"""Listeners that stand for brokers: bound in time, at the port that was configured, following brokers that move."""

import dataclasses
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from protocol.addresses import NodeAddress
from proxy.address_book import AddressBook, AddressError, Target
from proxy.config.model import ProxyConfig, ReadPreference
from proxy.demo.kafka_cluster import free_port
from storage.config.model import HostPort

ONE, TWO = NodeAddress(1, "kafka-1", 9092), NodeAddress(2, "kafka-2", 9092)


def proxy_config(**changes: Any) -> ProxyConfig:
    """Any free ports on the loopback address, save what is changed."""
    config = ProxyConfig(
        listen=HostPort("127.0.0.1", 0),
        advertised_host="127.0.0.1",
        broker_port_start=0,
        broker_id_min=0,
        broker_ports={},
        advertised_port_start=None,
        read_prefer=ReadPreference.LOCAL,
        tls=None,
        tls_sni_pattern=None,
        connections_max=100,
        request_frame_bytes_max=1 << 20,
        response_held_bytes_max=1 << 20,
        inflight_requests_max=8,
        relay_rewrite_bytes_max=1 << 16,
        upstream_connect_timeout_ms=1000,
        drain_timeout_ms=1000,
    )
    return dataclasses.replace(config, **changes)


@asynccontextmanager
async def open_book(**changes: Any) -> AsyncIterator[tuple[AddressBook, list[Target]]]:
    """A book, and the targets whose listeners were told to accept; what they accept is greeted with a node id."""
    targets: list[Target] = []

    async def serve(listeners: list[trio.SocketListener], target: Target) -> None:
        targets.append(target)

        async def greet(stream: trio.SocketStream) -> None:
            await stream.send_all(str(target.node_id).encode())

        await trio.serve_listeners(greet, listeners)

    async with trio.open_nursery() as nursery:
        yield AddressBook(proxy_config(**changes), nursery, serve), targets
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


async def test_broker_n_listens_at_start_plus_n_minus_the_least_id() -> None:
    port = free_port()
    async with open_book(broker_port_start=port - 2, broker_id_min=1000) as (book, _):
        assert await book.advertise([NodeAddress(1002, "k", 1)]) == {1002: ("127.0.0.1", port)}


async def test_a_port_of_its_own_wins_over_the_rule() -> None:
    port = free_port()
    async with open_book(broker_port_start=1, broker_ports={2: port}) as (book, _):
        assert await book.advertise([TWO]) == {2: ("127.0.0.1", port)}


async def test_clients_are_told_the_advertised_host_and_port() -> None:
    async with open_book(
        advertised_host="broker-$(nodeId).example.org", advertised_port_start=30000, broker_id_min=1
    ) as (book, _):
        assert await book.advertise([ONE, TWO]) == {
            1: ("broker-1.example.org", 30000),
            2: ("broker-2.example.org", 30001),
        }


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"broker_port_start": 65000, "broker_id_min": 0}, "proxy.broker.ports"),
        ({"broker_port_start": 20000, "broker_id_min": 1001}, "proxy.broker.id.min"),
        ({"advertised_port_start": 65000}, "proxy.advertised.port.start"),
        ({"advertised_port_start": 20000, "broker_id_min": 1001}, "proxy.advertised.port.start"),
    ],
)
async def test_a_port_out_of_range_names_broker_and_key(changes: dict[str, Any], key: str) -> None:
    # An advertised port out of range failed before: clients were told port 66000.
    async with open_book(**changes) as (book, targets):
        with pytest.raises(AddressError, match=key) as caught:
            await book.advertise([NodeAddress(1000, "k", 1)])
        assert "broker 1000" in str(caught.value)
        await trio.testing.wait_all_tasks_blocked()
        assert targets == []
        assert book.advertised == {}


@pytest.mark.parametrize("by_rule", [True, False])
async def test_a_taken_port_names_broker_address_and_key(by_rule: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        changes: dict[str, Any] = {"broker_port_start": port - 1} if by_rule else {"broker_ports": {1: port}}
        key = "proxy.broker.port.start" if by_rule else "proxy.broker.ports"
        async with open_book(**changes) as (book, _):
            with pytest.raises(AddressError, match=f"broker 1: .*127.0.0.1:{port}.* {key}"):
                await book.advertise([ONE])


async def test_a_taken_port_is_tried_again_at_the_next_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        async with open_book(broker_ports={1: port}) as (book, _):
            with pytest.raises(AddressError):
                await book.advertise([ONE])
            taken.close()
            assert await book.advertise([ONE]) == {1: ("127.0.0.1", port)}


async def test_a_broker_that_moves_keeps_its_listener_and_new_connections_follow() -> None:
    async with open_book() as (book, targets):
        told = await book.advertise([ONE])
        await trio.testing.wait_all_tasks_blocked()
        with structlog.testing.capture_logs() as logs:
            assert await book.advertise([NodeAddress(1, "elsewhere", 9093)]) == told
        assert list(targets[0].addresses) == [("elsewhere", 9093)]
        assert [entry["event"] for entry in logs] == ["broker_moved"]


async def test_a_broker_that_left_has_no_listener() -> None:
    async with open_book() as (book, _):
        told = await book.advertise([ONE, TWO])
        book.retire_all_but([2])
        assert book.advertised == {2: told[2]}
        with pytest.raises(OSError, match=str(told[1][1])):
            await trio.open_tcp_stream(*told[1])
        assert await greeting(told[2]) == b"2"


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_broker_that_comes_back_at_once_has_its_port_again(fixed: bool) -> None:
    # Failed before: with fixed ports its own listener, about to be closed, stood in the way; with free ones it got
    # another, and clients that remembered the old one knocked in vain.
    async with open_book(**({"broker_ports": {1: free_port()}} if fixed else {})) as (book, _):
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
