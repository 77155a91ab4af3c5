"""Somebody else's server as a process of its own, at a port of this machine, until a block ends."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until
from tools.demo.kafka_process import JavaProcess
from tools.demo.kafka_properties import HOST


@contextmanager
def server_process(
    name: str, command: Sequence[str], folder: Path, *, port: int, answers: Callable[[], bool] | None = None
) -> Iterator[None]:
    """The block begins once the port accepts, or `answers` says so. The log goes to the folder."""
    process = JavaProcess(name, command, folder / f"{name}.log")

    def is_there() -> bool:
        assert process.is_running, process.log_tail()
        return answers() if answers is not None else not is_refused(port)

    try:
        wait_until(is_there, f"{name} answers")
        yield
    finally:
        process.kill()


def is_refused(port: int) -> bool:
    """Return whether nobody listens there."""
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) != 0
