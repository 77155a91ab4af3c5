"""Metadata: what is not looked at. Addresses are tested in test_addresses."""

import pytest

from protocol.wire.addresses import rewrite
from protocol.wire.identifiers import ApiKey
from tests.support import kio_frames

BROKERS = [{"node_id": 1, "host": "kafka-1", "port": 9092}]


@pytest.mark.parametrize("api_version", kio_frames.versions_of(ApiKey.METADATA))
def test_topics_are_not_looked_at_when_addresses_are_rewritten(api_version: int) -> None:
    schema = kio_frames.schema(ApiKey.METADATA, api_version)
    no_topics = kio_frames.response_frame(kio_frames.fill(schema, {"brokers": BROKERS, "topics": []}))
    frame = memoryview(kio_frames.with_length(no_topics[4:] + b"\xff" * 1000))

    rewritten = rewrite(ApiKey.METADATA, api_version, frame, {1: ("edge", 1)})

    assert rewritten.endswith(no_topics[-1:] + b"\xff" * 1000)
    assert b"kafka-1" not in rewritten
