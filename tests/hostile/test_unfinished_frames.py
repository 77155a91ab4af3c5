"""Frames that announce much and are never whole: buffers follow what has arrived."""

import pytest

from tests.support.hostile_clients import announced, crowd, trickling_senders
from tests.support.hostile_stage import MIB, HostileStage

pytestmark = pytest.mark.needs("linux")

SUFFER_S = 2.0


def test_twelve_bytes_that_announce_sixteen_mebibytes(stage: HostileStage) -> None:
    """How it failed: each took 16 MiB at once, and the process kept them after the close. The count is small beside
    the frame, so what is looked at is what each connection costs."""
    with crowd(stage.leader, 30) as clients:
        for client in clients:
            client.send_bytes(announced(16 * MIB - 4))
        with trickling_senders(clients):
            stage.suffer(SUFFER_S)
    stage.recover()
    stage.check()
