"""Small rules of supervisor and workers: deaths, conditions of several, ends in words, what a worker's book asks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from metrics.troubles import TroubleId
from protocol.wire.addresses import NodeAddress
from proxy.readiness import Condition, ConditionName, ConditionState
from tests.support.tier_config_files import tier_file
from tidegate.changed_files import look
from tidegate.config import load
from tidegate.workers.channel import Channel, ChannelClosedError
from tidegate.workers.crew import BACKOFF_S, DEATHS_MAX, DEATHS_WINDOW_S, LONE_S, REST_S, Deaths
from tidegate.workers.supervisor import condition_of, stood_in_for, worst
from tidegate.workers.worker import SupervisorsBook, frozen, thawed

MET, DEGRADED, PENDING = ConditionState.MET, ConditionState.DEGRADED, ConditionState.PENDING
ONE, TWO = NodeAddress(1, "broker-1", 9092), NodeAddress(2, "broker-2", 9092)


def test_a_worker_starts_later_each_time_and_rests_after_five_deaths_in_a_minute() -> None:
    deaths = Deaths()
    assert [deaths.on_death(100.0 + number) for number in range(DEATHS_MAX)] == [*BACKOFF_S, REST_S]
    assert deaths.is_repeated


def test_deaths_that_are_a_minute_old_do_not_count() -> None:
    deaths = Deaths()
    for number in range(20):
        assert deaths.on_death(number * DEATHS_WINDOW_S / 3) <= BACKOFF_S[2]
    assert not deaths.is_repeated


def test_deaths_with_suspects_make_no_worker_rest() -> None:
    """It would refuse the honest ones among them."""
    deaths = Deaths()
    assert [deaths.on_death(100.0, suspects=2) for _ in range(9)] == [*BACKOFF_S, *[BACKOFF_S[-1]] * 5]
    assert (deaths.on_death(100.0, suspects=1), deaths.rests, deaths.is_repeated) == (LONE_S, False, True)
    assert deaths.on_death(100.0) == REST_S


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
    return {
        "state": stage,
        "ready": state is not PENDING and stage != "draining",
        "conditions": {"catalog": {"state": state.value, "reason": reason, "trouble": trouble}},
    }


def test_a_worker_that_is_down_beside_one_that_serves_keeps_nobody_from_being_ready() -> None:
    """A balancer that left the host for one worker's death would take its work from all the others."""
    loading, serves = report(PENDING, "the catalog is being loaded", "starting"), report(MET, "7 segments")
    for told, why in (
        ("starts again (killed by SIGKILL)", "starts again (killed by SIGKILL)"),
        ("has not answered for 5 s", "has not answered for 5 s"),
        (loading, "is not ready again yet"),
        (report(MET, "7 segments", "draining"), "is draining"),
        (report(DEGRADED, "the catalog is full"), None),
        (serves, None),
    ):
        assert stood_in_for({"0": told, "1": serves}, {"0"}) == ({} if why is None else {"0": why}), told
        assert stood_in_for({"0": told, "1": loading}, {"0"}) == {}
        alone = PENDING if why is not None else ConditionState(cast(Any, told)["conditions"]["catalog"]["state"])
        assert condition_of(told, ConditionName.CATALOG).state is alone
    # Those that have never died are waited for: a rollout would pass with a part of its workers.
    assert stood_in_for({"0": loading, "1": serves, "2": "is starting"}, set()) == {}


def test_a_configuration_comes_to_a_worker_as_the_supervisor_has_it(tmp_path: Path) -> None:
    file = tier_file(tmp_path, "proxy.connections.max=7\n")
    followed = load(file, {}), look([file])
    assert thawed(frozen(followed)) == followed


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
