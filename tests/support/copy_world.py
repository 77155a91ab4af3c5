"""A copier's surroundings in memory, in virtual time: an upstream log, the metadata log, a store, log starts.

    world = CopyWorld(folder, random.Random(seed))
    world.upstream.append(50)
    hands = world.hands()                       # what one copier touches the world with
    copier = hands.copier(settings(segment_bytes=1000))
    hands.pause_s = 30; hands.kill()            # from its next step on

Every step of a copier (a question to upstream, a record published, an object put) takes a while of virtual time; there
it may fail, before or after it has had its effect, and there it is killed or stands still.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from metrics.copy_meters import CopyMeter
from metrics.registry import Registry
from protocol.client.leaders import FetchedRecords
from standalone.copier.clock import ClockGuard
from standalone.copier.config import CopyConfig, parse_topic_names
from standalone.copier.copier import Copier
from standalone.copier.ledger import Ledger
from standalone.copier.seams import LogRange, OffsetBelowLogStartError, Retention, TopicGoneError
from standalone.copier.tools import CopierTools
from standalone.copy_topics import CopyTopics
from storage.errors import RetriableRemoteStorageError
from storage.formats.plain_objects import PlainObjects
from storage.metadata.event_log import Close, Deliver, Progress, metadata_partition
from storage.metadata.reading import partition_of
from storage.metadata.serde import MetadataRecord, decode
from storage.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
    Uuid,
    uuid_from_text,
    uuid_to_text,
)
from storage.object_store.object_store import ObjectHead, ObjectStream
from tests.support.copy_cluster import NODES, WorldBrokers, WorldCluster
from tests.support.memory_store import Killed, MemoryStore
from tests.support.metadata_event_log import InProcessMetadataEventLog, posted
from tests.support.segments import FIRST_TIMESTAMP_MS, data_batch, topic_partition

if TYPE_CHECKING:
    from standalone.copier.waits import Noted

T = TypeVar("T")

PARTITION = topic_partition("orders", 0)
METADATA_PARTITIONS = 2
FIRST_MS = FIRST_TIMESTAMP_MS + 1_000_000


def settings(folder: Path, **changed: object) -> CopyConfig:
    """Small segments, short intervals."""
    base = CopyConfig(staging_path=folder, segment_bytes=1000, segment_ms=5000, interval_ms=1000)
    return replace(base, **changed)  # type: ignore[arg-type]  # each test names keys of its own


@dataclass(slots=True)
class Batch:
    """A batch of upstream's log."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    content: bytes


@dataclass(slots=True)
class Upstream:
    """One partition at its leader. `now_ms` gives the records' timestamps."""

    now_ms: Callable[[], int]
    partition: TopicIdPartition = PARTITION
    batches: list[Batch] = field(default_factory=list)
    log_start_offset: int = 0
    leader_epoch: int = 0
    is_gone: bool = False
    last_stable_offset: int | None = None
    fetches: int = 0
    aborted: tuple[tuple[int, int], ...] = ()
    """Transactions that were aborted, as (producer id, first offset)."""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.log_start_offset

    def append(self, batches: int, *, records: int = 3, value_bytes: int = 40) -> None:
        for _ in range(batches):
            base = self.end_offset
            content = data_batch(
                base,
                record_count=records,
                value_bytes=value_bytes,
                leader_epoch=self.leader_epoch,
                first_timestamp_ms=self.now_ms(),
            )
            self.append_raw(content, base, base + records - 1)

    def append_raw(self, content: bytes, base_offset: int, last_offset: int) -> None:
        self.batches.append(Batch(base_offset, last_offset, self.leader_epoch, content))

    def elect(self, *, keep: int | None = None, epochs: int = 1) -> None:
        """Another leader; an unclean one has only the first `keep` batches."""
        if keep is not None:
            del self.batches[keep:]
        self.leader_epoch += epochs

    def delete_before(self, offset: int) -> None:
        """Retention, as a broker's: what goes is gone."""
        self.log_start_offset = max(self.log_start_offset, min(offset, self.end_offset))

    def copy(self) -> "Upstream":
        """As it is now."""
        return replace(self, batches=[*self.batches])

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        """As a broker: see LeaderEpochFileCache.endOffsetFor."""
        if leader_epoch > self.leader_epoch:
            return -1, -1
        starts: dict[int, int] = {}
        for batch in self.batches:
            if batch.last_offset >= self.log_start_offset:
                starts.setdefault(batch.leader_epoch, max(batch.base_offset, self.log_start_offset))
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.end_offset
        higher = [start for epoch, start in starts.items() if epoch > leader_epoch]
        if not starts:
            return -1, -1
        end = min(higher, default=self.end_offset)
        lower = [epoch for epoch in starts if epoch <= leader_epoch]
        return (max(lower) if lower else leader_epoch), end


class CopyWorld:
    """What copiers share."""

    def __init__(
        self, folder: Path, chance: random.Random, partitions: Iterable[TopicIdPartition] = (PARTITION,)
    ) -> None:
        self.folder = folder
        self.chance = chance
        self.log = InProcessMetadataEventLog(METADATA_PARTITIONS)
        self.store = MemoryStore()
        self.upstreams = {partition: Upstream(self.now_ms, partition) for partition in partitions}
        self.upstream = next(iter(self.upstreams.values()))
        self.committed: dict[TopicIdPartition, int] = {}
        self.notes: dict[TopicIdPartition, Noted] = {}
        self.brokers = WorldBrokers(self.upstreams)
        self.gone: dict[TopicIdPartition, float] = {}
        """Partitions whose topics are gone, and since when."""
        self.failure_rate = 0.0
        self.ids = 0
        self._readers: dict[TopicIdPartition, tuple[Ledger, int]] = {}
        self.unsafe_deletions: list[str] = []
        """Segments whose objects went while the metadata topic did not say that they were being deleted."""

    def now_ms(self) -> int:
        return FIRST_MS + int(trio.current_time() * 1000)

    def new_id(self) -> Uuid:
        self.ids += 1
        return Uuid(self.ids.to_bytes(16, "big"))

    def hands(self) -> "Hands":
        """A copier's."""
        return Hands(self)

    def records(self, partition: TopicIdPartition = PARTITION, start: int = 0) -> list[MetadataRecord]:
        """All records of the metadata partition that has this one's, from a number on."""
        number = metadata_partition(partition.topic_id, partition.partition, METADATA_PARTITIONS)
        found: list[MetadataRecord] = []
        while events := self.log.events_from(number, start + len(found)):
            found += [decode(event.value) for event in events if event.value is not None]
        return found

    def ledger(self, partition: TopicIdPartition = PARTITION) -> Ledger:
        """Return what a reader of the metadata topic knows by now; the same reader each time."""
        ledger, start = self._readers.setdefault(partition, (Ledger(partition), 0))
        records = self.records(partition, start)
        self._readers[partition] = ledger, start + len(records)
        for record in records:
            if partition_of(record) == partition:
                ledger.note(record)
        return ledger

    def finished(self, partition: TopicIdPartition = PARTITION) -> list[RemoteLogSegmentMetadata]:
        return self.ledger(partition).finished()

    @property
    def partition(self) -> TopicIdPartition:
        """The partition of the topic that there is now."""
        return self.upstream.partition

    def recreate(self) -> None:
        """The topic is deleted, and made again under its name."""
        before = self.partition
        self.upstream.is_gone, self.gone[before] = True, trio.current_time()
        partition = TopicIdPartition(Uuid(self.chance.randbytes(16)), before.partition, before.topic)
        self.upstream = self.upstreams[partition] = Upstream(self.now_ms, partition)

    def lose_index(self) -> None:
        """One of a segment's objects beside its log is there no more, or none is: some formats have them in one."""
        own = uuid_to_text(self.partition.topic_id)
        if indexes := sorted(key for key in self.store.objects if own in key and not key.endswith(".log")):
            lost = self.chance.choice(indexes) if self.chance.random() < 0.5 else indexes[-1]
            segment = lost.rpartition(".")[0] if self.chance.random() < 0.5 else lost
            for key in indexes:
                if key.startswith(segment):
                    del self.store.objects[key]

    def note_deletion(self, segment_id: Uuid, hands: "Hands") -> None:
        """Objects of the segment are about to go, by this copier."""
        for partition in self.upstreams:
            for segment in self.ledger(partition).segments():
                is_this = segment.segment_id.id == segment_id
                if is_this and segment.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                    self.unsafe_deletions.append(f"{segment.segment_id} in state {segment.state.name}")

    def manager(self) -> PlainObjects:
        return PlainObjects({}, store=self.store)


class Hands:
    """What one copier asks of others. `uploading`: the segment whose files are being put, or were when that failed."""

    def __init__(self, world: CopyWorld) -> None:
        self.world = world
        self.pause_until_s = 0.0
        self.is_killed = False
        self.uploading: Uuid | None = None
        self.registry = Registry()
        self.meter = CopyMeter(self.registry)
        self.retention = self.upstream_retention = Retention()
        self.is_disabled = False
        self.is_copied = True
        self.deletions_stopped: str | None = None
        self.clock_off_ms = 0
        """How far its clock is ahead."""
        self.cluster = WorldCluster(world.brokers, world.chance.choice(NODES), self.step)
        self.topics = CopyTopics(
            self.cluster,  # type: ignore[arg-type]  # all that it asks of one
            CopyConfig(topics=parse_topic_names(world.upstream.partition.topic)),
            lambda: [each for each in world.upstreams if world.ledger(each).segments()],
            lambda: "another cluster",
        )
        self.folder = world.folder / f"copier-{world.chance.getrandbits(64):x}"

    def copier(self, config: CopyConfig | None = None) -> Copier:
        world = self.world
        base = settings(self.folder) if config is None else config
        store = {"the store's": lambda: -self.clock_off_ms}
        clock = ClockGuard(store, self.meter, lambda: self.world.now_ms() + self.clock_off_ms)
        return Copier(
            CopierTools(
                settings=replace(base, staging_path=self.folder),
                brokers=self,
                event_log=self,
                publish=self.publish,
                storage=PlainObjects({}, store=_Store(self)),
                kept_log_starts=_KeptByAll(self, world.committed, max),
                kept_notes=_KeptByAll(self, world.notes),
                meter=self.meter,
                retention_of=lambda _: self.retention,
                upstream_retention=lambda _: self.upstream_retention,
                is_disabled=lambda: self.is_disabled,
                is_copied=lambda _: self.is_copied,
                confirm_gone=self.confirm_gone,
                deletions_stopped=lambda: self.deletions_stopped or clock.deletions_stopped(),
                threads=self,  # type: ignore[arg-type]  # in an order of the world's own
                now_ms=clock.now_ms,
                new_id=world.new_id,
            )
        )

    def kill(self) -> None:
        """Nothing that it does from now on has an effect."""
        self.is_killed = True

    def pause(self, duration_s: float) -> None:
        """Stand still for so long, at the next step."""
        self.pause_until_s = trio.current_time() + duration_s

    async def step(self) -> None:
        """Time passes."""
        self.check()
        await trio.sleep(self.world.chance.uniform(0.0001, 0.02))
        if trio.current_time() < self.pause_until_s:
            await trio.sleep_until(self.pause_until_s)
        self.check()

    def check(self) -> None:
        if self.is_killed:
            raise Killed

    def fail(self) -> None:
        """Perhaps."""
        if self.world.chance.random() < self.world.failure_rate:
            raise RetriableRemoteStorageError("as the schedule has it")

    # --- WorkerThreads ---

    async def run(self, call: Callable[[], T]) -> T:
        await self.step()
        try:
            return call()
        finally:
            await self.step()

    # --- BrokerLog ---

    async def range(self, partition: TopicIdPartition) -> LogRange:
        upstream = await self._asked(partition)
        return LogRange(
            log_start_offset=upstream.log_start_offset,
            last_stable_offset=_last_stable(upstream),
            high_watermark=upstream.end_offset,
            leader_epoch=upstream.leader_epoch,
        )

    async def fetch(self, partition: TopicIdPartition, offset: int, *, max_bytes: int) -> FetchedRecords:
        upstream = await self._asked(partition, by_id=True)
        upstream.fetches += 1
        if offset < upstream.log_start_offset:
            raise OffsetBelowLogStartError(partition, offset, upstream.log_start_offset)
        data = b""
        for batch in upstream.batches:
            if offset <= batch.last_offset < _last_stable(upstream):
                data += batch.content
                if len(data) >= max_bytes:
                    break
        first = next((len(batch.content) for batch in upstream.batches if batch.last_offset >= offset), 0)
        return FetchedRecords(
            data=data[: max(max_bytes, first)],
            log_start_offset=upstream.log_start_offset,
            last_stable_offset=_last_stable(upstream),
            high_watermark=upstream.end_offset,
            aborted=upstream.aborted,
        )

    async def epoch_end(self, partition: TopicIdPartition, leader_epoch: int) -> tuple[int, int]:
        return (await self._asked(partition)).epoch_end(leader_epoch)

    async def _asked(self, partition: TopicIdPartition, *, by_id: bool = False) -> Upstream:
        await self.step()
        self.fail()
        upstream = self.world.brokers.log_of(self.cluster.node_id, partition, by_id=by_id)
        if upstream is None:
            raise TopicGoneError
        return upstream

    async def confirm_gone(self, partitions: Sequence[TopicIdPartition]) -> Sequence[TopicIdPartition]:
        self.fail()
        return await self.topics.confirm_gone(partitions)

    # --- MetadataEventLog ---

    def partition_count(self) -> int:
        return self.world.log.partition_count()

    def publish(self, partition: int, value: bytes) -> int:
        self.check()
        self.fail()
        offset = self.world.log.publish(partition, value)
        self.fail()
        return offset

    def subscribe(self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress) -> Close:
        token, is_closed = trio.lowlevel.current_trio_token(), False

        def post(_partition: int, call: Callable[[], None]) -> None:
            token.run_sync_soon(lambda: None if is_closed else call())

        close_log = self.world.log.subscribe(start_offsets, *posted(post, deliver, progress))

        def close() -> None:
            nonlocal is_closed
            is_closed = True
            close_log()

        return close

    def failure(self) -> str | None:
        return None


class _KeptByAll(Generic[T]):
    """What the world keeps, through one copier's hands, by topic id: combined with what was, if it is to be."""

    def __init__(
        self, hands: Hands, kept: dict[TopicIdPartition, T], combine: Callable[[T, T], T] = lambda _, new: new
    ) -> None:
        self._hands, self._kept, self._combine = hands, kept, combine

    async def get(self, partitions: Iterable[TopicIdPartition]) -> Mapping[TopicIdPartition, T]:
        await self._hands.step()
        self._hands.fail()
        return {partition: self._kept[partition] for partition in partitions if partition in self._kept}

    async def commit(self, values: Mapping[TopicIdPartition, T]) -> None:
        await self._hands.step()
        self._hands.fail()
        for partition, value in values.items():
            self._kept[partition] = self._combine(self._kept.get(partition, value), value)


class _Store:
    """The world's store through one copier's hands. What fails is the log of an upload, and any other verb."""

    identity = "memory"

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._inner = hands.world.store

    def get(self, key: str, start: int, end: int) -> ObjectStream:
        self._hands.check()
        self._hands.fail()
        return self._inner.get(key, start, end)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        hands = self._hands
        hands.check()
        hands.uploading = _segment_of(key)
        if not key.endswith(".log"):
            self._inner.put(key, source)
            return
        hands.fail()
        self._inner.put(key, source)
        hands.fail()
        hands.uploading = None

    def delete_many(self, keys: Sequence[str]) -> None:
        hands = self._hands
        hands.check()
        hands.fail()
        for key in keys:
            if key in self._inner.objects:
                hands.world.note_deletion(_segment_of(key), hands)
        self._inner.delete_many(keys)
        hands.fail()

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        return self._inner.list(prefix)

    def head(self, key: str) -> ObjectHead:
        return self._inner.head(key)

    def clock_offset_ms(self) -> int | None:
        return self._inner.clock_offset_ms()

    def warm_up(self) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing is held."""


def _segment_of(key: str) -> Uuid:
    return uuid_from_text(key.rpartition("/")[2][21:43])


def _last_stable(upstream: Upstream) -> int:
    return upstream.end_offset if upstream.last_stable_offset is None else upstream.last_stable_offset


def held_segments(store: MemoryStore) -> Iterator[tuple[Uuid, str]]:
    """(segment id, key) of all objects."""
    for stored in PlainObjects({}, store=store).list_objects():
        assert stored.segment_id is not None
        yield stored.segment_id.id, stored.name
