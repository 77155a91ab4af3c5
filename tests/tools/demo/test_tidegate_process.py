from pathlib import Path

import pytest

from metrics.kip405 import Kip405Names
from metrics.meters import Direction, Meters
from metrics.registry import Registry, render
from proxy.config import load
from tools.demo.steps import StepFailed
from tools.demo.tidegate_process import Counters, Tidegate, bootstrap_address, parse_counters


def tidegate(work: Path) -> Tidegate:
    return Tidegate(
        work=work, server_properties=work / "server.properties", bootstrap_servers="127.0.0.1:9092,127.0.0.1:9093"
    )


def test_the_counters_are_those_that_the_probes_feed() -> None:
    meters = Meters(Registry(Kip405Names.CURRENT))
    meters.relay.on_relayed(Direction.UPSTREAM_TO_CLIENT, 1000)
    meters.relay.on_relayed(Direction.CLIENT_TO_UPSTREAM, 7)
    meters.relay.on_tier_served(300)
    meters.tier.on_remote_fetch("orders", 200)
    meters.tier.on_remote_fetch("other", 100)
    _, exposition = render(meters.registry)
    assert parse_counters(exposition.decode(), "orders") == Counters(1000, 300, 200)


def test_counters_that_are_not_there_yet_are_zero() -> None:
    assert parse_counters("# EOF\n", "orders") == Counters(0, 0, 0)


def test_counters_are_subtracted_one_by_one() -> None:
    assert Counters(10, 20, 30) - Counters(1, 2, 3) == Counters(9, 18, 27)


def test_the_bootstrap_address_is_in_the_ready_line() -> None:
    log = '{"event": "x"}\nready: bootstrap 127.0.0.1:4711, brokers 1, segments 9\n{"event": "y"}\n'
    assert bootstrap_address(log) == "127.0.0.1:4711"
    assert bootstrap_address("ready: bootstrap [::1]:4711, brokers 1, segments 9\n") == "[::1]:4711"
    with pytest.raises(StepFailed, match="not where"):
        bootstrap_address("ready?\n")


def test_the_properties_are_a_configuration_that_tidegate_takes(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage\n"
        f"rsm.config.dir={tmp_path}\n",
        encoding="utf-8",
    )
    demo = tidegate(tmp_path)
    demo.write_properties()
    config = load(demo.properties_path, {})
    assert [str(server) for server in config.upstream.bootstrap_servers] == ["127.0.0.1:9092", "127.0.0.1:9093"]
    assert str(config.admin.listen) == demo.admin_address
    assert config.proxy.listen.port == 0
    assert not config.warnings


def test_a_tidegate_that_cannot_start_shows_its_last_lines(tmp_path: Path) -> None:
    demo = tidegate(tmp_path)  # there is no server.properties
    demo.start()
    try:
        with pytest.raises(StepFailed, match=r"server\.properties"):
            demo.wait_ready()
    finally:
        demo.stop()


def test_stopping_what_was_not_started_is_no_error(tmp_path: Path) -> None:
    demo = tidegate(tmp_path)
    demo.stop()
    with pytest.raises(StepFailed, match="not started"):
        demo.wait_ready()
    with pytest.raises(StepFailed, match="does not answer"):
        demo.counters("orders")
