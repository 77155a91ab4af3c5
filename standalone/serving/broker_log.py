"""Upstream's partitions as the copier reads them: ranges, raw batches, ends of leader epochs, each from the leader.

- Implements `standalone.copier.seams.BrokerLog` by the conversations of protocol.client.leaders, one attempt each:
  the caller has the back-off.
- A partition is named with its topic's id. Where the name is another topic's by now, the answer is TopicGoneError, and
  records are fetched by the id. A name that upstream does not know, or does not tell us of, may pass: whether the topic
  was deleted is for `standalone.copy_topics` to find out.
- The copier's connections are its own, so that megabytes of a Fetch do not hold up the questions of others.
"""

from typing import Any, NoReturn, TypeVar

from protocol.client.conversation import drive_async
from protocol.client.errors import OffsetOutOfRangeError, TopicReplacedError, UnknownTopicError, UpstreamError
from protocol.client.leaders import AskMetadata, FetchedRecords, LeaderQuestions, Step, Steps
from protocol.list_offsets import OffsetTimestamp
from proxy.upstream.cluster import Cluster
from standalone.copier.seams import LogRange, OffsetBelowLogStartError, TopicGoneError
from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.model import TopicIdPartition

ROLE = "copier"

T = TypeVar("T")


class ClusterBrokerLog:
    """Talks over `cluster`'s connections. Owned by the trio thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._questions = LeaderQuestions(cluster, cluster.settings)

    async def range(self, partition: TopicIdPartition) -> LogRange:
        """Return where the log begins and ends now."""
        return await self._run(partition, self._range(partition))

    async def fetch(self, partition: TopicIdPartition, offset: int, *, max_bytes: int) -> FetchedRecords:
        """Batches from `offset` on, up to the last stable offset; never waits for records.

        Raises:
            OffsetBelowLogStartError: retention, or DeleteRecords, was faster.
        """
        steps = self._questions.fetch(
            partition.topic,
            partition.partition,
            offset,
            max_bytes=max_bytes,
            read_committed=True,
            max_wait_ms=0,
            topic_id=partition.topic_id,
        )
        try:
            return await self._run(partition, steps)
        except OffsetOutOfRangeError as error:
            now = await self.range(partition)
            if offset < now.log_start_offset:
                raise OffsetBelowLogStartError(partition, offset, now.log_start_offset) from error
            # Beyond the end: the log was truncated, or the leader is about to find out where it ends.
            raise RetriableRemoteStorageError(f"{error}; it ends at {now.last_stable_offset}") from error

    async def epoch_end(self, partition: TopicIdPartition, leader_epoch: int) -> tuple[int, int]:
        """The largest leader epoch up to this one, and where it ends; (-1, -1) if there is none."""
        steps = self._questions.epoch_ends(partition.topic, partition.partition, [leader_epoch])
        return (await self._run(partition, steps)).answers[leader_epoch]

    def _range(self, partition: TopicIdPartition) -> Steps[LogRange]:
        topic, number = partition.topic, partition.partition
        earliest = (topic, number, int(OffsetTimestamp.EARLIEST))
        latest = (topic, number, int(OffsetTimestamp.LATEST))
        answers = yield from self._questions.list_offsets([earliest, latest], {}, read_committed=True)
        ends = yield from self._questions.list_offsets([latest], {}, read_committed=False)
        led = yield from self._questions.leader_of(topic, number)
        return LogRange(
            log_start_offset=answers[earliest].offset,
            last_stable_offset=answers[latest].offset,
            high_watermark=ends[latest].offset,
            leader_epoch=led.leader_epoch,
        )

    async def _run(self, partition: TopicIdPartition, steps: Steps[T]) -> T:
        """Upstream's answers to the steps; its errors as the copier's, save OffsetOutOfRangeError."""
        if self._is_another(partition):
            self._cluster.forget(partition.topic)  # and have it asked for again: what is known may be older
        try:
            answer = await drive_async(steps, self._answer)
        except OffsetOutOfRangeError:
            raise
        except TopicReplacedError as error:
            self._gone(partition, error)
        except UpstreamError as error:
            self._cluster.forget(partition.topic)  # a broker that cannot be reached may have lost its partitions
            kind = RetriableRemoteStorageError if _may_pass(error) else RemoteStorageError
            raise kind(f"{partition.topic}-{partition.partition}: {error}") from error
        if self._is_another(partition):  # questions by name have been answered for that one
            self._gone(partition, None)
        return answer

    async def _answer(self, step: Step) -> list[Any]:
        if isinstance(step, AskMetadata):
            return [*await self._cluster.learn_topics(step.names or ())]
        return await self._cluster.ask_all(ROLE, step)

    def _is_another(self, partition: TopicIdPartition) -> bool:
        known = self._cluster.topic_id(partition.topic)
        return known is not None and known != partition.topic_id

    def _gone(self, partition: TopicIdPartition, cause: Exception | None) -> NoReturn:
        raise TopicGoneError(
            f"topic {partition.topic} is not the one that {partition} is of: it was deleted, and made again"
        ) from cause


def _may_pass(error: UpstreamError) -> bool:
    """A broker that has just started knows no topic for a moment."""
    return error.retriable or isinstance(error, UnknownTopicError)
