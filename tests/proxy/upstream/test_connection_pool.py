"""One connection for all who want it: one attempt at a time, its outcome shared, back-off between attempts."""

from itertools import pairwise

import pytest
import trio
import trio.testing

from protocol.client.errors import UpstreamConnectionError, UpstreamRefusedError
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import BrokerConnection, start_broker_connection
from proxy.upstream.shared_connection import PooledConnection
from tests.support.fake_kafka import FakeBroker
from tests.support.memory_transport import transport_pair
from tests.support.outcomes import outcomes

pytestmark = pytest.mark.autojump

SETTINGS = ClientSettings(bootstrap_servers=(), reconnect_backoff_s=0.05, reconnect_backoff_max_s=1.0)


class Opener:
    """Opens connections to a fake broker; first come the failures."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.attempts: list[float] = []
        self.failures: list[Exception] = []
        self.gate = trio.Event()
        self.gate.set()
        self._nursery = nursery

    async def __call__(self) -> BrokerConnection:
        self.attempts.append(trio.current_time())
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        ours, theirs = transport_pair()
        self._nursery.start_soon(FakeBroker().serve, theirs)
        return await start_broker_connection(ours, "b:1", SETTINGS, "role", self._nursery)


async def test_those_who_come_together_share_one_connection(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    async with outcomes() as got:
        got.start(pooled.get, opener, times=5)
    assert len(opener.attempts) == 1
    assert len(got.returned) == 5
    assert len({id(connection) for connection in got.returned}) == 1
    assert pooled.usable


async def test_those_who_come_together_share_one_failure(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    opener.failures, opener.gate = [UpstreamRefusedError("no", 58, True)], trio.Event()
    async with outcomes() as got:
        got.start(pooled.get, opener, times=5)
        await trio.testing.wait_all_tasks_blocked()
        opener.gate.set()
    assert {type(error) for error in got.raised} == {UpstreamRefusedError}
    told = [(str(error), getattr(error, "error_code", 0), getattr(error, "retriable", None)) for error in got.raised]
    assert told == [("no", 58, True)] * 5


async def test_attempts_are_spaced_by_a_back_off_that_doubles_up_to_its_limit(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    opener.failures = [UpstreamConnectionError("refused")] * 8
    for _ in range(8):
        with pytest.raises(UpstreamConnectionError):
            await pooled.get(opener)
    await pooled.get(opener)
    spaces = [round(after - before, 6) for before, after in pairwise(opener.attempts)]
    assert spaces == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert pooled.backoff_s == 0


async def test_closing_also_reaches_a_connection_that_is_being_opened(nursery: trio.Nursery) -> None:
    opener, pooled = Opener(nursery), PooledConnection(SETTINGS)
    opener.gate = trio.Event()
    async with outcomes() as got:
        got.start(pooled.get, opener)
        await trio.testing.wait_all_tasks_blocked()
        pooled.close()
        opener.gate.set()
    (error,) = got.raised
    assert isinstance(error, UpstreamConnectionError)
    assert "not this broker's address any more" in str(error)
    assert not pooled.usable
