"""The upstream cluster as Tidegate sees it: the view that Metadata answers give, and a pool of own connections.

Rules:
- A broker that left or changed address has its pooled connections retired.
- Topics are learned when somebody asks for them.
- One pooled connection per (node, role, lane), opened for the first that needs it while others wait. Attempts after
  a failure are spaced by a back-off that doubles; a failure also has the metadata refreshed before the next one.
- Nothing here runs by itself: `refresh` is called by the application's own timer and when a question failed.
"""

import functools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import structlog
import trio

from protocol.client.cluster_view import BrokerNode, ClusterView, TopicMetadata, metadata_question
from protocol.client.errors import (
    UpstreamAuthenticationError,
    UpstreamConnectionError,
    UpstreamError,
    UpstreamUnsupportedError,
)
from protocol.client.leaders import AskNode
from protocol.client.messages import Question
from protocol.client.offset_questions import DEBUGGING_REPLICA, epoch_question
from protocol.client.settings import ClientSettings
from proxy.upstream.connection import BrokerConnection, open_broker_connection
from proxy.upstream.first_address import race
from proxy.upstream.gathered import Gathered
from proxy.upstream.shared_connection import PooledConnection
from storage.tasks import TaskNursery

METADATA_ROLE = "metadata"

TOPICS_MAX = 200
"""Topics in one request: at 20 partitions each, their answer keeps the event loop for some 4 ms."""

NAMES_WAITING_MAX = 10_000


DENIED_TOPICS_MAX = 10_000
"""It is kept of so many that we may not describe them."""

DENIED_TOPICS_NAMED_MAX = 5

TOPIC_AUTHORIZATION_FAILED = 29

_NOTHING = epoch_question({}, replica_id=DEBUGGING_REPLICA)
"""It needs no right, and its answer is as short whatever the cluster's size."""

_log = structlog.get_logger(__name__)


class Cluster(ClusterView):
    """Tidegate's own view of upstream. Connections' reader tasks live in `nursery`, the application's."""

    def __init__(self, settings: ClientSettings, nursery: TaskNursery) -> None:
        super().__init__(settings.topics_max)
        self.settings = settings
        self._nursery = nursery
        self._pool: dict[tuple[int, str, int], PooledConnection] = {}
        self._refresh_lock = trio.Lock()
        self._stale = True
        self._denied: set[str] = set()
        self._versions: dict[int, Mapping[int, tuple[int, int]]] = {}
        self._names = Gathered(nursery, self._learn_names, name="topics by name")

    async def refresh(self) -> None:
        """Ask for the current brokers and the cluster id.

        Raises:
            UpstreamError: no known broker and no bootstrap server answered; it names what each said.
        """
        await self._metadata(())

    async def learn_topics(self, names: Sequence[str]) -> list[TopicMetadata]:
        """Ask for these topics, never creating one; what is found is remembered. One entry per topic that was asked.

        TOPICS_MAX of the names in one request, one request after another.

        Raises:
            UpstreamError: nobody answered. Topics that cannot be described carry their error code instead.
        """
        topics: list[TopicMetadata] = []
        for at in range(0, len(names), TOPICS_MAX):
            response = await self._metadata(names[at : at + TOPICS_MAX])
            topics += [self.remember(entry) for entry in response.topics]
        for topic in topics:
            self.note_described(topic.name or "", topic.error_code)
        return topics

    def note_described(self, topic: str, error_code: int) -> None:
        """A broker has said whether it tells us of this topic: that it does not is logged once, until it does again."""
        if error_code != TOPIC_AUTHORIZATION_FAILED:
            self._denied.discard(topic)
        elif topic not in self._denied and len(self._denied) < DENIED_TOPICS_MAX:
            self._denied.add(topic)
            _log.warning("topic_not_described", topic=topic, reason=self.describe_missing([topic]))

    @property
    def denied(self) -> AbstractSet[str]:
        """Topics that we may not describe, as brokers said last."""
        return self._denied

    def describe_missing(self, topics: Sequence[str]) -> str:
        """That we may not describe these topics, and what grants it."""
        named = topics[:DENIED_TOPICS_NAMED_MAX]
        more = f" and {len(topics) - len(named)} more" if len(topics) > len(named) else ""
        grant = self.settings.grant(["Describe"], "topic", ["*"] if more else topics)
        what = f"ACL Describe on Topic {', '.join(named)}{more} is missing for {self.settings.principal}"
        return f"{what}, so we serve nothing of it: {grant}"

    @property
    def names_room(self) -> int:
        """Return how many names more may wait to be asked for by `learn_names`: clients name what they like."""
        return max(0, NAMES_WAITING_MAX - len(self._names))

    async def learn_names(self, names: Sequence[str]) -> None:
        """Ask for these topics together with those that others ask for meanwhile (proxy.upstream.gathered).

        Raises:
            UpstreamError: nobody answered.

        Cancellation: the question goes on.
        """
        await self._names.wait(names)

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

    def newest_version(self, node_id: int, api_key: int) -> int | None:
        """The newest version of an API that this broker has, as it last told us; None: it has not."""
        versions = self._versions.get(node_id, {}).get(api_key)
        return None if versions is None else versions[1]

    async def ask(self, node_id: int, role: str, question: Question[Any], timeout_s: float | None = None) -> Any:
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
            return await connection.request(question, timeout_s)
        except UpstreamConnectionError:
            self._stale = True
            if not reused:
                raise
        connection = await self.connection_to(node_id, role)
        return await connection.request(question, timeout_s)

    async def ask_all(self, role: str, asks: Sequence[AskNode]) -> list[Any]:
        """All of these at once, pipelined; each one's response or the UpstreamError that `ask` raised. An error that
        stays is everyone's: the others are not asked any more."""
        answers: list[Any] = [None] * len(asks)
        stays: list[UpstreamError] = []

        async def ask_one(at: int, asked: AskNode) -> None:
            try:
                answers[at] = await self.ask(asked.node_id, role, asked.question, asked.timeout_s)
            except UpstreamError as error:
                answers[at] = error
                if not error.retriable:
                    stays.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for at, asked in enumerate(asks):
                nursery.start_soon(ask_one, at, asked)
        return answers if not stays else [stays[0]] * len(asks)

    async def ask_each(self, limit_s: float) -> dict[int, float | str]:
        """Ask every known broker a question of no size: after how many seconds it answered, or why it did not."""
        said: dict[int, float | str] = {}

        async def ask(node_id: int) -> None:
            began_s = trio.current_time()
            try:
                with trio.fail_after(limit_s):
                    await self.ask(node_id, METADATA_ROLE, _NOTHING)
                said[node_id] = trio.current_time() - began_s
            except UpstreamError as error:
                said[node_id] = str(error)
            except trio.TooSlowError:
                said[node_id] = f"no answer within {limit_s:g} s"

        async with trio.open_nursery() as nursery:
            for node_id in self.brokers:
                nursery.start_soon(ask, node_id)
        return said

    async def _open(self, node_id: int, role: str) -> BrokerConnection:
        node = self.brokers.get(node_id)
        if node is None:
            raise UpstreamConnectionError(f"broker {node_id} left the cluster meanwhile")
        try:
            connection = await open_broker_connection(node.host, node.port, self.settings, role, self._nursery)
        except UpstreamConnectionError:
            self._stale = True  # it may have moved
            raise
        self._versions[node_id] = connection.versions
        return connection

    async def _require_node(self, node_id: int) -> None:
        async with self._refresh_lock:
            if self._stale or node_id not in self.brokers:
                await self.refresh()
        if node_id not in self.brokers:
            raise UpstreamConnectionError(f"no broker {node_id} in the cluster's metadata")

    async def _metadata(self, names: Sequence[str]) -> Any:
        question = metadata_question(names)
        while True:
            brokers, failures = self.brokers, list[UpstreamError]()
            response = await self._first_answer(question, failures)
            if response is not None:
                self.take_brokers(response)
                return response
            if self.brokers == brokers:
                break
            # The answer to another question has named others meanwhile, and had what we asked over retired.
        if unsupported := next((each for each in failures if isinstance(each, UpstreamUnsupportedError)), None):
            raise unsupported
        said = "upstream gives no metadata: " + "; ".join(sorted(set(map(str, failures))))
        if any(isinstance(error, UpstreamAuthenticationError) for error in failures):
            raise UpstreamAuthenticationError(said)  # more to the point than whatever else failed
        raise UpstreamConnectionError(said)

    async def _first_answer(self, question: Question[Any], failures: list[UpstreamError]) -> Any:
        """Return the first answer of those that may answer Metadata; None when all failed, and how."""
        nodes = self.metadata_sources(self.settings.bootstrap_servers, self._rank)
        sources = [functools.partial(self._direct, node) for node in nodes]
        while sources:
            failed: dict[int, UpstreamError] = {}
            won = await race(sources, failed, discard=_leave_in_pool)
            failures += failed.values()
            if won is None:
                break
            number, connection = won
            try:
                return await connection.request(question)
            except UpstreamError as error:
                failures.append(error)
                sources = [each for at, each in enumerate(sources) if at != number and at not in failed]
        return None

    def _rank(self, node: BrokerNode) -> tuple[bool, float]:
        pooled = self._pool.get((node.node_id, METADATA_ROLE, 0))
        return (True, 0.0) if pooled is None else (not pooled.usable, pooled.backoff_s)

    async def _direct(self, node: BrokerNode) -> BrokerConnection:
        """Like connection_to, for Metadata itself: never asks for metadata first."""
        pooled = self._pool.setdefault((node.node_id, METADATA_ROLE, 0), PooledConnection(self.settings))
        return await pooled.get(
            lambda: open_broker_connection(node.host, node.port, self.settings, METADATA_ROLE, self._nursery)
        )

    def take_brokers(self, response: Any) -> None:
        before = self.brokers
        super().take_brokers(response)
        self._stale = False
        if self.brokers == before:
            return
        # Those of bootstrap servers are in neither and go too: the named brokers take over.
        for key in [key for key in self._pool if key[0] not in before or self.brokers.get(key[0]) != before[key[0]]]:
            self._pool.pop(key).close()

    async def _learn_names(self, names: Sequence[str]) -> Mapping[str, None]:
        await self.learn_topics(names)
        return {}


def _leave_in_pool(_connection: BrokerConnection) -> None:
    """A connection that came second may be wanted next time."""
