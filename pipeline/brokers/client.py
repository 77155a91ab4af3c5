"""A blocking Kafka client for the driver's questions and for tail tasks: topics, offsets, leader epochs, records.

Rules:
- One thread, a context manager. `ClientSettings` (pipeline.brokers.settings) says where, as whom and how patiently.
- Every call keeps trying until it has its answer or the settings' deadline has passed: leaders that move, brokers that
  restart and connections that are lost are waited out with a back-off that doubles. What waiting cannot cure (rights,
  unknown topics, a wrong password, an offset out of range) is raised at once. Errors: pipeline.brokers.errors.
- Questions about several partitions go to each leader in one request; of what failed, only that is asked again.
- We ask as a consumer (replica -1): LATEST is the high watermark, or the last stable offset for READ_COMMITTED.
- Fetch names the topic by id from version 13 on where the cluster has ids, so that a topic that was made anew under the
  name is never read as the old one (TopicReplacedError), and by name below.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, TypeVar

import structlog

from pipeline.brokers.cluster import BrokerCluster, PartitionLeader
from pipeline.brokers.connection import BrokerConnection
from pipeline.brokers.errors import (
    BrokerConnectionError,
    BrokerDeadlineError,
    BrokerError,
    BrokerProtocolError,
    OffsetOutOfRangeError,
    TopicReplacedError,
)
from pipeline.brokers.settings import ClientSettings, client_settings
from protocol.client.messages import FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, Values, kio_uuid, uuid_bytes
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN, PartitionAnswer
from protocol.fetch.response import decode_response
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import ErrorCode, PeerProtocolError
from protocol.wire.identifiers import IsolationLevel
from storage.metadata.backoff import Backoff
from storage.model import ZERO_UUID, Uuid

__all__ = [
    "BrokerClient",
    "ClientSettings",
    "FetchedRecords",
    "LeaderEpochAnswers",
    "OffsetAnswer",
    "TopicDescription",
    "client_settings",
]

FETCH_BY_NAME = replace(FETCH, version_max=TOPIC_ID_VERSION_MIN - 1)
CONSUMER_REPLICA = -1

_TIMESTAMP_VERSION_NEEDED: Mapping[int, int] = {
    OffsetTimestamp.MAX_TIMESTAMP: 7,
    OffsetTimestamp.EARLIEST_LOCAL: 8,
    OffsetTimestamp.LATEST_TIERED: 9,
    OffsetTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Partition = tuple[str, int]
"""(topic name, partition)"""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic that exists. `topic_id` is zero from brokers that know no topic ids; partitions are ascending."""

    name: str
    topic_id: Uuid
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """One partition's answer; offset -1 means that there is none. Unknown timestamps and epochs are -1."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderEpochAnswers:
    """What storage.metadata.leader_epoch_lineage.LeaderEpochLineage takes.

    `leader_epoch` is the current one, under which the leader answered; `answers` are epoch asked → (epoch answered,
    end offset), both -1 where the leader knows none at or below.
    """

    leader_epoch: int
    answers: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """One partition's answer. `data` are whole batches, perhaps some records below the asked offset, and perhaps a cut
    batch at the end. `aborted` are (producer id, first offset), empty for READ_UNCOMMITTED."""

    data: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]


class BrokerClient:
    """`clock` and `wait` are for tests: seconds that never go back, and how to let some pass."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._settings = settings
        self._cluster = BrokerCluster(settings)
        self._clock = clock
        self._wait = wait or threading.Event().wait
        self._fetched_ids: dict[str, Uuid] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens them anew. Idempotent."""
        self._cluster.close()

    def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        """These topics, or all that we may describe; a name that does not exist is not in the answer.

        Raises:
            TopicAuthorizationError: we may not describe one of the names.
            BrokerError: nobody answers, or we are not let in.
        """
        entries = self._retrying(lambda: self._cluster.describe(names))
        return {
            entry.name: TopicDescription(
                entry.name,
                Uuid(uuid_bytes(entry.topic_id)),
                tuple(sorted(int(partition.partition_index) for partition in entry.partitions)),
            )
            for entry in entries
        }

    def list_offsets(
        self, timestamps: Mapping[Partition, int], *, read_committed: bool = False
    ) -> Mapping[Partition, OffsetAnswer]:
        """The offset of one timestamp per partition: a time in milliseconds (the first record at or after it), or one
        of protocol.list_offsets.OffsetTimestamp.

        Raises:
            BrokerUnsupportedError: a timestamp needs a newer version than the broker has.
            UnknownTopicError, TopicAuthorizationError, BrokerError: there is no answer for a partition.
        """
        answers: dict[Partition, OffsetAnswer] = {}

        def ask_missing() -> None:
            missing = {partition: stamp for partition, stamp in timestamps.items() if partition not in answers}
            trouble: list[BrokerError] = []
            for node_id, led in self._by_leader(missing, trouble).items():
                try:
                    self._list_offsets_of(node_id, led, read_committed, answers, trouble)
                except BrokerError as error:
                    _raise_unless_retriable(error)
                    trouble.append(error)
            if trouble:
                raise trouble[-1]

        self._retrying(ask_missing)
        return {partition: answers[partition] for partition in timestamps}

    def leader_epoch_ends(self, topic: str, partition: int, epochs: Sequence[int]) -> LeaderEpochAnswers:
        """Where each of these leader epochs ends, by the lineage of the partition's leader.

        Raises:
            UnknownTopicError, TopicAuthorizationError, BrokerError: there is no answer.
        """
        return self._retrying(lambda: self._leader_epoch_ends(topic, partition, list(dict.fromkeys(epochs))))

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
            UnknownTopicError, TopicAuthorizationError, BrokerError: there is no answer.
        """
        return self._retrying(lambda: self._fetch(topic, partition, offset, max_bytes, read_committed, max_wait_ms))

    # --- one attempt each ---

    def _list_offsets_of(
        self,
        node_id: int,
        asked: Mapping[Partition, int],
        read_committed: bool,
        answers: dict[Partition, OffsetAnswer],
        trouble: list[BrokerError],
    ) -> None:
        isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        topics: dict[str, list[Values]] = {}
        for (topic, partition), timestamp in asked.items():
            topics.setdefault(topic, []).append({"partition_index": partition, "timestamp": timestamp})
        values: Values = {
            "replica_id": CONSUMER_REPLICA,
            "isolation_level": int(isolation),
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
            "timeout": timedelta(seconds=self._settings.request_timeout_s),
        }
        needed = max(_TIMESTAMP_VERSION_NEEDED.get(timestamp, 0) for timestamp in asked.values())
        response = self._ask(node_id, lambda to: to.request(LIST_OFFSETS, values, version_needed=needed))
        answered = {
            (topic.name, int(entry.partition_index)): entry for topic in response.topics for entry in topic.partitions
        }
        for topic, partition in asked:
            entry = answered.get((topic, partition))
            if entry is None:
                raise self._silence(node_id, "ListOffsets", topic, partition)
            code = int(entry.error_code)
            if code == ErrorCode.NONE:
                answers[topic, partition] = OffsetAnswer(entry.offset, entry.timestamp, entry.leader_epoch)
                continue
            error = self._refusal(node_id, "ListOffsets", topic, partition, code)
            _raise_unless_retriable(error)
            trouble.append(error)

    def _leader_epoch_ends(self, topic: str, partition: int, epochs: Sequence[int]) -> LeaderEpochAnswers:
        leader = self._cluster.leader_of(topic, partition)
        # With the epoch that Metadata named: a leader of another one refuses, so that all answers are of one epoch.
        partitions = [
            {"partition": partition, "current_leader_epoch": leader.leader_epoch, "leader_epoch": epoch}
            for epoch in epochs
        ]
        if not epochs:
            return LeaderEpochAnswers(leader.leader_epoch, {})
        values: Values = {
            "replica_id": CONSUMER_REPLICA,
            "topics": [{"topic": topic, "partitions": partitions}],
        }
        response = self._ask(leader.node_id, lambda to: to.request(OFFSET_FOR_LEADER_EPOCH, values))
        found = [entry for result in response.topics for entry in result.partitions]
        for entry in found:
            if int(entry.error_code) != ErrorCode.NONE:
                raise self._refusal(leader.node_id, "OffsetForLeaderEpoch", topic, partition, int(entry.error_code))
        if len(found) != len(epochs):
            raise self._silence(leader.node_id, "OffsetForLeaderEpoch", topic, partition)
        # an answer does not repeat the epoch that was asked, the order tells
        answers = {
            epoch: (int(entry.leader_epoch), int(entry.end_offset)) for epoch, entry in zip(epochs, found, strict=True)
        }
        return LeaderEpochAnswers(leader.leader_epoch, answers)

    def _fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, read_committed: bool, max_wait_ms: int
    ) -> FetchedRecords:
        leader = self._cluster.leader_of(topic, partition)
        self._require_same_topic(topic, leader.topic_id)
        limit_bytes = min(max_bytes, self._settings.frame_bytes_max // 2)
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": limit_bytes}
        isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        values: Values = {
            "replica_id": CONSUMER_REPLICA,
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": 1,
            "max_bytes": limit_bytes,
            "isolation_level": int(isolation),
            "topics": [{"topic": topic, "topic_id": kio_uuid(leader.topic_id), "partitions": [asked]}],
            "forgotten_topics_data": (),
        }
        api = FETCH_BY_NAME if leader.topic_id == ZERO_UUID else FETCH
        timeout_s = max_wait_ms / 1000 + self._settings.request_timeout_s
        version, frame = self._ask(leader.node_id, lambda to: to.request_frame(api, values, timeout_s=timeout_s))
        return self._fetched(leader, version, frame, topic, partition, offset)

    def _fetched(
        self, leader: PartitionLeader, version: int, frame: bytearray, topic: str, partition: int, offset: int
    ) -> FetchedRecords:
        try:
            response = decode_response(memoryview(frame), version)
        except PeerProtocolError as error:
            raise BrokerProtocolError(f"{self._cluster.name_of(leader.node_id)}: {error}") from error
        if response.error_code != ErrorCode.NONE:
            raise self._refusal(leader.node_id, "Fetch", topic, partition, response.error_code)
        answer = _only_answer(response.partitions, partition)
        if answer is None:
            raise self._silence(leader.node_id, "Fetch", topic, partition)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRangeError(
                f"{self._cluster.name_of(leader.node_id)}: {topic}-{partition} does not hold offset {offset}",
                answer.error_code,
            )
        if answer.error_code != ErrorCode.NONE:
            raise self._refusal(leader.node_id, "Fetch", topic, partition, answer.error_code)
        return FetchedRecords(
            b"".join(answer.records),
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
            tuple(answer.aborted_transactions or ()),
        )

    # --- around them ---

    def _retrying(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, tried until the deadline while its errors are retriable."""
        deadline_s = self._clock() + self._settings.deadline_s
        backoff = Backoff(self._settings.backoff_first_s, self._settings.backoff_max_s)
        is_logged = False
        while True:
            try:
                return attempt()
            except BrokerError as error:
                _raise_unless_retriable(error)
                delay_s = backoff.next_delay_s()
                if self._clock() + delay_s >= deadline_s:
                    raise BrokerDeadlineError(f"given up after {self._settings.deadline_s:g} s: {error}") from error
                reason = str(error)
            if not is_logged:  # a job that hangs here shall say why, once
                _log.warning("brokers do not answer, trying again", reason=reason)
                is_logged = True
            self._wait(delay_s)

    def _by_leader(
        self, partitions: Mapping[Partition, int], trouble: list[BrokerError]
    ) -> Mapping[int, Mapping[Partition, int]]:
        """The same, dealt to the brokers that lead them; a partition without a leader is trouble."""
        led: dict[int, dict[Partition, int]] = {}
        for (topic, partition), value in partitions.items():
            try:
                leader = self._cluster.leader_of(topic, partition)
            except BrokerConnectionError:
                raise
            except BrokerError as error:
                _raise_unless_retriable(error)
                trouble.append(error)
            else:
                led.setdefault(leader.node_id, {})[topic, partition] = value
        return led

    def _ask(self, node_id: int, ask: Callable[[BrokerConnection], T]) -> T:
        connection = self._cluster.connection_to(node_id)
        try:
            return ask(connection)
        except BrokerConnectionError:
            self._cluster.forget_all()
            raise

    def _require_same_topic(self, topic: str, topic_id: Uuid) -> None:
        if topic_id != ZERO_UUID and self._fetched_ids.setdefault(topic, topic_id) != topic_id:
            raise TopicReplacedError(f"topic {topic} was deleted and made anew while it was read")

    def _refusal(self, node_id: int, question: str, topic: str, partition: int, code: int) -> BrokerError:
        return self._cluster.refusal(self._cluster.name_of(node_id), question, topic, code, partition)

    def _silence(self, node_id: int, question: str, topic: str, partition: int) -> BrokerError:
        broker_name = self._cluster.name_of(node_id)
        return BrokerProtocolError(f"{broker_name}: the {question} response says nothing of {topic}-{partition}")


def _only_answer(answers: Sequence[PartitionAnswer], partition: int) -> PartitionAnswer | None:
    return answers[0] if len(answers) == 1 and answers[0].partition == partition else None


def _raise_unless_retriable(error: BrokerError) -> None:
    if not error.retriable:
        raise error
