"""Leader-epoch lineages by partition, built from the leader's own answers (storage.metadata.epoch_history).

Rule 1. A lineage is bound to the leader epoch under which it was built; a newer one has it built again
        (docs/protocol.md#l2).
Rule 2. So has an epoch that only appeared in the catalog afterwards, and `forget`.
Rule 3. Questions to one leader are gathered (proxy.upstream.gathered), and so are topics whose leader is looked for.
        A question goes on when those who asked have left, and its answer is kept, unless it was forgotten meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import structlog
import trio

from protocol.client.errors import UpstreamConnectionError, UpstreamError, UpstreamRefusedError
from protocol.client.offset_questions import EpochEndOffset, Partition
from protocol.fetch.messages import FetchPartition
from protocol.wire.errors import ErrorCode
from proxy.fetch.frontiers import QUESTIONS_MAX, Frontier
from proxy.tier_owner import BROKERS_OWN_IT, TierOwner
from proxy.upstream.cluster import Cluster
from proxy.upstream.gathered import Gathered
from proxy.upstream.partition_questions import FrontierClient, leader_id
from storage.bounded_map import BoundedMap
from storage.metadata.catalog import Catalog
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import TopicIdPartition
from storage.steps import Steps, waited
from storage.tasks import TaskNursery

_log = structlog.get_logger(__name__)

LINEAGES_MAX = 100_000
"""Partitions remembered, least recently used first out: about 500 bytes each."""

_Question = tuple[TopicIdPartition, int]
"""A partition, and the leader epoch that its lineage is for."""


class Lineages:
    """Lineages of the partitions that are read. Owned by the trio thread.

    Args:
        nursery: the application's; questions live in it.
        owner: the tier's.
    """

    def __init__(
        self,
        client: FrontierClient,
        cluster: Cluster,
        catalog: Catalog,
        nursery: TaskNursery,
        owner: TierOwner = BROKERS_OWN_IT,
    ) -> None:
        self._owner = owner
        self._client = client
        self._cluster = cluster
        self._catalog = catalog
        self._nursery = nursery
        self._lineages: BoundedMap[TopicIdPartition, LeaderEpochLineage] = BoundedMap(LINEAGES_MAX)
        self._questions: dict[int, Gathered[_Question, LeaderEpochLineage | UpstreamRefusedError]] = {}
        self._under_way: list[set[TopicIdPartition]] = []
        """For each request: partitions that were not forgotten since."""

    def known(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage | None:
        """The lineage that `get` would give without a question."""
        known = self._lineages.use(partition)
        if known is None or known.leader_epoch < leader_epoch:
            return None
        if not known.knows(self._catalog.epochs(partition.topic_id, partition.partition)):
            return None
        return known

    async def get(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage:
        """The lineage, valid for this leader epoch or a later one.

        Raises:
            UpstreamError: the leader is not known or does not answer.
        """
        known = self.known(partition, leader_epoch)
        if known is not None:
            return known
        try:
            return await self._ask_leader(partition, leader_epoch)
        except (UpstreamConnectionError, UpstreamRefusedError) as error:
            # A leader that cannot be reached may have gone, and another one taken its place.
            if isinstance(error, UpstreamRefusedError) and error.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
        await self._cluster.learn_names([partition.topic])
        return await self._ask_leader(partition, leader_epoch)

    def in_steps(self, partition: TopicIdPartition, leader_epoch: int) -> Steps[LeaderEpochLineage]:
        """The same in steps."""
        known = self.known(partition, leader_epoch)
        return (yield from waited(partial(self.get, partition, leader_epoch))) if known is None else known

    def agree(self, partition: TopicIdPartition, frontier: Frontier, asked: FetchPartition) -> Steps[bool]:
        """Return whether a client that read up to an offset in its last fetched epoch read what the leader has.

        Raises:
            UpstreamError: the lineage cannot be learned.
        """
        lineage = yield from self.in_steps(partition, frontier.leader_epoch)
        end = lineage.end_offset(asked.last_fetched_epoch)
        return end is not None and end >= asked.fetch_offset

    async def learn(self, wanted: Iterable[tuple[TopicIdPartition, int]]) -> None:
        """Ask together what `get` would ask for. Failures are kept by nobody: `get` meets them again."""

        async def learn_one(partition: TopicIdPartition, leader_epoch: int) -> None:
            try:
                await self.get(partition, leader_epoch)
            except UpstreamError as error:
                _log.debug("lineage_not_learned", partition=str(partition), reason=str(error))

        async with trio.open_nursery() as asking:
            for partition, leader_epoch in wanted:
                if self.known(partition, leader_epoch) is None:
                    asking.start_soon(learn_one, partition, leader_epoch)

    def forget(self, partition: TopicIdPartition) -> None:
        """Something said that it is out of date."""
        self._lineages.pop(partition, None)
        for partitions in self._under_way:
            partitions.discard(partition)

    async def epoch_end(self, partition: TopicIdPartition, epoch: int) -> EpochEndOffset:
        """Return what the leader says now of an epoch that the catalog may not have; -1 in both if that is yet to come.

        Raises:
            UpstreamError: the leader is not known, does not answer, or refuses.
        """
        named = (partition.topic, partition.partition)
        answers = await self._client.epoch_end_offsets(await leader_id(self._cluster, partition), {named: [epoch]})
        answer = answers[named][epoch]
        if answer.error_code:
            said = f"{partition}: leader epoch {epoch} is not told, error code {answer.error_code}"
            raise UpstreamRefusedError(said, answer.error_code)
        return answer

    async def _ask_leader(self, partition: TopicIdPartition, leader_epoch: int) -> LeaderEpochLineage:
        answer = await self._questions_to(await leader_id(self._cluster, partition)).get((partition, leader_epoch))
        if isinstance(answer, UpstreamRefusedError):
            raise answer.with_traceback(None)
        return answer

    def _questions_to(self, node_id: int) -> Gathered[_Question, LeaderEpochLineage | UpstreamRefusedError]:
        questions = self._questions.get(node_id)
        if questions is None:

            async def ask(asked: Sequence[_Question]) -> dict[_Question, LeaderEpochLineage | UpstreamRefusedError]:
                answers: dict[_Question, LeaderEpochLineage | UpstreamRefusedError] = {}
                for at in range(0, len(asked), QUESTIONS_MAX):
                    answers |= await self._ask_broker(node_id, asked[at : at + QUESTIONS_MAX])
                return answers

            questions = self._questions[node_id] = Gathered(self._nursery, ask, name=f"lineages of broker {node_id}")
        return questions

    async def _ask_broker(
        self, node_id: int, asked: Sequence[_Question]
    ) -> dict[_Question, LeaderEpochLineage | UpstreamRefusedError]:
        epochs_of = {partition: self._catalog.epochs(partition.topic_id, partition.partition) for partition, _ in asked}
        # Two topics may have had one name: what each is asked about is kept apart, the question is one.
        epochs_by_name: dict[Partition, dict[int, None]] = {}
        for partition, epochs in epochs_of.items():
            named = (partition.topic, partition.partition)
            epochs_by_name.setdefault(named, {}).update(dict.fromkeys(epochs))
        valid = set(epochs_of)
        self._under_way.append(valid)
        try:
            ends = await self._client.epoch_end_offsets(
                node_id, {named: list(epochs) for named, epochs in epochs_by_name.items()}
            )
        finally:
            self._under_way = [partitions for partitions in self._under_way if partitions is not valid]
        answers: dict[_Question, LeaderEpochLineage | UpstreamRefusedError] = {}
        for partition, leader_epoch in asked:
            found = ends[partition.topic, partition.partition]
            told = {epoch: found[epoch] for epoch in epochs_of[partition]}
            lineage = _lineage(partition, leader_epoch, told, self._owner.epoch_starts(partition))
            answers[partition, leader_epoch] = lineage
            if isinstance(lineage, LeaderEpochLineage) and partition in valid:
                self._keep(partition, lineage)
        return answers

    def _keep(self, partition: TopicIdPartition, lineage: LeaderEpochLineage) -> None:
        known = self._lineages.get(partition)
        if known is None or known.leader_epoch <= lineage.leader_epoch:
            self._lineages[partition] = lineage


def _lineage(
    partition: TopicIdPartition,
    leader_epoch: int,
    answers: Mapping[int, EpochEndOffset],
    tier_starts: Mapping[int, int] | None,
) -> LeaderEpochLineage | UpstreamRefusedError:
    for epoch, answer in answers.items():
        if answer.error_code:
            return UpstreamRefusedError(
                f"{partition}: leader epoch {epoch} is not told, error code {answer.error_code}", answer.error_code
            )
    ends = {epoch: (answer.leader_epoch, answer.end_offset) for epoch, answer in answers.items()}
    return LeaderEpochLineage(leader_epoch, ends, tier_starts)
