"""A process that can open nothing more: it says so, and its pages answer. And hosts that are not to be reached."""

import json
import os
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.errors import connect_reason
from proxy.connection.peer_address import CrowdListener, tell_no_room
from proxy.connection.spells import Spells
from tests.support.program import tidegate_python
from tests.support.raw_client import RawClient, address_of
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.waiting import wait_until
from tidegate.admin import SPARE_FILES
from tidegate.logs import REPEAT_S
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_properties import HOST
from tools.demo.tidegate_process import Tidegate

pytestmark = pytest.mark.integration

PAGE_S_MAX: Final = 10.0
"""Against hangs, not slowness."""

CLIENTS: Final = 100
FEW_FILES: Final = 128
ALLOWED: Final = 32
"""Half of them, for that is less than Tidegate needs itself; two files a client."""
CLOCKS_S: Final = 0.1
"""The log's times are of the wall clock, and a line is held back by another."""


def test_a_host_that_does_not_answer_is_told_from_one_that_refuses() -> None:
    silent, refused = (connect_reason(OSError(number, "")) for number in (110, 111))
    assert silent != refused
    assert "a firewall drops packets" in silent


@pytest.mark.autojump
async def test_no_descriptors_left_is_one_line_a_spell() -> None:
    """Really out of them: a limit at what is open. Failed before: ten lines a second."""
    [bound] = await trio.open_tcp_listeners(0, host=HOST)
    registry = Registry()
    listener = CrowdListener(bound, partial(tell_no_room, Spells(trio.current_time), Meters(registry).relay))
    with closing(socket.create_connection(bound.socket.getsockname())):
        with structlog.testing.capture_logs() as logs, no_descriptors():
            with trio.move_on_after(1) as waiting:
                await listener.accept()
        assert waiting.cancelled_caught
        [line] = logs
        assert (line["event"], line["log_level"]) == ("connections_not_accepted", "error")
        assert "LimitNOFILE" in line["reason"]
        assert line["key"] == "proxy.connections.max"
        assert (registry.sample_value("tidegate_connections_not_accepted_total") or 0) > 1
        await (await listener.accept()).aclose()
        await listener.aclose()


@pytest.mark.needs("java", "kafka", "linux")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_health_answers_when_clients_have_used_up_all_open_files(
    kafka: KafkaCluster, tmp_path: Path, workers: str
) -> None:
    """Failed before: all three pages timed out, and the log had ten lines a second."""
    with own_tidegate(kafka, {"proxy.workers": workers}) as tidegate, ExitStack() as stack:
        pages_address = address_of(tidegate.process.admin_address)
        served = stack.enter_context(RawClient(*tidegate.address))
        assert served.metadata([]).brokers
        for pid in family(tidegate.process.pid):
            leave_open_files(pid, 8)
        # Only the first of several processes has the pages: others there use up its files.
        for address in (tidegate.address, pages_address):
            for _ in range(CLIENTS):
                stack.enter_context(socket.create_connection(address))
        wait_until(lambda: "no_open_file" in str(ready_report(tidegate)["troubles"]), "the trouble")
        for round_ in range(2 * SPARE_FILES):
            pages = HTTPConnection(*pages_address, timeout=PAGE_S_MAX)
            stack.callback(pages.close)  # it stays open: each needs a descriptor of its own
            for path in ("/livez", "/readyz", "/metrics"):
                pages.request("GET", path)
                answer = pages.getresponse()
                assert (answer.status, bool(answer.read())) == (200, True), f"{path}, connection {round_}"
        assert ready_report(tidegate)["ready"]
        assert tidegate.metric("tidegate_trouble", id="no_open_file") == 1
        assert served.metadata([]).brokers
        assert oftener_than_once_a_second(tidegate.log()) == []


@pytest.mark.needs("java", "kafka", "linux")
def test_clients_get_what_the_limit_on_open_files_allows(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Failed before: they got all, and nothing was left for the store, the brokers and the pages."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nulimit -n {FEW_FILES}\nexec {tidegate_python()} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    process = Tidegate(
        work=tmp_path,
        server_properties=kafka.server_properties_path(1),
        bootstrap_servers=kafka.bootstrap_servers,
        properties={"proxy.connections.max": "1000", "tier.concurrent.gets.max": "4"},
        program=(str(python), "-m", "tidegate"),
    )
    process.start()
    with ExitStack() as stack:
        stack.callback(process.stop)
        tidegate = RunningTidegate(process, process.wait_ready(), tmp_path)
        assert f"no more than {ALLOWED} are let in" in str(ready_report(tidegate)["troubles"])
        for _ in range(FEW_FILES):
            stack.enter_context(socket.create_connection(tidegate.address))
        refused = partial(tidegate.metric, "tidegate_connections_refused_total", reason="full")
        wait_until(lambda: refused() == FEW_FILES - ALLOWED, "the last of them")
        assert tidegate.metric("tidegate_connections_active") == ALLOWED
        [limit] = [each for each in status(tidegate)["limits"] if each["key"] == "proxy.connections.max"]
        assert (limit["used"], limit["max"]) == (ALLOWED, ALLOWED)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < FEW_FILES


def family(pid: int) -> list[int]:
    """Return the process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return [pid, *(each for child in children for each in family(int(child)))]


def leave_open_files(pid: int, count: int) -> None:
    """Let the process open no more than so many files beyond those below its highest."""
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + count, hard))


def ready_report(tidegate: RunningTidegate) -> dict[str, Any]:
    return dict(json.loads(tidegate.page("/readyz")))


def status(tidegate: RunningTidegate) -> dict[str, Any]:
    return dict(json.loads(tidegate.page("/status.json")))


def oftener_than_once_a_second(log: str) -> list[str]:
    """Return lines that came again within a second, but for their time and how often they were left out."""
    found, last = [], dict[str, datetime]()
    for line in log.splitlines():
        time, _, said = line.partition(" ")
        said = re.sub(r" repeated=\d+", "", said)
        try:
            at = datetime.fromisoformat(time)
        except ValueError:
            continue  # `ready:`
        if said in last and (at - last[said]).total_seconds() < REPEAT_S - CLOCKS_S:
            found.append(line)
        last[said] = at
    return found


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more, whatever its threads close: the limit is below all that is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
