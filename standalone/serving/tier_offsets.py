"""What is known of a tier of our own (mode standalone), for the requests about offsets.

The broker has been asked first, so a client that gets here may ask. Everything is looked up after its answer: which
topic has the name now, where its local log starts, which leader epochs there are.

Rule 1. A topic name that the catalog never had is no topic of the tier, once the catalog has been read.
Rule 2. What is not known (no answer to our own question, a partition whose metadata are not read yet, or which the
        catalog had no room for) is not the same as what is not in the tier: the broker's offsets would be wrong for it.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog
import trio

from protocol.client.errors import UpstreamError
from protocol.wire.framing import LENGTH_BYTES
from proxy.connection.request_handlers import UpstreamWire
from proxy.fetch.frontiers import LEARN_WAIT_S_MAX, Frontier
from proxy.fetch.tier import Tier
from proxy.offsets.timestamp_lookup import Key, TimestampLookup
from proxy.turns import move_on_after
from proxy.upstream.cluster import TOPICS_MAX
from standalone.serving.holes import Holes, OwnSegments
from standalone.serving.log_starts import TierLogStarts
from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import TopicIdPartition, Uuid
from storage.reading.timestamp_search import FoundTimestamp

EPOCHS_ASKED_MAX = 100
"""Leader epochs since the tier's last one that are asked about, to say in which of them an offset is."""

_CORRELATION_ID = slice(LENGTH_BYTES + 4, LENGTH_BYTES + 8)
"""In a request: behind api key and version."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Placed:
    """Partitions that were asked about: what the tier holds of them, and those of which that is not known."""

    held: Mapping[Key, TopicIdPartition]
    unknown: Collection[Key]


class TierOffsets:
    """One for all clients. Owned by the trio thread."""

    def __init__(self, tier: Tier, lookup: TimestampLookup, log_starts: TierLogStarts, holes: Holes) -> None:
        self.lookup = lookup
        self.log_starts = log_starts
        self._holes = holes
        self._catalog = tier.catalog
        self._tier = tier
        self._cluster = tier.cluster
        self._client = tier.frontiers.client

    def may_hold(self, topic: str) -> bool:
        """Return whether a topic of this name may be in the tier (rule 1)."""
        return self._catalog.knows_name(topic) or not self._tier.is_loaded()

    async def place(self, keys: Collection[Key], node_id: int | None) -> Placed:
        """Which of these partitions, that a broker has answered for, the tier holds by that broker's topic ids."""
        ids: Mapping[str, bytes] = {}
        with move_on_after(LEARN_WAIT_S_MAX):
            ids = await self._topic_ids([*dict.fromkeys(topic for topic, _ in keys)], node_id)
        held: dict[Key, TopicIdPartition] = {}
        unknown: set[Key] = set()
        for topic, number in keys:
            topic_id = ids.get(topic)
            if topic_id is None:
                unknown.add((topic, number))
                continue
            partition = TopicIdPartition(Uuid(topic_id), number, topic)
            if not self._tier.tail.is_ready(partition) or self._catalog.is_refused(topic_id, number):
                unknown.add((topic, number))
            elif self._catalog.has_segments(topic_id, number):
                held[topic, number] = partition
        return Placed(held, unknown)

    async def frontiers(
        self, partitions: Iterable[TopicIdPartition], node_id: int | None
    ) -> dict[TopicIdPartition, Frontier]:
        """Return what the broker says of them now; on a connection to no broker in particular, what each one's leader
        says. Those that nobody answers for in time are left out."""
        by_node: dict[int, list[TopicIdPartition]] = {}
        for partition in partitions:
            asked = self._node_of(partition, node_id)
            if asked is not None:
                by_node.setdefault(asked, []).append(partition)
        found: dict[TopicIdPartition, Frontier] = {}

        async def learn(asked: int, some: Sequence[TopicIdPartition]) -> None:
            found.update(await self.lookup.learn(asked, some))

        with move_on_after(LEARN_WAIT_S_MAX):
            async with trio.open_nursery() as nursery:
                for asked, some in by_node.items():
                    nursery.start_soon(learn, asked, some)
        return found

    async def lineages(
        self, frontiers: Mapping[TopicIdPartition, Frontier]
    ) -> dict[TopicIdPartition, LeaderEpochLineage]:
        """The partitions' leader epochs; those that cannot be learned in time are left out."""
        found: dict[TopicIdPartition, LeaderEpochLineage] = {}
        with move_on_after(LEARN_WAIT_S_MAX):
            await self.lookup.learn_lineages(frontiers)
            for partition, frontier in frontiers.items():
                try:
                    found[partition] = await self.lookup.lineage(partition, frontier.leader_epoch)
                except UpstreamError as error:
                    _log.info("lineage_unknown", partition=str(partition), reason=str(error))
                await trio.lowlevel.checkpoint()  # each looks through the catalog
        return found

    def log_start(self, partition: TopicIdPartition, local_log_start_offset: int) -> int:
        """Return where the log starts: in the tier, or at the broker if the tier begins no lower."""
        start = self.log_starts.get(partition)
        return local_log_start_offset if start is None else min(start, local_log_start_offset)

    def highest_offset(self, partition: TopicIdPartition, lineage: LeaderEpochLineage) -> tuple[int, int] | None:
        """The highest offset that was ever in the tier, of those on the lineage, and its leader epoch."""
        for epoch in reversed(lineage.epochs):
            highest = self._catalog.highest_offset_for_epoch(partition.topic_id, partition.partition, epoch)
            end = lineage.end_offset(epoch)
            if highest is not None and end is not None:
                return min(highest, end - 1), epoch
        return None

    async def epoch_of(
        self,
        partition: TopicIdPartition,
        offset: int,
        frontier: Frontier,
        lineage: LeaderEpochLineage,
        node_id: int | None,
    ) -> int:
        """The leader epoch of an offset, which may lie behind the tier; −1 if it is not known."""
        epoch = lineage.epoch_for(offset)
        asked_node = self._node_of(partition, node_id)
        if epoch is not None or asked_node is None:
            return -1 if epoch is None else epoch
        newest = lineage.epochs[-1] if lineage.epochs else -1
        named = (partition.topic, partition.partition)
        epochs = range(newest + 1, min(frontier.leader_epoch, newest + EPOCHS_ASKED_MAX) + 1)
        try:
            with move_on_after(LEARN_WAIT_S_MAX):
                answers = (await self._client.epoch_end_offsets(asked_node, {named: epochs}))[named]
                live = (each for each in answers.values() if not each.error_code and each.end_offset > offset)
                return min((each.leader_epoch for each in live), default=-1)
        except UpstreamError as error:
            _log.info("leader_epoch_unknown", partition=str(partition), offset=offset, reason=str(error))
        return -1

    async def first_at(
        self,
        partition: TopicIdPartition,
        timestamp_ms: int,
        local_start: int,
        lineage: LeaderEpochLineage,
        *,
        log_start_offset: int,
        asker: Hashable,
    ) -> FoundTimestamp | None:
        """The first record of that time or later, in whatever segment that begins below the local log; None if there is
        none. No broker could look through what this leaves out.

        Raises:
            RemoteStorageError: a segment cannot be read.
            ScanLimitError: it would be too much work.
        """
        search, from_offset = self.lookup.search, log_start_offset
        segments = OwnSegments(self._catalog, self._holes, local_start, is_caught_up=True)
        while True:
            segment = search.candidate(
                partition,
                timestamp_ms,
                log_start_offset=from_offset,
                local_log_start_offset=local_start,
                lineage=lineage,
                over_holes=True,
            )
            if segment is None:
                return None
            segments.note(partition, from_offset, segment.start_offset, lineage)
            async with self.lookup.slots.slot(asker):
                found = await search.search(segment, timestamp_ms, log_start_offset=log_start_offset)
            if found is not None:
                return found
            from_offset = segment.end_offset + 1

    def forget(self, partitions: Iterable[TopicIdPartition], node_id: int | None) -> None:
        """Their log starts have moved."""
        for partition in partitions:
            asked = self._node_of(partition, node_id)
            if asked is not None:
                self._tier.frontiers.forget(asked, partition)

    def _node_of(self, partition: TopicIdPartition, node_id: int | None) -> int | None:
        if node_id is not None:
            return node_id
        leader = self._cluster.leader_of(partition.topic_id, partition.partition)
        return None if leader is None or leader.leader_id < 0 else leader.leader_id

    async def _topic_ids(self, names: Sequence[str], node_id: int | None) -> Mapping[str, bytes]:
        """The ids that the broker tells now; those of any broker on a connection to none in particular."""
        ids: dict[str, bytes] = {}
        try:
            for at in range(0, len(names), TOPICS_MAX):
                some = names[at : at + TOPICS_MAX]
                if node_id is not None:
                    ids |= await self._client.topic_ids(node_id, some)
                    continue
                await self._cluster.learn_names(some)
                ids |= {name: known for name in some if (known := self._cluster.topic_id(name)) is not None}
        except UpstreamError as error:
            _log.warning("topic_ids_unknown", node=node_id, topics=len(names), reason=str(error))
        return ids


async def forward(frame: memoryview, api_key: int, api_version: int, wire: UpstreamWire, client_id: int) -> bytearray:
    """The broker's whole answer to a client's request that was sent on as it came, under the client's correlation id.

    Args:
        client_id: the client's correlation id.
    """
    asked = bytearray(frame)
    correlation_id = wire.next_correlation_id()
    asked[_CORRELATION_ID] = correlation_id.to_bytes(4, "big", signed=True)
    pending = await wire.ask(api_key, api_version, correlation_id, bytes(asked))
    answer = bytearray(await pending.frame())
    answer[LENGTH_BYTES : LENGTH_BYTES + 4] = client_id.to_bytes(4, "big", signed=True)
    return answer
