"""The tier's reading side put together: caches, fills, read-ahead and the reader over them.

Budgets (docs/operate/size.md#memory, docs/protocol.md#read-ahead): blocks in memory, blocks read ahead and not yet
read, GETs under way, answers not yet sent. The last two share `expert.tier.inflight.bytes.max`, half each: a client
that is slow to take its answer must not stop fills, and fills must not stop answers that have all they need.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import structlog
import trio

from metrics.meters import Meters
from proxy.connection.names import ClientName
from storage.buffers import give_back
from storage.cache.block_cache import BlockCache
from storage.cache.blocks import MemoryBlocks
from storage.cache.byte_budget import ByteBudget
from storage.cache.disk import DiskBlocks
from storage.cache.disk_level import DiskLevel
from storage.cache.gets import Gets, Slots
from storage.cache.held_blocks import AnswerBlocks
from storage.cache.object_gets import ObjectGets
from storage.cache.pace import Pace
from storage.cache.read_ahead import Prefetcher, ReadAhead, Stream
from storage.cache.segment_parts import SegmentParts
from storage.cache.throttle import Throttle
from storage.metadata.catalog import Catalog
from storage.model import RemoteLogSegmentId, Uuid
from storage.reading.reader import TierReader
from storage.reading.timestamp_search import TimestampSearch
from storage.remote_storage_manager import RemoteStorageManager
from storage.tasks import TaskNursery
from storage.wall_clock import wall_clock_ms

EXPIRE_INTERVAL_S = 60.0

GIVE_BACK_INTERVAL_S = 10.0
"""How often free memory goes back to the system: what one burst needed is not kept beside what the next one needs."""

REMOVED_AT_ONCE = 256
"""Deleted segments that the caches drop before the event loop goes on: a few milliseconds."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStorageSettings:
    """Sizes in bytes. `retention_s` None: until evicted. `hedge_gets_per_minute_min` −1: never.

    `indexes_bytes_max`: of manifests and indexes.
    """

    block_bytes: int
    memory_bytes_max: int
    readahead_stream_bytes_max: int
    readahead_total_bytes_max: int
    inflight_bytes_max: int
    indexes_bytes_max: int
    gets_max: int
    hedge_gets_per_minute_min: int = -1
    retention_s: float | None = None


@dataclass(slots=True)
class TierStorage:
    """What was put together. Owned by the trio thread; `run` must be running."""

    reader: TierReader
    parts: SegmentParts
    timestamps: TimestampSearch
    blocks: BlockCache
    disk: DiskLevel | None
    answers: ByteBudget
    _read_ahead: ReadAhead
    gets: Gets
    limiter: trio.CapacityLimiter
    """Bounds GETs of manifests and indexes, and other questions to the store."""
    removed: deque[Uuid] = field(default_factory=deque)
    _token: trio.lowlevel.TrioToken = field(default_factory=trio.lowlevel.current_trio_token)

    def slots(self) -> Slots:
        """Return what the GETs of segments' logs have of the slots for them."""
        return self.gets.slots

    def readers(self) -> list[Stream]:
        """The sequential readers themselves, the one that read longest ago first."""
        return [*self._read_ahead.recent]

    def streams(self) -> list[dict[str, object]]:
        """The sequential readers, for `/streams`: who reads what, how fast, and what its read-ahead waits for."""
        return [stream_row(stream) for stream in self._read_ahead.recent]

    async def run(self) -> None:
        """Run what goes on beside the reads."""
        async with trio.open_nursery() as nursery:
            if self.disk is not None:
                nursery.start_soon(self.disk.run)
            nursery.start_soon(_give_back_memory)
            while True:
                await trio.sleep(EXPIRE_INTERVAL_S)
                self.blocks.memory.expire()
                self._read_ahead.drop_idle()

    async def drop_unknown(self, known_among: Callable[[frozenset[Uuid]], AbstractSet[Uuid]]) -> None:
        """Drop from disk what an earlier process left of segments that are no more."""
        if self.disk is not None and (dropped := await self.disk.drop_unknown(known_among)):
            _log.info("cache_swept", blocks=dropped)

    def segment_removed(self, segment_id: RemoteLogSegmentId) -> None:
        """The catalog's news from whichever thread applied the record; the trio thread is woken once for many.

        What waits is bounded by the records between two turns of the event loop, or by the one partition that went.
        """
        self.removed.append(segment_id.id)
        self._token.run_sync_soon(self._drop_removed, idempotent=True)

    def _drop_removed(self) -> None:
        for _ in range(min(len(self.removed), REMOVED_AT_ONCE)):
            self.drop_segment(self.removed.popleft())
        if self.removed:
            self._token.run_sync_soon(self._drop_removed, idempotent=True)

    def drop_segment(self, segment_id: Uuid) -> None:
        """A segment was deleted: nothing of it is served from here any more."""
        self.parts.drop_segment(segment_id)
        self.blocks.drop_segment(segment_id)
        self._read_ahead.forget_segment(segment_id)


def stream_row(stream: Stream) -> dict[str, object]:
    """Return what is shown of a sequential reader."""
    reader = stream.last.reader
    return {
        **(reader.row() if isinstance(reader, ClientName) else {"client": str(reader)}),
        "topic": stream.partition.topic,
        "partition": stream.partition.partition,
        "segment_start_offset": stream.segment.start_offset,
        "segment_end_offset": stream.segment.end_offset,
        "position_bytes": stream.end,
        "segment_bytes": stream.segment.segment_size_bytes,
        "bytes_per_s": round(stream.speed.at(trio.current_time())),
        "window_bytes": stream.window_bytes,
        "ahead_bytes": stream.ahead_bytes,
        "waits_for": stream.stalled_by.value,
    }


def open_tier_storage(
    settings: TierStorageSettings,
    storage_manager: RemoteStorageManager,
    catalog: Catalog,
    *,
    nursery: TaskNursery,
    meters: Meters,
    disk_blocks: DiskBlocks | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> TierStorage:
    """Everything between catalog and object store.

    Args:
        nursery: the application's; loads live in it.
        now_ms: another clock than the time of day, for tests.
    """
    meters.gets.on_store(store_kind(storage_manager.identity))
    disk = None if disk_blocks is None else DiskLevel(disk_blocks, nursery, meters.cache)
    throttle, limiter = Throttle(settings.gets_max, meters.gets), trio.CapacityLimiter(settings.gets_max)
    parts = SegmentParts(
        storage_manager,
        nursery=nursery,
        gets=ObjectGets(limiter, meters.gets, throttle, now_ms),
        meter=meters.cache,
        bytes_max=settings.indexes_bytes_max,
        disk=disk,
    )
    gets_budget = ByteBudget(settings.inflight_bytes_max // 2)
    answers_budget = ByteBudget(settings.inflight_bytes_max - gets_budget.bytes_max)
    meters.gets.inflight_bytes_from(lambda: gets_budget.held + answers_budget.held)
    gets = Gets(
        nursery,
        gets_max=settings.gets_max,
        inflight=gets_budget,
        pace=Pace(settings.gets_max, settings.hedge_gets_per_minute_min),
        throttle=throttle,
        gets=meters.gets,
        cache=meters.cache,
        batch_start=parts.offset_indexes.batch_start,
        now_ms=now_ms,
    )
    blocks, read_ahead, prefetcher = _block_parts(settings, parts, disk, nursery, gets, meters)
    answers = AnswerBlocks(answers_budget)
    reader = TierReader(catalog=catalog, parts=parts, cache=blocks, answers=answers, prefetcher=prefetcher)
    timestamps = TimestampSearch(catalog=catalog, parts=parts, cache=blocks, answers=answers)
    return TierStorage(reader, parts, timestamps, blocks, disk, answers_budget, read_ahead, gets, limiter)


async def _give_back_memory() -> None:
    while True:
        await trio.sleep(GIVE_BACK_INTERVAL_S)
        await trio.to_thread.run_sync(give_back)


def store_kind(identity: str) -> str:
    """Return what GETs are counted under, from a storage manager's identity: `s3`, `filesystem`; `local` for files of
    its own.

    An identity is the format and then the store's own, which begins with its kind and a colon.
    """
    kind, colon, _ = identity.partition(" ")[2].partition(":")
    return kind if colon and kind.isidentifier() else "local"


def _block_parts(
    settings: TierStorageSettings,
    parts: SegmentParts,
    disk: DiskLevel | None,
    nursery: TaskNursery,
    gets: Gets,
    meters: Meters,
) -> tuple[BlockCache, ReadAhead, Prefetcher | None]:
    """Blocks of logs: where they are kept, and what asks for them ahead of need, if anything."""
    read_ahead = _read_ahead(settings, gets.pace, meters)
    memory = _memory(settings, meters, read_ahead)
    blocks = BlockCache(memory=memory, gets=gets, disk=disk, block_bytes=settings.block_bytes, meter=meters.cache)
    prefetcher = None
    if settings.readahead_stream_bytes_max:
        prefetcher = Prefetcher(
            nursery,
            read_ahead,
            cache=blocks,
            gets=gets,
            open_segment=parts.opened.get,
            fetch_index=parts.offset_indexes.fetch_soon,
        )
    return blocks, read_ahead, prefetcher


def _read_ahead(settings: TierStorageSettings, pace: Pace, meters: Meters) -> ReadAhead:
    return ReadAhead(
        settings.readahead_stream_bytes_max,
        settings.readahead_total_bytes_max,
        meter=meters.read_ahead,
        clock=trio.current_time,
        get_bytes=pace.get_bytes,
    )


def _memory(settings: TierStorageSettings, meters: Meters, read_ahead: ReadAhead) -> MemoryBlocks:
    return MemoryBlocks(
        settings.memory_bytes_max,
        unread_bytes_max=settings.readahead_total_bytes_max,
        retention_s=settings.retention_s,
        clock=trio.current_time,
        meter=meters.cache,
        read_ahead_meter=meters.read_ahead,
        on_wasted=read_ahead.on_wasted,
        on_evicted=read_ahead.on_evicted,
    )
