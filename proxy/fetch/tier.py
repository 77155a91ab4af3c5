"""The tier as exchanges use it: which partitions it holds, and one read of one partition."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Protocol

import structlog
import trio

from metrics.meters import TierMeter
from protocol.client.errors import UpstreamError
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN
from protocol.wire.identifiers import ApiKey
from proxy.fetch.aborted_tails import AbortedTails
from proxy.fetch.authorities import Authority
from proxy.fetch.frontiers import LEARN_WAIT_S_MAX, Frontier, Frontiers
from proxy.fetch.lineages import Lineages
from proxy.fetch.plan import Share, TierPart
from proxy.turns import move_on_after
from proxy.upstream.cluster import Cluster
from storage.bounded_map import BoundedMap
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition, Uuid
from storage.reading.reader import OffsetNotInTierError, ReadTime, TierReader, TierRecords
from storage.steps import Steps

UNKNOWN_NAME_AGE_S_MAX = 30.0
"""How long a topic name that upstream does not tell us is not asked for again."""

UNKNOWN_NAMES_MAX = 10_000
"""Names that upstream did not tell; those beyond this that were asked for longest ago are asked for again."""

NAMES_ASKED_MAX = 200
"""Names that one request of a client has asked for: one Metadata request of our own, whose answer keeps the event loop
for some 4 ms. Its other names are the broker's until they are asked for with a later request."""

Under = Frontier | Authority
"""Leader epoch and local log start: as the plan was made by before the broker's word, as that has it after."""

_log = structlog.get_logger(__name__)


class CatalogTail(Protocol):
    """How far the catalog has followed the metadata topic."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Return whether the partition's metadata was read to the end that the topic had at start."""
        ...

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """Return once everything is applied that the partition's metadata partition holds now."""
        ...


class Tier:
    """Owned by the trio thread.

    Args:
        is_loaded: whether the catalog has been read to its end once.
    """

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
        is_loaded: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_loaded = is_loaded
        self.frontiers = frontiers
        self.owner = frontiers.owner
        self.aborted_tails = AbortedTails()
        self.catalog = catalog
        self.tail = tail
        self._reader = reader
        self.lineages = lineages
        self.cluster = cluster
        self.meter = meter
        self._unknown_names: BoundedMap[str, float] = BoundedMap(UNKNOWN_NAMES_MAX)

    def knows(self, topic: bytes | str) -> bool:
        """Return whether there is metadata of any partition of the topic, by its id or its name."""
        return self.catalog.knows_topic(topic) if isinstance(topic, bytes) else self.catalog.knows_name(topic)

    def is_loading(self, topic_id: bytes, partition: int) -> bool:
        """Return whether the partition's metadata is yet to be read, so that nobody can say what the tier has of it."""
        return not self.tail.is_ready(TopicIdPartition(Uuid(topic_id), partition, ""))

    def partition(self, topic_id: bytes, partition: int) -> TopicIdPartition | None:
        """The partition with its name, if the tier has a segment of it and its metadata is read."""
        found = self.catalog.partition_of(topic_id, partition)
        return found if found is not None and self.tail.is_ready(found) else None

    def topic_id(self, name: str) -> bytes | None:
        """The id of a topic name, if it is known."""
        return self.cluster.topic_id(name)

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
            await self.cluster.learn_names(wanted)
        except UpstreamError as error:
            _log.warning("topic_ids_unknown", topics=len(wanted), reason=str(error))
        finally:
            # Also when nobody waits any more: an upstream that hangs must not hold up every Fetch.
            self._note_unknown(wanted, now)

    def forget(self, node_id: int, partition: TopicIdPartition) -> None:
        """Forget what was known of the partition's offsets; it is wrong: truncation, another leader, another topic."""
        self.frontiers.forget(node_id, partition)
        self.aborted_tails.forget(node_id, partition)
        self.lineages.forget(partition)

    def forget_topic(self, partition: TopicIdPartition) -> None:
        """Upstream does not know this topic id: its name may be another topic's by now."""
        self.cluster.forget_topic(partition.topic_id)

    def has_copied(self, partition: TopicIdPartition, offset: int) -> bool:
        """Return whether the tier was ever given a segment up to this offset or beyond."""
        topic_id, number = partition.topic_id, partition.partition
        highest_offsets = (
            self.catalog.highest_offset_for_epoch(topic_id, number, epoch)
            for epoch in self.catalog.epochs(topic_id, number)
        )
        return any(highest_offset is not None and highest_offset >= offset for highest_offset in highest_offsets)

    def leads(self, node_id: int, partition: TopicIdPartition) -> bool:
        """Return whether that broker leads the partition, as last heard."""
        leader = self.cluster.leader_of(partition.topic_id, partition.partition)
        return leader is not None and leader.leader_id == node_id

    def knows_topic_ids(self, node_id: int) -> bool:
        """Return whether that broker's Fetch has topic ids, as far as it has told us; brokers before 3.1 have not."""
        newest = self.cluster.newest_version(node_id, ApiKey.FETCH)
        return newest is None or newest >= TOPIC_ID_VERSION_MIN

    async def topic_ids(self, node_id: int, names: Sequence[str]) -> Mapping[str, bytes]:
        """The ids that the broker has for these names now; without those that it does not tell in time."""
        try:
            with move_on_after(LEARN_WAIT_S_MAX):
                return await self.frontiers.client.topic_ids(node_id, names)
        except UpstreamError as error:
            _log.warning("topic_ids_unknown", node=node_id, topics=len(names), reason=str(error))
        return {}

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """After a read that found nothing: follow the metadata topic up to the end that it has now, and have the
        lineage built again.

        Raises:
            RemoteStorageError, UpstreamError: the metadata topic does not say where it ends.
        """
        await self.tail.catch_up(partition)
        self.lineages.forget(partition)

    def read(
        self,
        part: TierPart,
        share: Share,
        under: Under,
        *,
        committed: bool,
        is_caught_up: bool = False,
        reader: Hashable = None,
        time: ReadTime | None = None,
    ) -> Steps[TierRecords]:
        """One remote read in steps, counted as KIP-405 counts it.

        Args:
            under: the leader epoch and the local log start that it is read by.
            committed: READ_COMMITTED: nothing that begins in the broker's log, and with what the tier knows of aborted
                transactions up to there, as the broker tells the rest up to there only (proxy.fetch.aborted_tails).
            is_caught_up: after `catch_up`.
            reader: whose read it is (proxy.connection.client_reads).
            time: as TierReader.read.

        Raises:
            ReachesLocalLogError: the segment ends in the broker's log, where a committed read must not reach.
            LocalLogIsNextError: nothing lies between the offset and the broker's log.
            OffsetNotInTierError: the tier does not hold the offset, or for a committed read not all that follows up to
                the broker's log, as far as the catalog knows.
            RemoteStorageError: it does, and cannot be read.
            UpstreamError: the lineage cannot be learned.
        """
        partition, offset, local_start = part.partition, part.asked.fetch_offset, under.local_log_start_offset
        finder = self.owner.finder(self.catalog, local_start, is_caught_up=is_caught_up)
        self.meter.on_remote_fetch_started(partition.topic)
        started_s = perf_counter()
        try:
            lineage = yield from self.lineages.in_steps(partition, under.leader_epoch)
            records = yield from self._reader.read(
                partition,
                offset,
                max_bytes=share.bytes_max,
                minimum_one_batch=share.may_exceed,
                lineage=lineage,
                reader=reader,
                committed=committed,
                time=time,
                finder=finder,
            )
            if committed and not _searched_up_to(records, local_start):
                records.release()
                raise OffsetNotInTierError(f"{partition}: no segment tells of aborts up to offset {local_start}")
        except OffsetNotInTierError:
            raise  # as at the broker: out of range is not a failed read
        except Exception:
            self.meter.on_remote_fetch_error(partition.topic)
            raise
        finally:
            self.meter.on_remote_fetch_ended(perf_counter() - started_s)
        self.meter.on_remote_fetch(partition.topic, records.size_bytes)
        return records

    def segment_of(self, part: TierPart, leader_epoch: int) -> str | None:
        """For people: the segment that a part is read from, as far as is known."""
        lineage = self.lineages.known(part.partition, leader_epoch)
        if lineage is None:
            return None
        found = self._reader.finder.holding(part.partition, part.asked.fetch_offset, lineage)
        return None if found is None else str(found.segment_id)

    def forget_reader(self, reader: Hashable) -> None:
        """A client has gone."""
        self._reader.forget_reader(reader)

    @property
    def _room(self) -> int:
        return min(NAMES_ASKED_MAX, self.cluster.names_room)

    def _may_be_learned(self, name: str, now_s: float) -> bool:
        if not self.catalog.knows_name(name) or self.cluster.topic_id(name) is not None:
            return False
        return now_s - self._unknown_names.get(name, now_s - UNKNOWN_NAME_AGE_S_MAX) >= UNKNOWN_NAME_AGE_S_MAX

    def _note_unknown(self, names: Sequence[str], now_s: float) -> None:
        for name in names:
            if self.cluster.topic_id(name) is None:
                self._unknown_names[name] = now_s


def _searched_up_to(records: TierRecords, offset: int) -> bool:
    aborts = records.aborts
    return aborts is None or aborts.is_complete or aborts.searched_below >= offset
