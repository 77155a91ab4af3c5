"""The cluster as its Metadata tells it to the pipeline: topics, leaders, and one connection per broker. One thread.

Rules:
- Nothing is retried here: BrokerClient has the deadline and the back-off.
- Metadata is asked of any broker that answers: open connections first, then known brokers, then bootstrap servers. The
  first that refuses to let us in or whose TLS fails ends it: the next one has the same rules.
- A leader is remembered until `forget` says that something about its topic was wrong, or its connection was lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.brokers.connection import BrokerConnection
from pipeline.brokers.errors import (
    BrokerConnectionError,
    BrokerError,
    BrokerRefusedError,
    TopicAuthorizationError,
    UnknownTopicError,
)
from pipeline.brokers.settings import ClientSettings
from protocol.client.messages import METADATA, Values, uuid_bytes
from protocol.wire.errors import PASSING_CODES, ErrorCode
from storage.model import Uuid

ABSENT_CODES = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 17})
"""What Metadata says of a topic that is not there; 17 is INVALID_TOPIC_EXCEPTION: no topic can have that name."""


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition, as last heard. `topic_id` is zero from brokers that know no topic ids."""

    node_id: int
    leader_epoch: int
    topic_id: Uuid


class BrokerCluster:
    """Owns the connections; `close` closes them."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._topics: dict[str, tuple[Uuid, dict[int, tuple[int, int]]]] = {}

    def describe(self, names: Sequence[str] | None) -> list[Any]:
        """Metadata's entries of these topics or of all, without those that do not exist; kio's dataclasses.

        Raises:
            TopicAuthorizationError: we may not describe one that was asked by name.
            BrokerError: nobody answers, or a topic has no answer just now (retriable).
        """
        if names is not None and not names:
            return []
        broker_name, response = self._metadata(names)
        found = []
        for entry in response.topics:
            code = int(entry.error_code)
            if code in ABSENT_CODES:
                self.forget(entry.name)
                continue
            if code != ErrorCode.NONE:
                raise self.refusal(broker_name, "Metadata", entry.name, code)
            self._remember(entry)
            found.append(entry)
        return found

    def leader_of(self, topic: str, partition: int) -> PartitionLeader:
        """The partition's leader, asked of Metadata unless it is known.

        Raises:
            UnknownTopicError: there is no such topic or partition.
            TopicAuthorizationError: we may not describe the topic.
            BrokerError: as `describe`, or there is no leader just now (retriable).
        """
        if topic not in self._topics:
            self.describe([topic])
        known = self._topics.get(topic)
        if known is None:
            code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise UnknownTopicError(f"{self._brokers_text()}: there is no topic {topic}", code)
        topic_id, leaders = known
        if partition not in leaders:
            self.forget(topic)
            code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise UnknownTopicError(f"{self._brokers_text()}: topic {topic} has no partition {partition}", code)
        node_id, leader_epoch = leaders[partition]
        if node_id not in self._addresses:
            self.forget(topic)
            code = int(ErrorCode.LEADER_NOT_AVAILABLE)
            raise BrokerRefusedError(f"{topic}-{partition} has no leader just now", code, retriable=True)
        return PartitionLeader(node_id, leader_epoch, topic_id)

    def connection_to(self, node_id: int) -> BrokerConnection:
        """The connection to a broker that `leader_of` named, opened if there is none.

        Raises:
            BrokerError: it cannot be reached or does not let us in.
        """
        address = self._addresses.get(node_id)
        if address is None:
            raise BrokerConnectionError(f"broker {node_id} left the cluster")
        try:
            return self._connection(address)
        except BrokerConnectionError:
            self.forget_all()  # its partitions may have gone to another
            raise

    def name_of(self, node_id: int) -> str:
        """A broker's id and address, for messages."""
        host, port = self._addresses.get(node_id, ("", 0))
        return f"broker {node_id} ({host}:{port})" if host else f"broker {node_id}"

    def forget(self, topic: str) -> None:
        """Something said that what is known of this topic is out of date."""
        self._topics.pop(topic, None)

    def forget_all(self) -> None:
        """A broker was lost: any leader may have moved."""
        self._topics.clear()

    def refusal(
        self, broker_name: str, question: str, topic: str, code: int, partition: int | None = None
    ) -> BrokerError:
        """The error for an error code. What is known of the topic is forgotten where the code says so."""
        where = topic if partition is None else f"{topic}-{partition}"
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            right = "Read" if question == "Fetch" else "Describe"
            who = self._settings.principal
            return TopicAuthorizationError(
                f"{broker_name}: {question} of {where} is denied to {who}: ACL {right} on Topic {topic} is missing",
                code,
            )
        if code in PASSING_CODES:
            self.forget(topic)
        said = code_name(code)
        return BrokerRefusedError(
            f"{broker_name}: {question} of {where} failed with {said}", code, code in PASSING_CODES
        )

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _metadata(self, names: Sequence[str] | None) -> tuple[str, Any]:
        topics = None if names is None else [{"name": name, "topic_id": None} for name in names]
        values: Values = {
            "topics": topics,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        }
        failures: list[str] = []
        for address in self._sources():
            try:
                connection = self._connection(address)
                response = connection.request(METADATA, values)
            except BrokerConnectionError as error:
                failures.append(str(error))
                continue
            self._addresses = {int(entry.node_id): (entry.host, int(entry.port)) for entry in response.brokers}
            return connection.broker_name, response
        raise BrokerConnectionError("no broker answers: " + "; ".join(dict.fromkeys(failures)))

    def _sources(self) -> Iterator[tuple[str, int]]:
        open_first = [address for address, connection in self._connections.items() if connection.usable]
        yield from dict.fromkeys((*open_first, *self._addresses.values(), *self._settings.bootstrap_servers))

    def _connection(self, address: tuple[str, int]) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.usable:
            return connection
        if connection is not None:
            connection.close()
            del self._connections[address]
        self._connections[address] = connection = BrokerConnection(*address, self._settings)
        return connection

    def _remember(self, entry: Any) -> None:
        leaders = {
            int(partition.partition_index): (int(partition.leader_id), int(partition.leader_epoch))
            for partition in entry.partitions
        }
        self._topics[entry.name] = (Uuid(uuid_bytes(entry.topic_id)), leaders)

    def _brokers_text(self) -> str:
        host, port = self._settings.bootstrap_servers[0]
        return f"the cluster at {host}:{port}"


def code_name(code: int) -> str:
    """Kafka's name of an error code that we know by name, else its number."""
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error code {code}"
