"""Questions about a partition's offsets and leader epochs, each asked of a broker by name.

- ListOffsets refuses a partition that is named twice in one request (INVALID_REQUEST), so questions are dealt into
  rounds in which a partition comes once, and the rounds are pipelined on one connection. OffsetForLeaderEpoch
  takes a partition with several epochs and answers in their order.
- ListOffsets is asked as replica -2 (Kafka's "debugging consumer") by default: followers answer it too, with
  their own offsets; for an ordinary consumer (-1) only the leader does. LATEST means the log end offset for -2,
  the high watermark or last stable offset for -1.
- OffsetForLeaderEpoch is answered by the leader only, whatever replica id is given.
- Topic ids are asked of one broker by name, so that they are no older than what it answered before: a broker learns
  the id of a topic before it serves its partitions.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import trio

from protocol.client.messages import LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH, Api, Values, uuid_bytes
from proxy.upstream.cluster import Cluster
from proxy.upstream.errors import UpstreamError, UpstreamProtocolError

ROLE = "frontier"

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5

CONSUMER_REPLICA = -1
DEBUGGING_REPLICA = -2

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

_VERSION_NEEDED = {EARLIEST_LOCAL_TIMESTAMP: 8, LATEST_TIERED_TIMESTAMP: 9}

Item = TypeVar("Item")

Partition = tuple[str, int]
"""(topic name, partition)"""
OffsetQuery = tuple[str, int, int]
"""(topic name, partition, timestamp)"""


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """One partition's answer. With error code 0, offset -1 means "there is none"."""

    error_code: int
    offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """One epoch's answer: the epoch found (at or below the one asked) and the offset where it ends; -1 if none."""

    error_code: int
    leader_epoch: int
    end_offset: int


class FrontierClient:
    """Asks over the cluster's pooled connections of one role."""

    def __init__(self, cluster: Cluster, role: str = ROLE) -> None:
        self._cluster = cluster
        self._role = role

    async def local_log_starts(self, node_id: int, partitions: Sequence[Partition]) -> dict[Partition, OffsetAnswer]:
        """Where each partition's local log starts on this broker (ListOffsets -4, KIP-405).

        Raises:
            UpstreamUnsupportedError: the broker is older than ListOffsets v8 (Kafka 3.6).
            UpstreamError: no answer.
        """
        queries = [(topic, partition, EARLIEST_LOCAL_TIMESTAMP) for topic, partition in partitions]
        answers = await self.list_offsets(node_id, queries)
        return {(topic, partition): answer for (topic, partition, _), answer in answers.items()}

    async def list_offsets(
        self,
        node_id: int,
        queries: Sequence[OffsetQuery],
        *,
        isolation_level: int = READ_UNCOMMITTED,
        replica_id: int = DEBUGGING_REPLICA,
        timeout_s: float | None = None,
    ) -> dict[OffsetQuery, OffsetAnswer]:
        """The offsets of these timestamps on this broker; one answer per distinct query.

        Raises:
            UpstreamUnsupportedError: a timestamp needs a newer version than the broker has.
            UpstreamError: no answer.
        """
        rounds: list[dict[Partition, int]] = []
        for topic, partition, timestamp in dict.fromkeys(queries):
            _deal(rounds, (topic, partition), timestamp)
        answers: dict[OffsetQuery, OffsetAnswer] = {}

        async def ask_round(asked: Mapping[Partition, int]) -> None:
            values = {
                "replica_id": replica_id,
                "isolation_level": isolation_level,
                "topics": _offset_topics(asked),
                "timeout": timedelta(seconds=timeout_s or self._cluster.settings.request_timeout_s),
            }
            needed = max(_VERSION_NEEDED.get(timestamp, 0) for timestamp in asked.values())
            response = await self._ask(node_id, LIST_OFFSETS, values, timeout_s, needed)
            for topic in response.topics:
                for entry in topic.partitions:
                    key = (topic.name, int(entry.partition_index))
                    if key in asked:
                        answers[(*key, asked[key])] = OffsetAnswer(
                            int(entry.error_code), entry.offset, entry.leader_epoch, entry.timestamp
                        )

        await _pipelined(ask_round, rounds)
        _require_all(node_id, LIST_OFFSETS, len(answers), len(dict.fromkeys(queries)))
        return answers

    async def epoch_end_offsets(
        self, node_id: int, asked: Mapping[Partition, Sequence[int]], *, timeout_s: float | None = None
    ) -> dict[Partition, dict[int, EpochEndOffset]]:
        """Where leader epochs of these partitions end, by the lineage of this broker, which must lead them.

        Raises:
            UpstreamError: no answer. What the broker refused carries its error code in the answer.
        """
        epochs_of = {partition: list(dict.fromkeys(epochs)) for partition, epochs in asked.items()}
        topics: dict[str, list[Values]] = {}
        for (topic, partition), epochs in epochs_of.items():
            topics.setdefault(topic, []).extend(
                {"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch} for epoch in epochs
            )
        question_count = sum(map(len, epochs_of.values()))
        if not question_count:
            return {partition: {} for partition in epochs_of}
        entries = [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items() if partitions]
        values = {"replica_id": DEBUGGING_REPLICA, "topics": entries}
        response = await self._ask(node_id, OFFSET_FOR_LEADER_EPOCH, values, timeout_s, 0)
        found: dict[Partition, list[EpochEndOffset]] = {partition: [] for partition in epochs_of}
        for result in response.topics:
            for entry in result.partitions:
                answer = EpochEndOffset(int(entry.error_code), entry.leader_epoch, entry.end_offset)
                found.setdefault((result.topic, int(entry.partition)), []).append(answer)
        _require_all(node_id, OFFSET_FOR_LEADER_EPOCH, sum(map(len, found.values())), question_count)
        if any(len(found[partition]) != len(epochs) for partition, epochs in epochs_of.items()):
            raise UpstreamProtocolError(f"broker {node_id} answered other questions than it was asked")
        # an answer does not repeat the epoch that was asked, the order within a partition tells
        return {partition: dict(zip(epochs, found[partition], strict=True)) for partition, epochs in epochs_of.items()}

    async def topic_ids(self, node_id: int, names: Sequence[str]) -> dict[str, bytes]:
        """The ids of these topic names as this very broker knows them now; those that it does not tell are left out.

        Raises:
            UpstreamError: no answer.
        """
        values = {
            "topics": [{"name": name, "topic_id": None} for name in names],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        }
        response = await self._ask(node_id, METADATA, values, None, 0)
        return {topic.name: uuid_bytes(topic.topic_id) for topic in response.topics if not int(topic.error_code)}

    async def _ask(self, node_id: int, api: Api, values: Values, timeout_s: float | None, needed: int) -> Any:
        return await self._cluster.ask(node_id, self._role, api, values, timeout_s=timeout_s, version_needed=needed)


def _deal(rounds: list[dict[Partition, int]], partition: Partition, timestamp: int) -> None:
    """Put the question into the first round that does not name the partition yet."""
    for asked in rounds:
        if partition not in asked:
            asked[partition] = timestamp
            return
    rounds.append({partition: timestamp})


def _offset_topics(asked: Mapping[Partition, int]) -> list[Values]:
    topics: dict[str, list[Values]] = {}
    for (topic, partition), timestamp in asked.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "timestamp": timestamp})
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]


async def _pipelined(ask: Callable[[Item], Awaitable[None]], items: Sequence[Item]) -> None:
    """Ask all at once; the first failure cancels the rest and is raised by itself, in no group."""
    failures: list[UpstreamError] = []

    async def ask_one(item: Item) -> None:
        try:
            await ask(item)
        except UpstreamError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(ask_one, item)
    if failures:
        raise failures[0]


def _require_all(node_id: int, api: Api, answered: int, asked: int) -> None:
    if answered != asked:
        raise UpstreamProtocolError(f"broker {node_id} answered {answered} of {asked} questions of one {api.name}")
