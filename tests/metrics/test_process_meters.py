"""Health, configuration, certificates, the loop and the process."""

import importlib.metadata
import platform

from metrics.meters import Meters, ReloadOutcome
from proxy.readiness import ConditionState
from tests.support.for_each import for_each


def value(meters: Meters, name: str, **labels: str) -> float | None:
    return meters.registry.sample_value(f"tidegate_{name}", labels)


def states(meters: Meters, condition: str) -> dict[str, float | None]:
    return {state: value(meters, "condition_state", condition=condition, state=state) for state in ConditionState}


@for_each("state", ConditionState)
def test_one_state_of_a_condition_holds(meters: Meters, state: ConditionState) -> None:
    meters.health.on_condition("tier", "degraded")
    meters.health.on_condition("tier", state)
    assert states(meters, "tier") == {possible: float(possible is state) for possible in ConditionState}


def test_a_refused_reload_leaves_the_time_of_the_last_good_one(meters: Meters) -> None:
    meters.config.on_reload(ReloadOutcome.OK, 100.0, 2)
    meters.config.on_reload(ReloadOutcome.REFUSED, 200.0, 2)
    assert {outcome: value(meters, "config_reloads_total", outcome=outcome) for outcome in ReloadOutcome} == {
        "ok": 1,
        "refused": 1,
        "unchanged": 0,
    }
    assert value(meters, "config_reload_timestamp_seconds") == 100.0
    assert value(meters, "config_restart_needed") == 2


def test_the_stall_maximum_forgets_after_600_wakings(meters: Meters) -> None:
    meters.loop.on_woken(3.0)
    for _ in range(599):
        meters.loop.on_woken(0.001)
    assert meters.registry.sample_value("tidegate_loop_stall_max_seconds") == 3.0
    meters.loop.on_woken(0.001)
    assert meters.registry.sample_value("tidegate_loop_stall_max_seconds") == 0.001


def test_the_build_is_named() -> None:
    version = importlib.metadata.version("tidegate")
    assert value(Meters(), "build_info", version=version, python=platform.python_version()) == 1
