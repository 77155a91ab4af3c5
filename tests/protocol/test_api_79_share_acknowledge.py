"""ShareAcknowledge: the endpoints stand behind the partitions, in both shapes."""

import pytest

from protocol.wire.addresses import NodeAddress, find_nodes, rewrite
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames

NODES = [{"node_id": 4, "host": "kafka-4", "port": 9092, "rack": None}, {"node_id": -1, "host": "", "port": -1}]


@pytest.mark.parametrize("partitions", [0, 1, 200])
@pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.SHARE_ACKNOWLEDGE))
def test_endpoints_behind_partitions(api_version: int, partitions: int) -> None:
    listed = [{"index": index, "error_message": None if index % 2 else "lost"} for index in range(partitions)]
    values = {"responses": [{"partitions": listed}, {"partitions": []}], "node_endpoints": NODES}
    message = kio_frames.fill(kio_frames.schema(ApiKey.SHARE_ACKNOWLEDGE, api_version), values)
    frame = memoryview(kio_frames.response_frame(message))

    assert find_nodes(ApiKey.SHARE_ACKNOWLEDGE, api_version, frame) == [NodeAddress(4, "kafka-4", 9092)]
    assert rewrite(ApiKey.SHARE_ACKNOWLEDGE, api_version, frame, {4: ("kafka-4", 9092)}) == frame
