"""The tier as exchanges use it: which partitions it holds, and one read of one partition."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import Protocol

import structlog
import trio

from metrics.meters import TierMeter
from protocol.client.errors import UpstreamError
from proxy.fetch.aborted_tails import AbortedTails
from proxy.fetch.frontier import Frontiers
from proxy.fetch.lineages import Lineages
from proxy.upstream.cluster import Cluster
from storage.metadata.catalog import Catalog
from storage.metadata.leader_epoch_lineage import LeaderEpochLineage
from storage.model import TopicIdPartition
from storage.reader import OffsetNotInTierError, ReadTime, TierReader, TierRecords

UNKNOWN_NAME_AGE_S_MAX = 30.0
"""How long a topic name that upstream does not tell us is not asked for again."""

UNKNOWN_NAMES_MAX = 10_000
"""Names that upstream did not tell; beyond this they are asked for again."""

NAMES_ASKED_MAX = 200
"""Names that one request of a client has asked for: one Metadata request of our own, whose answer keeps the event loop
for some 4 ms. Its other names are the broker's until they are asked for with a later request."""

_log = structlog.get_logger(__name__)


class ReachesLocalLogError(OffsetNotInTierError):
    """The segment that holds the offset reaches further than its reader may read: the broker has the rest itself."""


class CatalogTail(Protocol):
    """How far the catalog has followed the metadata topic."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's metadata was read to the end that the topic had at start."""
        ...

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """Return once everything is applied that the partition's metadata partition holds now."""
        ...


class Tier:
    """Owned by the trio thread."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        tail: CatalogTail,
        reader: TierReader,
        frontiers: Frontiers,
        lineages: Lineages,
        cluster: Cluster,
        meter: TierMeter,
    ) -> None:
        self.frontiers = frontiers
        self.aborted_tails = AbortedTails()
        self._catalog = catalog
        self._tail = tail
        self._reader = reader
        self._lineages = lineages
        self._cluster = cluster
        self._meter = meter
        self._unknown_names: dict[str, float] = {}

    def partition(self, topic_id: bytes, partition: int) -> TopicIdPartition | None:
        """The partition with its name, if the tier has a segment of it and its metadata is read."""
        if not self._catalog.has_segments(topic_id, partition):
            return None
        found = self._catalog.partition_of(topic_id, partition)
        return found if found is not None and self._tail.is_ready(found) else None

    def topic_id(self, name: str) -> bytes | None:
        """The id of a topic name, if it is known."""
        return self._cluster.topic_id(name)

    async def learn_topic_ids(self, names: Iterable[str]) -> None:
        """Ask upstream for the ids of names that are not known; those it does not tell are left alone for a while.

        Only names that the catalog has: no other topic is in the tier, and clients name what they like. At most
        NAMES_ASKED_MAX of them, and none while too many wait to be asked for: the broker answers for the rest.
        """
        now = trio.current_time()
        wanted = list(islice((name for name in dict.fromkeys(names) if self._may_be_learned(name, now)), self._room))
        if not wanted:
            return
        try:
            await self._cluster.learn_names(wanted)
        except UpstreamError as error:
            _log.warning("topic_ids_unknown", topics=len(wanted), reason=str(error))
        finally:
            # Also when nobody waits any more: an upstream that hangs must not hold up every Fetch.
            self._note_unknown(wanted, now)

    def forget(self, node_id: int, partition: TopicIdPartition) -> None:
        """What was known of the partition's offsets is wrong: truncation, another leader, another topic."""
        self.frontiers.forget(node_id, partition)
        self.aborted_tails.forget(node_id, partition)
        self._lineages.forget(partition)

    def forget_topic(self, partition: TopicIdPartition) -> None:
        """Upstream does not know this topic id: its name may be another topic's by now."""
        self._cluster.forget_topic(partition.topic_id)

    def has_copied(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the tier was ever given a segment up to this offset or beyond."""
        topic_id, number = partition.topic_id, partition.partition
        highest_offsets = (
            self._catalog.highest_offset_for_epoch(topic_id, number, epoch)
            for epoch in self._catalog.epochs(topic_id, number)
        )
        return any(highest_offset is not None and highest_offset >= offset for highest_offset in highest_offsets)

    def leads(self, node_id: int, partition: TopicIdPartition) -> bool:
        """Whether that broker leads the partition, as last heard."""
        leader = self._cluster.leader_of(partition.topic_id, partition.partition)
        return leader is not None and leader.leader_id == node_id

    def knows_lineage(self, partition: TopicIdPartition, leader_epoch: int) -> bool:
        """Whether `is_on_lineage` needs no question."""
        return self._lineages.known(partition, leader_epoch) is not None

    async def is_on_lineage(
        self, partition: TopicIdPartition, leader_epoch: int, *, last_fetched_epoch: int, offset: int
    ) -> bool:
        """Whether a client that read up to `offset` in `last_fetched_epoch` read what the leader has.

        Raises:
            UpstreamError: the lineage cannot be learned.
        """
        lineage = await self._lineages.get(partition, leader_epoch)
        end = lineage.end_offset(last_fetched_epoch)
        return end is not None and end >= offset

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """After a read that found nothing: follow the metadata topic up to the end that it has now, and have the
        lineage built anew.

        Raises:
            RemoteStorageError, UpstreamError: the metadata topic does not say where it ends.
        """
        await self._tail.catch_up(partition)
        self._lineages.forget(partition)

    async def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        leader_epoch: int,
        *,
        max_bytes: int,
        minimum_one_batch: bool,
        ends_below: int | None = None,
        reader: Hashable = None,
        time: ReadTime | None = None,
    ) -> TierRecords:
        """One remote read, counted as KIP-405 counts it.

        Args:
            ends_below: of a READ_COMMITTED read, the local log start: only from a segment whose last offset is below
                it, and with what the tier knows of aborted transactions up to there; None for READ_UNCOMMITTED.
            reader: whose read it is (proxy.connection.client_reads).
            time: as TierReader.read.

        Raises:
            ReachesLocalLogError: the segment ends at or above `ends_below`.
            OffsetNotInTierError: the tier does not hold the offset, or not all that follows up to `ends_below`, as
                far as the catalog knows.
            RemoteStorageError: it does, and cannot be read.
            UpstreamError: the lineage cannot be learned.
        """
        self._meter.on_remote_fetch_started(partition.topic)
        try:
            with self._meter.remote_fetch_timer():
                lineage = await self._lineages.get(partition, leader_epoch)
                if ends_below is not None:
                    self._require_end_below(partition, offset, lineage, ends_below)
                records = await self._reader.read(
                    partition,
                    offset,
                    max_bytes=max_bytes,
                    minimum_one_batch=minimum_one_batch,
                    lineage=lineage,
                    reader=reader,
                    committed=ends_below is not None,
                    time=time,
                )
                if ends_below is not None and not _searched_up_to(records, ends_below):
                    records.release()
                    raise OffsetNotInTierError(f"{partition}: no segment tells of aborts up to offset {ends_below}")
        except OffsetNotInTierError:
            raise  # as at the broker: out of range is not a failed read
        except Exception:
            self._meter.on_remote_fetch_error(partition.topic)
            raise
        self._meter.on_remote_fetch(partition.topic, records.size_bytes)
        return records

    def forget_reader(self, reader: Hashable) -> None:
        """A client has gone."""
        self._reader.forget_reader(reader)

    def _require_end_below(
        self, partition: TopicIdPartition, offset: int, lineage: LeaderEpochLineage, ends_below: int
    ) -> None:
        segment = self._reader.segment_for(partition, offset, lineage)
        if segment.end_offset >= ends_below:
            raise ReachesLocalLogError(f"{partition}: the segment of offset {offset} ends at {segment.end_offset}")

    @property
    def _room(self) -> int:
        return min(NAMES_ASKED_MAX, self._cluster.names_room)

    def _may_be_learned(self, name: str, now_s: float) -> bool:
        if not self._catalog.knows_name(name) or self._cluster.topic_id(name) is not None:
            return False
        return now_s - self._unknown_names.get(name, now_s - UNKNOWN_NAME_AGE_S_MAX) >= UNKNOWN_NAME_AGE_S_MAX

    def _note_unknown(self, names: Sequence[str], now_s: float) -> None:
        self._unknown_names = {
            name: since_s for name, since_s in self._unknown_names.items() if now_s - since_s < UNKNOWN_NAME_AGE_S_MAX
        }
        unknown = [name for name in names if self._cluster.topic_id(name) is None]
        if len(self._unknown_names) + len(unknown) <= UNKNOWN_NAMES_MAX:
            self._unknown_names.update(dict.fromkeys(unknown, now_s))


def _searched_up_to(records: TierRecords, offset: int) -> bool:
    aborts = records.aborts
    return aborts is None or aborts.is_complete or aborts.searched_below >= offset
