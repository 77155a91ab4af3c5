"""Who gets a slot and who goes, by a clock of the test's and connections that show what it says."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import structlog

from metrics.meters import CloseCause, RefusalReason
from proxy.connection import slots as slots_module
from proxy.connection.slots import GRACE_S, LOOK_S, STUCK_S, Slot, SlotLimits, Slots
from proxy.connection.spells import SPELL_S, Spells


@dataclass
class Client:
    """One connection: what it shows, and why it was closed."""

    has_unanswered: bool = False
    asked: int = 0
    answered: int = 0
    is_answering: bool = False
    has_left: bool = False
    closed: CloseCause | None = None
    slot: Slot = field(init=False)
    has_ended: bool = False

    def close(self, cause: CloseCause) -> None:
        assert self.closed is None
        self.closed = cause

    def ask(self) -> None:
        self.asked += 1
        self.has_unanswered = True


class World:
    def __init__(self, connections_max: int = 4) -> None:
        self.now_s = 1000.0
        limits = SlotLimits(connections_max=connections_max)
        self.slots = Slots(limits, lambda: self.now_s, Spells(lambda: self.now_s))

    def come(self, address: str = "192.0.2.1") -> Client | RefusalReason:
        client = Client()
        slot = self.slots.take(address, client.close, lambda: client.has_left)
        if isinstance(slot, RefusalReason):
            return slot
        client.slot = slot
        return client

    def connected(self, *, broker: str = "one", signed_in: bool = True, address: str = "192.0.2.1") -> Client:
        client = self.come(address)
        assert isinstance(client, Client)
        client.slot.occupant = client  # type: ignore[assignment]  # all that is asked of one
        client.slot.broker = broker
        if signed_in:
            self.slots.on_signed_in(client.slot)
        return client

    def pass_time(self, seconds: float) -> None:
        """Looks as the server does: a last one when the time is over."""
        for _ in range(int(seconds / LOOK_S)):
            self.now_s += LOOK_S
            list(self.slots.look_round())

    def release(self, client: Client) -> None:
        self.slots.release(client.slot)


@pytest.fixture
def world() -> World:
    return World()


def causes(clients: Sequence[Client]) -> list[CloseCause | None]:
    return [client.closed for client in clients]


def test_half_is_for_clients_that_have_not_signed_in_and_the_oldest_of_them_goes(world: World) -> None:
    clients = [world.connected(signed_in=False) for _ in range(5)]
    gone = CloseCause.NOT_SIGNED_IN
    assert causes(clients) == [gone, gone, gone, None, None]
    assert world.slots.taken == 2


def test_those_that_have_signed_in_may_have_all(world: World) -> None:
    clients = [world.connected() for _ in range(4)]
    assert world.come() is RefusalReason.FULL
    assert causes(clients) == [None] * 4
    world.release(clients[0])
    assert isinstance(world.come(), Client)
    assert causes(clients) == [None] * 4


def test_half_is_rounded_up() -> None:
    for connections_max, unsigned_max in ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3)):
        world = World(connections_max)
        for _ in range(10):
            world.connected(signed_in=False)
        assert world.slots.taken == unsigned_max, f"{connections_max=}"


def test_when_all_are_taken_the_last_one_that_has_not_signed_in_goes(world: World) -> None:
    signed_in = [world.connected() for _ in range(3)]
    first = world.connected(signed_in=False)
    second = world.connected(signed_in=False)
    assert (first.closed, second.closed, causes(signed_in)) == (CloseCause.NOT_SIGNED_IN, None, [None] * 3)
    world.slots.on_signed_in(second.slot)
    assert world.come() is RefusalReason.FULL


def test_a_lower_limit_lets_nobody_in_until_enough_have_left(world: World) -> None:
    clients = [world.connected() for _ in range(3)]
    unsigned = world.connected(signed_in=False)
    world.slots.limits = SlotLimits(connections_max=2)
    assert world.come() is RefusalReason.FULL
    assert unsigned.closed is None
    for client in clients[:3]:
        world.release(client)
    assert isinstance(world.come(), Client)


def test_a_spell_is_said_when_it_begins_and_when_it_comes_back() -> None:
    now_s = 0.0
    spells = Spells(lambda: now_s)
    assert spells.begins("flood")
    for pause_s in (1.0, SPELL_S, SPELL_S):
        now_s += pause_s
        assert not spells.begins("flood")
    assert spells.begins("another")
    now_s += SPELL_S + 1
    assert spells.begins("flood")
    spells.end("flood")  # it may be known to be over
    spells.end("never began")
    assert spells.begins("flood")


# A broker that hangs.


def stuck(world: World, count: int, broker: str = "hung") -> list[Client]:
    clients = [world.connected(broker=broker) for _ in range(count)]
    for client in clients:
        client.ask()
    return clients


def test_a_hung_broker_keeps_half_at_most_when_others_come() -> None:
    world = World(connections_max=8)
    hung = stuck(world, 8)
    world.pass_time(STUCK_S)
    assert world.come() is RefusalReason.FULL
    world.pass_time(2 * LOOK_S)
    with structlog.testing.capture_logs() as logs:
        healthy = [world.connected(broker="healthy") for _ in range(4)]
    assert causes(hung) == [CloseCause.BROKER_HUNG] * 4 + [None] * 4
    assert [(entry["event"], entry["broker"]) for entry in logs] == [("slots_taken_from_hung_broker", "hung")]
    world.pass_time(2 * LOOK_S)
    assert world.come() is RefusalReason.FULL
    assert causes(healthy) == [None] * 4


def test_while_slots_are_free_a_wait_may_last(world: World) -> None:
    """A JoinGroup waits for minutes."""
    hung = stuck(world, 3)
    world.pass_time(600)
    assert isinstance(world.come(), Client)
    assert causes(hung) == [None] * 3


def test_the_broker_with_most_stuck_ones_gives_and_there_the_longest_wait() -> None:
    world = World(connections_max=8)
    waiting = stuck(world, 2, "rebalancing")
    world.pass_time(10)
    first = stuck(world, 3)
    world.pass_time(10)
    second = stuck(world, 3)
    world.pass_time(STUCK_S + 2 * LOOK_S)
    for _ in range(4):
        assert isinstance(world.connected(broker="healthy"), Client)
    gone = CloseCause.BROKER_HUNG
    assert causes([*waiting, *first, *second]) == [None, None, gone, gone, gone, gone, None, None]


def test_answers_in_parts_are_no_hanging_and_further_requests_no_answers() -> None:
    world = World(connections_max=2)
    slow, hung = stuck(world, 2)
    for _ in range(int(STUCK_S) * 2):
        slow.answered += 1
        hung.ask()
        world.pass_time(LOOK_S)
    assert world.come() is RefusalReason.FULL  # one of two is not more than half
    world.pass_time(STUCK_S + LOOK_S)
    assert isinstance(world.come(), Client)
    assert causes([slow, hung]) == [None, CloseCause.BROKER_HUNG]


def test_one_that_was_answered_since_the_last_look_stays() -> None:
    world = World(connections_max=1)
    (client,) = stuck(world, 1)
    world.pass_time(STUCK_S + 2 * LOOK_S)
    client.answered += 1
    assert world.come() is RefusalReason.FULL
    assert client.closed is None


# A client that has gone.


def test_a_client_may_wait_and_is_given_a_short_grace_once_it_has_gone(world: World) -> None:
    client = world.connected()
    client.ask()
    world.pass_time(3600)
    assert causes([client]) == [None]
    client.has_left = True
    world.pass_time(GRACE_S)
    assert causes([client]) == [None]
    world.pass_time(2 * LOOK_S)
    assert causes([client]) == [CloseCause.CLIENT]
    assert world.slots.taken == 0


def test_the_grace_begins_when_it_leaves_and_again_with_each_part_of_an_answer(world: World) -> None:
    client = world.connected()
    client.ask()
    world.pass_time(20)
    client.has_left = True
    for _ in range(5):
        world.pass_time(GRACE_S - LOOK_S)
        client.answered += 1
        assert client.closed is None
    client.is_answering = True
    world.pass_time(10 * GRACE_S)
    assert causes([client]) == [None]
    client.is_answering = False
    world.pass_time(LOOK_S)
    assert causes([client]) == [CloseCause.CLIENT]


# Idle ones.


def test_an_idle_connection_goes_and_one_with_an_unanswered_request_is_not_idle(world: World) -> None:
    world.slots.limits = SlotLimits(connections_max=4, idle_s_max=60)
    idle, waiting, busy = (world.connected() for _ in range(3))
    waiting.ask()
    for _ in range(7):
        busy.asked += 1
        busy.answered += 1
        world.pass_time(10)
    assert causes([idle, waiting, busy]) == [CloseCause.IDLE, None, None]
    waiting.has_unanswered = False
    waiting.answered += 1
    world.pass_time(59)
    assert causes([waiting]) == [None]
    world.pass_time(2)
    assert causes([waiting]) == [CloseCause.IDLE]


def test_one_that_has_not_reached_its_broker_is_not_looked_at(world: World) -> None:
    client = world.come()
    assert isinstance(client, Client)
    client.has_left = True
    world.pass_time(4000)
    assert client.closed is None


def test_a_round_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "LOOKS_IN_A_ROW_MAX", 3)
    world = World(connections_max=10)
    clients = [world.connected() for _ in range(7)]
    for client in clients:
        client.ask()
        client.has_left = True
    world.pass_time(GRACE_S)
    world.now_s += 2 * LOOK_S
    looking = world.slots.look_round()
    next(looking)
    assert causes(clients) == [CloseCause.CLIENT] * 3 + [None] * 4
    world.release(clients[3])
    assert len(list(looking)) == 1
    assert causes(clients) == [CloseCause.CLIENT] * 3 + [None] + [CloseCause.CLIENT] * 3


# Addresses.


def test_who_is_over_the_limits_of_its_address_takes_no_slot_from_another(world: World) -> None:
    world.slots.limits = SlotLimits(connections_max=4, connections_max_per_address=1)
    honest = world.connected(signed_in=False, address="192.0.2.1")
    other = world.connected(signed_in=False, address="192.0.2.2")
    assert world.come("192.0.2.2") is RefusalReason.ADDRESS_CONNECTIONS
    assert causes([honest, other]) == [None, None]
    world.release(other)
    world.connected(address="192.0.2.2")
    world.slots.limits = SlotLimits(connections_max=4, rate_max_per_address=1)
    refused = [world.come("192.0.2.3") for _ in range(7)]
    assert refused[-1] is RefusalReason.ADDRESS_RATE
