"""What a tier holds by a dump of its metadata (`tidegate metadata dump`), without a broker.

Nobody is asked, so three things are not known: where logs start (retention may have moved the start into a segment, or
deleted segments since the dump), who may read, and what is not in the tier yet. A partition begins with its first
segment and ends with its last. Leader epochs are cut where a higher one begins in the tier (rule 5 of
storage.metadata.epoch_history): a branch that an unclean election left may be taken for the live one where no later
epoch is in the tier.
"""

from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import TopicIdPartition
from table.planning.partition_view import PartitionView, partition_view
from table.planning.request import TopicSelection
from table.planning.tier_transactions import TierTransactions
from table.planning.tier_view import INTERNAL_TOPICS, TierViewError

_NO_END = 2**63 - 1

SHOWN_MAX = 20
"""Topics that one sentence names."""


class DumpedTierView:
    """Makes views of partitions, as TierView does."""

    def __init__(self, catalog: Catalog, transactions: TierTransactions) -> None:
        self._catalog, self._transactions = catalog, transactions

    def partitions(self, selection: TopicSelection, read_committed: bool) -> list[PartitionView]:
        """A view of each partition selected, by topic and number.

        Raises:
            TierViewError: the dump has nothing of it.
            RemoteStorageError: READ_COMMITTED, and a producer snapshot cannot be read.
        """
        chosen = [each for each in self._catalog.partitions() if self._is_wanted(each, selection)]
        chosen.sort(key=lambda each: (each.topic, each.partition))
        known = {(each.topic, each.partition) for each in chosen}
        if len(known) < len(chosen):
            raise TierViewError("the dump has topics that were deleted and created again: dump with --current")
        absent = [name for name in selection.topics or () if name not in {topic for topic, _ in known}]
        for name, numbers in (selection.assigned or {}).items():
            absent += [f"{name}-{number}" for number in numbers if (name, number) not in known]
        if absent:
            topics = sorted({each.topic for each in self._catalog.partitions() if self._has_segments(each)})
            has = f"{', '.join(topics[:SHOWN_MAX])}{', …' if len(topics) > SHOWN_MAX else ''}" or "nothing"
            raise TierViewError(f"the dump has nothing of {', '.join(absent)}; it has {has}")
        views = [self._view(each) for each in chosen]
        return self._transactions.with_last_stable_offsets(views) if read_committed else views

    def _is_wanted(self, partition: TopicIdPartition, selection: TopicSelection) -> bool:
        if not self._has_segments(partition):
            return False
        if selection.pattern is not None and partition.topic in INTERNAL_TOPICS:
            return False
        if selection.assigned is not None:
            return partition.partition in selection.assigned.get(partition.topic, ())
        return selection.matches(partition.topic)

    def _has_segments(self, partition: TopicIdPartition) -> bool:
        return self._catalog.has_segments(partition.topic_id, partition.partition)

    def _view(self, partition: TopicIdPartition) -> PartitionView:
        topic_id, number = partition.topic_id, partition.partition
        epochs = self._catalog.epochs(topic_id, number)
        starts = self._catalog.epoch_starts(topic_id, number)
        lineage = LeaderEpochLineage(max(epochs), {epoch: (epoch, _NO_END) for epoch in epochs}, starts)
        first = min(starts.values())
        return partition_view(self._catalog, partition, lineage, log_start_offset=first, end_offset=first)
