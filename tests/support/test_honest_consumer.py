"""The honest consumer: a wait that goes on is seen while it does. That its bytes are right each stage shows."""

import socket

from tests.support.honest_consumer import HonestConsumer
from tests.support.waiting import wait_until


def test_a_wait_that_goes_on_counts() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        HonestConsumer(silent.getsockname(), "orders", {0: 1}) as honest,
    ):
        first = wait_until(lambda: honest.look().worst_s, "the wait is seen")
        wait_until(lambda: honest.look().worst_s > first + 0.1, "it grows")
        assert honest.look().answers == 0
