"""What every reader of a peer's bytes must do with them when they are cut or changed: read them, or blame the peer."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from protocol.wire.errors import PeerProtocolError

BYTES = (b"\x00", b"\x7f", b"\x80", b"\xff")


def assert_refused_when_cut(read: Callable[[memoryview], object], data: bytes) -> None:
    """Whole it is read, and cut at any byte it is the peer's error."""
    read(memoryview(data))
    for size in range(len(data)):
        with pytest.raises(PeerProtocolError):
            read(memoryview(data)[:size])


def assert_read_or_refused_when_changed(
    read: Callable[[memoryview], object], data: bytes, positions: Iterable[int]
) -> None:
    """With another byte at one of these positions, whatever it is."""
    for position in positions:
        for byte in BYTES:
            with suppress(PeerProtocolError):
                read(memoryview(data[:position] + byte + data[position + 1 :]))
