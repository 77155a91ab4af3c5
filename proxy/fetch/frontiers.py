"""The frontier: the offsets of a partition as last seen, broker by broker (ARCHITECTURE.md#vocabulary,
docs/protocol.md#l1).

Offsets below the local log start are the tier's. A broker says where that is only to ListOffsets −4, on
Tidegate's own connection, where it is asked for the log start too; the high watermark is taken from probe answers as
they pass, and so is a log start.

Rule 1. A frontier belongs to one broker: followers hold other local logs than their leader.
Rule 2. Questions to one broker are gathered (proxy.upstream.gathered).
Rule 3. A question goes on when those who asked for it have left; failures are counted, logged once a spell,
        and leave what was known.
Rule 4. Where the log starts is for the tier's owner to say (`proxy.tier_owner`), as it is at the moment of asking.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import trio

from protocol.client.errors import UpstreamError, UpstreamUnsupportedError
from protocol.client.offset_questions import OffsetAnswer
from protocol.fetch.messages import PartitionAnswer
from protocol.list_offsets import OffsetTimestamp
from proxy.tier_owner import BROKERS_OWN_IT, TierOwner
from proxy.upstream.gathered import Gathered
from proxy.upstream.partition_questions import FrontierClient
from storage.bounded_map import BoundedMap
from storage.model import TopicIdPartition
from storage.tasks import TaskNursery

FRONTIERS_MAX = 200_000
"""Partitions times brokers that are remembered, least recently used first out: 200 bytes each."""

QUESTIONS_MAX = 250
"""Partitions in one request. For frontiers: three questions each, which take some 4 ms to encode together. For
lineages: few have more than a handful of epochs."""

LARGE_BATCH_BYTES = 1024 * 1024
"""A probe that brings more is worth a question before the next."""

LARGE_PARTITIONS_MAX = 10_000
"""Partitions with such batches that are remembered; a full table is dropped whole."""

LEARN_WAIT_S_MAX = 1.0
"""How long a Fetch waits for a question of our own before it goes on without the answer."""

UNSUPPORTED_AGE_S_MAX = 60.0
"""How long a broker that cannot answer is left alone; it may come back upgraded."""

UNKNOWN_OFFSET = -1

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Frontier:
    """What one broker last said of one partition; −1 where it has not said yet. `learned_at_s` is trio's clock."""

    local_log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    learned_at_s: float
    log_start_offset: int = UNKNOWN_OFFSET
    high_watermark: int = UNKNOWN_OFFSET
    last_stable_offset: int = UNKNOWN_OFFSET

    @property
    def probe_offset(self) -> int:
        """Return where a probe neither reads the tier nor finds much: the high watermark, or the log's end, as last
        told (docs/protocol.md#l1)."""
        return max(self.high_watermark, self.log_end_offset, self.local_log_start_offset)


class Frontiers:
    """Frontiers by (broker, partition). Owned by the trio thread.

    Args:
        nursery: the application's; questions live in it.
        age_s_max: `expert.frontier.max.age.ms`; may be set again.
        owner: the tier's.
    """

    def __init__(
        self, client: FrontierClient, nursery: TaskNursery, *, age_s_max: float, owner: TierOwner = BROKERS_OWN_IT
    ) -> None:
        self.client = client
        self._nursery = nursery
        self.age_s_max = age_s_max
        self.owner = owner
        self.with_large_batches: BoundedMap[TopicIdPartition, None] = BoundedMap(LARGE_PARTITIONS_MAX)
        """Partitions of which a probe brought more than LARGE_BATCH_BYTES: before the next one their log end is asked
        for, so that it finds nothing."""
        self._frontiers: BoundedMap[tuple[int, TopicIdPartition], Frontier] = BoundedMap(FRONTIERS_MAX)
        self._askers: dict[int, _Asker] = {}

    def get(self, node_id: int, partition: TopicIdPartition) -> Frontier | None:
        """The frontier as last seen, of whatever age."""
        known = self._frontiers.use((node_id, partition))
        frontier = known and self.owner.with_log_start(partition, known)
        if frontier is not None and frontier is not known:
            self._frontiers[node_id, partition] = frontier
        return frontier

    def is_fresh(self, frontier: Frontier, now_s: float) -> bool:
        """Return whether it is young enough to decide by, by trio's clock."""
        return now_s - frontier.learned_at_s <= self.age_s_max

    def forget(self, node_id: int, partition: TopicIdPartition) -> None:
        """Something said that it is wrong: learn it again before the next use."""
        self._frontiers.pop((node_id, partition), None)

    def saw_batch(self, partition: TopicIdPartition, size_bytes: int) -> None:
        """A probe brought so much, for nothing."""
        if size_bytes > LARGE_BATCH_BYTES:
            self.with_large_batches[partition] = None

    def saw(self, node_id: int, partition: TopicIdPartition, planned_by: Frontier, answer: PartitionAnswer) -> Frontier:
        """A probe's answer passed. Return the frontier by it.

        Args:
            planned_by: has a leader epoch that the broker is in at least; stands for one that was forgotten since, and
                stays forgotten.
        """
        known = self._frontiers.get((node_id, partition))
        before = known or planned_by
        seen = replace(
            before,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            leader_epoch=max(before.leader_epoch, planned_by.leader_epoch),
        )
        seen = self.owner.saw(partition, seen)
        if known is not None:
            self._frontiers[node_id, partition] = seen
        return seen

    async def refresh(self, node_id: int, partitions: Iterable[TopicIdPartition]) -> None:
        """Ask the broker now and wait for its answer; afterwards `get` has what there is.

        Cancellation: the question goes on.
        """
        event = self.refresh_soon(node_id, partitions)
        await event.wait()

    def refresh_soon(self, node_id: int, partitions: Iterable[TopicIdPartition]) -> trio.Event:
        """Ask the broker; the event is set when the answer has been taken in."""
        asker = self._askers.get(node_id)
        if asker is None:
            asker = self._askers[node_id] = _Asker(node_id, self, self._nursery)
        return asker.add(partitions)

    async def ask(self, node_id: int, partitions: Sequence[TopicIdPartition]) -> None:
        """One request's worth of questions.

        Raises:
            UpstreamError: no answer.
        """
        local_earliest = self.owner.local_earliest
        timestamps = dict.fromkeys((local_earliest, OffsetTimestamp.LATEST, OffsetTimestamp.EARLIEST))
        queries = [
            (partition.topic, partition.partition, timestamp) for partition in partitions for timestamp in timestamps
        ]
        answers = await self.client.list_offsets(node_id, queries)
        now = trio.current_time()
        for partition in partitions:
            local_start = answers[partition.topic, partition.partition, local_earliest]
            end = answers[partition.topic, partition.partition, OffsetTimestamp.LATEST]
            start = answers[partition.topic, partition.partition, OffsetTimestamp.EARLIEST]
            self._take(node_id, partition, start, local_start, end, now)

    def _take(
        self,
        node_id: int,
        partition: TopicIdPartition,
        start: OffsetAnswer,
        local_start: OffsetAnswer,
        end: OffsetAnswer,
        now: float,
    ) -> None:
        key = (node_id, partition)
        error_code = local_start.error_code or end.error_code or start.error_code
        if error_code:
            self._frontiers.pop(key, None)
            _log.debug("frontier_refused", node=node_id, partition=str(partition), error_code=error_code)
            return
        known = self._frontiers.get(key)
        if known is None or end.leader_epoch > known.leader_epoch:
            # A new leader epoch may have cut the log: a high watermark of the old one is worth nothing.
            self._frontiers[key] = Frontier(local_start.offset, end.offset, end.leader_epoch, now, start.offset)
        else:
            self._frontiers[key] = replace(
                known,
                local_log_start_offset=local_start.offset,
                log_end_offset=end.offset,
                log_start_offset=start.offset,
                learned_at_s=now,
            )


class _Asker:
    """The questions to one broker (rule 2)."""

    def __init__(self, node_id: int, frontiers: Frontiers, nursery: TaskNursery) -> None:
        self._node_id = node_id
        self._frontiers = frontiers
        self._questions = Gathered(nursery, self._ask, name=f"frontiers of broker {node_id}")
        self._failing = False
        self._unsupported_until_s = 0.0

    def add(self, partitions: Iterable[TopicIdPartition]) -> trio.Event:
        is_answering = trio.current_time() >= self._unsupported_until_s
        return self._questions.add(partitions if is_answering else ()).done

    async def _ask(self, partitions: Sequence[TopicIdPartition]) -> Mapping[TopicIdPartition, None]:
        try:
            # The names of a topic created again under its old name are distinguished by the probe, which goes by id.
            for at in range(0, len(partitions), QUESTIONS_MAX):
                await self._frontiers.ask(self._node_id, partitions[at : at + QUESTIONS_MAX])
        except UpstreamUnsupportedError as error:
            self._unsupported_until_s = trio.current_time() + UNSUPPORTED_AGE_S_MAX
            if not self._failing:
                _log.warning("frontier_unsupported", node=self._node_id, reason=f"{error}; all reads are relayed to it")
            self._failing = True
        except UpstreamError as error:
            if not self._failing:
                _log.warning("frontier_unknown", node=self._node_id, partitions=len(partitions), reason=str(error))
            self._failing = True
        except Exception:
            # A fault of ours in one question must end neither the application nor the questions after it.
            _log.exception("frontier_fault", node=self._node_id, partitions=len(partitions))
            self._failing = True
        else:
            self._failing = False
        return {}
