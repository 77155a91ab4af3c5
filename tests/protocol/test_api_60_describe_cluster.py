"""DescribeCluster: brokers are rewritten, controllers are not."""

import pytest

from protocol.wire.addresses import NodeAddress, find_nodes, rewrite
from protocol.wire.describe_cluster import ENDPOINT_TYPE_CONTROLLERS
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames

VERSIONS = kio_frames.versions_of(ApiKey.DESCRIBE_CLUSTER)
NODE = {"broker_id": 3001, "host": "node", "port": 9093}


def frame_of(api_version: int, endpoint_type: int, error_message: str | None = None) -> memoryview:
    values = {"brokers": [NODE], "endpoint_type": endpoint_type, "error_message": error_message}
    message = kio_frames.fill(kio_frames.schema(ApiKey.DESCRIBE_CLUSTER, api_version), values)
    return memoryview(kio_frames.response_frame(message))


@pytest.mark.parametrize("api_version", [version for version in VERSIONS if version >= 1])
def test_controllers_are_answered_as_upstream(api_version: int) -> None:
    frame = frame_of(api_version, ENDPOINT_TYPE_CONTROLLERS)

    assert find_nodes(ApiKey.DESCRIBE_CLUSTER, api_version, frame) == []
    assert rewrite(ApiKey.DESCRIBE_CLUSTER, api_version, frame, {}) == frame


@pytest.mark.parametrize("error_message", [None, "trouble"])
@pytest.mark.parametrize("api_version", VERSIONS)
def test_brokers_are_found_in_every_version(api_version: int, error_message: str | None) -> None:
    frame = frame_of(api_version, 1, error_message)

    assert find_nodes(ApiKey.DESCRIBE_CLUSTER, api_version, frame) == [NodeAddress(3001, "node", 9093)]
