from pathlib import Path

import pytest

from metrics.kip405 import Kip405Names
from metrics.meters import Direction, Meters
from metrics.registry import Registry, render
from tools.demo.steps import StepFailed
from tools.demo.tidegate_process import Counters, Tidegate, bootstrap_address, parse_counters


def test_the_counters_are_those_that_the_probes_feed_and_0_before() -> None:
    meters = Meters(Registry(Kip405Names.CURRENT))
    meters.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, 1000)
    meters.relay.on_relayed(Direction.CLIENT_TO_UPSTREAM, 7)
    meters.relay.on_tier_served(300)
    meters.tier.on_remote_fetch("orders", 200)
    meters.tier.on_remote_fetch("other", 100)
    _, exposition = render(meters.registry)
    assert parse_counters(exposition.decode(), "orders") - Counters(1, 2, 3) == Counters(999, 298, 197)
    assert parse_counters("# EOF\n", "orders") == Counters(0, 0, 0)


def test_the_bootstrap_address_is_in_the_ready_line() -> None:
    log = '{"event": "x"}\nready: bootstrap 127.0.0.1:4711, brokers 1, segments 9\n{"event": "y"}\n'
    assert bootstrap_address(log) == "127.0.0.1:4711"
    assert bootstrap_address("ready: bootstrap [::1]:4711, brokers 1, segments 9\n") == "[::1]:4711"
    with pytest.raises(StepFailed, match="not where"):
        bootstrap_address("ready?\n")


def test_a_tidegate_that_cannot_start_shows_its_last_lines(tmp_path: Path) -> None:
    demo = Tidegate(work=tmp_path, server_properties=tmp_path / "server.properties", bootstrap_servers="127.0.0.1:1")
    demo.stop()
    with pytest.raises(StepFailed, match="not started"):
        demo.wait_ready()
    demo.start()
    try:
        with pytest.raises(StepFailed, match=r"server\.properties"):  # there is none
            demo.wait_ready()
        with pytest.raises(StepFailed, match="does not answer"):
            demo.counters("orders")
    finally:
        demo.stop()
