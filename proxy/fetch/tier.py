"""The tier as exchanges use it: which partitions it holds, and one read of one partition."""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

import structlog
import trio

from metrics.meters import TierMeter
from protocol.client.errors import UpstreamError
from protocol.fetch.messages import TOPIC_ID_VERSION_MIN
from protocol.wire.identifiers import ApiKey
from proxy.connection.request_handlers import ClientReads
from proxy.fetch.assembly import Instead, Share, TierPart
from proxy.fetch.known import LEARN_WAIT_S_MAX, AbortedTails, Authority, Frontier, Frontiers, Lineages
from proxy.turns import LATE_S, arrive, move_on_after
from proxy.upstream.cluster import Cluster
from storage.errors import RemoteStorageError
from storage.metadata.catalog import Catalog
from storage.model import TopicIdPartition, Uuid
from storage.reading.reader import OffsetNotInTierError, ReadTime, TierReader, TierRecords
from storage.reading.segment_finder import LocalLogIsNextError, ReachesLocalLogError
from storage.tasks import TaskNursery

UNKNOWN_NAME_AGE_S_MAX = 30.0
"""How long a topic name that upstream does not tell us is not asked for again."""

UNKNOWN_NAMES_MAX = 10_000
"""Names that upstream did not tell; beyond this they are asked for again."""

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
        self._unknown_names: dict[str, float] = {}

    def knows(self, topic: bytes | str) -> bool:
        """Return whether there is metadata of any partition of the topic, by its id or its name."""
        return self.catalog.knows_topic(topic) if isinstance(topic, bytes) else self.catalog.knows_name(topic)

    def is_loading(self, topic_id: bytes, partition: int) -> bool:
        """Return whether the partition's metadata is yet to be read, so that nobody can say what the tier has of it."""
        return not self.tail.is_ready(TopicIdPartition(Uuid(topic_id), partition, ""))

    def partition(self, topic_id: bytes, partition: int) -> TopicIdPartition | None:
        """The partition with its name, if the tier has a segment of it and its metadata is read."""
        if not self.catalog.has_segments(topic_id, partition):
            return None
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

    def knows_lineage(self, part: TierPart) -> bool:
        """Return whether `judge` needs no question, but for a surprise."""
        return self.lineages.known(part.partition, part.frontier.leader_epoch) is not None

    def judge(self, part: TierPart) -> Awaitable[Instead | bool]:
        """See `TierOwner.judge`."""
        return self.owner.judge(part, self.lineages)

    async def catch_up(self, partition: TopicIdPartition) -> None:
        """After a read that found nothing: follow the metadata topic up to the end that it has now, and have the
        lineage built again.

        Raises:
            RemoteStorageError, UpstreamError: the metadata topic does not say where it ends.
        """
        await self.tail.catch_up(partition)
        self.lineages.forget(partition)

    async def read(
        self,
        part: TierPart,
        share: Share,
        under: Under,
        *,
        committed: bool,
        is_caught_up: bool = False,
        reader: Hashable = None,
        time: ReadTime | None = None,
    ) -> TierRecords:
        """One remote read, counted as KIP-405 counts it.

        Args:
            under: the leader epoch and the local log start that it is read by.
            committed: READ_COMMITTED: nothing that begins in the broker's log, and with what the tier knows of aborted
                transactions up to there, as the broker tells the rest of them up to there only (proxy.fetch.known).
            is_caught_up: after `catch_up`.
            reader: whose read it is (proxy.connection.request_handlers).
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
        finder = self.owner.finder(self._reader.finder, local_start, is_caught_up=is_caught_up)
        self.meter.on_remote_fetch_started(partition.topic)
        try:
            with self.meter.remote_fetch_timer():
                lineage = await self.lineages.get(partition, under.leader_epoch)
                if committed:
                    finder.check_end(partition, offset, lineage, local_start)
                records = await self._reader.read(
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
        self.meter.on_remote_fetch(partition.topic, records.size_bytes)
        return records

    def segment_of(self, part: TierPart, leader_epoch: int) -> str | None:
        """For people: the segment that a part is read from, as far as is known."""
        lineage = self.lineages.known(part.partition, leader_epoch)
        if lineage is None:
            return None
        try:
            return str(self._reader.finder.segment_for(part.partition, part.asked.fetch_offset, lineage).segment_id)
        except OffsetNotInTierError:
            return None

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
        self._unknown_names = {
            name: since_s for name, since_s in self._unknown_names.items() if now_s - since_s < UNKNOWN_NAME_AGE_S_MAX
        }
        unknown = [name for name in names if self.cluster.topic_id(name) is None]
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

NO_WORD: Mapping[TierPart, Under] = {}

ReadResult = TierRecords | Exception
"""Records, or the fault. OffsetNotInTierError: give it back."""


class TierReads:
    """Reads under way; `stop` must follow. `results` has a part once its read ended by itself, or missed.

    Args:
        nursery: the exchange's; the reads live in it.
        deadline_s: by trio's clock.
        committed: as `Tier.read`.
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
        self.parts: dict[TierPart, tuple[Share, Under]] = {}
        """Those that are read and how, in the order in which they were started."""
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

    def start(
        self, parts: Iterable[TierPart], shares: Mapping[TierPart, Share], under: Mapping[TierPart, Under] = NO_WORD
    ) -> None:
        """Start these reads; beyond READS_AT_ONCE_MAX they take turns."""
        for part in parts:
            self._start(part, shares[part], under.get(part, part.frontier))
        if self.parts and not (self._settled.is_set() or self._is_word_waited_for):
            self._is_word_waited_for = True
            self._nursery.start_soon(self._let_go_at_deadline)

    def settle(
        self, vouched: Mapping[TierPart, Under], shares: Mapping[TierPart, Share], outdated: Collection[TierPart] = ()
    ) -> None:
        """After the probe: give up the reads that nobody wants, and start those again that are to be read otherwise:
        with another share, or by what was out of date."""
        if trio.current_time() >= self.deadline_s:
            self.deadline_s = trio.current_time() + self._wait_s
            for time in self._times.values():
                time.deadline_s = self.deadline_s
        self._settled.set()
        for part, (share, _) in self.parts.items():
            is_wanted = part in vouched
            if is_wanted and share == shares[part] and part not in outdated:
                continue
            self._give_up(part)
            if is_wanted:
                self._start(part, shares[part], vouched[part])
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

    def _start(self, part: TierPart, share: Share, under: Under) -> None:
        self.parts[part] = share, under
        if share.bytes_max == 0:
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
            except (ReachesLocalLogError, LocalLogIsNextError) as error:
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
        identity = self._client.identity
        records = await self._tier.read(
            part, *self.parts[part], committed=self._committed, is_caught_up=is_caught_up, reader=identity, time=time
        )
        # At once, without a checkpoint between: a read that nobody wants any more must be released too.
        self._client.hold(records)
        return records
