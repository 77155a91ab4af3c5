"""The network side of the metadata log: `__remote_log_metadata` as a plain client of its partitions' leaders.

- Implements `storage.metadata.topic_log.MetadataTopicClient` by the conversations of protocol.client.leaders.
- A fetch waits at the broker, and a broker answers a connection's requests one after another: each fetch that is under
  way has a connection of its own, also where two follow one partition. Produces and questions go over others.
- Whatever goes wrong has the topic looked up again by the next call. Nothing is retried here: the log has the back-off.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

import trio

from protocol.client.conversation import drive_async
from protocol.client.errors import OffsetOutOfRangeError, UnknownTopicError, UpstreamError
from protocol.client.leaders import AskMetadata, AskNode, LeaderQuestions, Step, Steps
from protocol.list_offsets import OffsetTimestamp
from proxy.upstream.cluster import Cluster
from storage.errors import (
    CorruptMetadataBatchError,
    MetadataLogError,
    MetadataOffsetOutOfRange,
    MetadataTopicAbsentError,
    RetriableRemoteStorageError,
    UnsupportedMetadataCompressionError,
)
from storage.metadata.reading import TopicDescription
from storage.metadata.record_batches import parse_batches
from storage.metadata.topic_log import FetchedRecords

METADATA_TOPIC = "__remote_log_metadata"
FETCH_BYTES_MAX = 1024 * 1024
PARTITIONS_MAX = 1_000_000
"""No metadata topic has so many."""

ROLE = "metadata-log"
PRODUCER_ROLE = "metadata-producer"

NOT_MADE = "nobody has made it yet"

T = TypeVar("T")
Ask = Callable[[Sequence[AskNode]], Awaitable[list[Any]]]


class KafkaMetadataTopicClient:
    """Talks over `cluster`'s connections; closing it closes only those of its own.

    Args:
        absence: why there may be no topic, in words that follow a colon.
    """

    def __init__(self, cluster: Cluster, topic: str = METADATA_TOPIC, *, absence: str = NOT_MADE) -> None:
        self._cluster = cluster
        self._topic = topic
        self._absence = absence
        self._questions = LeaderQuestions(cluster, cluster.settings)
        self._fetches_from: dict[int, int] = {}
        """By lane, the leader."""
        self._busy_lanes: set[int] = set()

    async def describe(self) -> TopicDescription:
        """Ask Metadata for the topic's id and partition count."""
        found = await self._run(self._questions.describe([self._topic]))
        if not found:
            raise self._absent()
        return TopicDescription(found[0].topic_id, len(found[0].partitions))

    async def offsets(self, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        """Per partition (log start offset, high watermark), each from its leader."""
        stamps = (int(OffsetTimestamp.EARLIEST), int(OffsetTimestamp.LATEST))
        queries = [(self._topic, partition, stamp) for partition in partitions for stamp in stamps]
        answers = await self._run(self._questions.list_offsets(queries, {}))
        start, end = ({query[1]: answers[query].offset for query in queries if query[2] == stamp} for stamp in stamps)
        return {partition: (start[partition], end[partition]) for partition in partitions}

    async def fetch(self, partition: int, offset: int, max_wait_ms: int) -> FetchedRecords:
        """Records from `offset` on; waits at the broker up to max_wait_ms for the first one."""
        steps = self._questions.fetch(
            self._topic, partition, offset, max_bytes=FETCH_BYTES_MAX, read_committed=False, max_wait_ms=max_wait_ms
        )
        answer = await self._run(steps, partial(self._ask_in_own_lane, partition))
        try:
            parsed = parse_batches(answer.data, partition)
        except CorruptMetadataBatchError as error:
            raise RetriableRemoteStorageError(f"{self._topic}-{partition}: {error}") from error
        except UnsupportedMetadataCompressionError as error:
            raise MetadataLogError(f"{self._topic}-{partition}: {error}") from error
        if answer.data and parsed.next_offset < 0:
            # would be asked again at once, for ever
            size = len(answer.data)
            raise RetriableRemoteStorageError(f"{self._topic}-{partition}: {size} bytes without a whole batch")
        return FetchedRecords(parsed.records, answer.high_watermark, parsed.next_offset)

    async def produce_batch(self, partition: int, batch: bytes) -> int:
        """Append a batch of records and wait for all in-sync replicas; the first one's offset.

        After a RetriableRemoteStorageError the records may be there or not.
        """
        return await self._run(self._questions.produce(self._topic, partition, batch), self._ask_once)

    async def aclose(self) -> None:
        """Close the fetches' connections; the cluster closes the others."""
        for lane, leader in self._fetches_from.items():
            self._cluster.drop_connection(leader, ROLE, lane=lane)
        self._fetches_from.clear()

    async def _run(self, steps: Steps[T], ask: Ask | None = None) -> T:
        """Upstream's answers to the steps; its errors as the storage package's."""
        ask = ask or partial(self._cluster.ask_all, ROLE)

        async def answer(step: Step) -> Any:
            if isinstance(step, AskMetadata):
                return await self._cluster.learn_topics(step.names or ())
            return await ask(step)

        try:
            return await drive_async(steps, answer)
        except OffsetOutOfRangeError as error:
            raise MetadataOffsetOutOfRange(str(error)) from error
        except UnknownTopicError as error:
            raise self._absent() from error
        except UpstreamError as error:
            self._cluster.forget(self._topic)  # a broker that cannot be reached may have lost its partitions
            kind = RetriableRemoteStorageError if error.retriable else MetadataLogError
            raise kind(f"{self._topic}: {error}") from error

    async def _ask_in_own_lane(self, partition: int, asks: Sequence[AskNode]) -> list[Any]:
        # Lane 0 is the one that everybody shares.
        lane = next(each for each in count(partition + 1, PARTITIONS_MAX) if each not in self._busy_lanes)
        leader = asks[0].node_id
        before = self._fetches_from.get(lane, leader)
        if before != leader:
            self._cluster.drop_connection(before, ROLE, lane=lane)
        self._fetches_from[lane] = leader
        self._busy_lanes.add(lane)
        try:
            return [await self._ask_on(asks[0], ROLE, lane)]
        except trio.Cancelled:
            # its answer is still to come, and the next fetch must not wait behind it
            self._cluster.drop_connection(leader, ROLE, lane=lane)
            raise
        finally:
            self._busy_lanes.discard(lane)

    async def _ask_once(self, asks: Sequence[AskNode]) -> list[Any]:
        return [await self._ask_on(asks[0], PRODUCER_ROLE)]

    async def _ask_on(self, asked: AskNode, role: str, lane: int = 0) -> Any:
        """Never sent twice, as Cluster.ask may do."""
        connection = await self._cluster.connection_to(asked.node_id, role, lane=lane)
        return await connection.request(asked.question, asked.timeout_s)

    def _absent(self) -> MetadataTopicAbsentError:
        return MetadataTopicAbsentError(
            f"topic {self._topic} does not exist: {self._absence}, or ours may not describe it"
            f" (ACL Describe on Topic {self._topic})"
        )
