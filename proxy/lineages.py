"""Leader-epoch lineages by partition, built from the leader's own answers (storage.leader_epoch_lineage).

Rule 1. A lineage is bound to the leader epoch under which it was built; a newer one has it built anew (design L2).
Rule 2. So has an epoch that only appeared in the catalog afterwards, and `forget`.
Rule 3. Whoever leaves while a lineage is built loses nothing: the next one asks again, 0.3 ms.
"""

from collections import OrderedDict

from protocol.errors import ErrorCode
from proxy.upstream.cluster import Cluster
from proxy.upstream.errors import UpstreamConnectionError, UpstreamError, UpstreamRefusedError
from proxy.upstream.frontier_client import FrontierClient
from storage.leader_epoch_lineage import LeaderEpochLineage
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition

LINEAGES_MAX = 100_000
"""Partitions remembered, least recently used first out: about 500 bytes each."""


class Lineages:
    """Lineages of the partitions that are read. Owned by the trio thread."""

    def __init__(self, client: FrontierClient, cluster: Cluster, catalog: Catalog) -> None:
        self._client = client
        self._cluster = cluster
        self._catalog = catalog
        self._lineages: OrderedDict[TopicIdPartition, LeaderEpochLineage] = OrderedDict()

    async def get(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage:
        """The lineage, valid for this leader epoch or a later one.

        Raises:
            UpstreamError: the leader is not known or does not answer.
        """
        epochs = self._catalog.epochs(partition.topic_id, partition.partition)
        known = self._lineages.get(partition)
        if known is not None and known.leader_epoch >= leader_epoch and known.knows(epochs):
            self._lineages.move_to_end(partition)
            return known
        answers = await self._ask(partition, [*epochs])
        lineage = LeaderEpochLineage(leader_epoch, answers)
        self._lineages[partition] = lineage
        while len(self._lineages) > LINEAGES_MAX:
            self._lineages.popitem(last=False)
        return lineage

    def forget(self, partition: TopicIdPartition) -> None:
        """Something said that it is out of date."""
        self._lineages.pop(partition, None)

    async def _ask(self, partition: TopicIdPartition, epochs: list[int]) -> dict[int, tuple[int, int]]:
        try:
            return await self._ask_leader(partition, epochs)
        except (UpstreamConnectionError, UpstreamRefusedError) as error:
            # A leader that cannot be reached may have gone, and another one taken its place.
            if isinstance(error, UpstreamRefusedError) and error.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
        await self._cluster.learn_topics(names=[partition.topic])
        return await self._ask_leader(partition, epochs)

    async def _ask_leader(self, partition: TopicIdPartition, epochs: list[int]) -> dict[int, tuple[int, int]]:
        leader = self._cluster.leader_of(partition.topic_id, partition.partition)
        if leader is None or leader.leader_id < 0:
            await self._cluster.learn_topics(names=[partition.topic])
            leader = self._cluster.leader_of(partition.topic_id, partition.partition)
        if leader is None or leader.leader_id < 0:
            raise UpstreamError(f"{partition}: upstream names no leader")
        answers = await self._client.epoch_end_offsets(leader.leader_id, partition.topic, partition.partition, epochs)
        for epoch, answer in answers.items():
            if answer.error_code:
                raise UpstreamRefusedError(
                    f"{partition}: leader epoch {epoch} is not told, error code {answer.error_code}",
                    answer.error_code,
                )
        return {epoch: (answer.leader_epoch, answer.end_offset) for epoch, answer in answers.items()}
