"""A process that can open nothing more, and hosts that are not to be reached: what is said of them."""

import resource
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import structlog
import trio

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.errors import connect_reason
from proxy.connection.peer_address import CrowdListener
from proxy.connection.spells import Spells
from tools.demo.kafka_properties import HOST

pytestmark = pytest.mark.integration


def test_a_host_that_does_not_answer_is_told_from_one_that_refuses() -> None:
    silent, refused = (connect_reason(OSError(number, "")) for number in (110, 111))
    assert silent != refused
    assert "a firewall drops packets" in silent


@pytest.mark.autojump
async def test_no_descriptors_left_is_one_line_a_spell() -> None:
    """Really out of them: a limit at what is open. Failed before: ten lines a second."""
    [bound] = await trio.open_tcp_listeners(0, host=HOST)
    registry = Registry()
    listener = CrowdListener(bound, Spells(trio.current_time), Meters(registry).relay)
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


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more, whatever its threads close: the limit is below all that is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
