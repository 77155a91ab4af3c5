"""Answers that announce 2^32 - 2 entries, of each kind: the question fails, and its connection alone ends."""

import struct
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio

from protocol.client.cluster_view import metadata_question
from protocol.client.errors import UpstreamProtocolError
from protocol.client.messages import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    Api,
    Question,
)
from protocol.client.offset_questions import epoch_question, offset_questions
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import open_broker_connection
from tests.support.fake_kafka import FakeBroker
from tests.support.socket_broker import socket_broker

FOUR_BILLION = b"\xff\xff\xff\xff\x0f"
HEADER = b"\0\0\0\2\0"
"""Header of the second answer on a connection."""
ASKED: dict[Api, Question[Any]] = {
    METADATA: metadata_question(()),
    LIST_OFFSETS: offset_questions([("t", 0, -1)], replica_id=-2, isolation_level=0, timeout_s=1)[0],
    OFFSET_FOR_LEADER_EPOCH: epoch_question({("t", 0): [1]}, replica_id=-2),
    DESCRIBE_CONFIGS: Question(
        DESCRIBE_CONFIGS, {"resources": (), "include_synonyms": False, "include_documentation": False}
    ),
    PRODUCE: Question(
        PRODUCE, {"transactional_id": None, "acks": -1, "timeout": timedelta(seconds=1), "topic_data": ()}
    ),
}
BEFORE: dict[Api, int] = {METADATA: 4, LIST_OFFSETS: 4, OFFSET_FOR_LEADER_EPOCH: 4, DESCRIBE_CONFIGS: 4, PRODUCE: 0}
"""Bytes of the body before its array."""


@pytest.mark.parametrize("api", BEFORE, ids=lambda api: api.name)
async def test_four_billion_entries_end_one_connection(api: Api) -> None:
    broker, other = FakeBroker(), FakeBroker()
    broker.on(api, lambda _request: HEADER + bytes(BEFORE[api]) + FOUR_BILLION + bytes(64))
    other.on(api, lambda _request: HEADER[:4] + b"\1")  # cut off: another kind of answer that is none
    settings = ClientSettings(bootstrap_servers=())
    with socket_broker(broker) as listening, socket_broker(other) as beside:
        async with trio.open_nursery() as nursery:
            opened = partial(open_broker_connection, settings=settings, role="role", nursery=nursery)
            connection, spared = await opened(*listening.address), await opened(*beside.address)
            with pytest.raises(UpstreamProtocolError, match="bytes or more in"):
                await connection.request(ASKED[api])
            assert (connection.usable, spared.usable) == (False, True)
            spared.abort()


async def test_api_versions_are_measured_too() -> None:
    broker = FakeBroker()
    broker.on(API_VERSIONS, lambda _request: struct.pack(">ih", 1, 0) + FOUR_BILLION + bytes(64))
    with socket_broker(broker) as listening:
        async with trio.open_nursery() as nursery:
            with pytest.raises(UpstreamProtocolError, match="bytes or more in"):
                await open_broker_connection(*listening.address, ClientSettings(bootstrap_servers=()), "role", nursery)
