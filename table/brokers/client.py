"""A blocking Kafka client for the driver's questions and for tail tasks: topics, offsets, leader epochs, records.

The blocking shell of protocol.client.leaders, which says what is asked of whom. Here are the connections, the deadline
and the back-off. Rules:
- One thread, a context manager. `ClientSettings` says where, as whom and how patiently.
- Every call keeps trying until it has its answer or the settings' deadline has passed: leaders that move, brokers that
  restart and connections that are lost are waited out with a back-off that doubles. What waiting cannot cure (rights,
  unknown topics, a wrong password, an offset out of range) is raised at once. Errors: protocol.client.errors.
- One connection per address, opened when it is needed. Metadata is asked of any broker that answers, in the order of
  protocol.client.leaders; an address that failed comes last from then on. The first broker that refuses to let us in or
  whose TLS fails ends the attempt: the next one has the same rules.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import structlog

from protocol.client.cluster_view import BrokerNode, ClusterView, TopicMetadata, metadata_question
from protocol.client.conversation import drive
from protocol.client.errors import UpstreamConnectionError, UpstreamDeadlineError, UpstreamError, UpstreamRefusedError
from protocol.client.groups import GroupOffset, commit_group_offsets, fetch_group_offsets
from protocol.client.leaders import (
    AskMetadata,
    AskNode,
    FetchedRecords,
    LeaderEpochAnswers,
    LeaderQuestions,
    Step,
    Steps,
)
from protocol.client.offset_questions import OffsetAnswer, Partition
from protocol.client.settings import ClientSettings
from storage.backoff import Backoff
from table.brokers.connection import BrokerConnection

BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 2.0

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")


class BrokerClient:
    """`clock` and `wait` are for tests: seconds that never go back, and how to let some pass."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.settings = settings
        self._view = ClusterView(settings.topics_max)
        self._questions = LeaderQuestions(self._view, settings)
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._failed_at_s: dict[tuple[str, int], float] = {}
        self._clock = clock
        self._wait = wait or threading.Event().wait

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens them again. Idempotent."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicMetadata]:
        """These topics, or all that we may describe; a name that does not exist is not in the answer.

        Raises:
            TopicAuthorizationError: we may not describe one of the names.
            UpstreamError: nobody answers, or we are not let in.
        """
        found = self._retrying(lambda: self._questions.describe(names))
        return {topic.name: topic for topic in found if topic.name is not None}

    def list_offsets(
        self, timestamps: Mapping[Partition, int], *, read_committed: bool = False
    ) -> Mapping[Partition, OffsetAnswer]:
        """The offset of one timestamp per partition: a time in milliseconds (the first record at or after it), or one
        of protocol.list_offsets.OffsetTimestamp.

        Raises:
            UpstreamUnsupportedError: a timestamp needs a newer version than the broker has.
            UnknownTopicError, TopicAuthorizationError, UpstreamError: there is no answer for a partition.
        """
        queries = {partition: (*partition, timestamp) for partition, timestamp in timestamps.items()}
        answers: dict[tuple[str, int, int], OffsetAnswer] = {}
        wanted = list(queries.values())
        self._retrying(lambda: self._questions.list_offsets(wanted, answers, read_committed=read_committed))
        return {partition: answers[query] for partition, query in queries.items()}

    def leader_epoch_ends(self, topic: str, partition: int, epochs: Sequence[int]) -> LeaderEpochAnswers:
        """Return where each of these leader epochs ends, by the lineage of the partition's leader.

        Raises:
            UnknownTopicError, TopicAuthorizationError, UpstreamError: there is no answer.
        """
        return self._retrying(lambda: self._questions.epoch_ends(topic, partition, epochs))

    def fetch(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, read_committed: bool, max_wait_ms: int
    ) -> FetchedRecords:
        """Record batches from `offset` on, as they are in the log; empty after max_wait_ms without any.

        Args:
            max_bytes: how much to answer; a first batch that is larger comes whole. At most half of the settings'
                frame limit is asked for.

        Raises:
            OffsetOutOfRangeError: the log does not hold this offset.
            TopicReplacedError: the topic is not the one that this client fetched from before.
            UnknownTopicError, TopicAuthorizationError, UpstreamError: there is no answer.
        """
        ask = partial(self._questions.fetch, topic, partition, offset)
        return self._retrying(lambda: ask(max_bytes=max_bytes, read_committed=read_committed, max_wait_ms=max_wait_ms))

    def commit_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Keep next offsets for a consumer group that has no members.

        Raises:
            GroupInUseError: it has.
            GroupAuthorizationError, TopicAuthorizationError, UpstreamError: see protocol.client.groups.
        """
        kept = {partition: GroupOffset(offset) for partition, offset in offsets.items()}
        self._retrying(lambda: commit_group_offsets(self._view, self.settings, group, kept))

    def committed_offsets(self, group: str, partitions: Sequence[Partition]) -> Mapping[Partition, GroupOffset]:
        """Return what is kept for a consumer group; partitions of which nothing is are left out.

        Raises:
            GroupAuthorizationError, TopicAuthorizationError, UpstreamError: see protocol.client.groups.
        """
        refused: dict[Partition, UpstreamRefusedError] = {}
        found = self._retrying(lambda: fetch_group_offsets(self._view, self.settings, group, partitions, refused))
        for error in refused.values():
            raise error
        return found

    def _retrying(self, attempt: Callable[[], Steps[T]]) -> T:
        """Return what the conversation returns, tried until the deadline while its errors are retriable."""
        deadline_s = self._clock() + self.settings.deadline_s
        backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX)
        is_logged = False
        while True:
            try:
                return drive(attempt(), self._answer)
            except UpstreamError as error:
                if not error.retriable:
                    raise
                delay_s = backoff.next_delay_s()
                if self._clock() + delay_s >= deadline_s:
                    raise UpstreamDeadlineError(f"given up after {self.settings.deadline_s:g} s: {error}") from error
                reason = str(error)
            if not is_logged:  # a job that hangs here shall say why, once
                _log.warning("brokers_do_not_answer", reason=reason)
                is_logged = True
            self._wait(delay_s)

    def _answer(self, step: Step) -> list[Any]:
        if isinstance(step, AskMetadata):
            return self._learn(step.names)
        return [self._ask(asked) for asked in step]

    def _ask(self, asked: AskNode) -> Any:
        """The response's body, or the error in its place."""
        node = self._view.brokers.get(asked.node_id)
        try:
            if node is None:
                raise UpstreamConnectionError(f"broker {asked.node_id} left the cluster")
            return self._connection((node.host, node.port)).request(asked.question, asked.timeout_s)
        except UpstreamConnectionError as error:
            self._view.forget_all()  # its partitions may have gone to another
            return error
        except UpstreamError as error:
            return error

    def _learn(self, names: Sequence[str] | None) -> list[TopicMetadata]:
        question = metadata_question(names)
        failures: list[str] = []
        nodes = self._view.metadata_sources(self.settings.bootstrap_servers, self._rank)
        for address in dict.fromkeys((node.host, node.port) for node in nodes):
            try:
                response = self._connection(address).request(question)
            except UpstreamConnectionError as error:
                failures.append(str(error))
                continue
            self._view.take_brokers(response)
            return [self._view.remember(entry) for entry in response.topics]
        raise UpstreamConnectionError("no broker answers: " + "; ".join(sorted(set(failures))))

    def _rank(self, node: BrokerNode) -> tuple[bool, float]:
        address = (node.host, node.port)
        connection = self._connections.get(address)
        return connection is None or not connection.usable, self._failed_at_s.get(address, 0.0)

    def _connection(self, address: tuple[str, int]) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.usable:
            return connection
        if connection is not None:
            connection.close()
            del self._connections[address]
        try:
            self._connections[address] = connection = BrokerConnection(*address, self.settings)
        except UpstreamConnectionError:
            self._failed_at_s[address] = time.monotonic()
            raise
        self._failed_at_s.pop(address, None)
        return connection
