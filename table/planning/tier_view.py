"""What the tier holds of the topics that are wanted, as the metadata topic and the brokers tell it at one moment.

The order of the questions decides whether the answer is true while segments are copied and deleted meanwhile:

1. The metadata topic, to its end as of now. What becomes remote after that is not in this view: the tier's end is
   earlier than it could be, and what follows it is read through Kafka, which has it either way.
2. Topic ids, which decide what a name means: a topic that was created again has another id, and nothing of its
   predecessor's is looked at. The ids are asked again at the end, because the questions of 3 to 5 go by name; when one
   has changed, all is asked again.
3. Leader epochs, those that the segments known by now have. Later than the metadata, so that every segment on the
   lineage ends below the log's end as this answer knows it (an older answer would reject the newest ones).
4. Log starts. A broker first moves the log start, then says that the segments below are being deleted. So a log start
   that is younger than the metadata is at or above everything whose deletion the metadata tell: no hole is seen where
   there is none. It is younger than the lineage too, whose epochs below the log start may be merged.
5. Log ends: high watermarks, or last stable offsets for READ_COMMITTED.

For READ_COMMITTED, the tier's own last stable offset comes last (table.planning.tier_transactions).
"""

from collections.abc import Mapping, Sequence

import structlog

from protocol.client.cluster_view import TopicMetadata
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import ZERO_UUID, TopicIdPartition, Uuid
from table.brokers.client import BrokerClient
from table.brokers.metadata_topic import MetadataFollower
from table.planning.partition_view import PartitionView, partition_view
from table.planning.request import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition, TopicSelection
from table.planning.tier_transactions import TierTransactions

ATTEMPTS_MAX = 3
"""Views made while a topic is created again under its name."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""What a pattern does not match, as with Kafka's consumers; they can be named."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TierViewError(Exception):
    """A topic or partition that was named does not exist, or what is known of it would be incomplete."""


class TierView:
    """Makes views of a tier that the brokers have, too. Used by one thread."""

    def __init__(
        self, client: BrokerClient, follower: MetadataFollower, catalog: Catalog, transactions: TierTransactions
    ) -> None:
        self._client = client
        self._follower = follower
        self._catalog = catalog
        self._transactions = transactions

    def refresh(self) -> int:
        """Read the metadata topic on to its end; how many records were new. Cheap when none are.

        Raises:
            UpstreamError: it cannot be read.
        """
        return self._follower.catch_up()

    def partitions(self, selection: TopicSelection, read_committed: bool) -> list[PartitionView]:
        """A view of each partition selected, by topic and number; the metadata are refreshed first.

        Raises:
            TierViewError: see there.
            UpstreamError: a broker refuses, or none answers.
            RemoteStorageError: READ_COMMITTED, and a producer snapshot cannot be read.
        """
        for _ in range(ATTEMPTS_MAX):
            self.refresh()
            topics = self._topics(selection)
            views = self._views(_partitions(selection, topics), read_committed)
            replaced = self._replaced(topics)
            if not replaced:
                return self._transactions.with_last_stable_offsets(views) if read_committed else views
            _log.info("topics_replaced_meanwhile", topics=replaced)
        raise TierViewError("topics were deleted or created again each time they were looked at")

    def _replaced(self, topics: Mapping[str, TopicMetadata]) -> list[str]:
        """Those that are another topic by now, or none."""
        if not topics:
            return []
        now = self._client.topics(tuple(topics))
        return [name for name, topic in topics.items() if name not in now or now[name].topic_id != topic.topic_id]

    def _topics(self, selection: TopicSelection) -> dict[str, TopicMetadata]:
        """By name, those selected."""
        names = selection.names
        answer = self._client.topics(names)
        absent = [name for name in names or () if name not in answer]
        if absent:
            raise TierViewError(f"topics that were named do not exist: {', '.join(absent)}")
        topics = {
            name: topic
            for name, topic in sorted(answer.items())
            if selection.matches(name) and (selection.pattern is None or name not in INTERNAL_TOPICS)
        }
        without_id = [name for name, topic in topics.items() if topic.topic_id == ZERO_UUID]
        if without_id:
            raise TierViewError(f"the brokers give no topic id, by which the tier is known, to {', '.join(without_id)}")
        return topics

    def _views(self, partitions: Sequence[TopicIdPartition], read_committed: bool) -> list[PartitionView]:
        refused = [str(each) for each in partitions if self._catalog.is_refused(each.topic_id, each.partition)]
        if refused:
            raise TierViewError(f"the catalog is full, and the segments of {', '.join(refused)} are not known")
        if not partitions:
            return []
        lineages = [self._lineage(partition) for partition in partitions]
        keys: list[TopicPartition] = [(each.topic, each.partition) for each in partitions]
        starts = self._starts(partitions, self._told_starts(keys))
        ends = self._client.list_offsets(dict.fromkeys(keys, LATEST_OFFSET), read_committed=read_committed)
        return [
            self._view(partition, lineage, starts[key], ends[key].offset)
            for partition, key, lineage in zip(partitions, keys, lineages, strict=True)
        ]

    def log_starts(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where these logs start now.

        Raises:
            UpstreamError: a broker refuses, or none answers.
        """
        return self._told_starts(keys) if keys else {}

    def _told_starts(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        told = self._client.list_offsets(dict.fromkeys(keys, EARLIEST_OFFSET))
        return {key: answer.offset for key, answer in told.items()}

    # What the brokers do not know of a tier of our own (table.planning.own_tier_view).

    def _starts(
        self, partitions: Sequence[TopicIdPartition], told: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return where logs start, by what the brokers have told."""
        return told

    def _epoch_starts(self, partition: TopicIdPartition) -> Mapping[int, int] | None:
        """Return where leader epochs begin that the brokers may have forgotten; None: they have not."""
        return None

    def _view(
        self, partition: TopicIdPartition, lineage: LeaderEpochLineage, log_start_offset: int, end_offset: int
    ) -> PartitionView:
        return partition_view(
            self._catalog, partition, lineage, log_start_offset=log_start_offset, end_offset=end_offset
        )

    def _lineage(self, partition: TopicIdPartition) -> LeaderEpochLineage:
        epochs = self._catalog.epochs(partition.topic_id, partition.partition)
        if not epochs:
            return LeaderEpochLineage(-1, {})  # nothing in the tier: no question
        said = self._client.leader_epoch_ends(partition.topic, partition.partition, epochs)
        return LeaderEpochLineage(said.leader_epoch, said.answers, self._epoch_starts(partition))


def _partitions(selection: TopicSelection, topics: Mapping[str, TopicMetadata]) -> list[TopicIdPartition]:
    absent: list[str] = []
    partitions = []
    for name, topic in topics.items():
        numbers = sorted(topic.partitions) if selection.assigned is None else selection.assigned[name]
        for number in numbers:
            partitions.append(TopicIdPartition(Uuid(topic.topic_id), number, name))
            if number not in topic.partitions:
                absent.append(f"{name}-{number}")
    if absent:
        raise TierViewError(f"partitions that assign names do not exist: {', '.join(absent)}")
    return partitions
