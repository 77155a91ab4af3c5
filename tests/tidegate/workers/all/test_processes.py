"""Supervisor, template and workers as real processes, without brokers: how each ends, and what the others do then."""

import json
import os
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.integration.test_life_cycle import address_of, at_ports
from tests.support.hostile_clients import announced
from tests.support.memory_transport import HEARTBEAT
from tests.support.raw_client import RawClient
from tests.support.serving import START_S_MAX, Serving, serving, without_kafka
from tests.support.waiting import wait_until
from tests.support.worker_processes import connections_of, family_of, have_ended, report_of
from tidegate import exit_codes

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at processes in /proc")


def two_workers(folder: Path, **more: str) -> dict[str, str]:
    return at_ports({**without_kafka(folder), "proxy.workers": "2", **more})


def troubles_of(served: Serving) -> list[str]:
    return [trouble["id"] for trouble in report_of(served)["troubles"]]


def begun(served: Serving, trouble: str) -> list[str | None]:
    """Return who has logged that it began; None: the supervisor."""
    return [event.get("worker") for event in served.events("trouble_begun") if event["id"] == trouble]


def wait_heard(broker: socket.socket, request: bytes, kept: ExitStack) -> None:
    """Accept connections, which stay open, until one of them has brought the request."""
    heard = list[socket.socket]()
    broker.setblocking(False)

    def has_come() -> bool:
        with suppress(BlockingIOError):
            while True:
                heard.append(kept.enter_context(broker.accept()[0]))
                heard[-1].setblocking(False)
        return any(request in received(each) for each in heard)

    def received(connection: socket.socket) -> bytes:
        with suppress(BlockingIOError):
            return connection.recv(64 * 1024, socket.MSG_PEEK)
        return b""

    wait_until(has_come, "the request at the broker")


def test_when_the_supervisor_is_killed_workers_drain_and_nothing_is_left(tmp_path: Path) -> None:
    with serving(tmp_path, two_workers(tmp_path)) as served:
        served.wait_log('"worker_started"', times=2)
        family = family_of(served)
        assert len(family) == 3
        served.process.kill()
        wait_until(lambda: have_ended(family), "the workers' and the template's end")
        assert {event.get("worker") for event in served.events("draining")} == {"0", "1"}
        assert "Traceback" not in served.log()


def test_after_a_kill_the_next_serves_at_once_and_without_the_disk(tmp_path: Path) -> None:
    """Failed before: it refused its configuration, which systemd takes for never again."""
    with socket.create_server(("127.0.0.1", 0)) as hung_broker, ExitStack() as heard:
        host, port = hung_broker.getsockname()
        properties = two_workers(
            tmp_path,
            **{
                "cache.path": str(tmp_path / "cache"),
                "upstream.bootstrap.servers": f"{host}:{port}",
                "proxy.drain.timeout.ms": "300000",  # the next one may take long to start on a busy machine
            },
        )
        (tmp_path / "next").mkdir()
        with serving(tmp_path, properties) as killed:
            killed.wait_log('"worker_started"', times=2)
            family = family_of(killed)
            with RawClient(*address_of(properties)) as client:
                request = announced(1000, HEARTBEAT, 4) + bytes(992)
                client.send_bytes(request)
                wait_heard(hung_broker, request, heard)  # and not answered, so its worker's drain lasts
                wait_until(lambda: connections_of(killed) == [1, 0], "the first worker to have it")
                killed.process.kill()
                killed.process.wait()
                with serving(tmp_path / "next", properties) as served:
                    served.wait_log('"worker_started"', times=2)
                    suspended = {event["cause"] for event in served.wait_events("disk_cache_suspended")}
                    assert suspended == {"in_use"}
                    # Failed before: of several workers nobody said it but the log.
                    wait_until(lambda: "cache_disk_unavailable" in troubles_of(served), "the trouble of both workers")
                    assert served.metric("tidegate_trouble", id="cache_disk_unavailable") == 1
                    wait_until(lambda: begun(served, "cache_disk_unavailable"), "its line")
                    assert begun(served, "cache_disk_unavailable") == [None], "the supervisor says it, once"
                    with RawClient(*address_of(properties)):
                        wait_until(lambda: sum(connections_of(served)) == 1, "it is served")
            wait_until(lambda: have_ended(family), "the first ones' end")


def test_when_the_template_is_killed_all_drain_and_the_reason_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, two_workers(tmp_path)) as served:
        served.wait_log('"worker_started"', times=2)
        family = family_of(served)
        os.kill(family[0], signal.SIGKILL)
        assert served.process.wait(START_S_MAX) == exit_codes.FOUND_WRONG
        assert "no worker can be started" in served.events("workers_failed")[0]["reason"]
        wait_until(lambda: have_ended(family), "the workers' end")
        assert "Traceback" not in served.log()


def test_a_configuration_that_workers_refuse_is_exit_2_at_once(tmp_path: Path) -> None:
    foreign = tmp_path / "cache"
    foreign.mkdir(mode=0o777)
    foreign.chmod(0o777)  # another writer there could give clients what they want
    with serving(tmp_path, two_workers(tmp_path, **{"cache.path": str(foreign)})) as served:
        assert served.process.wait(START_S_MAX) == exit_codes.USAGE, served.log()
        assert str(foreign) in served.log()
        assert "worker_died" not in served.log()


def test_sigterm_fails_readiness_first_and_listeners_accept_until_the_delay_is_over(tmp_path: Path) -> None:
    properties = two_workers(tmp_path, **{"proxy.drain.delay.ms": "60000"})
    with serving(tmp_path, properties) as served:
        served.wait_log('"worker_started"', times=2)
        assert report_of(served)["state"] == "starting"
        served.terminate()
        wait_until(lambda: report_of(served)["state"] == "draining", "readiness to fail")
        status, body = served.page("/readyz")
        assert (status, json.loads(body)["reasons"][0]) == (503, "draining")
        with RawClient(*address_of(properties)):
            wait_until(lambda: sum(connections_of(served)) == 1, "it is served")
        served.terminate()
        assert served.process.wait(START_S_MAX) == exit_codes.DONE
        assert "Traceback" not in served.log()


def test_an_address_has_its_limit_whatever_worker_its_connections_have(tmp_path: Path) -> None:
    properties = two_workers(tmp_path, **{"proxy.connections.max.per.ip": "3"})
    with serving(tmp_path, properties) as served, ExitStack() as clients:
        served.wait_log('"worker_started"', times=2)

        def connect() -> RawClient:
            return clients.enter_context(RawClient(*address_of(properties)))

        first = connect()
        # Those that come together are given in any order.
        wait_until(lambda: connections_of(served) == [1, 0], "a connection")
        connect()
        connect()
        wait_until(lambda: connections_of(served) == [2, 1], "three connections")
        assert connect().is_closed_by_peer(START_S_MAX)
        assert served.metric("tidegate_connections_refused_total") == 1
        wait_until(lambda: "limit_reached" in troubles_of(served), "the trouble")
        assert [event["key"] for event in served.wait_events("connection_refused")] == ["proxy.connections.max.per.ip"]
        # What has ended, by itself or with its worker, does not count any more.
        first.close()
        wait_until(lambda: connections_of(served) == [1, 1], "one has ended")
        os.kill(report_of(served)["workers"][1]["pid"], signal.SIGKILL)
        served.wait_log('"worker_started"', times=3)
        connect()
        connect()
        wait_until(lambda: sum(connections_of(served)) == 3, "three connections again")
        assert connect().is_closed_by_peer(START_S_MAX)


def test_sighup_reaches_all(tmp_path: Path) -> None:
    properties = two_workers(tmp_path)
    with serving(tmp_path, properties) as served:
        served.wait_log('"worker_started"', times=2)
        served.write({**properties, "log.level": "debug", "proxy.connections.max": "7"})
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: served.metric("tidegate_config_reloads_total", outcome="ok") == 2, "two reloads")
        followed = {(each.get("worker"), each["key"]) for each in served.wait_events("config_changed", times=6)}
        assert followed == {(who, key) for who in (None, "0", "1") for key in ("log.level", "proxy.connections.max")}
