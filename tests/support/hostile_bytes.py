"""What every reader of a peer's bytes must do with them when they are cut or changed: read them, or blame the peer."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from protocol.wire.errors import PeerProtocolError
from tests.support.cases import case

BYTES = (b"\x00", b"\x7f", b"\x80", b"\xff")

Read = Callable[[memoryview], object]


def assert_refused_when_cut(read: Read, data: bytes, *, shortest: int = 0) -> None:
    """Whole it is read, and cut at any byte it is the peer's error."""
    read(memoryview(data))
    for size in range(shortest, len(data)):
        with case("cut", size), pytest.raises(PeerProtocolError):
            read(memoryview(data)[:size])


def assert_read_or_refused_when_changed(read: Read, data: bytes, positions: Iterable[int]) -> None:
    """With another byte at one of these positions, whatever it is."""
    for position in positions:
        for byte in BYTES:
            with case("changed", position, byte), suppress(PeerProtocolError):
                read(memoryview(data[:position] + byte + data[position + 1 :]))


def assert_all_of_it_is_read(read: Read, data: bytes, *, body_position: int, shortest: int = 0) -> None:
    """Cut or with a byte more it is the peer's error; changed anywhere in its body it is read, or is that too."""
    assert_refused_when_cut(read, data, shortest=shortest)
    with pytest.raises(PeerProtocolError, match="after the end"):
        read(memoryview(data + b"\x00"))
    assert_read_or_refused_when_changed(read, data, range(body_position, len(data)))
