"""Node endpoints of an answer that is made of several."""

import struct

import pytest

from protocol.fetch.messages import NO_TAGS
from protocol.fetch.node_endpoints import endpoints_of
from protocol.fetch.response import encode_response
from protocol.fetch.walker import find_nodes
from protocol.wire.endpoints import NodeAddress
from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import write_string, write_uvarint
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

ONE, TWO = NodeAddress(1, "kafka-1", 9092), NodeAddress(2, "kafka-2", 9093)
OURS = {1: ("tidegate", 19093), 2: ("tidegate.example", 19094)}
NOT_AN_ENDPOINT = (5, b"abc")


def entry(node: NodeAddress) -> bytes:
    host, rack = write_string(node.host, flexible=True), write_string("r1", flexible=True)
    return struct.pack(">i", node.node_id) + host + struct.pack(">i", node.port) + rack + b"\x00"


def section(*nodes: NodeAddress, others: tuple[tuple[int, bytes], ...] = ()) -> bytes:
    fields = [(0, write_uvarint(len(nodes) + 1) + b"".join(map(entry, nodes))), *others]
    tags = b"".join(write_uvarint(tag) + write_uvarint(len(data)) + data for tag, data in fields)
    return write_uvarint(len(fields)) + tags


def nodes_in(tags: bytes) -> list[NodeAddress]:
    """As a client reads them: the walker knows the section's place in a response."""
    buffers = encode_response(17, 1, throttle_time_ms=0, error_code=0, session_id=0, answers=(), tags=tags)
    return find_nodes(memoryview(b"".join(buffers)), 17)


def test_nodes_of_all_parts_are_named_once_at_our_addresses() -> None:
    endpoints = endpoints_of([section(ONE), NO_TAGS, section(ONE, TWO, others=(NOT_AN_ENDPOINT,))])
    assert endpoints.nodes == [ONE, TWO]
    assert nodes_in(endpoints.section(OURS)) == [NodeAddress(1, *OURS[1]), NodeAddress(2, *OURS[2])]


@for_each("sections", [(), (NO_TAGS,), (section(),), (b"\x01\x05\x01x",)])
def test_where_no_node_is_named_there_is_no_field(sections: tuple[bytes, ...]) -> None:
    endpoints = endpoints_of(sections)
    assert not endpoints
    assert endpoints.section({}) == NO_TAGS


def test_all_but_host_and_port_is_kept() -> None:
    theirs = section(ONE)
    assert endpoints_of([theirs]).section({1: (ONE.host, ONE.port)}) == theirs


def test_a_node_without_a_listener_is_left_out() -> None:
    assert nodes_in(endpoints_of([section(ONE, TWO)]).section({2: OURS[2]})) == [NodeAddress(2, *OURS[2])]
    assert endpoints_of([section(TWO)]).section({1: OURS[1]}) == NO_TAGS


def test_an_endpoint_that_is_no_node_is_the_peers_fault() -> None:
    with pytest.raises(PeerProtocolError, match="names no node"):
        endpoints_of([section(NodeAddress(-1, "", -1))])


def test_a_cut_section_is_the_peers_fault() -> None:
    assert_refused_when_cut(lambda cut: endpoints_of([bytes(cut)]), section(ONE, TWO))
