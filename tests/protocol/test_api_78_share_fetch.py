"""ShareFetch: the endpoints stand behind records of any size."""

from typing import Any

import pytest

from protocol.wire.addresses import NodeAddress, find_nodes, rewrite
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames

NODES = [{"node_id": -1, "host": "", "port": -1}, {"node_id": 4, "host": "kafka-4", "port": 9092, "rack": None}]


@pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.SHARE_FETCH))
@pytest.mark.parametrize("records", [b"", b"r" * 126, b"r" * 127, b"r" * 100_000])
def test_endpoints_behind_records(api_version: int, records: bytes) -> None:
    acquired = [{"first_offset": offset} for offset in range(3)]
    partitions: list[dict[str, Any]] = [
        {"records": records, "acquired_records": acquired, "error_message": None},
        {"records": b"", "acquired_records": [], "acknowledge_error_message": "gone"},
    ]
    values = {"responses": [{"partitions": partitions}, {"partitions": []}], "node_endpoints": NODES}
    message = kio_frames.fill(kio_frames.schema(ApiKey.SHARE_FETCH, api_version), values)
    frame = memoryview(kio_frames.response_frame(message))

    assert find_nodes(ApiKey.SHARE_FETCH, api_version, frame) == [NodeAddress(4, "kafka-4", 9092)]
    assert rewrite(ApiKey.SHARE_FETCH, api_version, frame, {4: ("kafka-4", 9092)}) == frame


@pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.SHARE_FETCH))
def test_null_records_are_passed_over(api_version: int) -> None:
    """The schema lets records be null; a fill of the field shows where to put the null."""
    values = {"node_endpoints": NODES, "responses": [{"partitions": [{"records": b"mark"}]}]}
    message = kio_frames.fill(kio_frames.schema(ApiKey.SHARE_FETCH, api_version), values)
    frame = kio_frames.response_frame(message).replace(b"\x05mark", b"\x00")

    nulled = memoryview(kio_frames.with_length(frame[4:]))
    assert find_nodes(ApiKey.SHARE_FETCH, api_version, nulled) == [NodeAddress(4, "kafka-4", 9092)]
