"""The array of endpoints at its edges: null, empty, cut, without a host; the rest is in test_addresses.py."""

import struct

import pytest

from protocol.wire.endpoints import NodeAddress, nodes, read_endpoints, splice_addresses
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

ONE = b"\x02" + struct.pack(">i", 1) + b"\x08kafka-1" + struct.pack(">i", 9092) + b"\x02a" + b"\x01\x63\x02hi"


def found(array: memoryview) -> list[NodeAddress]:
    return nodes(read_endpoints(Cursor(array)).sites)


@for_each("array, expected", [(b"\x00", []), (b"\x01", []), (ONE, [NodeAddress(1, "kafka-1", 9092)])])
def test_what_is_behind_an_array_stays(array: bytes, expected: list[NodeAddress]) -> None:
    assert_refused_when_cut(found, array)
    assert found(memoryview(array)) == expected
    behind = memoryview(array + b"behind")
    same = splice_addresses(behind, 0, len(behind), read_endpoints(Cursor(behind)), {1: ("kafka-1", 9092)})
    assert b"".join(same) == behind


def test_a_null_host_is_the_peers_error() -> None:
    with pytest.raises(PeerProtocolError, match="7"):
        found(memoryview(b"\x02\x00\x00\x00\x07\x00\x00\x00\x00\x01\x00\x00"))
