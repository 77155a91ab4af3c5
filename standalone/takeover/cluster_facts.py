"""What brokers that run know of a tier's partitions and a takeover must know, asked while they run.

- For the dump: who holds a replica, and the log start that is committed. Its last lines are one for each partition that
  upstream has, and one that says that the dump is whole, of which cluster it is, and where the metadata topic ended.
- At a takeover: which brokers run, and where each one's own log of a partition begins. A replica that runs and begins
  above the tier's log start was not taken over: once it leads, it raises the log starts of its followers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.client.cluster_view import metadata_question
from protocol.client.errors import UpstreamConnectionError, UpstreamError
from protocol.client.leaders import code_name
from protocol.client.messages import uuid_bytes
from protocol.list_offsets import OffsetTimestamp
from protocol.wire.errors import ErrorCode
from proxy.upstream.cluster import TOPICS_MAX, Cluster
from proxy.upstream.partition_questions import FrontierClient
from standalone.serving.group_offsets import GroupOffsets
from standalone.serving.log_starts import LOG_START_GROUP, CommittedLogStarts
from storage.errors import TierError
from storage.model import TopicIdPartition, uuid_from_text, uuid_to_text

PARTITION_LINE, COMPLETE_LINE = TAKEOVER_LINES = ("partition", "complete")

ROLE = "takeover"


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """`log_start`: as it is committed; None: none is."""

    partition: TopicIdPartition
    replicas: tuple[int, ...]
    log_start: int | None


@dataclass(frozen=True, slots=True)
class RunningReplicas:
    """One partition's. `leader_id`: -1 for none; `log_starts`: by broker."""

    leader_id: int
    log_starts: Mapping[int, int]


async def takeover_lines(
    cluster: Cluster, partitions: Collection[TopicIdPartition], ends: Mapping[int, int], records: int
) -> list[dict[str, Any]]:
    """The last lines of a dump of so many records. `ends`: where the metadata partitions end.

    Raises:
        TierError: a right is missing.
        UpstreamError: no answer, or a right is missing.
    """
    described = await _described(cluster, partitions)
    committed = await CommittedLogStarts(GroupOffsets(cluster, LOG_START_GROUP)).fetch(described)
    ordered = sorted(described.items(), key=lambda each: (each[0].topic, each[0].partition))
    lines: list[dict[str, Any]] = [
        {
            PARTITION_LINE: {
                "topic": partition.topic,
                "topic_id": uuid_to_text(partition.topic_id),
                "partition": partition.partition,
                "replicas": [int(node_id) for node_id in entry.replica_nodes],
                "log_start": committed.get(partition),
            }
        }
        for partition, entry in ordered
    ]
    brokers = [[node.node_id, node.host, node.port] for node in cluster.brokers.values()]
    complete = {"cluster_id": cluster.cluster_id, "brokers": brokers, "ends": [ends[number] for number in sorted(ends)]}
    return [*lines, {COMPLETE_LINE: {**complete, "records": records, "partitions": len(lines)}}]


def facts_of(line: Mapping[str, Any]) -> PartitionFacts:
    """Return what a dump's line says of a partition.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    partition = TopicIdPartition(uuid_from_text(line["topic_id"]), int(line["partition"]), str(line["topic"]))
    log_start = line["log_start"]
    return PartitionFacts(partition, tuple(map(int, line["replicas"])), None if log_start is None else int(log_start))


async def running_replicas(
    cluster: Cluster, partitions: Collection[TopicIdPartition]
) -> dict[TopicIdPartition, RunningReplicas]:
    """Every broker that runs and holds one of these, and where its log begins.

    Raises:
        TierError, UpstreamError: one of them does not say it.
    """
    described = await _described(cluster, partitions)
    starts: dict[TopicIdPartition, dict[int, int]] = {partition: {} for partition in described}
    client = FrontierClient(cluster, ROLE)
    for node_id in sorted(cluster.brokers):
        asked = {
            (partition.topic, partition.partition, int(OffsetTimestamp.EARLIEST)): partition
            for partition, entry in described.items()
            if node_id in map(int, entry.replica_nodes)
        }
        answers = await client.list_offsets(node_id, [*asked]) if asked else {}
        for query, partition in asked.items():
            answer = answers[query]
            if answer.error_code:
                raise TierError(
                    f"{cluster.name_of(node_id)} runs and does not say where its log of {partition.topic}:"
                    f"{partition.partition} begins: {code_name(answer.error_code)}; run the command again, or stop it"
                )
            starts[partition][node_id] = answer.offset
    return {
        partition: RunningReplicas(int(entry.leader_id), starts[partition]) for partition, entry in described.items()
    }


async def _described(cluster: Cluster, partitions: Collection[TopicIdPartition]) -> dict[TopicIdPartition, Any]:
    """The entries of Metadata of those that there are."""
    wanted = {(each.topic, bytes(each.topic_id), each.partition): each for each in partitions}
    names = sorted({each.topic for each in partitions})
    found: dict[TopicIdPartition, Any] = {}
    for at in range(0, len(names), TOPICS_MAX):
        for topic in await _topics(cluster, names[at : at + TOPICS_MAX]):
            if int(topic.error_code) == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise TierError(f"ACL Describe on Topic {topic.name} is missing for our own identity")
            for entry in topic.partitions:
                partition = wanted.get((topic.name, uuid_bytes(topic.topic_id), int(entry.partition_index)))
                if partition is not None:
                    found[partition] = entry
    return found


async def _topics(cluster: Cluster, names: Sequence[str]) -> Sequence[Any]:
    """As the first broker that answers tells of them."""
    failure: UpstreamError = UpstreamConnectionError("no broker is known")
    for node_id in sorted(cluster.brokers):
        try:
            topics: Sequence[Any] = (await cluster.ask(node_id, ROLE, metadata_question(names))).topics
        except UpstreamError as error:
            failure = error
        else:
            return topics
    raise failure
