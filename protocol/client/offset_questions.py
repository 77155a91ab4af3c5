"""Questions about partitions' offsets and leader epochs, and how their answers are read.

- ListOffsets refuses a partition that is named twice in one request (INVALID_REQUEST), so questions are dealt into
  requests in which a partition comes once. OffsetForLeaderEpoch takes a partition with several epochs and answers in
  their order.
- ListOffsets is answered by followers too for replica -2 (Kafka's "debugging consumer"), with their own offsets; for
  an ordinary consumer (-1) only the leader does. LATEST means the log end offset for -2, the high watermark or last
  stable offset for -1.
- OffsetForLeaderEpoch is answered by the leader only, whatever replica id is given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from protocol.client.errors import UpstreamProtocolError
from protocol.client.messages import DESCRIBE_PRODUCERS, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, Question, Values
from protocol.list_offsets import OffsetTimestamp

CONSUMER_REPLICA = -1
DEBUGGING_REPLICA = -2

_TIMESTAMP_VERSION_NEEDED: Mapping[int, int] = {
    OffsetTimestamp.MAX_TIMESTAMP: 7,
    OffsetTimestamp.EARLIEST_LOCAL: 8,
    OffsetTimestamp.LATEST_TIERED: 9,
    OffsetTimestamp.EARLIEST_PENDING_UPLOAD: 11,
}

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


def offset_questions(
    queries: Sequence[OffsetQuery], *, replica_id: int, isolation_level: int, timeout_s: float
) -> list[Question[dict[OffsetQuery, OffsetAnswer]]]:
    """ListOffsets requests that answer each distinct query once."""
    rounds: list[dict[Partition, int]] = []
    for topic, partition, timestamp in dict.fromkeys(queries):
        free = next((asked for asked in rounds if (topic, partition) not in asked), None)
        if free is None:
            free = {}
            rounds.append(free)
        free[topic, partition] = timestamp
    return [_offset_question(asked, replica_id, isolation_level, timeout_s) for asked in rounds]


def epoch_question(
    asked: Mapping[Partition, Sequence[int]], *, replica_id: int, current_leader_epoch: int = -1
) -> Question[dict[Partition, dict[int, EpochEndOffset]]]:
    """OffsetForLeaderEpoch for these epochs of each partition, at least one."""
    epochs_of = {partition: list(dict.fromkeys(epochs)) for partition, epochs in asked.items()}
    topics = _by_topic(
        (topic, {"partition": partition, "current_leader_epoch": current_leader_epoch, "leader_epoch": epoch})
        for (topic, partition), epochs in epochs_of.items()
        for epoch in epochs
    )
    values = {
        "replica_id": replica_id,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }

    def read(body: Any, broker_name: str) -> dict[Partition, dict[int, EpochEndOffset]]:
        found: dict[Partition, list[EpochEndOffset]] = {partition: [] for partition in epochs_of}
        for result in body.topics:
            for entry in result.partitions:
                answer = EpochEndOffset(int(entry.error_code), int(entry.leader_epoch), int(entry.end_offset))
                found.setdefault((result.topic, int(entry.partition)), []).append(answer)
        if {key: len(answers) for key, answers in found.items()} != {key: len(of) for key, of in epochs_of.items()}:
            raise UpstreamProtocolError(f"{broker_name}: the OffsetForLeaderEpoch response answers other questions")
        # an answer does not repeat the epoch that was asked, the order within a partition tells
        return {partition: dict(zip(epochs, found[partition], strict=True)) for partition, epochs in epochs_of.items()}

    return Question(OFFSET_FOR_LEADER_EPOCH, values, read)


def _offset_question(
    asked: Mapping[Partition, int], replica_id: int, isolation_level: int, timeout_s: float
) -> Question[dict[OffsetQuery, OffsetAnswer]]:
    topics = _by_topic(
        (topic, {"partition_index": partition, "timestamp": int(timestamp)})
        for (topic, partition), timestamp in asked.items()
    )
    values = {
        "replica_id": replica_id,
        "isolation_level": isolation_level,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        "timeout": timedelta(seconds=timeout_s),
    }

    def read(body: Any, broker_name: str) -> dict[OffsetQuery, OffsetAnswer]:
        found = {
            (topic.name, int(entry.partition_index)): OffsetAnswer(
                int(entry.error_code), entry.offset, entry.leader_epoch, entry.timestamp
            )
            for topic in body.topics
            for entry in topic.partitions
        }
        missing = [f"{topic}-{partition}" for topic, partition in asked if (topic, partition) not in found]
        if missing:
            raise UpstreamProtocolError(f"{broker_name}: the ListOffsets response says nothing of {missing[0]}")
        return {(*key, timestamp): found[key] for key, timestamp in asked.items()}

    needed = max(_TIMESTAMP_VERSION_NEEDED.get(timestamp, 0) for timestamp in asked.values())
    return Question(LIST_OFFSETS, values, read, needed)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One partition's. `last_timestamp_ms`: of its producer's last batch."""

    producer_id: int
    first_offset: int
    last_timestamp_ms: int


def producers_question(topic: str, partition: int) -> Question[tuple[int, list[OpenTransaction]]]:
    """Which transactions are open in a partition, asked of its leader: an error code, and what there is."""
    values = {"topics": [{"name": topic, "partition_indexes": [partition]}]}

    def read(body: Any, broker_name: str) -> tuple[int, list[OpenTransaction]]:
        found = {(entry.name, int(each.partition_index)): each for entry in body.topics for each in entry.partitions}
        if set(found) != {(topic, partition)}:
            raise UpstreamProtocolError(f"{broker_name}: the DescribeProducers response answers other questions")
        answer = found[topic, partition]
        opened = [
            OpenTransaction(each.producer_id, each.current_txn_start_offset, each.last_timestamp)
            for each in answer.active_producers
            if each.current_txn_start_offset >= 0
        ]
        return int(answer.error_code), opened

    return Question(DESCRIBE_PRODUCERS, values, read)


def _by_topic(entries: Iterable[tuple[str, Values]]) -> dict[str, list[Values]]:
    topics: dict[str, list[Values]] = {}
    for topic, entry in entries:
        topics.setdefault(topic, []).append(entry)
    return topics
