"""A cluster of fake brokers whose Metadata answers come from one table that a test may change at any time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio
from kio.schema.errors import ErrorCode

from protocol.client.messages import METADATA, Values, kio_uuid
from tests.support.fake_broker import FakeBroker, FakeNetwork


@dataclass
class FakeTopic:
    topic_id: bytes
    leaders: list[int]
    """Of each partition, by number; -1 for none."""
    error_code: ErrorCode = ErrorCode.none


@dataclass
class FakeCluster:
    """`addresses` is what Metadata says; the network may know less (a broker down) or more (one that moved)."""

    network: FakeNetwork
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    topics: dict[str, FakeTopic] = field(default_factory=dict)
    brokers: dict[int, FakeBroker] = field(default_factory=dict)

    def add(self, node_id: int, host: str, port: int) -> FakeBroker:
        """A broker at an address; again for the same node id: it moved."""
        broker = self.brokers.setdefault(node_id, FakeBroker())
        old = self.addresses.get(node_id)
        if old is not None:
            self.network.brokers.pop(old, None)
        self.addresses[node_id] = (host, port)
        self.network.brokers[(host, port)] = broker
        broker.on(METADATA, self.metadata)
        return broker

    def stop(self, node_id: int) -> None:
        """The broker is down; Metadata still names it."""
        self.network.brokers.pop(self.addresses[node_id], None)
        self.brokers[node_id].disconnect_all()

    def leave(self, node_id: int) -> None:
        self.stop(node_id)
        del self.addresses[node_id]

    async def metadata(self, request: Any) -> Values:
        await trio.lowlevel.checkpoint()
        return metadata_answer(request, self.addresses, self.topics)


def metadata_answer(
    request: Any, addresses: Mapping[int, tuple[str, int]], topics: Mapping[str, FakeTopic], leader_epoch: int = 4
) -> Values:
    """What a broker of such a cluster answers to a Metadata request by name."""
    names = topics if request.topics is None else [entry.name for entry in request.topics]
    return {
        "brokers": [
            {"node_id": node_id, "host": host, "port": port, "rack": f"rack-{node_id}"}
            for node_id, (host, port) in addresses.items()
        ],
        "cluster_id": "fake",
        "controller_id": min(addresses),
        "topics": [_topic(name, topics.get(name), leader_epoch) for name in names],
        "error_code": ErrorCode.none,
    }


def _topic(name: str, topic: FakeTopic | None, leader_epoch: int) -> Values:
    if topic is None or topic.error_code is not ErrorCode.none:
        code = ErrorCode.unknown_topic_or_partition if topic is None else topic.error_code
        return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}
    partitions = [
        {"error_code": ErrorCode.none, "partition_index": index, "leader_id": leader, "leader_epoch": leader_epoch}
        for index, leader in enumerate(topic.leaders)
    ]
    return {
        "error_code": ErrorCode.none,
        "name": name,
        "topic_id": kio_uuid(topic.topic_id),
        "partitions": partitions,
    }
