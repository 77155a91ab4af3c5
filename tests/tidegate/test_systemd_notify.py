"""What systemd hears, over a socket of the kind that it gives."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from tidegate.life_cycle import SystemdNotify


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def heard(systemd: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(systemd.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_each_step_is_a_message(systemd: socket.socket) -> None:
    notify = SystemdNotify({"NOTIFY_SOCKET": systemd.getsockname()})
    notify.ready()
    notify.status("upstream: no broker\nanswers")
    notify.stopping()
    assert heard(systemd) == ["READY=1", "STATUS=upstream: no broker answers", "STOPPING=1"]
    notify.reloading()
    (reloading,) = heard(systemd)
    state, monotonic = reloading.split("\n")
    assert state == "RELOADING=1"
    assert monotonic.removeprefix("MONOTONIC_USEC=").isdecimal()


async def test_without_systemd_nothing_is_sent_and_nothing_runs() -> None:
    notify = SystemdNotify({"WATCHDOG_USEC": "1000"})
    with structlog.testing.capture_logs() as logs:
        notify.ready()
        await notify.run()
    assert logs == []


async def test_life_is_shown_at_half_the_watchdogs_time(systemd: socket.socket, autojump_clock: MockClock) -> None:
    environ = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}
    with trio.move_on_after(4.5):
        await SystemdNotify(environ).run()
    assert heard(systemd) == ["WATCHDOG=1"] * 5
