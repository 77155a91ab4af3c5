"""Every response that carries addresses, in every version, against kio's own codec."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.wire.addresses import NodeAddress, carries_addresses, find_nodes, rewrite
from protocol.wire.describe_cluster import ENDPOINT_TYPE_CONTROLLERS
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames
from tests.support.cases import case
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

REWRITTEN = [
    (api_key, api_version)
    for api_key in (
        ApiKey.PRODUCE,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    )
    for api_version in kio_frames.versions_of(api_key)
    if carries_addresses(api_key, api_version)
]
every_version = for_each("api_key, api_version", REWRITTEN)

UPSTREAM = [NodeAddress(0, "kafka-0.internal", 9092), NodeAddress(11, "kafka-11", 65535), NodeAddress(2, "k", 1)]
ADVERTISED = {0: ("edge.example.org", 19093), 11: ("e", 1), 2: ("x" * 200, 19095), 404: ("unused", 1)}

ports = st.integers(0, 65535)
hosts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=150)
addresses = st.builds(NodeAddress, st.integers(0, 2**31 - 1), hosts, ports)


def values_of(nodes: list[NodeAddress]) -> dict[str, object]:
    """One superset of values for all six APIs."""
    brokers = [asdict(node) | {"broker_id": node.node_id} for node in nodes]
    for broker in brokers:
        broker["rack"] = None if broker["node_id"] % 2 else "a rack"
    first = brokers[0] if brokers else {}
    return {"brokers": brokers, "coordinators": brokers, "node_endpoints": brokers, "endpoint_type": 1, **first}


def response(api_key: int, api_version: int, nodes: list[NodeAddress], *, unknown_tag: bool = False) -> Any:
    return kio_frames.fill(kio_frames.schema(api_key, api_version, unknown_tag=unknown_tag), values_of(nodes))


def moved(nodes: list[NodeAddress], advertised: Mapping[int, tuple[str, int]]) -> list[NodeAddress]:
    return [NodeAddress(node.node_id, *advertised[node.node_id]) for node in nodes]


def named_in(api_key: int, api_version: int, nodes: list[NodeAddress]) -> list[NodeAddress]:
    """FindCoordinator has room for one before v4."""
    return nodes[:1] if api_key == ApiKey.FIND_COORDINATOR and api_version < 4 else nodes


@every_version
def test_all_nodes_are_found_and_those_named_twice_once(api_key: int, api_version: int) -> None:
    frame = kio_frames.response_frame(response(api_key, api_version, [*UPSTREAM, UPSTREAM[1]]))

    assert find_nodes(api_key, api_version, memoryview(frame)) == named_in(api_key, api_version, UPSTREAM)


@every_version
def test_a_frame_cut_at_any_byte_is_the_peers_error(api_key: int, api_version: int) -> None:
    frame = kio_frames.response_frame(response(api_key, api_version, UPSTREAM, unknown_tag=True), unknown_tag=True)

    assert_refused_when_cut(lambda cut: find_nodes(api_key, api_version, cut), frame)


# A node without an advertised address is withheld. (It was an error before, and nobody got the answer.)


@for_each("withheld, unknown_tag", product([set(), {11}, {0, 2}, {0, 11, 2}], (False, True)))
@every_version
def test_addresses_change_withheld_nodes_are_left_out_and_all_else_is_kept(
    api_key: int, api_version: int, withheld: set[int], unknown_tag: bool
) -> None:
    message = response(api_key, api_version, UPSTREAM, unknown_tag=unknown_tag)
    frame = kio_frames.response_frame(message, unknown_tag=unknown_tag)
    advertised = {node_id: address for node_id, address in ADVERTISED.items() if node_id not in withheld}

    rewritten = rewrite(api_key, api_version, memoryview(frame), advertised)

    expected = with_nodes_withheld(api_key, api_version, withheld, unknown_tag=unknown_tag)
    header_bytes = 4 + len(kio_frames.response_header(expected, 5, unknown_tag=unknown_tag))
    assert kio_frames.decode(type(expected), rewritten[header_bytes:]) == expected
    if api_key != ApiKey.PRODUCE or len(withheld) < len(UPSTREAM):  # there an empty tag is kept, which kio leaves out
        assert rewritten == kio_frames.response_frame(expected, unknown_tag=unknown_tag)
    assert not any(
        node.host.encode() in rewritten for node in UPSTREAM if node.node_id in withheld and len(node.host) > 1
    )


def with_nodes_withheld(api_key: int, api_version: int, withheld: set[int], *, unknown_tag: bool) -> Any:
    """Return what a broker would send that has no such brokers, and finds no coordinator where one of them is it."""
    if api_key != ApiKey.FIND_COORDINATOR:
        told = [node for node in UPSTREAM if node.node_id not in withheld]
        return response(api_key, api_version, moved(told, ADVERTISED), unknown_tag=unknown_tag)
    message = response(api_key, api_version, moved(UPSTREAM, ADVERTISED), unknown_tag=unknown_tag)
    if api_version >= 4:
        return replace(message, coordinators=tuple(_not_found(each, withheld) for each in message.coordinators))
    return _not_found(message, withheld)


def _not_found(coordinator: Any, withheld: set[int]) -> Any:
    if coordinator.node_id not in withheld:
        return coordinator
    values = {"node_id": -1, "host": "", "port": -1, "error_code": ErrorCode.coordinator_not_available}
    if any(each.name == "error_message" for each in fields(coordinator)):
        values["error_message"] = "The coordinator is not available."
    return replace(coordinator, **values)


@for_each("api_key, api_version", [each for each in REWRITTEN if each[0] != ApiKey.FIND_COORDINATOR])
def test_nodes_may_be_more_than_one_byte_counts_and_fewer_are_left(api_key: int, api_version: int) -> None:
    nodes = [NodeAddress(number, "host", number) for number in range(130)]
    advertised = {node.node_id: ("edge.example.org", 1) for node in nodes[::2]}
    frame = memoryview(kio_frames.response_frame(response(api_key, api_version, nodes)))
    assert find_nodes(api_key, api_version, frame) == nodes
    told = response(api_key, api_version, moved(nodes[::2], advertised))
    assert rewrite(api_key, api_version, frame, advertised) == kio_frames.response_frame(told)


@given(case=st.sampled_from(REWRITTEN), position=st.integers(8, 10_000), byte=st.integers(0, 255))
def test_a_response_with_one_wrong_byte_is_read_or_is_the_peers_error(
    case: tuple[int, int], position: int, byte: int
) -> None:
    frame = bytearray(kio_frames.response_frame(response(*case, UPSTREAM)))
    frame[position % (len(frame) - 4) + 4] = byte
    with suppress(PeerProtocolError):
        find_nodes(*case, memoryview(frame))


@for_each(
    "api_key, api_version",
    [(ApiKey.FETCH, 16), (ApiKey.LIST_OFFSETS, 7), (ApiKey.METADATA, 14), (ApiKey.SHARE_FETCH, 0), (999, 0)],
)
def test_what_cannot_be_rewritten_here_is_our_error(api_key: int, api_version: int) -> None:
    with pytest.raises(LocalProtocolError, match=str(api_version)):
        find_nodes(api_key, api_version, memoryview(kio_frames.with_length(bytes(100))))


# What stands around the addresses.

NO_NODE = NodeAddress(-1, "", -1)

_NO_LEADER = {"leader_id": -1, "leader_epoch": -1}
_PLAIN: Mapping[str, object] = {"record_errors": [], "error_message": None, "current_leader": _NO_LEADER}
_TROUBLED = {"error_message": "x" * 300, "record_errors": [{"batch_index": 1}, {"batch_index": 2}]}
_LOST_AND_FOUND: list[Mapping[str, object]] = [{"error_message": "lost"}, {"error_message": None}]
_GONE = {"records": b"", "acquired_records": [], "acknowledge_error_message": "gone"}


def _topics(*partitions: Mapping[str, object]) -> dict[str, object]:
    numbered = [{"index": number, **each} for number, each in enumerate(partitions)]
    return {"responses": [{"partitions": numbered, "partition_responses": numbered}, {"partitions": []}]}


AROUND: list[tuple[ApiKey, Mapping[str, object]]] = [
    (ApiKey.PRODUCE, _topics(_PLAIN, _TROUBLED, _PLAIN)),
    (ApiKey.PRODUCE, _topics(*[_PLAIN] * 200)),
    (ApiKey.FIND_COORDINATOR, {}),
    *((ApiKey.DESCRIBE_CLUSTER, {"error_message": message}) for message in (None, "trouble")),
    *(
        (ApiKey.SHARE_FETCH, _topics({"records": b"r" * size, "acquired_records": [{}] * 3}, _GONE))
        for size in (0, 126, 127, 100_000)
    ),
    *((ApiKey.SHARE_ACKNOWLEDGE, _topics(*_LOST_AND_FOUND[:count] * 100)) for count in (0, 1, 2)),
]


@for_each("api_key, values", AROUND)
def test_whatever_stands_around_the_nodes_is_passed_over(api_key: ApiKey, values: Mapping[str, object]) -> None:
    """Partitions of any kind, and entries that name no node."""

    def frame_of(api_version: int, node: NodeAddress) -> bytes:
        message = {**values_of([NO_NODE, node, NO_NODE]), **values}
        return kio_frames.response_frame(kio_frames.fill(kio_frames.schema(api_key, api_version), message))

    node, moved_node = NodeAddress(4, "kafka-4", 9092), NodeAddress(4, "edge.example.org", 19095)
    for _, api_version in (each for each in REWRITTEN if each[0] == api_key):
        if named_in(api_key, api_version, [NO_NODE, node]) == [NO_NODE]:
            continue
        frame = memoryview(frame_of(api_version, node))
        with case(api_version):
            assert find_nodes(api_key, api_version, frame) == [node]
            assert rewrite(api_key, api_version, frame, {4: (moved_node.host, moved_node.port)}) == frame_of(
                api_version, moved_node
            )


@for_each("api_version", kio_frames.versions_of(ApiKey.SHARE_FETCH))
def test_null_records_are_passed_over(api_version: int) -> None:
    """The schema lets records be null; a fill of the field shows where to put the null."""
    values = values_of(UPSTREAM[:1]) | _topics({"records": b"mark"})
    message = kio_frames.fill(kio_frames.schema(ApiKey.SHARE_FETCH, api_version), values)
    nulled = kio_frames.response_frame(message)[4:].replace(b"\x05mark", b"\x00")
    assert find_nodes(ApiKey.SHARE_FETCH, api_version, memoryview(kio_frames.with_length(nulled))) == UPSTREAM[:1]


@for_each(
    "api_version, node", product(kio_frames.versions_of(ApiKey.FIND_COORDINATOR), (NO_NODE, NodeAddress(3, "", 0)))
)
def test_coordinators_that_are_no_nodes_are_left_alone(api_version: int, node: NodeAddress) -> None:
    message = response(ApiKey.FIND_COORDINATOR, api_version, [node])
    frame = memoryview(kio_frames.response_frame(message))
    assert find_nodes(ApiKey.FIND_COORDINATOR, api_version, frame) == []
    assert rewrite(ApiKey.FIND_COORDINATOR, api_version, frame, {3: ("edge", 1)}) == frame


@for_each("api_version", kio_frames.versions_of(ApiKey.DESCRIBE_CLUSTER)[1:])
def test_controllers_are_told_as_upstream_has_them(api_version: int) -> None:
    values = values_of(UPSTREAM) | {"endpoint_type": ENDPOINT_TYPE_CONTROLLERS}
    message = kio_frames.fill(kio_frames.schema(ApiKey.DESCRIBE_CLUSTER, api_version), values)
    frame = memoryview(kio_frames.response_frame(message))
    assert find_nodes(ApiKey.DESCRIBE_CLUSTER, api_version, frame) == []
    assert rewrite(ApiKey.DESCRIBE_CLUSTER, api_version, frame, {}) == frame


@for_each("api_version", kio_frames.versions_of(ApiKey.METADATA))
def test_topics_are_not_looked_at_when_addresses_are_rewritten(api_version: int) -> None:
    schema = kio_frames.schema(ApiKey.METADATA, api_version)
    no_topics = kio_frames.response_frame(kio_frames.fill(schema, values_of(UPSTREAM[:1]) | {"topics": []}))
    frame = memoryview(kio_frames.with_length(no_topics[4:] + b"\xff" * 1000))

    rewritten = rewrite(ApiKey.METADATA, api_version, frame, {0: ("edge", 1)})

    assert rewritten.endswith(no_topics[-1:] + b"\xff" * 1000)
    assert UPSTREAM[0].host.encode() not in rewritten
