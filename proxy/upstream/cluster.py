"""The upstream cluster as its metadata tells it: brokers, topics, leaders, and a pool of own connections.

Rules:
- The brokers of the last Metadata answer replace those known before: one that left or changed address has
  its pooled connections retired, and `generation` grows, which `wait_brokers_changed` waits for.
- Topics are learned when somebody asks for them, by name or id; the map holds `topics_max` and forgets the one
  not asked for longest. A name that comes back with another id replaces the old topic.
- One pooled connection per (node, role, lane), opened by whoever needs it first while others wait. Attempts after
  a failure are spaced by a back-off that doubles; a failure also has the metadata refreshed before the next one.
- Nothing here runs by itself: `refresh` is called by the application's own timer and when a question failed.
"""

import functools
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from protocol.client.messages import METADATA, Api, Values, kio_uuid, uuid_bytes
from proxy.upstream.address_race import race
from proxy.upstream.connection import BrokerConnection, open_broker_connection
from proxy.upstream.connection_pool import PooledConnection
from proxy.upstream.errors import (
    UpstreamAuthenticationError,
    UpstreamConnectionError,
    UpstreamError,
    UpstreamUnsupportedError,
)
from proxy.upstream.gathered import Gathered
from proxy.upstream.settings import UpstreamSettings

METADATA_ROLE = "metadata"
TOPIC_IDS_VERSION = 12
"""Metadata by topic id works from version 12 on (Kafka 3.1); versions 10 and 11 have the field, brokers refuse it."""

TOPICS_MAX = 200
"""Topics in one request: at 20 partitions each, their answer keeps the event loop for some 4 ms."""

NAMES_WAITING_MAX = 10_000

UNKNOWN_NODE = -1
BOOTSTRAP_NODE = -2
"""Bootstrap server n is pooled as node -2 - n, as no broker has a negative id."""


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A broker and the address that upstream advertises to Tidegate's own listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class PartitionLeader:
    """Who leads a partition; leader_id is -1 while nobody does."""

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic of a Metadata answer. With an error code, id or name may be missing and partitions are empty."""

    topic_id: bytes
    name: str | None
    error_code: int
    partitions: Mapping[int, PartitionLeader]


class Cluster:
    """Tidegate's own view of upstream. Connections' reader tasks live in `nursery`, the application's."""

    def __init__(self, settings: UpstreamSettings, nursery: trio.Nursery) -> None:
        self.settings = settings
        self.cluster_id: str | None = None
        self.controller_id = UNKNOWN_NODE
        self.brokers: Mapping[int, BrokerNode] = {}
        self.generation = 0
        self._nursery = nursery
        self._brokers_changed = trio.Event()
        self._topics: OrderedDict[bytes, TopicMetadata] = OrderedDict()
        self._ids_by_name: dict[str, bytes] = {}
        self._pool: dict[tuple[int, str, int], PooledConnection] = {}
        self._refresh_lock = trio.Lock()
        self._stale = True
        self._names = Gathered(nursery, self._learn_names, name="topics by name")

    async def refresh(self) -> None:
        """Ask for the current brokers, cluster id and controller.

        Raises:
            UpstreamError: no known broker and no bootstrap server answered; it names what each said.
        """
        await self._metadata({"topics": ()})

    async def learn_topics(self, *, names: Sequence[str] = (), topic_ids: Sequence[bytes] = ()) -> list[TopicMetadata]:
        """Ask for these topics, never creating one; what is found is remembered. One entry per topic that was asked.

        TOPICS_MAX of the names in one request, one request after another.

        Raises:
            UpstreamError: nobody answered. Topics that cannot be described carry their error code instead.
        """
        topics: list[TopicMetadata] = []
        for at in range(0, len(names), TOPICS_MAX):
            asked = [{"name": name, "topic_id": None} for name in names[at : at + TOPICS_MAX]]
            response = await self._metadata({"topics": asked})
            topics += [self._remember(entry) for entry in response.topics]
        if topic_ids:
            topics += await self._learn_by_id(topic_ids)
        return topics

    @property
    def names_room(self) -> int:
        """How many names more may wait to be asked for by `learn_names`: clients name what they like."""
        return max(0, NAMES_WAITING_MAX - len(self._names))

    async def learn_names(self, names: Sequence[str]) -> None:
        """Ask for these topics together with those that others ask for meanwhile (proxy.upstream.gathered).

        Raises:
            UpstreamError: nobody answered.

        Cancellation: the question goes on.
        """
        await self._names.wait(names)

    def topic_names(self) -> list[str]:
        """The names of all learned topics."""
        return list(self._ids_by_name)

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of a learned topic."""
        topic = self._topic(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> bytes | None:
        """The id of a learned topic."""
        return self._ids_by_name.get(name)

    def leader_of(self, topic_id: bytes, partition: int) -> PartitionLeader | None:
        """The leader of a learned topic's partition, as last heard."""
        topic = self._topic(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def forget_topic(self, topic_id: bytes) -> None:
        """Drop what is known of a topic, after an error that says it is stale."""
        topic = self._topics.pop(topic_id, None)
        if topic is not None and topic.name is not None and self._ids_by_name.get(topic.name) == topic_id:
            del self._ids_by_name[topic.name]

    async def wait_brokers_changed(self, generation: int) -> None:
        """Return once `generation` is past the given one."""
        while self.generation <= generation:
            await self._brokers_changed.wait()

    async def connection_to(self, node_id: int, role: str, *, lane: int = 0) -> BrokerConnection:
        """The pooled connection to a broker for that role, opened if there is none.

        Args:
            lane: a broker answers a connection's requests one after another; what must not wait behind a long
                poll takes another lane.

        Raises:
            UpstreamError: no broker has this id now, or it cannot be reached or does not let us in.
        """
        key = (node_id, role, lane)
        if key not in self._pool or not self._pool[key].usable:
            await self._require_node(node_id)
        pooled = self._pool.setdefault(key, PooledConnection(self.settings))
        return await pooled.get(lambda: self._open(node_id, role))

    def drop_connection(self, node_id: int, role: str, *, lane: int = 0) -> None:
        """Close a pooled connection that is not needed any more, after the answers it waits for."""
        pooled = self._pool.pop((node_id, role, lane), None)
        if pooled is not None:
            pooled.close()

    async def ask(
        self,
        node_id: int,
        role: str,
        api: Api,
        values: Values,
        *,
        timeout_s: float | None = None,
        version_needed: int = 0,
    ) -> Any:
        """One request to a named broker on its pooled connection.

        Only for questions: a connection that was open before and is lost meanwhile is replaced once,
        which sends the request twice.

        Raises:
            UpstreamError: as `connection_to` and `BrokerConnection.request`.
        """
        pooled = self._pool.get((node_id, role, 0))
        reused = pooled is not None and pooled.usable
        connection = await self.connection_to(node_id, role)
        try:
            return await connection.request(api, values, timeout_s=timeout_s, version_needed=version_needed)
        except UpstreamConnectionError:
            self._stale = True
            if not reused:
                raise
        connection = await self.connection_to(node_id, role)
        return await connection.request(api, values, timeout_s=timeout_s, version_needed=version_needed)

    async def aclose(self) -> None:
        """Close all pooled connections."""
        for pooled in self._pool.values():
            pooled.close()
        self._pool.clear()
        await trio.lowlevel.checkpoint()

    async def _open(self, node_id: int, role: str) -> BrokerConnection:
        node = self.brokers.get(node_id)
        if node is None:
            raise UpstreamConnectionError(f"broker {node_id} left the cluster meanwhile")
        try:
            return await open_broker_connection(node.host, node.port, self.settings, role, self._nursery)
        except UpstreamConnectionError:
            self._stale = True  # it may have moved
            raise

    async def _require_node(self, node_id: int) -> None:
        async with self._refresh_lock:
            if self._stale or node_id not in self.brokers:
                await self.refresh()
        if node_id not in self.brokers:
            raise UpstreamConnectionError(f"no broker {node_id} in the cluster's metadata")

    async def _metadata(self, values: Values, version_needed: int = 0) -> Any:
        full_values = {
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
            **values,
        }
        failures: list[UpstreamError] = []
        sources = self._sources()
        while sources:
            failed: dict[int, UpstreamError] = {}
            won = await race(sources, failed, discard=_leave_in_pool)
            failures += failed.values()
            if won is None:
                break
            number, connection = won
            try:
                response = await connection.request(METADATA, full_values, version_needed=version_needed)
            except UpstreamUnsupportedError:
                raise
            except UpstreamError as error:
                failures.append(error)
                sources = [each for at, each in enumerate(sources) if at != number and at not in failed]
                continue
            self._take_brokers(response)
            return response
        if unsupported := next((each for each in failures if isinstance(each, UpstreamUnsupportedError)), None):
            raise unsupported
        said = "upstream gives no metadata: " + "; ".join(sorted(set(map(str, failures))))
        if any(isinstance(error, UpstreamAuthenticationError) for error in failures):
            raise UpstreamAuthenticationError(said)  # more to the point than whatever else failed
        raise UpstreamConnectionError(said)

    def _sources(self) -> list[Callable[[], Awaitable[BrokerConnection]]]:
        """Ways to a broker that may answer Metadata: known brokers, then bootstrap servers; of both the open
        connections first, and those last that failed."""
        known = [(node.node_id, node.host, node.port) for node in self.brokers.values()]
        servers = enumerate(self.settings.bootstrap_servers)
        bootstrap = [(BOOTSTRAP_NODE - position, host, port) for position, (host, port) in servers]
        # Many that start at once do not all go to the first of them.
        random.shuffle(bootstrap)
        ranked = sorted(known, key=lambda node: (*self._rank(node[0]), node[0]))
        ranked += sorted(bootstrap, key=lambda node: self._rank(node[0]))
        return [functools.partial(self._direct, *node) for node in ranked]

    def _rank(self, node_id: int) -> tuple[bool, float]:
        pooled = self._pool.get((node_id, METADATA_ROLE, 0))
        if pooled is None:
            return (True, 0.0)
        return (not pooled.usable, pooled.backoff_s)

    async def _direct(self, node_id: int, host: str, port: int) -> BrokerConnection:
        """Like connection_to, for Metadata itself: never asks for metadata first."""
        pooled = self._pool.setdefault((node_id, METADATA_ROLE, 0), PooledConnection(self.settings))
        return await pooled.get(lambda: open_broker_connection(host, port, self.settings, METADATA_ROLE, self._nursery))

    def _take_brokers(self, response: Any) -> None:
        brokers = {
            int(entry.node_id): BrokerNode(int(entry.node_id), entry.host, int(entry.port), entry.rack)
            for entry in response.brokers
        }
        self.cluster_id = response.cluster_id
        self.controller_id = int(response.controller_id)
        self._stale = False
        if brokers == self.brokers or not brokers:
            return
        for key in [key for key in self._pool if self._outdated(key[0], brokers)]:
            self._pool.pop(key).close()
        self.brokers = brokers
        self.generation += 1
        self._brokers_changed.set()
        self._brokers_changed = trio.Event()

    def _outdated(self, node_id: int, brokers: Mapping[int, BrokerNode]) -> bool:
        # bootstrap connections are in neither and go too: the named brokers take over
        return node_id not in brokers or brokers[node_id] != self.brokers.get(node_id)

    async def _learn_names(self, names: Sequence[str]) -> Mapping[str, None]:
        await self.learn_topics(names=names)
        return {}

    async def _learn_by_id(self, topic_ids: Sequence[bytes]) -> list[TopicMetadata]:
        wanted = [{"name": None, "topic_id": kio_uuid(topic_id)} for topic_id in topic_ids]
        try:
            response = await self._metadata({"topics": wanted}, version_needed=TOPIC_IDS_VERSION)
        except UpstreamUnsupportedError:
            response = await self._metadata({"topics": None})
            ids = set(topic_ids)
            return [self._remember(entry) for entry in response.topics if uuid_bytes(entry.topic_id) in ids]
        return [self._remember(entry) for entry in response.topics]

    def _remember(self, entry: Any) -> TopicMetadata:
        partitions = {
            int(partition.partition_index): PartitionLeader(int(partition.leader_id), int(partition.leader_epoch))
            for partition in entry.partitions
        }
        topic = TopicMetadata(uuid_bytes(entry.topic_id), entry.name, int(entry.error_code), partitions)
        if topic.error_code != 0 or topic.name is None:
            return topic
        old_id = self._ids_by_name.get(topic.name)
        if old_id is not None and old_id != topic.topic_id:
            self.forget_topic(old_id)
        self._topics[topic.topic_id] = topic
        self._topics.move_to_end(topic.topic_id)
        self._ids_by_name[topic.name] = topic.topic_id
        while len(self._topics) > self.settings.topics_max:
            self.forget_topic(next(iter(self._topics)))
        return topic

    def _topic(self, topic_id: bytes) -> TopicMetadata | None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            self._topics.move_to_end(topic_id)
        return topic


def _leave_in_pool(_connection: BrokerConnection) -> None:
    """A connection that came second may be wanted next time."""
