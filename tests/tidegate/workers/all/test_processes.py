"""Supervisor, template and workers as real processes, without brokers: how each ends, and what the others do then."""

import json
import os
import signal
import socket
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.integration.test_life_cycle import address_of, at_ports
from tests.support.hostile_clients import announced
from tests.support.memory_transport import HEARTBEAT
from tests.support.raw_client import RawClient
from tests.support.serving import START_S_MAX, Serving, serving, without_kafka
from tests.support.waiting import wait_until
from tests.support.worker_processes import connections_of, family_of, have_ended, report_of, templates_of, workers_of
from tidegate import exit_codes
from tidegate.workers.crew import DEATHS_MAX, REST_S

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
        family = [*templates_of(served), *(each["pid"] for each in workers_of(served))]
        assert sorted(family) == sorted(family_of(served))
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


def worker_pids(served: Serving) -> list[int]:
    return [each["pid"] for each in workers_of(served)]


def test_when_a_template_is_killed_another_takes_its_place(tmp_path: Path) -> None:
    """Failed before: everything drained and ended."""
    properties = two_workers(tmp_path)
    with serving(tmp_path, properties) as served, ExitStack() as clients:
        served.wait_log('"worker_started"', times=2)
        pids = worker_pids(served)
        client = clients.enter_context(RawClient(*address_of(properties)))
        wait_until(lambda: sum(connections_of(served)) == 1, "it is served")
        for killed in range(1, 4):  # the first one, and those that came after it
            os.kill(templates_of(served)[0], signal.SIGKILL)
            served.wait_log('"template_died"', times=killed)
            templates_of(served)
        assert worker_pids(served) == pids
        assert sum(connections_of(served)) == 1

        os.kill(pids[1], signal.SIGKILL)
        served.wait_log('"worker_started"', times=3)
        assert [event["reason"] for event in served.wait_events("worker_died")] == ["killed by SIGKILL"]
        assert worker_pids(served)[0] == pids[0]
        client.close()
        family = family_of(served)
        served.terminate()
        assert served.process.wait(START_S_MAX) == exit_codes.DONE, served.log()
        assert have_ended(family)
        assert "Traceback" not in served.log()


def test_without_a_template_workers_serve_on_until_the_last_ends(tmp_path: Path) -> None:
    properties = two_workers(tmp_path)
    with serving(tmp_path, properties) as served:
        served.wait_log('"worker_started"', times=2)
        pids, templates = worker_pids(served), templates_of(served)
        served.process.send_signal(signal.SIGSTOP)  # so that neither can make up for the other
        for pid in templates:
            os.kill(pid, signal.SIGKILL)
        served.process.send_signal(signal.SIGCONT)
        wait_until(lambda: "no_new_worker" in troubles_of(served), "the trouble")
        assert "no_new_worker" in served.page("/")[1]
        assert worker_pids(served) == pids
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda: "worker_dies" in troubles_of(served), "that it rests")
        assert worker_pids(served) == [pids[0], None]
        with RawClient(*address_of(properties)):
            wait_until(lambda: connections_of(served) == [1, 0], "it is served")
        wait_until(lambda: connections_of(served) == [0, 0], "its end")
        os.kill(pids[0], signal.SIGKILL)
        assert served.process.wait(START_S_MAX) == exit_codes.FOUND_WRONG
        assert "no worker is left" in served.events("workers_failed")[0]["reason"]
        assert "Traceback" not in served.log()


def has_another(served: Serving, number: int, pid: int) -> bool:
    """Return whether the worker is in its next life, or in none."""
    return worker_pids(served)[number] != pid


def kill_often(served: Serving, number: int) -> None:
    """Kill a worker in each of its lives until it is not started again."""
    for _ in range(DEATHS_MAX):
        pid = wait_until(lambda: workers_of(served)[number]["up"] and worker_pids(served)[number], "its next life")
        os.kill(pid, signal.SIGKILL)
        wait_until(partial(has_another, served, number, pid), "its end")


def test_a_worker_that_dies_five_times_rests_until_a_reload(tmp_path: Path) -> None:
    """Failed before: everything drained and ended."""
    properties = two_workers(tmp_path)
    with serving(tmp_path, properties) as served:
        served.wait_log('"worker_started"', times=2)
        first = worker_pids(served)[0]
        kill_often(served, 1)
        wait_until(lambda: "worker_dies" in troubles_of(served), "the trouble")
        last: dict[str, object] = {**served.wait_events("worker_died", times=DEATHS_MAX)[-1]}
        assert last["again_in_s"] == REST_S
        with RawClient(*address_of(properties)):
            wait_until(lambda: connections_of(served) == [1, 0], "it is served")
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: workers_of(served)[1]["up"], "its next try")
        assert worker_pids(served)[0] == first
        assert "Traceback" not in served.log()


def test_a_client_that_kills_its_worker_again_and_again_meets_no_other(tmp_path: Path) -> None:
    """Failed before: it was given to the next worker, which died of it, too."""
    properties = two_workers(tmp_path)
    with serving(tmp_path, properties) as served, ExitStack() as clients:
        served.wait_log('"worker_started"', times=2)

        def connect(source: str) -> socket.socket:
            return clients.enter_context(
                socket.create_connection(address_of(properties), START_S_MAX, source_address=(source, 0))
            )

        connect("127.0.0.2")
        wait_until(lambda: connections_of(served) == [1, 0], "the honest client")
        survivor = worker_pids(served)[0]
        for lives in (1, 2):
            killer = connect("127.0.0.3")
            wait_until(lambda: connections_of(served) == [1, 1], "the other one, at the same worker each time")
            os.kill(worker_pids(served)[1], signal.SIGKILL)
            assert killer.recv(1) == b""
            served.wait_events("worker_died", times=lives)
        connect("127.0.0.3")  # it waits
        connect("127.0.0.4")
        wait_until(lambda: connections_of(served)[0] == 2, "a third client")
        assert worker_pids(served)[0] == survivor
        last: dict[str, object] = {**served.events("worker_died")[-1]}
        assert last["examples"] == ["127.0.0.3"]
        wait_until(lambda: "connections of 127.0.0.3" in served.page("/readyz")[1], "that it is named")


def test_a_worker_that_is_started_again_follows_what_is_in_memory(tmp_path: Path) -> None:
    """Failed before: it read FILE, and without one it had the configuration of the start."""
    properties = two_workers(tmp_path)
    with serving(tmp_path, properties) as served:
        served.wait_log('"worker_started"', times=2)
        served.write({**properties, "log.level": "debug"})
        served.process.send_signal(signal.SIGHUP)
        served.wait_events("config_changed", times=3)
        served.write({**properties, "log.level": "half edi"})
        for pid in (templates_of(served)[0], worker_pids(served)[1]):
            os.kill(pid, signal.SIGKILL)
        served.wait_log('"worker_started"', times=3)
        followed = served.wait_events("config_changed", times=4)[3]
        assert (followed["worker"], followed["key"], followed["new"]) == ("1", "log.level", "debug")


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
