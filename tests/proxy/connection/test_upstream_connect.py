"""Opening a client's upstream connection: tried again while no broker answers, and for no longer than that."""

import random
import ssl
from collections.abc import Iterable
from functools import partial
from itertools import product
from typing import cast

import pytest
import structlog
import trio
import trio.testing

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.errors import UpstreamConnectionError, UpstreamError
from proxy.connection import upstream_connect
from proxy.connection.address_book import Target
from proxy.connection.upstream_connect import FAILED_AGE_S_MAX, UpstreamConnector, has_left
from proxy.upstream.first_address import NEXT_ATTEMPT_S
from proxy.upstream.transport import Transport
from tests.support.waiting import until
from tidegate.config.model import SERVE_KEYS

pytestmark = pytest.mark.autojump

ONE, TWO = ("broker-1", 9092), ("broker-2", 9092)
CONNECTION = cast(Transport, object())


class Upstream:
    """Brokers that answer or do not, and what was asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, known: Iterable[tuple[str, int]] = (ONE, TWO)) -> None:
        self.answering: set[tuple[str, int]] = set()
        self.silent: set[tuple[str, int]] = set()
        self.attempts_s: list[float] = []
        self.asked: list[tuple[str, int]] = []
        self.has_left = False
        self.registry = Registry()
        self.connector = UpstreamConnector(None, lambda: known, Meters(self.registry).relay)
        monkeypatch.setattr(upstream_connect, "open_transport", self._open_transport)
        monkeypatch.setattr(trio, "open_tcp_stream", self._open_tcp_stream)

    async def open(self, node_id: int | None = 1, *, wait_s_max: float = 30.0) -> tuple[str, int]:
        opened, address = await self.connector.open(
            Target(node_id, (ONE,)), wait_s_max=wait_s_max, has_left=lambda: self.has_left
        )
        assert opened is CONNECTION
        return address

    async def fails(self, node_id: int | None = 1, *, wait_s_max: float = 30.0, match: str | None = None) -> None:
        with pytest.raises(UpstreamError, match=match):
            await self.open(node_id, wait_s_max=wait_s_max)

    @property
    def waiting(self) -> float:
        return self.registry.sample_value("tidegate_upstream_connect_waits", {}) or 0

    async def _open_transport(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> Transport:
        self.attempts_s.append(trio.current_time())
        if not await self._answers((host, port)):
            raise UpstreamConnectionError(f"cannot connect to {host}:{port}")
        return CONNECTION

    async def _open_tcp_stream(self, host: str, port: int) -> trio.abc.Stream:
        self.asked.append((host, port))
        if not await self._answers((host, port)):
            raise OSError("refused")
        return trio.testing.memory_stream_pair()[0]

    async def _answers(self, address: tuple[str, int]) -> bool:
        await trio.lowlevel.checkpoint()
        if address in self.silent:
            await trio.sleep_forever()
        return address in self.answering


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Upstream:
    return Upstream(monkeypatch)


async def test_while_no_broker_answers_it_is_tried_again_until_one_does(upstream: Upstream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstream.open)
        await trio.sleep(20)
        assert upstream.waiting == 1
        upstream.answering = {ONE}
    assert upstream.waiting == 0
    assert 20 < trio.current_time() <= 21
    pauses = [after - before for before, after in zip(upstream.attempts_s, upstream.attempts_s[1:], strict=False)]
    assert 0.05 <= pauses[0] <= 0.1
    assert max(pauses) <= 1.0
    assert all(pause >= 0.5 for pause in pauses[5:])


async def test_after_its_time_the_client_is_given_up_with_the_reason(upstream: Upstream) -> None:
    await upstream.fails(wait_s_max=5, match="broker-1:9092")
    assert trio.current_time() == pytest.approx(5, abs=0.5)
    assert upstream.waiting == 0


async def test_when_another_broker_answers_the_client_is_sent_on_at_once(upstream: Upstream) -> None:
    upstream.answering = {TWO}
    await upstream.fails(match="broker-1:9092")
    assert trio.current_time() == 0


async def test_the_bootstrap_listener_tries_every_known_broker(upstream: Upstream) -> None:
    upstream.answering = {TWO}
    assert await upstream.open(None) == TWO
    assert upstream.asked == []


async def test_a_server_that_drops_packets_costs_a_moment_and_is_tried_last(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Failed before: ten seconds for every client, which is all that librdkafka waits.
    monkeypatch.setattr(random, "shuffle", lambda addresses: None)
    upstream.silent, upstream.answering = {ONE}, {TWO}
    assert await upstream.open(None) == TWO
    assert trio.current_time() == pytest.approx(NEXT_ATTEMPT_S)
    for _ in range(3):
        assert await upstream.open(None) == TWO
    assert trio.current_time() == pytest.approx(NEXT_ATTEMPT_S)
    await trio.sleep(FAILED_AGE_S_MAX)
    upstream.silent, upstream.answering = set(), {ONE, TWO}
    assert await upstream.open(None) == ONE


async def test_who_answers_is_asked_once_for_all_who_wait(upstream: Upstream) -> None:
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(partial(upstream.fails, wait_s_max=3))
            await trio.sleep(2)
            assert upstream.waiting == 50
    assert len(upstream.asked) <= 8
    assert [entry["event"] for entry in logs] == ["clients_wait_for_upstream"]


async def test_brokers_that_do_not_even_refuse_hold_nobody_longer(upstream: Upstream) -> None:
    upstream.silent = {ONE, TWO}
    await upstream.fails(wait_s_max=15, match="does not answer within")
    assert trio.current_time() <= 15 + 1


async def test_by_default_nobody_is_held_until_librdkafka_gives_up(upstream: Upstream) -> None:
    """It waits 10 s for its first answer. Failed before: it was held 30 s, and took brokers for older than 0.10."""
    [default_ms] = (key.default_value for key in SERVE_KEYS.keys if key.name == "proxy.upstream.connect.timeout.ms")
    for silent, node_id in product((set(), {ONE}, {ONE, TWO}), (None, 1)):
        upstream.silent, began_s = silent, trio.current_time()
        await upstream.fails(node_id, wait_s_max=default_ms / 1000)
        assert trio.current_time() - began_s < 10, f"{silent=}, {node_id=}"


async def test_a_client_that_has_gone_is_not_waited_for(upstream: Upstream) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upstream.fails)
        await trio.sleep(5)
        upstream.has_left = True
    assert trio.current_time() <= 7
    assert upstream.waiting == 0


async def test_a_client_is_seen_to_have_gone_behind_what_it_sent() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    client = await trio.open_tcp_stream(*listener.socket.getsockname())
    accepted = await listener.accept()
    await client.send_all(b"a request")
    assert not has_left(accepted.socket)
    await client.aclose()
    await until(lambda: has_left(accepted.socket))
    await accepted.aclose()
    assert has_left(accepted.socket)
    await listener.aclose()


async def test_bootstrap_connections_are_spread_over_the_servers(upstream: Upstream) -> None:
    # Failed before: all went to the first server.
    upstream.answering = {ONE, TWO}
    opened = {
        await upstream.connector.open(Target(None, (ONE, TWO)), wait_s_max=0, has_left=lambda: False) for _ in range(50)
    }
    assert {address for _, address in opened} == {ONE, TWO}
