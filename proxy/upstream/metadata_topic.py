"""The network side of the metadata log: `__remote_log_metadata` as a plain client of its partitions' leaders.

- Implements `storage.metadata.topic_log.MetadataTopicClient`.
- A fetch waits at the broker, and a broker answers a connection's requests one after another: every partition
  fetches on a connection of its own, and produces and questions go over others.
- Fetches name the topic by id from version 13 on, so a topic that was made anew under the name is never read
  as the old one.
- Answers that say "not here" (moved leader, unknown id) drop what is known of the topic; the next call asks
  Metadata again. Nothing is retried here: the log has the back-off.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import trio

from protocol.client.messages import FETCH, PRODUCE, Api, Values, kio_uuid
from protocol.wire.errors import MOVED_CODES, PASSING_CODES
from proxy.upstream.cluster import Cluster, TopicMetadata
from proxy.upstream.errors import UpstreamError
from proxy.upstream.frontier_client import CONSUMER_REPLICA, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, FrontierClient
from storage.errors import (
    CorruptMetadataBatchError,
    MetadataLogError,
    MetadataOffsetOutOfRange,
    RemoteStorageError,
    RetriableRemoteStorageError,
    UnsupportedMetadataCompressionError,
)
from storage.metadata.record_batches import build_batch, parse_batches
from storage.metadata.topic_log import FetchedRecords, TopicDescription

METADATA_TOPIC = "__remote_log_metadata"
FETCH_BYTES_MAX = 1024 * 1024

ROLE = "metadata-log"
PRODUCER_ROLE = "metadata-producer"

_OFFSET_OUT_OF_RANGE = 1
_UNKNOWN_TOPIC_OR_PARTITION = 3
_TOPIC_AUTHORIZATION_FAILED = 29
_ALL_IN_SYNC_REPLICAS = -1


class KafkaMetadataTopicClient:
    """Talks over `cluster`'s connections; closing it closes only those of its own."""

    def __init__(self, cluster: Cluster, topic: str = METADATA_TOPIC) -> None:
        self._cluster = cluster
        self._topic = topic
        self._offsets_client = FrontierClient(cluster, ROLE)
        self._fetches_from: dict[int, int] = {}

    async def describe(self) -> TopicDescription:
        """Ask Metadata for the topic's id and partition count."""
        topic = await self._learn()
        return TopicDescription(topic.topic_id, len(topic.partitions))

    async def offsets(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Per partition (log start offset, high watermark), each from its leader."""
        by_leader: dict[int, list[int]] = {}
        for partition in partitions:
            by_leader.setdefault(await self._leader(partition), []).append(partition)
        result: dict[int, tuple[int, int]] = {}
        for leader, led in by_leader.items():
            stamps = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
            queries = [(self._topic, partition, stamp) for partition in led for stamp in stamps]
            with self._translated():
                answers = await self._offsets_client.list_offsets(leader, queries, replica_id=CONSUMER_REPLICA)
            for (_, partition, _), answer in answers.items():
                self._check(answer.error_code, partition, "ListOffsets", "Describe")
            for partition in led:
                start, end = (answers[(self._topic, partition, stamp)].offset for stamp in stamps)
                result[partition] = (start, end)
        return result

    async def fetch(self, partition: int, offset: int, max_wait_ms: int) -> FetchedRecords:
        """Records from `offset` on; waits at the broker up to max_wait_ms for the first one."""
        leader = await self._leader(partition)
        self._move_fetch_connection(partition, leader)
        with self._translated():
            connection = await self._cluster.connection_to(leader, ROLE, lane=_fetch_lane(partition))
            timeout_s = max_wait_ms / 1000 + self._cluster.settings.request_timeout_s
            values = self._fetch_values(partition, offset, max_wait_ms)
            try:
                response = await connection.request(FETCH, values, timeout_s=timeout_s)
            except trio.Cancelled:
                # its answer is still to come, and the next fetch must not wait behind it
                self._cluster.drop_connection(leader, ROLE, lane=_fetch_lane(partition))
                raise
        self._check(int(getattr(response, "error_code", 0)), partition, "Fetch", "Read")
        answer = self._only_partition(response.responses, "partitions", "partition_index", partition, FETCH)
        if int(answer.error_code) == _OFFSET_OUT_OF_RANGE:
            raise MetadataOffsetOutOfRange(f"{self._topic}-{partition} does not hold offset {offset}")
        self._check(int(answer.error_code), partition, "Fetch", "Read")
        return self._parsed(answer, partition)

    async def produce(self, partition: int, value: bytes) -> int:
        """Append one record and wait for all in-sync replicas; its offset.

        After a RetriableRemoteStorageError the record may be there or not.
        """
        leader = await self._leader(partition)
        batch = build_batch(value, time.time_ns() // 1_000_000)
        topic_data = {
            "name": self._topic,
            "topic_id": self._kio_topic_id(),
            "partition_data": [{"index": partition, "records": batch}],
        }
        values: Values = {
            "transactional_id": None,
            "acks": _ALL_IN_SYNC_REPLICAS,
            "timeout": timedelta(seconds=self._cluster.settings.request_timeout_s),
            "topic_data": [topic_data],
        }
        with self._translated():
            connection = await self._cluster.connection_to(leader, PRODUCER_ROLE)
            response = await connection.request(PRODUCE, values)
        answer = self._only_partition(response.responses, "partition_responses", "index", partition, PRODUCE)
        self._check(int(answer.error_code), partition, "Produce", "Write")
        return int(answer.base_offset)

    async def aclose(self) -> None:
        """Close the fetches' connections; the cluster closes the others."""
        for partition, leader in self._fetches_from.items():
            self._cluster.drop_connection(leader, ROLE, lane=_fetch_lane(partition))
        self._fetches_from.clear()

    async def _learn(self) -> TopicMetadata:
        with self._translated():
            topics = await self._cluster.learn_topics(names=[self._topic])
        topic = next((topic for topic in topics if topic.name == self._topic), None)
        code = _UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
        if topic is None or code == _UNKNOWN_TOPIC_OR_PARTITION:
            raise MetadataLogError(
                f"topic {self._topic} does not exist: no broker has made it yet, or ours may not describe it"
                f" (ACL Describe on Topic {self._topic})"
            )
        self._check(code, None, "Metadata", "Describe")
        return topic

    async def _leader(self, partition: int) -> int:
        topic_id = self._cluster.topic_id(self._topic)
        if topic_id is None or self._cluster.leader_of(topic_id, partition) is None:
            topic_id = (await self._learn()).topic_id
        leader = self._cluster.leader_of(topic_id, partition)
        if leader is None:
            raise MetadataLogError(f"{self._topic} has no partition {partition}")
        if leader.leader_id < 0:
            self._cluster.forget_topic(topic_id)
            raise RetriableRemoteStorageError(f"{self._topic}-{partition} has no leader")
        return leader.leader_id

    def _move_fetch_connection(self, partition: int, leader: int) -> None:
        before = self._fetches_from.get(partition, leader)
        if before != leader:
            self._cluster.drop_connection(before, ROLE, lane=_fetch_lane(partition))
        self._fetches_from[partition] = leader

    def _fetch_values(self, partition: int, offset: int, max_wait_ms: int) -> Values:
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES_MAX}
        return {
            "replica_id": -1,
            "max_wait": timedelta(milliseconds=max_wait_ms),
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES_MAX,
            "isolation_level": 0,
            "topics": [{"topic": self._topic, "topic_id": self._kio_topic_id(), "partitions": [asked]}],
            "forgotten_topics_data": (),
        }

    def _kio_topic_id(self) -> object:
        return kio_uuid(self._cluster.topic_id(self._topic) or b"")

    def _only_partition(self, topics: Any, partitions: str, index: str, partition: int, api: Api) -> Any:
        """The one partition that was asked for, in an answer that should hold nothing else."""
        found = [entry for topic in topics for entry in getattr(topic, partitions)]
        if len(found) != 1 or getattr(found[0], index) != partition:
            raise RetriableRemoteStorageError(f"{self._topic}-{partition} is missing in the {api.name} response")
        return found[0]

    def _parsed(self, answer: Any, partition: int) -> FetchedRecords:
        data = answer.records or b""
        try:
            parsed = parse_batches(data, partition)
        except CorruptMetadataBatchError as error:
            raise RetriableRemoteStorageError(f"{self._topic}-{partition}: {error}") from error
        except UnsupportedMetadataCompressionError as error:
            raise MetadataLogError(f"{self._topic}-{partition}: {error}") from error
        if data and parsed.next_offset < 0:
            # would be asked again at once, for ever
            raise RetriableRemoteStorageError(f"{self._topic}-{partition}: {len(data)} bytes without a whole batch")
        return FetchedRecords(parsed.records, answer.high_watermark, answer.log_start_offset, parsed.next_offset)

    def _check(self, code: int, partition: int | None, api_name: str, operation: str) -> None:
        if code == 0:
            return
        where = self._topic if partition is None else f"{self._topic}-{partition}"
        if code == _TOPIC_AUTHORIZATION_FAILED:
            raise MetadataLogError(
                f"{api_name} of {where} is denied: ACL {operation} on Topic {self._topic} is missing"
            )
        if code in MOVED_CODES:
            topic_id = self._cluster.topic_id(self._topic)
            if topic_id is not None:
                self._cluster.forget_topic(topic_id)
        kind: type[RemoteStorageError] = RetriableRemoteStorageError if code in PASSING_CODES else MetadataLogError
        raise kind(f"{api_name} of {where}: the broker answered with error code {code}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Upstream's errors as the storage package's."""
        try:
            yield
        except UpstreamError as error:
            self._forget_leaders()
            kind = RetriableRemoteStorageError if error.retriable else MetadataLogError
            raise kind(f"{self._topic}: {error}") from error

    def _forget_leaders(self) -> None:
        """A broker that cannot be reached may have lost its partitions to another."""
        topic_id = self._cluster.topic_id(self._topic)
        if topic_id is not None:
            self._cluster.forget_topic(topic_id)


def _fetch_lane(partition: int) -> int:
    return partition + 1  # lane 0 is the one that everybody shares
