"""As many connections wait to be accepted as the system lets."""

import socket
import struct
import sys
from pathlib import Path

import pytest

from proxy.connection.address_book import open_listeners
from storage.config.model import HostPort

SOMAXCONN = int(Path("/proc/sys/net/core/somaxconn").read_text()) if sys.platform == "linux" else 0


@pytest.mark.needs("linux")
async def test_as_many_wait_to_be_accepted_as_the_system_lets() -> None:
    """Failed before: 3,000 connects within half a second overflowed a queue of 512, which a broker's does not."""
    (listener,) = await open_listeners(HostPort("127.0.0.1", 0), "proxy.listen")
    async with listener:
        told = listener.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
        (queue_max,) = struct.unpack_from("=I", told, 28)  # tcpi_sacked, which is that of a listener
    assert queue_max == min(0xFFFF, SOMAXCONN)
