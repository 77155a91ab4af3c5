"""Questions about a partition's offsets and leader epochs, each asked of a broker by name.

Topic ids are asked of one broker by name, so that they are no older than what it answered before: a broker learns the
id of a topic before it serves its partitions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.client.cluster_view import metadata_question
from protocol.client.errors import UpstreamConnectionError, UpstreamError
from protocol.client.leaders import AskNode
from protocol.client.messages import Question, uuid_bytes
from protocol.client.offset_questions import (
    DEBUGGING_REPLICA,
    EpochEndOffset,
    OffsetAnswer,
    OffsetQuery,
    Partition,
    epoch_question,
    offset_questions,
)
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.identifiers import IsolationLevel
from proxy.upstream.cluster import TOPIC_AUTHORIZATION_FAILED, Cluster
from storage.model import TopicIdPartition

ROLE = "frontier"


class FrontierClient:
    """Asks over the cluster's pooled connections of one role."""

    def __init__(self, cluster: Cluster, role: str = ROLE) -> None:
        self._cluster = cluster
        self._role = role

    async def local_log_starts(self, node_id: int, partitions: Sequence[Partition]) -> dict[Partition, OffsetAnswer]:
        """Return where each partition's local log starts on this broker (ListOffsets -4, KIP-405).

        Raises:
            UpstreamUnsupportedError: the broker is older than ListOffsets v8 (Kafka 3.6).
            UpstreamError: no answer.
        """
        queries = [(topic, partition, int(OffsetTimestamp.EARLIEST_LOCAL)) for topic, partition in partitions]
        answers = await self.list_offsets(node_id, queries)
        return {(topic, partition): answer for (topic, partition, _), answer in answers.items()}

    async def list_offsets(self, node_id: int, queries: Sequence[OffsetQuery]) -> dict[OffsetQuery, OffsetAnswer]:
        """The offsets of these timestamps on this broker, be it leader or not; one answer per distinct query.

        Raises:
            UpstreamUnsupportedError: a timestamp needs a newer version than the broker has.
            UpstreamError: no answer.
        """
        questions = offset_questions(
            queries,
            replica_id=DEBUGGING_REPLICA,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            timeout_s=self._cluster.settings.request_timeout_s,
        )
        answers: dict[OffsetQuery, OffsetAnswer] = {}
        for answer in await self._ask(node_id, questions):
            answers |= answer
        for (topic, _, _), found in answers.items():
            if found.error_code == TOPIC_AUTHORIZATION_FAILED:
                self._cluster.note_described(topic, found.error_code)
        return answers

    async def epoch_end_offsets(
        self, node_id: int, asked: Mapping[Partition, Sequence[int]]
    ) -> dict[Partition, dict[int, EpochEndOffset]]:
        """Return where leader epochs of these partitions end, by the lineage of this broker, which must lead them.

        Raises:
            UpstreamError: no answer. What the broker refused carries its error code in the answer.
        """
        wanted = {partition: epochs for partition, epochs in asked.items() if epochs}
        questions = [epoch_question(wanted, replica_id=DEBUGGING_REPLICA)] if wanted else []
        answers: dict[Partition, dict[int, EpochEndOffset]] = {partition: {} for partition in asked}
        for answer in await self._ask(node_id, questions):
            answers |= answer
        return answers

    async def topic_ids(self, node_id: int, names: Sequence[str]) -> dict[str, bytes]:
        """The ids of these topic names as this very broker knows them now; those that it does not tell are left out.

        Raises:
            UpstreamError: no answer.
        """
        response = await self._cluster.ask(node_id, self._role, metadata_question(names))
        return {topic.name: uuid_bytes(topic.topic_id) for topic in response.topics if not int(topic.error_code)}

    async def _ask(self, node_id: int, questions: Sequence[Question[Any]]) -> list[Any]:
        bodies = await self._cluster.ask_all(self._role, [AskNode(node_id, question) for question in questions])
        for body in bodies:
            if isinstance(body, UpstreamError):
                raise body
        broker_name = self._cluster.name_of(node_id)
        return [question.read(body, broker_name) for question, body in zip(questions, bodies, strict=True)]


async def leader_id(cluster: Cluster, partition: TopicIdPartition) -> int:
    """Return who leads the partition, as last heard; that is asked for if nobody is known to.

    Raises:
        UpstreamError: no answer, or nobody leads it.
    """
    leader = cluster.leader_of(partition.topic_id, partition.partition)
    if leader is None or leader.leader_id < 0:
        await cluster.learn_names([partition.topic])
        leader = cluster.leader_of(partition.topic_id, partition.partition)
    if leader is None or leader.leader_id < 0:
        raise UpstreamError(f"{partition}: upstream names no leader")
    return leader.leader_id


async def ask_any(cluster: Cluster, role: str, question: Question[Any]) -> Any:
    """Return the first broker's answer that comes, to what each of them knows.

    Raises:
        UpstreamError: none answers, or no broker is known.
    """
    failure: UpstreamError = UpstreamConnectionError("no broker is known")
    if not cluster.brokers:
        await cluster.refresh()
    for node_id in [*cluster.brokers]:
        try:
            return await cluster.ask(node_id, role, question)
        except UpstreamError as error:
            failure = error
    raise failure
