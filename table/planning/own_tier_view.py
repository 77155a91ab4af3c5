"""Views of a tier of our own (mode standalone): brokers know nothing of it, and have forgotten the leader epochs and
the log start of what only it has (docs/protocol.md#standalone)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from protocol.client.groups import LOG_START_GROUP, texts_by_topic_id
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import TopicIdPartition, Uuid, uuid_to_text
from table.planning.partition_view import PartitionView
from table.planning.request import TopicPartition
from table.planning.tier_times import first_offset_at
from table.planning.tier_view import TierView


class OwnTierView(TierView):
    """Makes them. Used by one thread."""

    def log_starts(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """As the brokers' view, after another look at the metadata."""
        told = super().log_starts(keys)
        if not told:
            return told
        self.refresh()
        topics = self._client.topics(tuple({topic for topic, _ in keys}))
        known = [(Uuid(topics[topic].topic_id), number, topic) for topic, number in keys if topic in topics]
        return self._starts([TopicIdPartition(*each) for each in known], told)

    def _starts(
        self, partitions: Sequence[TopicIdPartition], told: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """At the tier's first segment, or what was committed, unless the broker's log starts lower."""
        starts = dict(told)
        committed = self._client.committed_offsets(LOG_START_GROUP, [*told])
        for partition in partitions:
            key = (partition.topic, partition.partition)
            firsts = self._epoch_starts(partition)
            if not firsts:
                continue
            kept = committed.get(key)
            start = min(firsts.values())
            if kept is not None:
                start = max(start, int(texts_by_topic_id(kept).get(uuid_to_text(partition.topic_id), 0)))
            starts[key] = min(starts[key], start)
        return starts

    def _epoch_starts(self, partition: TopicIdPartition) -> Mapping[int, int]:
        return self._catalog.epoch_starts(partition.topic_id, partition.partition)

    def _view(
        self, partition: TopicIdPartition, lineage: LeaderEpochLineage, log_start_offset: int, end_offset: int
    ) -> PartitionView:
        view = super()._view(partition, lineage, log_start_offset, end_offset)
        return replace(view, first_at=partial(first_offset_at, self._transactions.manager, view.segments))
