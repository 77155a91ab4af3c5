"""FindCoordinator: both shapes, and answers that name no node."""

from typing import Any

import pytest

from protocol.wire.addresses import find_nodes, rewrite
from protocol.wire.find_coordinator import BATCHED_FROM
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames

VERSIONS = kio_frames.versions_of(ApiKey.FIND_COORDINATOR)
every_version = pytest.mark.parametrize("api_version", VERSIONS)

NO_NODE = {"node_id": -1, "host": "", "port": -1}
SOME_NODE = {"node_id": 3, "host": "kafka-3", "port": 9092}


def frame_of(api_version: int, *coordinators: dict[str, Any]) -> memoryview:
    values = {**coordinators[0], "coordinators": coordinators}
    message = kio_frames.fill(kio_frames.schema(ApiKey.FIND_COORDINATOR, api_version), values)
    return memoryview(kio_frames.response_frame(message))


@pytest.mark.parametrize("node", [NO_NODE, {"node_id": 3, "host": "", "port": 0}], ids=["none", "empty-host"])
@every_version
def test_no_node_and_one_with_an_empty_host_are_left_alone(api_version: int, node: dict[str, Any]) -> None:
    frame = frame_of(api_version, node)

    assert find_nodes(ApiKey.FIND_COORDINATOR, api_version, frame) == []
    assert rewrite(ApiKey.FIND_COORDINATOR, api_version, frame, {3: ("edge", 1)}) == frame


@pytest.mark.parametrize("api_version", [version for version in VERSIONS if version >= BATCHED_FROM])
def test_good_and_failed_coordinators_in_one_answer(api_version: int) -> None:
    failed = {**NO_NODE, "key": "group-b", "error_message": "not yet"}
    frame = frame_of(api_version, failed, SOME_NODE, failed)

    rewritten = rewrite(ApiKey.FIND_COORDINATOR, api_version, frame, {3: ("edge.example.org", 19095)})

    moved = {"node_id": 3, "host": "edge.example.org", "port": 19095}
    assert rewritten == frame_of(api_version, failed, moved, failed)
