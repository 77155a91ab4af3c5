"""The tier as exchanges use it: which partitions it holds, and one read of one partition."""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

import structlog
import trio

from metrics.meters import TierMeter
from protocol.client.errors import UpstreamError
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN
from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import ClientReads
from proxy.fetch.assembly import TierPart
from proxy.fetch.known import LEARN_WAIT_S_MAX, AbortedTails, Frontiers, Lineages, LogStarts
from proxy.turns import LATE_S, arrive, move_on_after
from proxy.upstream.cluster import Cluster
from storage.errors import RemoteStorageError
from storage.metadata.catalog import Catalog
from storage.metadata.partition_catalog import LeaderEpochLineage
from storage.model import TopicIdPartition, Uuid
from storage.reading.holes import Holes, HoleUpToLocalLogError, OwnTier, SegmentFinder
from storage.reading.reader import OffsetNotInTierError, ReadTime, TierReader, TierRecords
from storage.tasks import TaskNursery

UNKNOWN_NAME_AGE_S_MAX = 30.0
"""How long a topic name that upstream does not tell us is not asked for again."""

UNKNOWN_NAMES_MAX = 10_000
"""Names that upstream did not tell; beyond this they are asked for again."""

NAMES_ASKED_MAX = 200
"""Names that one request of a client has asked for: one Metadata request of our own, whose answer keeps the event loop
for some 4 ms. Its other names are the broker's until they are asked for with a later request."""

_log = structlog.get_logger(__name__)


NOWHERE = (-1, -1)
"""In place of an epoch and its end: there is no such epoch, which a broker answers with OFFSET_OUT_OF_RANGE."""


class ReachesLocalLogError(OffsetNotInTierError):
    """The segment that holds the offset reaches further than its reader may read: the broker has the rest itself."""


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
        segment_s_max: in standalone mode, how long records may take to come into the tier, in seconds
            (storage.reading.holes).
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
        segment_s_max: float = 0.0,
        is_loaded: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_loaded = is_loaded
        self.frontiers = frontiers
        self._holes = Holes(self._on_hole, segment_s_max)
        self.aborted_tails = AbortedTails()
        self._catalog = catalog
        self._tail = tail
        self._reader = reader
        self._lineages = lineages
        self._cluster = cluster
        self._meter = meter
        self._unknown_names: dict[str, float] = {}

    @property
    def log_starts(self) -> LogStarts | None:
        """Those of a tier of our own; None: the brokers have it too, and read from it."""
        return self.frontiers.log_starts

    def is_at_broker(self, part: TierPart) -> bool:
        """Return whether the broker can read a part in the tier's stead, as far as is known."""
        return self.log_starts is None or part.asked.fetch_offset >= part.frontier.local_log_start_offset

    def knows(self, topic: bytes | str) -> bool:
        """Return whether there is metadata of any partition of the topic, by its id or its name."""
        return self._catalog.knows_topic(topic) if isinstance(topic, bytes) else self._catalog.knows_name(topic)

    def is_loading(self, topic_id: bytes, partition: int) -> bool:
        """Return whether the partition's metadata is yet to be read, so that nobody can say what the tier has of it."""
        return not self._tail.is_ready(TopicIdPartition(Uuid(topic_id), partition, ""))

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
        """Forget what was known of the partition's offsets; it is wrong: truncation, another leader, another topic."""
        self.frontiers.forget(node_id, partition)
        self.aborted_tails.forget(node_id, partition)
        self._lineages.forget(partition)

    def forget_topic(self, partition: TopicIdPartition) -> None:
        """Upstream does not know this topic id: its name may be another topic's by now."""
        self._cluster.forget_topic(partition.topic_id)

    def has_copied(self, partition: TopicIdPartition, offset: int) -> bool:
        """Return whether the tier was ever given a segment up to this offset or beyond."""
        topic_id, number = partition.topic_id, partition.partition
        highest_offsets = (
            self._catalog.highest_offset_for_epoch(topic_id, number, epoch)
            for epoch in self._catalog.epochs(topic_id, number)
        )
        return any(highest_offset is not None and highest_offset >= offset for highest_offset in highest_offsets)

    def leads(self, node_id: int, partition: TopicIdPartition) -> bool:
        """Return whether that broker leads the partition, as last heard."""
        leader = self._cluster.leader_of(partition.topic_id, partition.partition)
        return leader is not None and leader.leader_id == node_id

    def knows_topic_ids(self, node_id: int) -> bool:
        """Return whether that broker's Fetch has topic ids, as far as it has told us; brokers before 3.1 have not."""
        newest = self._cluster.newest_version(node_id, ApiKey.FETCH)
        return newest is None or newest >= TOPIC_ID_VERSION_MIN

    async def topic_ids(self, node_id: int, names: Sequence[str]) -> Mapping[str, bytes]:
        """The ids that the broker has for these names now; without those that it does not tell in time."""
        try:
            with move_on_after(LEARN_WAIT_S_MAX):
                return await self.frontiers.client.topic_ids(node_id, names)
        except UpstreamError as error:
            _log.warning("topic_ids_unknown", node=node_id, topics=len(names), reason=str(error))
        return {}

    def knows_lineage(self, partition: TopicIdPartition, leader_epoch: int) -> bool:
        """Return whether `is_on_lineage` needs no question."""
        return self._lineages.known(partition, leader_epoch) is not None

    async def is_on_lineage(
        self, partition: TopicIdPartition, leader_epoch: int, *, last_fetched_epoch: int, offset: int
    ) -> bool:
        """Return whether a client that read up to `offset` in `last_fetched_epoch` read what the leader has.

        Raises:
            UpstreamError: the lineage cannot be learned.
        """
        lineage = await self._lineages.get(partition, leader_epoch)
        end = lineage.end_offset(last_fetched_epoch)
        return end is not None and end >= offset

    async def parted_at(self, part: TierPart) -> tuple[int, int] | None:
        """In standalone mode, below the broker's log: return where the log that the client has read parts from the
        leader's, as the highest epoch that they share and its end; None if it does not. NOWHERE: no epoch is so high.

        Same rule as Partition.readRecords: the logs part if the leader's epoch is lower than the client's, or ends
        below what it asks for.

        Raises:
            UpstreamError: the lineage cannot be learned.
        """
        epoch, offset = part.asked.last_fetched_epoch, part.asked.fetch_offset
        lineage = await self._lineages.get(part.partition, part.frontier.leader_epoch)
        kept = lineage.told(epoch, part.frontier.log_start_offset)
        if lineage.knows([epoch]) and kept[0] == epoch and kept[1] >= offset:
            return None
        # Nobody is sent back by what was heard before: no segment may have the epoch, and that of the leader grows.
        told = await self._lineages.epoch_end(part.partition, epoch)
        if told.end_offset < 0:
            return NOWHERE
        shared = told.leader_epoch, told.end_offset
        if shared[0] == epoch < lineage.leader_epoch and shared[1] <= part.frontier.local_log_start_offset:
            shared = kept  # the broker has forgotten it
        return None if shared[0] == epoch and shared[1] >= offset else shared

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """After a read that found nothing: follow the metadata topic up to the end that it has now, and have the
        lineage built again.

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
        local_start: int | None = None,
        is_caught_up: bool = False,
        reader: Hashable = None,
        time: ReadTime | None = None,
    ) -> TierRecords:
        """One remote read, counted as KIP-405 counts it.

        Args:
            ends_below: of a READ_COMMITTED read, the local log start: only from a segment whose last offset is below
                it, and with what the tier knows of aborted transactions up to there; None for READ_UNCOMMITTED. In
                standalone mode the segment may reach further, and the answer ends there.
            local_start: in standalone mode, the local log start.
            is_caught_up: of such a tier, after `catch_up`: what is not there now is in a hole, and stepped over.
            reader: whose read it is (proxy.connection.request_handlers).
            time: as TierReader.read.

        Raises:
            ReachesLocalLogError: the segment ends at or above `ends_below`.
            HoleUpToLocalLogError: in standalone mode, nothing lies between the offset and the local log.
            OffsetNotInTierError: the tier does not hold the offset, or not all that follows up to `ends_below`, as
                far as the catalog knows.
            RemoteStorageError: it does, and cannot be read.
            UpstreamError: the lineage cannot be learned.
        """
        own = None if local_start is None else OwnTier(local_start, self._holes, is_caught_up)
        self._meter.on_remote_fetch_started(partition.topic)
        try:
            with self._meter.remote_fetch_timer():
                lineage = await self._lineages.get(partition, leader_epoch)
                if ends_below is not None and own is None:
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
                    own=own,
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

    def segment_of(self, part: TierPart) -> str | None:
        """For people: the segment that a part is read from, as far as is known."""
        lineage = self._lineages.known(part.partition, part.frontier.leader_epoch)
        if lineage is None:
            return None
        try:
            return str(self._reader.segment_for(part.partition, part.asked.fetch_offset, lineage).segment_id)
        except OffsetNotInTierError:
            return None

    def note_holes(
        self, partition: TopicIdPartition, start: int, end: int, lineage: LeaderEpochLineage, local_start: int
    ) -> None:
        """Count the holes of a tier of our own between two offsets, as reads do that step over them."""
        own = OwnTier(local_start, self._holes, is_caught_up=True)
        SegmentFinder(self._catalog, trio.current_time).note_holes(partition, start, end, lineage, own)

    def _on_hole(self, partition: TopicIdPartition, start: int, end: int) -> None:
        self._meter.on_hole()
        _log.warning("tier_hole_stepped_over", partition=str(partition), from_offset=start, to_offset=end)

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


# The tier reads of one Fetch, side by side, under one deadline (docs/protocol.md#l3).
#
# Rule 1. What a read has when the time is up is its answer; one that has nothing yet is answered empty. Its fills go
#         on, and the next request finds them. What came in time counts, however late the loop looks at it
#         (`proxy.turns`); and that a read is late says nothing of the tier where the loop was late itself.
# Rule 2. A read that finds no segment is first taken as our own lag (docs/protocol.md#l2): the catalog is read up to
#         the end that the metadata topic has now, and the read is tried once more. Until that has found the segment it
#         counts as a miss, also at the deadline, and is given back to the broker.
# Rule 3. Reads of a client that had the right before start beside the probe, so the probe may make some pointless and
#         others wrong: `settle` says which. A read that nobody wants any more holds nothing.
# Rule 4. Nothing is held for a probe that does not come: at the deadline reads that have not been settled are let go.
#         If the word comes later, the time begins again then, as it would at a broker that hears of the request only
#         then, and what was let go is to be started once more.
# Rule 5. A failure is a result; what becomes of it is `proxy.fetch.fallback`'s to say, and to log.


READS_AT_ONCE_MAX = 64
"""For one Fetch: each may ask for some MiB of the store, and one of thousands of partitions would have all GETs wait
for its own."""

FINISH_S = 0.25
"""What a read may take, once its time is up, to check what it has and to look for aborted transactions."""

ReadResult = TierRecords | Exception
"""Records, or the fault. OffsetNotInTierError: give it back."""


class TierReads:
    """Reads under way; `stop` must follow. `results` has a part once its read ended by itself, or missed.

    Args:
        nursery: the exchange's; the reads live in it.
        deadline_s: by trio's clock.
        committed: READ_COMMITTED: segments that reach into the broker's local log are not read, as the broker tells
            the rest of their aborted transactions up to there only (proxy.fetch.known).
        client: whose reads they are; it holds what they bring.
    """

    def __init__(
        self,
        tier: Tier,
        meter: TierMeter,
        nursery: TaskNursery,
        *,
        deadline_s: float,
        committed: bool,
        client: ClientReads,
    ) -> None:
        self.results: dict[TierPart, ReadResult] = {}
        self.expired: set[TierPart] = set()
        """Parts whose read had nothing at the deadline; not those of which the linger, or a late loop, was the end."""
        self.deadline_s = deadline_s
        self.records_since_s = math.inf
        """Since when there are records, and the word that they may be given."""
        self.parts: dict[TierPart, None] = {}
        """Those that are read, in the order in which they were started."""
        self._wait_s = deadline_s - trio.current_time()
        self._tier = tier
        self._meter = meter
        self._nursery = nursery
        self._committed = committed
        self._client = client
        self._times: dict[TierPart, ReadTime] = {}
        self._tasks = 0
        self._line: deque[tuple[TierPart, ReadTime]] = deque()
        """Reads beyond READS_AT_ONCE_MAX, which a task takes up when it has done another."""
        self._progress = trio.Event()
        self._settled = trio.Event()
        self._is_word_waited_for = False
        self._is_loop_late = False
        meter.on_delayed_fetch_parked()

    @property
    def pending(self) -> bool:
        """Return whether a read is under way."""
        return bool(self._times)

    @property
    def any_records(self) -> bool:
        """Return whether a read has records."""
        return any(isinstance(result, TierRecords) and result.size_bytes > 0 for result in self.results.values())

    def start(self, parts: Iterable[TierPart]) -> None:
        """Start these reads; beyond READS_AT_ONCE_MAX they take turns."""
        for part in parts:
            self.parts[part] = None
            self._start(part)
        if self.parts and not (self._settled.is_set() or self._is_word_waited_for):
            self._is_word_waited_for = True
            self._nursery.start_soon(self._let_go_at_deadline)

    def settle(self, wanted: Iterable[TierPart], read_again: Iterable[TierPart]) -> None:
        """After the probe: give up the reads that nobody wants, and start those again that are to be read otherwise."""
        if trio.current_time() >= self.deadline_s:
            self.deadline_s = trio.current_time() + self._wait_s
            for time in self._times.values():
                time.deadline_s = self.deadline_s
        self._settled.set()
        kept, again = set(wanted), set(read_again)
        for part in self.parts:
            if part not in kept or part in again:
                self._give_up(part)
            if part in kept and part in again:
                self._start(part)
        self.records_since_s = trio.current_time() if self.any_records else math.inf

    def stop(self) -> None:
        """Wait no longer: reads that have something yet to check do so in the nursery, the others end."""
        self._settled.set()
        if trio.current_time() >= self.deadline_s and not self._is_loop_late:
            self.expired.update(part for part, time in self._times.items() if time.is_late)
        if self.expired:
            self._meter.on_remote_fetch_expired()
        while self._line:
            part, time = self._line.popleft()
            if self._times.get(part) is time:
                del self._times[part]
        if any(time.has_batch for time in self._times.values()):
            self._nursery.start_soon(self._finish)
        for time in self._times.values():
            time.end()
        self._meter.on_delayed_fetch_completed()

    async def wait_until(self, time_s: float) -> None:
        """Return when all reads have ended, or at that time and with what has come by then."""
        await self._wait(time_s, lambda: not self.pending)
        if self.pending:
            await arrive()

    async def wait_any_until(self, time_s: float) -> None:
        """Return when one read has records or all have ended, or at that time."""
        await self._wait(time_s, lambda: self.any_records or not self.pending)

    async def _wait(self, time_s: float, is_enough: Callable[[], bool]) -> None:
        began_s = trio.current_time()
        with trio.move_on_at(time_s):
            while not is_enough():
                await self._wait_progress()
        if began_s < time_s:
            self._is_loop_late = trio.current_time() - time_s >= LATE_S

    async def _wait_progress(self) -> None:
        self._progress = trio.Event()
        await self._progress.wait()

    def _start(self, part: TierPart) -> None:
        if part.budget_bytes == 0:
            self.results[part] = TierRecords([], 0, first_batch_too_large=True)
            return
        time = self._times[part] = ReadTime(self.deadline_s)
        if self._tasks >= READS_AT_ONCE_MAX:
            self._line.append((part, time))
        else:
            self._tasks += 1
            self._nursery.start_soon(self._run, part, time)

    def _give_up(self, part: TierPart) -> None:
        result = self.results.pop(part, None)
        if isinstance(result, TierRecords):
            self._client.drop(result)
        time = self._times.pop(part, None)
        if time is not None:
            time.give_up()

    async def _run(self, part: TierPart, time: ReadTime) -> None:
        """This read, and then those of the line."""
        await self._run_one(part, time, has_waited=False)
        while self._line:
            await self._run_one(*self._line.popleft(), has_waited=True)
        self._tasks -= 1

    async def _run_one(self, part: TierPart, time: ReadTime, *, has_waited: bool) -> None:
        with time:
            if has_waited:
                await trio.lowlevel.checkpoint()  # its time may be up; and reads of what is at hand must not pile up
            result = await self._result(part, time)
            if self._times.get(part) is time:
                self.results[part] = result
                if isinstance(result, TierRecords) and result.size_bytes and self.records_since_s == math.inf:
                    self.records_since_s = trio.current_time()
            elif isinstance(result, TierRecords):
                self._client.drop(result)
        if self._times.get(part) is not time:
            return
        del self._times[part]
        self._progress.set()

    async def _let_go_at_deadline(self) -> None:
        """Rule 4."""
        with move_on_after(self.deadline_s - trio.current_time()):
            await self._settled.wait()
        if not self._settled.is_set():
            for part in self.parts:
                self._give_up(part)
            self.parts.clear()

    async def _finish(self) -> None:
        await self.wait_until(trio.current_time() + FINISH_S)
        for time in self._times.values():
            time.give_up()

    async def _result(self, part: TierPart, time: ReadTime) -> ReadResult:
        try:
            try:
                return await self._read(part, time)
            except (ReachesLocalLogError, HoleUpToLocalLogError) as error:
                return error
            except OffsetNotInTierError as miss:
                if self._times.get(part) is time:
                    self.results[part] = miss
                if not await self._made_up_lag(part):
                    return miss
            return await self._read(part, time, is_caught_up=True)
        except OffsetNotInTierError as error:
            return error
        except (RemoteStorageError, UpstreamError) as error:
            _log.debug(
                "tier_read_failed", partition=str(part.partition), offset=part.asked.fetch_offset, reason=str(error)
            )
            return error
        except Exception as error:
            _log.exception("tier_read_fault", partition=str(part.partition), offset=part.asked.fetch_offset)
            return error

    async def _made_up_lag(self, part: TierPart) -> bool:
        try:
            await self._tier.catch_up(part.partition)
        except (RemoteStorageError, UpstreamError) as error:
            _log.warning("catalog_lag_unknown", partition=str(part.partition), reason=str(error))
            return False
        return True

    async def _read(self, part: TierPart, time: ReadTime, *, is_caught_up: bool = False) -> TierRecords:
        local_start = part.frontier.local_log_start_offset
        records = await self._tier.read(
            part.partition,
            part.asked.fetch_offset,
            part.frontier.leader_epoch,
            max_bytes=part.budget_bytes,
            minimum_one_batch=part.minimum_one_batch,
            ends_below=local_start if self._committed else None,
            local_start=None if self._tier.log_starts is None else local_start,
            is_caught_up=is_caught_up,
            reader=self._client.identity,
            time=time,
        )
        # At once, without a checkpoint between: a read that nobody wants any more must be released too.
        self._client.hold(records)
        return records
