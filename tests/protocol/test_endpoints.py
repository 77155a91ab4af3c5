"""The splice of a NodeEndpoint array, as the Fetch tag uses it too."""

import struct
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire.endpoints import NodeAddress, nodes, read_endpoints, splice_addresses
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor, write_string, write_uvarint
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

addresses = st.builds(NodeAddress, st.integers(-1, 2**31 - 1), st.text(max_size=130), st.integers(-1, 2**31 - 1))
racks = st.text(max_size=20) | st.none()
tagged = st.sampled_from([b"\x00", b"\x01\x63\x02hi", b"\x02\x01\x00\x63\x01x"])
arrays = st.lists(st.tuples(addresses, racks, tagged), max_size=130)


def find_endpoints(array: memoryview) -> list[NodeAddress]:
    return nodes(read_endpoints(Cursor(array)).sites)


def splice_endpoints(array: memoryview, advertised: Mapping[int, tuple[str, int]]) -> bytes:
    return b"".join(splice_addresses(array, 0, len(array), read_endpoints(Cursor(array)), advertised))


def encode(elements: list[tuple[NodeAddress, str | None, bytes]]) -> bytes:
    out = write_uvarint(len(elements) + 1)
    for node, rack, tags in elements:
        out += struct.pack(">i", node.node_id) + write_string(node.host, flexible=True) + struct.pack(">i", node.port)
        out += write_string(rack, flexible=True) + tags
    return out


@given(arrays, st.binary(max_size=5))
def test_real_nodes_are_found_and_only_their_hosts_and_ports_change(
    elements: list[tuple[NodeAddress, str | None, bytes]], after: bytes
) -> None:
    array = memoryview(encode(elements) + after)
    advertised = {node.node_id: (f"edge-{node.node_id}", 19092) for node, _, _ in elements}

    moved = [
        (NodeAddress(node.node_id, *advertised[node.node_id]) if node.node_id >= 0 and node.host else node, rack, tags)
        for node, rack, tags in elements
    ]
    assert splice_endpoints(array, advertised) == encode(moved) + after
    found = find_endpoints(array)
    assert set(found) == {node for node, _, _ in elements if node.node_id >= 0 and node.host}
    assert len(found) == len(set(found))


@for_each("array", [b"\x00", b"\x01"])
def test_nothing_in_nothing_out(array: bytes) -> None:
    assert find_endpoints(memoryview(array)) == []
    assert splice_endpoints(memoryview(array), {}) == array


def test_an_array_cut_at_any_byte_is_the_peers_error() -> None:
    array = encode([(NodeAddress(1, "kafka-1", 9092), "a", b"\x01\x63\x02hi"), (NodeAddress(2, "k", 1), None, b"\x00")])

    assert_refused_when_cut(find_endpoints, array)


def test_a_null_host_is_the_peers_error() -> None:
    with pytest.raises(PeerProtocolError, match="7"):
        find_endpoints(memoryview(b"\x02\x00\x00\x00\x07\x00\x00\x00\x00\x01\x00\x00"))


distinct = st.lists(st.tuples(addresses, racks, tagged), max_size=130, unique_by=lambda element: element[0].node_id)


@given(distinct, st.booleans())
def test_nodes_that_are_not_advertised_are_left_out(
    elements: list[tuple[NodeAddress, str | None, bytes]], every_second: bool
) -> None:
    real = [node for node, _, _ in elements if node.node_id >= 0 and node.host]
    withheld = set(real[::2] if every_second else real[:1])
    advertised = {node.node_id: (node.host, node.port) for node in real if node not in withheld}
    told = [element for element in elements if element[0] not in withheld]
    assert splice_endpoints(memoryview(encode(elements)), advertised) == encode(told)
