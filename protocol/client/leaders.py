"""Questions about topics by name, asked of the brokers that lead their partitions: conversations, one attempt each.

Rules:
- A leader is remembered in the view until an answer says that something about its topic is out of date. The shell
  forgets what it must when a connection was lost, and asks again if it wants to.
- Questions about several partitions go to each leader together; of what failed, only that needs to be asked again.
- We ask as a consumer (replica -1): LATEST is the high watermark, or the last stable offset for READ_COMMITTED.
- Fetch and Produce name the topic by id from version 13 on where the cluster has ids, so that a topic that was made
  again under the name is never taken for the old one (TopicReplacedError); Fetch goes by name where it has none.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from protocol.client.cluster_view import ClusterView, TopicMetadata
from protocol.client.errors import (
    OffsetOutOfRangeError,
    TopicAuthorizationError,
    TopicReplacedError,
    UnknownTopicError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefusedError,
)
from protocol.client.messages import FETCH, PRODUCE, Question, Values, kio_uuid
from protocol.client.offset_questions import (
    CONSUMER_REPLICA,
    OffsetAnswer,
    OffsetQuery,
    epoch_question,
    offset_questions,
)
from protocol.client.settings import ClientSettings
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN
from protocol.wire.errors import PASSING_CODES, ErrorCode
from protocol.wire.identifiers import IsolationLevel

FETCH_BY_NAME = replace(FETCH, version_max=TOPIC_ID_VERSION_MIN - 1)

ABSENT_CODES = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 17})
"""What Metadata says of a topic that is not there; 17 is INVALID_TOPIC_EXCEPTION: no topic can have that name."""

_ALL_IN_SYNC_REPLICAS = -1
_RIGHTS = {"Fetch": "Read", "Produce": "Write"}


@dataclass(frozen=True, slots=True)
class AskMetadata:
    """Learn these topics, or all, into the view; the answer is a list of TopicMetadata."""

    names: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class AskNode:
    """Ask this broker. A step is a sequence of these, to be asked together; the answer is a list of the responses'
    bodies, in the same order, with the UpstreamError in place of one that did not come."""

    node_id: int
    question: Question[Any]
    timeout_s: float | None = None


T = TypeVar("T")
Step: TypeAlias = AskMetadata | Sequence[AskNode]
Steps: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class LeaderEpochAnswers:
    """What storage.metadata.epoch_history.LeaderEpochLineage takes.

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
    aborted: tuple[tuple[int, int], ...]
    log_start_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Led:
    """A partition and who leads it, as last heard."""

    topic: str
    topic_id: bytes
    partition: int
    node_id: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LeaderQuestions:
    """Conversations over one view of the cluster. Each may raise UpstreamError."""

    def __init__(self, view: ClusterView, settings: ClientSettings) -> None:
        self._view = view
        self._settings = settings
        self._fetched_ids: dict[str, bytes] = {}

    def describe(self, names: Sequence[str] | None) -> Steps[list[TopicMetadata]]:
        """These topics or all, without those that do not exist.

        Raises:
            TopicAuthorizationError: we may not describe one that was asked by name.
        """
        if names is not None and not names:
            return []
        found = []
        for topic in (yield AskMetadata(names)):
            if topic.error_code in ABSENT_CODES:
                self._view.forget(topic.name)
            elif topic.error_code:
                raise self._refusal(self._cluster_name, "Metadata", topic.name, topic.error_code)
            else:
                found.append(topic)
        return found

    def leader_of(self, topic: str, partition: int) -> Steps[Led]:
        """The partition and its leader, asked of Metadata unless they are known.

        Raises:
            UnknownTopicError: there is no such topic or partition.
            UpstreamRefusedError: there is no leader just now (retriable).
        """
        if self._view.topic(topic) is None:
            yield from self.describe([topic])
        known = self._view.topic(topic)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if known is None:
            raise UnknownTopicError(f"{self._cluster_name}: there is no topic {topic}", code)
        leader = known.partitions.get(partition)
        if leader is None:
            self._view.forget(topic)
            raise UnknownTopicError(f"{self._cluster_name}: topic {topic} has no partition {partition}", code)
        if leader.leader_id not in self._view.brokers:
            self._view.forget(topic)
            code = ErrorCode.LEADER_NOT_AVAILABLE
            raise UpstreamRefusedError(f"{topic}-{partition} has no leader just now", code, retriable=True)
        return Led(topic, known.topic_id, partition, leader.leader_id, leader.leader_epoch)

    def list_offsets(
        self, queries: Sequence[OffsetQuery], answers: dict[OffsetQuery, OffsetAnswer], *, read_committed: bool = False
    ) -> Steps[dict[OffsetQuery, OffsetAnswer]]:
        """`answers`, with the answers to those queries put into it that are not there yet.

        Raises:
            UpstreamError: one that stays at once, else the last one, after all leaders were asked.
        """
        by_leader: dict[int, list[OffsetQuery]] = {}
        trouble: list[UpstreamError] = []
        for query in queries:
            if query not in answers:
                try:
                    led = yield from self.leader_of(*query[:2])
                except UpstreamRefusedError as error:
                    _note(error, trouble)
                else:
                    by_leader.setdefault(led.node_id, []).append(query)
        isolation, timeout_s = _isolation_level(read_committed), self._settings.request_timeout_s
        asks = [
            AskNode(node_id, question)
            for node_id, wanted in by_leader.items()
            for question in offset_questions(
                wanted, replica_id=CONSUMER_REPLICA, isolation_level=isolation, timeout_s=timeout_s
            )
        ]
        for ask, body in zip(asks, (yield asks), strict=True):
            if isinstance(body, UpstreamError):
                _note(body, trouble)
                continue
            broker_name = self._view.name_of(ask.node_id)
            for query, answer in ask.question.read(body, broker_name).items():
                if answer.error_code:
                    topic, partition, _ = query
                    where = f"{topic}-{partition}"
                    _note(self._refusal(broker_name, "ListOffsets", topic, answer.error_code, where), trouble)
                else:
                    answers[query] = answer
        if trouble:
            raise trouble[-1]
        return answers

    def epoch_ends(self, topic: str, partition: int, epochs: Sequence[int]) -> Steps[LeaderEpochAnswers]:
        """Return where each of these leader epochs ends, by the lineage of the partition's leader."""
        led = yield from self.leader_of(topic, partition)
        if not epochs:
            return LeaderEpochAnswers(led.leader_epoch, {})
        # With the epoch that Metadata named: a leader of another one refuses, so that all answers are of one epoch.
        question = epoch_question(
            {(topic, partition): epochs}, replica_id=CONSUMER_REPLICA, current_leader_epoch=led.leader_epoch
        )
        ends = (yield from self._ask(led, question))[topic, partition]
        for end in ends.values():
            self._check("OffsetForLeaderEpoch", led, end.error_code)
        answers = {epoch: (end.leader_epoch, end.end_offset) for epoch, end in ends.items()}
        return LeaderEpochAnswers(led.leader_epoch, answers)

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool,
        max_wait_ms: int,
        topic_id: bytes | None = None,
    ) -> Steps[FetchedRecords]:
        """Record batches from `offset` on, as they are in the log; empty after max_wait_ms without any.

        Args:
            max_bytes: at most half of the settings' frame limit is asked for.
            topic_id: of the topic that is meant; None: the one that the name was when it was first fetched from.

        Raises:
            OffsetOutOfRangeError: the log does not hold this offset.
            TopicReplacedError: the topic is not the one that is meant.
        """
        led = yield from self.leader_of(topic, partition)
        meant = self._fetched_ids.setdefault(topic, led.topic_id) if topic_id is None else topic_id
        if any(led.topic_id) and meant != led.topic_id:
            raise TopicReplacedError(f"topic {topic} was deleted and created again while it was read")
        limit_bytes = min(max_bytes, self._settings.frame_bytes_max // 2)
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": limit_bytes}
        values: Values = {
            "replica_id": CONSUMER_REPLICA,
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": 1,
            "max_bytes": limit_bytes,
            "isolation_level": _isolation_level(read_committed),
            "topics": [{"topic": topic, "topic_id": kio_uuid(led.topic_id), "partitions": [asked]}],
            "forgotten_topics_data": (),
        }
        question: Question[Any] = Question(FETCH if any(led.topic_id) else FETCH_BY_NAME, values)
        response = yield from self._ask(led, question, max_wait_ms / 1000 + self._settings.request_timeout_s)
        self._check("Fetch", led, response.error_code)
        answer = self._only("Fetch", led, {answer.partition: answer for answer in response.partitions})
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            said = f"{self._view.name_of(led.node_id)}: {led} does not hold offset {offset}"
            raise OffsetOutOfRangeError(said, answer.error_code)
        self._check("Fetch", led, answer.error_code)
        return FetchedRecords(
            b"".join(answer.records),
            answer.high_watermark,
            tuple(answer.aborted_transactions or ()),
            answer.log_start_offset,
            answer.last_stable_offset,
        )

    def produce(self, topic: str, partition: int, batch: bytes) -> Steps[int]:
        """Append one batch and wait for all in-sync replicas; its offset. After an error it may be there or not."""
        led = yield from self.leader_of(topic, partition)
        data = [{"index": partition, "records": batch}]
        values: Values = {
            "transactional_id": None,
            "acks": _ALL_IN_SYNC_REPLICAS,
            "timeout": timedelta(seconds=self._settings.request_timeout_s),
            "topic_data": [{"name": topic, "topic_id": kio_uuid(led.topic_id), "partition_data": data}],
        }
        question: Question[Any] = Question(PRODUCE, values)
        response = yield from self._ask(led, question)
        entries = {entry.index: entry for answered in response.responses for entry in answered.partition_responses}
        answer = self._only("Produce", led, entries)
        self._check("Produce", led, int(answer.error_code))
        return int(answer.base_offset)

    def _ask(self, led: Led, question: Question[T], timeout_s: float | None = None) -> Steps[T]:
        (body,) = yield [AskNode(led.node_id, question, timeout_s)]
        if isinstance(body, UpstreamError):
            raise body
        return question.read(body, self._view.name_of(led.node_id))

    def _only(self, question: str, led: Led, answers: Mapping[int, T]) -> T:
        """The one partition that was asked for, in an answer that should hold nothing else."""
        if set(answers) != {led.partition}:
            name = self._view.name_of(led.node_id)
            raise UpstreamProtocolError(f"{name}: the {question} response says nothing of {led}")
        return answers[led.partition]

    def _check(self, question: str, led: Led, code: int) -> None:
        if code:
            raise self._refusal(self._view.name_of(led.node_id), question, led.topic, code, str(led))

    def _refusal(
        self, broker_name: str, question: str, topic: str, code: int, where: str | None = None
    ) -> UpstreamRefusedError:
        """The error for an error code. What is known of the topic is forgotten where the code says so."""
        what = f"{broker_name}: {question} of {where or topic}"
        if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            right, who = _RIGHTS.get(question, "Describe"), self._settings.principal
            said = f"{what} is denied to {who}: ACL {right} on Topic {topic} is missing"
            return TopicAuthorizationError(said, code)
        if code in PASSING_CODES:
            self._view.forget(topic)
        return UpstreamRefusedError(f"{what} failed with {code_name(code)}", code, code in PASSING_CODES)

    @property
    def _cluster_name(self) -> str:
        host, port = self._settings.bootstrap_servers[0]
        return f"the cluster at {host}:{port}"


def code_name(code: int) -> str:
    """Kafka's name of an error code that we know by name, else its number."""
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error code {code}"


def _note(error: UpstreamError, trouble: list[UpstreamError]) -> None:
    """Keep an error that may pass for later; raise one that stays."""
    if not error.retriable:
        raise error
    trouble.append(error)


def _isolation_level(read_committed: bool) -> int:
    return int(IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED)
