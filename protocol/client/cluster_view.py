"""The cluster as its Metadata answers tell it: brokers, topics, leaders. No I/O, no clock.

Rules:
- The brokers of the last Metadata answer replace those known before.
- The view holds `topics_max` topics and forgets the one not asked for longest. A name that comes back with another id
  replaces the old topic.
- Metadata is asked of any broker that may answer: known brokers, then bootstrap servers in another order each time,
  so that many clients that start at once do not all go to the first of them. Open connections come first, and brokers
  that failed recently come last.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from protocol.client.messages import METADATA, Question, kio_uuid, uuid_bytes

BOOTSTRAP_NODE = -2
"""Bootstrap server n is node -2 - n, as no broker has a negative id."""


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker and the address that upstream advertises to our own listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition; leader_id is -1 while nobody does."""

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic of a Metadata answer. With an error code, id or name may be missing and partitions are empty; the id is
    zero from brokers that know no topic ids."""

    topic_id: bytes
    name: str | None
    error_code: int
    partitions: Mapping[int, PartitionLeader]


class ClusterView:
    """What was heard last."""

    def __init__(self, topics_max: int) -> None:
        self.cluster_id: str | None = None
        self.brokers: Mapping[int, BrokerNode] = {}
        self._topics_max = topics_max
        self._topics: OrderedDict[bytes, TopicMetadata] = OrderedDict()
        self._ids_by_name: dict[str, bytes] = {}

    def topic_names(self) -> list[str]:
        """The names of all learned topics."""
        return list(self._ids_by_name)

    def topic_id(self, name: str) -> bytes | None:
        """The id of a learned topic, or a stand-in for it where the cluster has no topic ids."""
        return self._ids_by_name.get(name)

    def topic(self, name: str) -> TopicMetadata | None:
        """A learned topic."""
        return self._topic(self._ids_by_name.get(name, b""))

    def leader_of(self, topic_id: bytes, partition: int) -> PartitionLeader | None:
        """The leader of a learned topic's partition, as last heard."""
        topic = self._topic(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def name_of(self, node_id: int) -> str:
        """A broker's id and address, for messages."""
        node = self.brokers.get(node_id)
        return f"broker {node_id}" if node is None else f"broker {node_id} ({node.host}:{node.port})"

    def forget_topic(self, topic_id: bytes) -> None:
        """Drop what is known of a topic, after an error that says it is stale."""
        topic = self._topics.pop(topic_id, None)
        if topic is not None and topic.name is not None and self._ids_by_name.get(topic.name) == topic_id:
            del self._ids_by_name[topic.name]

    def forget(self, name: str) -> None:
        """`forget_topic` by name."""
        self.forget_topic(self._ids_by_name.get(name, b""))

    def forget_all(self) -> None:
        """A broker was lost: any leader may have moved."""
        self._topics.clear()
        self._ids_by_name.clear()

    def remember(self, entry: Any) -> TopicMetadata:
        """Take kio's entry of a topic; one with an error code is not kept."""
        partitions = {
            int(found.partition_index): PartitionLeader(int(found.leader_id), int(found.leader_epoch))
            for found in entry.partitions
        }
        topic = TopicMetadata(uuid_bytes(entry.topic_id), entry.name, int(entry.error_code), partitions)
        if topic.error_code != 0 or topic.name is None:
            return topic
        key = topic.topic_id if any(topic.topic_id) else topic.name.encode()
        old_key = self._ids_by_name.get(topic.name)
        if old_key is not None and old_key != key:
            self.forget_topic(old_key)
        self._topics[key] = topic
        self._topics.move_to_end(key)
        self._ids_by_name[topic.name] = key
        while len(self._topics) > self._topics_max:
            self.forget_topic(next(iter(self._topics)))
        return topic

    def take_brokers(self, response: Any) -> None:
        """Take what kio's Metadata response says of the cluster itself."""
        self.cluster_id = response.cluster_id
        self.brokers = {
            int(entry.node_id): BrokerNode(int(entry.node_id), entry.host, int(entry.port), entry.rack)
            for entry in response.brokers
        } or self.brokers

    def metadata_sources(
        self, bootstrap_servers: Sequence[tuple[str, int]], rank: Callable[[BrokerNode], tuple[bool, float]]
    ) -> list[BrokerNode]:
        """Who may answer Metadata, in the order to ask them; `rank` is (not open, how bad it failed)."""
        bootstrap = [
            BrokerNode(BOOTSTRAP_NODE - position, host, port) for position, (host, port) in enumerate(bootstrap_servers)
        ]
        random.shuffle(bootstrap)
        return sorted([*sorted(self.brokers.values(), key=lambda node: node.node_id), *bootstrap], key=rank)

    def _topic(self, topic_id: bytes) -> TopicMetadata | None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            self._topics.move_to_end(topic_id)
        return topic


def metadata_question(names: Sequence[str] | None) -> Question[Any]:
    """A Metadata request for these topics or for all; none of them is created by it."""
    values = {
        "topics": None if names is None else [{"name": name, "topic_id": None} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    return Question(METADATA, values)


def metadata_question_by_id(topic_ids: Sequence[bytes]) -> Question[Any]:
    """A Metadata request for the topics of these ids: UNKNOWN_TOPIC_ID of one that the broker does not have.

    To brokers before Kafka 3.1 there is no such question (UpstreamUnsupportedError).
    """
    values = {
        "topics": [{"name": None, "topic_id": kio_uuid(topic_id)} for topic_id in topic_ids],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }
    return Question(METADATA_BY_ID, values)


METADATA_BY_ID = replace(METADATA, version_min=12)
