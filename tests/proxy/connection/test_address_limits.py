"""Limits for each client address, by a clock of the test's."""

import pytest

from metrics.meters import RefusalReason
from proxy.connection import address_limits
from proxy.connection.address_limits import BURST_S, AddressLimits

HERE, THERE = "192.0.2.1", "192.0.2.2"


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.limits = AddressLimits(lambda: self.now_s)

    def admitted(self, address: str, attempts: int, *, rate_max: int | None) -> int:
        answers = [self.limits.refusal(address, connections_max=None, rate_max=rate_max) for _ in range(attempts)]
        assert set(answers) <= {None, RefusalReason.ADDRESS_RATE}
        return answers.count(None)


@pytest.fixture
def world() -> World:
    return World()


def test_an_address_has_so_many_connections_and_the_others_are_not_concerned(world: World) -> None:
    for _ in range(2):
        assert world.limits.refusal(HERE, connections_max=2, rate_max=None) is None
        world.limits.entered(HERE)
    assert world.limits.refusal(HERE, connections_max=2, rate_max=None) is RefusalReason.ADDRESS_CONNECTIONS
    assert world.limits.refusal(THERE, connections_max=2, rate_max=None) is None
    world.limits.left(HERE)
    assert world.limits.refusal(HERE, connections_max=2, rate_max=None) is None


def test_a_rate_lets_a_burst_pass_and_then_so_many_a_second(world: World) -> None:
    burst = int(10 * BURST_S)
    assert world.admitted(HERE, 1000, rate_max=10) == burst
    assert world.admitted(THERE, 1000, rate_max=10) == burst
    for _ in range(3):
        world.now_s += 1
        assert world.admitted(HERE, 1000, rate_max=10) == 10
    world.now_s += 3600
    assert world.admitted(HERE, 1000, rate_max=10) == burst


def test_the_table_forgets_who_came_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_limits, "ADDRESSES_MAX", 2)
    world = World()
    for address in (HERE, THERE):
        assert world.admitted(address, 1000, rate_max=1) == BURST_S
    assert world.admitted(HERE, 1, rate_max=1) == 0
    assert world.admitted("192.0.2.3", 1, rate_max=1) == 1
    assert world.admitted(HERE, 1, rate_max=1) == 0
    assert world.admitted(THERE, 1, rate_max=1) == 1
    # And the table has no room for a third.
    assert world.admitted("192.0.2.3", 1000, rate_max=1) == BURST_S
