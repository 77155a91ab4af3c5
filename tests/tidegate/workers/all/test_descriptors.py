"""A worker without an open file left loses a connection and goes on."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.tidegate.workers.test_channel import accepted, pair


@contextmanager
def no_open_file() -> Iterator[None]:
    """This process can open nothing more."""
    before, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.needs("linux")
async def test_without_an_open_file_one_connection_is_lost_and_no_other() -> None:
    """Failed before: the channel ended, and the worker with it; after five of them, all."""
    async with pair() as (one, other):
        (lost_client, lost), (client, sock) = accepted(), accepted()
        with lost_client, client:
            with no_open_file():
                await one.channel.give(lost, broker=1)
                await wait_all_tasks_blocked()
            lost.close()
            await one.channel.give(sock, broker=2)
            sock.close()
            await wait_all_tasks_blocked()
            assert [frame.body["broker"] for frame in other.heard] == [1, 2]
            assert other.heard[0].descriptor is None
            assert lost_client.recv(1) == b""
            assert other.heard[1].descriptor is not None
            with socket.socket(fileno=other.heard[1].descriptor) as taken:
                taken.sendall(b"2")
            assert client.recv(1) == b"2"
        assert await one.channel.ask("goes on")
