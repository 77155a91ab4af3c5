"""Look-ups by time in the tier, for ListOffsets: which questions are the tier's, and their answers.

Nothing is decided by old offsets: log start and local log start are asked of the broker for every request that may be
the tier's, which costs a question of our own (0.3 ms) and is rare. What is not certain is the broker's to answer.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import structlog
import trio

from protocol.client.errors import UpstreamError
from protocol.list_offsets import ListOffsetsPartition
from proxy.connection.slices import each_slice
from proxy.fetch.frontiers import LEARN_WAIT_S_MAX, Frontier
from proxy.fetch.tier import Tier
from proxy.offsets.search_slots import SearchSlots
from proxy.turns import move_on_after
from storage.errors import RemoteResourceNotFoundError
from storage.log.batch_records import ScanLimitError
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition
from storage.reading.timestamp_search import FoundTimestamp, TimestampSearch

SEARCHES_MAX = 16
"""Searches at once, of all clients; Kafka's readers are 10 threads."""

CONNECTION_SEARCHES = 4
"""What each connection finds free of those, however many others search (`proxy.offsets.search_slots`)."""

Key = tuple[str, int]
"""Topic name and partition: ListOffsets knows no ids."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TierQuestion:
    """A question that the tier answers: which segment decides it."""

    partition: TopicIdPartition
    timestamp_ms: int
    log_start_offset: int
    segment: RemoteLogSegmentMetadata


class TimestampLookup:
    """One for all clients. Owned by the trio thread."""

    def __init__(self, tier: Tier, search: TimestampSearch) -> None:
        self._tier = tier
        self._client = tier.frontiers.client
        self._lineages = tier.lineages
        self.search = search
        self.meter = tier.meter
        self.slots = SearchSlots(SEARCHES_MAX, CONNECTION_SEARCHES)

    async def plan(self, asked: Sequence[ListOffsetsPartition], node_id: int) -> dict[Key, TierQuestion]:
        """Those of the questions that the tier answers; the others are the broker's. No I/O in the tier."""
        questions: dict[Key, TierQuestion] = {}
        by_time = [question for question in asked if question.timestamp >= 0]
        if not by_time:
            return questions
        with move_on_after(LEARN_WAIT_S_MAX):
            await self._tier.learn_topic_ids([question.topic for question in by_time])
            candidates: dict[Key, tuple[ListOffsetsPartition, TopicIdPartition]] = {}
            for some in await each_slice(by_time, self._candidates):
                candidates.update(some)
            frontiers = await self.learn(node_id, [partition for _, partition in candidates.values()])
            await self.learn_lineages(frontiers)
            for key, (question, partition) in candidates.items():
                frontier = frontiers.get(partition)
                found = None if frontier is None else await self._decide(question, partition, frontier)
                if found is not None:
                    questions[key] = found
                await trio.lowlevel.checkpoint()  # each looks through the catalog
        return questions

    async def answer(self, question: TierQuestion, asker: Hashable = None) -> FoundTimestamp | None:
        """The record; None if the broker is to look: there is none in the tier, or it would be too much work.

        Args:
            asker: the connection, which has a share of the searches.

        Raises:
            RemoteStorageError: the segment cannot be read.
        """
        async with self.slots.slot(asker):
            try:
                return await self.search.search(
                    question.segment, question.timestamp_ms, log_start_offset=question.log_start_offset
                )
            except RemoteResourceNotFoundError:
                if not self.search.is_gone(question.segment):
                    raise
                return None  # retention was faster: the broker knows another log start by now
            except ScanLimitError as error:
                _log.info("timestamp_search_left", partition=str(question.partition), reason=str(error))
                return None

    async def learn_lineages(self, frontiers: Mapping[TopicIdPartition, Frontier]) -> None:
        """Ask together what `lineage` would ask for."""
        await self._lineages.learn((partition, known.leader_epoch) for partition, known in frontiers.items())

    async def lineage(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage:
        """The partition's lineage, not older than what the tier has of it.

        Raises:
            UpstreamError: it cannot be learned.
        """
        lineage = await self._lineages.get(partition, leader_epoch)
        if self.search.is_outdated(partition, lineage):
            self._lineages.forget(partition)
            lineage = await self._lineages.get(partition, leader_epoch)
        return lineage

    async def current(self, questions: Mapping[Key, TierQuestion], node_id: int) -> set[Key]:
        """Those whose topic name still is the topic's that was looked in, by the word of that broker.

        Asked after the broker's own answer: a topic that was created again under its name gets no old offset.
        """
        names = list(dict.fromkeys(topic for topic, _ in questions))
        try:
            ids = await self._client.topic_ids(node_id, names)
        except UpstreamError as error:
            _log.warning("topic_ids_unknown", node=node_id, topics=len(names), reason=str(error))
            return set()
        current = {key for key, question in questions.items() if ids.get(key[0]) == question.partition.topic_id}
        for key in questions.keys() - current:
            self._tier.forget_topic(questions[key].partition)
        return current

    def _candidates(
        self, questions: Sequence[ListOffsetsPartition]
    ) -> dict[Key, tuple[ListOffsetsPartition, TopicIdPartition]]:
        return {
            (question.topic, question.partition): (question, partition)
            for question in questions
            if (partition := self._partition(question)) is not None
        }

    def _partition(self, question: ListOffsetsPartition) -> TopicIdPartition | None:
        topic_id = self._tier.topic_id(question.topic)
        return None if topic_id is None else self._tier.partition(topic_id, question.partition)

    async def learn(self, node_id: int, partitions: Sequence[TopicIdPartition]) -> Mapping[TopicIdPartition, Frontier]:
        """Return what the broker says now; those it does not answer for are left out."""
        if not partitions:
            return {}
        asked_at_s = trio.current_time()
        frontiers = self._tier.frontiers
        await frontiers.refresh(node_id, partitions)
        found = {partition: frontiers.get(node_id, partition) for partition in partitions}
        return {
            partition: frontier
            for partition, frontier in found.items()
            if frontier is not None and frontier.learned_at_s >= asked_at_s
        }

    async def _decide(
        self, question: ListOffsetsPartition, partition: TopicIdPartition, frontier: Frontier
    ) -> TierQuestion | None:
        try:
            lineage = await self.lineage(partition, frontier.leader_epoch)
        except UpstreamError as error:
            _log.info("lineage_unknown", partition=str(partition), reason=str(error))
            return None
        segment = self.search.candidate(
            partition,
            question.timestamp,
            log_start_offset=frontier.log_start_offset,
            local_log_start_offset=frontier.local_log_start_offset,
            lineage=lineage,
        )
        if segment is None:
            return None
        return TierQuestion(partition, question.timestamp, frontier.log_start_offset, segment)
