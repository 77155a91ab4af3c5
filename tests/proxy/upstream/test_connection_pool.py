"""One connection for all who want it: one attempt at a time, its outcome shared, back-off between attempts."""

import pytest
import trio
import trio.testing

from protocol.client.connection import ClientSettings
from protocol.client.errors import UpstreamConnectionError, UpstreamRefusedError
from proxy.upstream.connection import BrokerConnection, PooledConnection, start_broker_connection
from tests.support.fake_kafka import FakeBroker
from tests.support.memory_transport import transport_pair

pytestmark = pytest.mark.autojump

SETTINGS = ClientSettings(bootstrap_servers=(), reconnect_backoff_s=0.05, reconnect_backoff_max_s=1.0)


class Opener:
    """Opens connections to a fake broker, or fails as often as it was told to."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.attempts: list[float] = []
        self.failures_left = 0
        self.gate = trio.Event()
        self.gate.set()
        self._nursery = nursery

    async def __call__(self) -> BrokerConnection:
        self.attempts.append(trio.current_time())
        await self.gate.wait()
        if self.failures_left:
            self.failures_left -= 1
            raise UpstreamConnectionError(f"attempt {len(self.attempts)} failed")
        ours, theirs = transport_pair()
        self._nursery.start_soon(FakeBroker().serve, theirs)
        return await start_broker_connection(ours, "b:1", SETTINGS, "role", self._nursery)


async def test_those_who_come_together_share_one_connection(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    found: list[BrokerConnection] = []

    async def get() -> None:
        found.append(await pooled.get(opener))

    async with trio.open_nursery() as getting:
        for _ in range(5):
            getting.start_soon(get)
    assert len(opener.attempts) == 1
    assert len({id(connection) for connection in found}) == 1
    assert pooled.usable


async def test_those_who_come_together_share_one_failure(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    opener.failures_left, opener.gate = 1, trio.Event()
    failures: list[str] = []

    async def get() -> None:
        with pytest.raises(UpstreamConnectionError) as caught:
            await pooled.get(opener)
        failures.append(str(caught.value))

    async with trio.open_nursery() as getting:
        for _ in range(5):
            getting.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        opener.gate.set()
    assert failures == ["attempt 1 failed"] * 5


async def test_attempts_are_spaced_by_a_back_off_that_doubles_up_to_its_limit(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    opener.failures_left = 8
    for _ in range(8):
        with pytest.raises(UpstreamConnectionError):
            await pooled.get(opener)
    await pooled.get(opener)
    spaces = [round(after - before, 6) for before, after in zip(opener.attempts, opener.attempts[1:], strict=False)]
    assert spaces == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert pooled.backoff_s == 0


async def test_a_lost_connection_is_replaced_at_once(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    first = await pooled.get(opener)
    first.abort()
    assert not pooled.usable
    second = await pooled.get(opener)
    assert second is not first
    assert second.usable


async def test_closing_also_reaches_a_connection_that_is_being_opened(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    opener.gate = trio.Event()

    async def get() -> None:
        with pytest.raises(UpstreamConnectionError, match="not this broker's address any more"):
            await pooled.get(opener)

    async with trio.open_nursery() as getting:
        getting.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        pooled.close()
        opener.gate.set()
    assert not pooled.usable


async def test_a_shared_refusal_keeps_its_error_code(nursery: trio.Nursery) -> None:
    pooled, gate, codes = PooledConnection(SETTINGS), trio.Event(), []

    async def refuse() -> BrokerConnection:
        await gate.wait()
        raise UpstreamRefusedError("no", 58, True)

    async def get() -> None:
        with pytest.raises(UpstreamRefusedError, match=r"^no$") as caught:
            await pooled.get(refuse)
        codes.append((caught.value.error_code, caught.value.retriable))

    async with trio.open_nursery() as getting:
        getting.start_soon(get)
        getting.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
    assert codes == [(58, True)] * 2
