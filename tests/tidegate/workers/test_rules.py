"""Small rules of supervisor and workers: deaths, conditions of several, ends in words, what a worker's book asks."""

from collections.abc import Mapping
from typing import Any, cast

from metrics.troubles import TroubleId
from protocol.wire.addresses import NodeAddress
from proxy.readiness import Condition, ConditionName, ConditionState
from tidegate.workers.channel import Channel, ChannelClosedError
from tidegate.workers.crew import BACKOFF_S, DEATHS_MAX, DEATHS_WINDOW_S, Deaths
from tidegate.workers.supervisor import condition_of, worst
from tidegate.workers.worker import SupervisorsBook

MET, DEGRADED, PENDING = ConditionState.MET, ConditionState.DEGRADED, ConditionState.PENDING
ONE, TWO = NodeAddress(1, "broker-1", 9092), NodeAddress(2, "broker-2", 9092)


def test_a_worker_starts_later_each_time_and_not_after_five_deaths_in_a_minute() -> None:
    deaths = Deaths()
    assert [deaths.on_death(100.0 + number) for number in range(DEATHS_MAX)] == [*BACKOFF_S, None]


def test_deaths_that_are_a_minute_old_do_not_count() -> None:
    deaths = Deaths()
    for number in range(20):
        pause_s = deaths.on_death(number * DEATHS_WINDOW_S / 3)
        assert pause_s is not None
        assert pause_s <= BACKOFF_S[2]


def test_a_condition_of_several_is_the_worst() -> None:
    fine, slow = Condition(MET, "fine"), Condition(DEGRADED, "slow", TroubleId.BROKER_SILENT)
    starts, waits = (Condition(PENDING, word, TroubleId.STARTING) for word in ("starts", "waits"))
    fails = Condition(PENDING, "fails", TroubleId.TASK_FAILS)
    for states, expected in (
        ({"a": fine, "b": Condition(MET, "fine too")}, fine),
        ({"a": fine, "b": slow}, Condition(DEGRADED, "b: slow", TroubleId.BROKER_SILENT)),
        ({"a": slow, "b": starts}, Condition(PENDING, "b: starts", TroubleId.STARTING)),
        ({"a": starts, "b": waits, "c": starts}, Condition(PENDING, "a, c: starts; b: waits", TroubleId.STARTING)),
        ({"a": fails, "b": starts}, Condition(PENDING, "a: fails; b: starts", TroubleId.TASK_FAILS)),
    ):
        assert worst(states) == expected


def report(state: ConditionState, reason: str, stage: str = "serving") -> Mapping[str, Any]:
    trouble = None if state is MET else "starting"
    return {"state": stage, "conditions": {"catalog": {"state": state.value, "reason": reason, "trouble": trouble}}}


def test_a_worker_that_starts_again_beside_others_only_degrades() -> None:
    """A balancer that left the host for one worker's death would take its work from all the others."""
    for told, alone, beside_others in (
        ("starts again (killed by SIGKILL)", PENDING, DEGRADED),
        (report(PENDING, "the catalog is being loaded", "starting"), PENDING, DEGRADED),
        (report(MET, "7 segments", "draining"), PENDING, DEGRADED),
        (report(DEGRADED, "the catalog is full"), DEGRADED, DEGRADED),
        (report(MET, "7 segments"), MET, MET),
    ):
        states = [condition_of(told, ConditionName.CATALOG, is_excused=excused).state for excused in (False, True)]
        assert states == [alone, beside_others], told


class ScriptedChannel:
    """A supervisor that listens for these brokers."""

    def __init__(self, **listens: int) -> None:
        self.listens = {int(name.removeprefix("broker")): port for name, port in listens.items()}
        self.asked: list[list[int]] = []
        self.has_gone = False

    async def ask(self, what: str, nodes: list[list[Any]]) -> Mapping[str, Any]:
        assert what == "advertise"
        self.asked.append([node[0] for node in nodes])
        if self.has_gone:
            raise ChannelClosedError
        return {"told": [[node[0], "proxy", self.listens[node[0]]] for node in nodes if node[0] in self.listens]}


def book_over(channel: ScriptedChannel) -> SupervisorsBook:
    return SupervisorsBook(cast(Channel, channel))


async def test_the_supervisor_is_asked_once_for_each_broker_and_address() -> None:
    channel = ScriptedChannel(broker1=1001, broker2=1002)
    book = book_over(channel)
    assert await book.advertise([ONE]) == {1: ("proxy", 1001)}
    assert await book.advertise([ONE, TWO]) == {1: ("proxy", 1001), 2: ("proxy", 1002)}
    assert await book.advertise([ONE, TWO]) == {1: ("proxy", 1001), 2: ("proxy", 1002)}
    # Only an answer that names the new address tells the supervisor where the listener's connections go from now on.
    await book.advertise([NodeAddress(1, "moved", 9092)])
    assert channel.asked == [[1], [2], [1]]


async def test_without_a_supervisor_what_was_told_holds_until_the_drain_ends() -> None:
    channel = ScriptedChannel(broker1=1001)
    book = book_over(channel)
    await book.advertise([ONE])
    channel.has_gone = True
    await book.follow([ONE, TWO])
    assert await book.advertise([ONE, TWO]) == {1: ("proxy", 1001)}
