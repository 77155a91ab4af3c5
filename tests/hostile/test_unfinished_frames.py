"""Frames that announce much and are never whole: buffers follow what has arrived."""

import pytest

from tests.support.hostile_clients import announced, crowd, trickling_senders
from tests.support.hostile_stage import MIB, HostileStage
from tests.support.waiting import wait_until

pytestmark = pytest.mark.needs("linux")

SUFFER_S = 2.0
CONNECTIONS = "tidegate_connections_active"


def test_twelve_bytes_that_announce_sixteen_mebibytes(stage: HostileStage) -> None:
    """How it failed: each took 16 MiB at once, and the process kept them after the close. The count is small beside
    the frame, so what is looked at is what each connection costs."""
    announce(stage, 30)


def announce(stage: HostileStage, count: int) -> None:
    with crowd(stage.leader, count) as clients:
        for client in clients:
            client.send_bytes(announced(16 * MIB - 4))
        with trickling_senders(clients):
            stage.suffer(SUFFER_S)
    stage.recover()
    stage.check()


def test_slow_senders(stage: HostileStage) -> None:
    """A byte a second inside a frame holds a connection and nothing else."""
    with crowd(stage.leader, 12) as clients:
        for client in clients:
            client.send_bytes(announced(400 * 1024))
        with trickling_senders(clients, turn_s=0.2):
            wait_until(
                lambda: stage.counter(CONNECTIONS) >= stage.before.gauges[CONNECTIONS] + len(clients),
                "all of them are there",
            )
            stage.suffer(SUFFER_S)
    stage.recover()
    stage.check()
