"""Collects what the status page shows, when somebody asks for it and not before.

Rule 1. The event loop is held for milliseconds: the catalog is counted in a thread, long tables are walked in pieces.
Rule 2. Brokers are asked what nobody knows yet, ASK_S_MAX at most and not again for ASKED_S_MAX: whether they answer,
        where metadata partitions end, and the offsets of the partitions on the page. However many look at the page,
        brokers get one small request each in that time.
Rule 3. What fails is a part of the page that says so; the others are shown.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import trio

from metrics.cache_meters import CacheLevel
from metrics.meters import Meters
from metrics.troubles import TroubleId
from protocol.client.errors import UpstreamError
from proxy.connection.server import Server
from proxy.connection.spells import Spells
from proxy.fetch.fallback import Fallback
from proxy.fetch.frontiers import Frontier, Frontiers
from proxy.readiness import Readiness
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from storage.cache.disk import DiskBlocks
from storage.cache.read_ahead import Stream
from storage.errors import MetadataNotReadyError, RemoteStorageError
from storage.metadata.catalog import Catalog, PartitionSummary
from storage.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition
from storage.wall_clock import wall_clock_ms
from tidegate.catalog import StartedCatalog
from tidegate.logs import recent_errors
from tidegate.start_lines import own_version
from tidegate.status.copying import CopyTroubles, copy_status
from tidegate.status.model import (
    PAGE_ROWS,
    VERSION,
    AboutStatus,
    AppliedStatus,
    BrokerStatus,
    CacheStatus,
    CatalogStatus,
    ClientStatus,
    ConditionStatus,
    CopyStatus,
    FailedStatus,
    FallbackStatus,
    LimitStatus,
    MetadataPartitionStatus,
    PartitionsStatus,
    PartitionStatus,
    Query,
    Status,
    StreamsStatus,
    StreamStatus,
    TrafficStatus,
    hit_ratio,
    pages_of,
    shown_troubles,
)
from tidegate.status.traffic import Traffic
from tidegate.tier_storage import TierStorage, stream_row

if TYPE_CHECKING:
    from standalone.copying import Copying

ASK_S_MAX: Final = 2.0
ASKED_S_MAX: Final = 3.0
CATCH_UP_S: Final = 0.5
"""What was written while its end was asked for is applied in milliseconds; what is still missing then lags."""

ROWS_MAX: Final = 100
"""Rows of streams and clients; the totals say how many there are."""

IN_A_ROW: Final = 500
"""Rows that are made before other tasks are let run."""

WAITS_S_MIN: Final = 1.0

TROUBLES_LOOK_S: Final = 5.0
"""Between two looks at what nobody else tells readiness of, while nobody looks at the page."""

TIER_MODE: Final = "read_replica"
OWN_TIER_MODE: Final = "full"
"""Redpanda's words for a tier that somebody else writes, and for one of our own."""

STORED_SEGMENTS_MAX: Final = 1000
"""More of one partition are not looked at: each costs a hundred thousandth of a second."""

Counted = tuple[TopicIdPartition, PartitionSummary | Exception | None, int | None]
"""A partition, what the catalog has of it (None: no segment that can be read), and how much that is as stored, if that
is known."""

_STARTED_MS: Final = wall_clock_ms()

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TierSide:
    """What there is of the tier. `disk` None: the cache is in memory only; `copying` None: nothing is copied here.

    `identity`: format, store and prefix. `python_tls`: see `start_lines`.
    """

    catalog: Catalog
    followed: StartedCatalog
    frontiers: Frontiers
    storage: TierStorage
    disk: DiskBlocks | None
    fallback: Fallback
    identity: str
    python_tls: str | None
    stored_bytes: Callable[[RemoteLogSegmentMetadata], int | None]
    """What a segment takes in the store, if that is known without asking it."""
    copying: "Copying | None" = None


class Collector:
    """Makes the document. Owned by the trio thread."""

    def __init__(self, readiness: Readiness, cluster: Cluster, tier: TierSide, server: Server, meters: Meters) -> None:
        self._readiness, self._cluster, self._server, self._meter = readiness, cluster, server, meters.cache
        self._tier = tier
        self._copy_troubles = None if tier.copying is None else CopyTroubles(tier.copying, readiness)
        self._traffic = Traffic(lambda: meters.relay.served_bytes, lambda: meters.gets.ended)
        self._brokers_asked = _Asked(self._ask_brokers)
        self._ends_asked = _Asked(self._ask_ends)
        self._spells = Spells(trio.current_time)

    async def run(self) -> None:
        """Look at what passes, and tell readiness of what nobody else does, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._traffic.run)
            while True:
                self._tell(await self._limits(), await self._clients(), await self._cache())
                await trio.sleep(TROUBLES_LOOK_S)

    def _tell(
        self, limits: Sequence[LimitStatus], clients: Sequence[ClientStatus], caches: Sequence[CacheStatus]
    ) -> None:
        for trouble, reasons in shown_troubles(limits, clients, caches).items():
            self._readiness.tell(trouble, reasons)
        if self._copy_troubles is not None:
            self._copy_troubles.tell()

    async def status(self, query: Query) -> Status:
        """Everything as it is now."""
        failed: list[FailedStatus] = []
        found: dict[str, Any] = {}

        async def section(name: str, collect: Callable[[], Awaitable[Any]]) -> None:
            try:
                found[name] = await collect()
            except Exception as error:
                failed.append(FailedStatus(section=name, reason=f"{type(error).__name__}: {error}"))
                if self._spells.begins(name):
                    _log.warning("status_section_failed", section=name, exc_info=error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(section, "brokers", self._brokers_asked.get)
            nursery.start_soon(section, "catalog", self._catalog)
            nursery.start_soon(section, "cache", self._cache)
            nursery.start_soon(section, "partitions", lambda: self._partitions(query))
            nursery.start_soon(section, "streams", self._streams)
            nursery.start_soon(section, "fallbacks", self._fallbacks)
            nursery.start_soon(section, "limits", self._limits)
            nursery.start_soon(section, "clients", self._clients)
            nursery.start_soon(section, "copy", self._copy)
            nursery.start_soon(section, "about", self._about)
            nursery.start_soon(section, "traffic", self._traffic_now)
        self._tell(*(found.get(name, ()) for name in ("limits", "clients", "cache")))
        self._readiness.tell(
            TroubleId.STATUS_SECTION_FAILED, [f"{each['section']}: {each['reason']}" for each in failed]
        )
        return cast(Status, {**empty_status(self._readiness, query), **found, "failed_sections": failed})

    # --- upstream and the catalog ---

    async def _ask_brokers(self) -> list[BrokerStatus]:
        said, brokers = await self._cluster.ask_each(ASK_S_MAX), self._cluster.brokers
        return [
            BrokerStatus(
                node_id=node_id,
                host=brokers[node_id].host,
                port=brokers[node_id].port,
                reachable=not isinstance(answer, str),
                answer_ms=None if isinstance(answer, str) else round(answer * 1000, 1),
                reason=answer if isinstance(answer, str) else "",
            )
            for node_id, answer in sorted(said.items())
            if node_id in brokers
        ]

    async def _catalog(self) -> CatalogStatus:
        catalog, follower, event_log = self._tier.catalog, self._tier.followed.follower, self._tier.followed.event_log
        partitions = len(await trio.to_thread.run_sync(catalog.partitions))
        rows: list[MetadataPartitionStatus] = []
        applied: AppliedStatus | None = None
        if follower is not None and event_log is not None:
            ends, problems = await self._ends_asked.get(), event_log.problems()
            if any(follower.position(number) < (end or 0) for number, end in ends.items()):
                await trio.sleep(CATCH_UP_S)
            for number, end in ends.items():
                position = follower.position(number)
                rows.append(
                    MetadataPartitionStatus(
                        metadata_partition=number,
                        next_offset=position,
                        end_offset=end,
                        lag_records=None if end is None else max(0, end - position),
                        caught_up=follower.is_caught_up(number),
                        problem=problems.get(number) or (self._no_end(number) if end is None else None),
                    )
                )
            if (last := follower.last_applied) is not None:
                age_ms = max(0, wall_clock_ms() - last.applied_ms)
                applied = AppliedStatus(metadata_partition=last.metadata_partition, offset=last.offset, age_ms=age_ms)
        return CatalogStatus(
            segments=catalog.segment_count,
            segments_max=catalog.segments_max,
            partitions=partitions,
            refused_partitions=catalog.refused_partitions,
            last_applied=applied,
            metadata_partitions=rows,
        )

    def _no_end(self, number: int) -> str:
        topic = self._cluster.topic(METADATA_TOPIC)  # not known here where the metadata topic is another cluster's
        leader = None if topic is None else topic.partitions.get(number)
        if leader is None or leader.leader_id < 0:
            return "its leader does not say where it ends"
        return f"its leader, {self._cluster.name_of(leader.leader_id)}, does not say where it ends"

    async def _ask_ends(self) -> Mapping[int, int | None]:
        """Return where each metadata partition ends; None: its leader does not say."""
        event_log = self._tier.followed.event_log
        assert event_log is not None, "there is a metadata topic"
        try:
            numbers = range(event_log.partition_count())
        except MetadataNotReadyError:
            return {}
        ends: dict[int, int | None] = dict.fromkeys(numbers)

        async def ask(asked: Sequence[int]) -> bool:
            with trio.move_on_after(ASK_S_MAX / 2):
                try:
                    ranges = await event_log.sample_ranges(asked)
                except RemoteStorageError as error:
                    _log.debug("metadata_end_unknown", metadata_partitions=len(asked), reason=str(error))
                    return False
                ends.update({number: end for number, (_, end) in ranges.items()})
                return True
            return False

        if not await ask(numbers):
            # One leader that does not answer: the others say it one by one.
            async with trio.open_nursery() as nursery:
                for number in numbers:
                    nursery.start_soon(ask, [number])
        return ends

    # --- partitions ---

    async def _partitions(self, query: Query) -> PartitionsStatus:
        total, page, shown = await trio.to_thread.run_sync(self._page, query)
        reason = await self._learn([partition for partition, _, _ in shown])
        rows = []
        for partition, summary, stored_bytes in shown:
            try:
                rows.append(self._row(partition, summary, reason))
                rows[-1]["cloud_stored_size_bytes"] = stored_bytes
            except Exception as error:  # one bad partition never blanks the page
                rows.append(_row_of(partition, None, None, f"{type(error).__name__}: {error}"))
        return PartitionsStatus(total=total, page=page, pages=pages_of(total), topic=query.topic, rows=rows)

    def _page(self, query: Query) -> tuple[int, int, list[Counted]]:
        """In a thread: how many there are, the page's number, and what the catalog has of its partitions."""
        reason_of = self._tier.fallback.reason_of
        found = [each for each in self._tier.catalog.partitions() if query.topic in each.topic]
        # By one plain value after another: a sort holds up the event loop, and by tuples it takes ten times as long.
        found.sort(key=attrgetter("partition"))
        found.sort(key=attrgetter("topic"))
        found.sort(key=lambda each: reason_of(each) is None)  # those in trouble come first
        page = min(query.page, pages_of(len(found)))
        shown: list[Counted] = []
        for partition in found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]:
            try:
                summary = self._tier.catalog.summary(partition)
                shown.append((partition, summary, self._stored_bytes(partition, summary)))
            except Exception as error:
                shown.append((partition, error, None))
        return len(found), page, shown

    def _stored_bytes(self, partition: TopicIdPartition, summary: PartitionSummary | None) -> int | None:
        if summary is None or summary.segments > STORED_SEGMENTS_MAX:
            return None
        total = 0
        for segment in self._tier.catalog.list_segments(partition.topic_id, partition.partition):
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                if (size_bytes := self._tier.stored_bytes(segment)) is None:
                    return None
                total += size_bytes
        return total

    async def _learn(self, partitions: Sequence[TopicIdPartition]) -> str | None:
        """Learn leaders and offsets of these; return why some are not known."""
        cluster, frontiers = self._cluster, self._tier.frontiers
        unknown = [*{each.topic: None for each in partitions if cluster.topic_id(each.topic) is None}]
        try:
            with trio.fail_after(ASK_S_MAX):
                if unknown:
                    await cluster.learn_names(unknown)
        except (UpstreamError, trio.TooSlowError) as error:
            return str(error) or f"upstream names no leaders within {ASK_S_MAX:g} s"
        stale: dict[int, list[TopicIdPartition]] = {}
        for each in partitions:
            leader = self._leader(each)
            known = None if leader is None else frontiers.get(leader, each)
            if leader is not None and (known is None or trio.current_time() - known.learned_at_s > ASKED_S_MAX):
                stale.setdefault(leader, []).append(each)
        with trio.move_on_after(ASK_S_MAX):
            async with trio.open_nursery() as nursery:
                for leader, asked in stale.items():
                    nursery.start_soon(frontiers.refresh, leader, asked)
        return None

    def _leader(self, partition: TopicIdPartition) -> int | None:
        leader = self._cluster.leader_of(partition.topic_id, partition.partition)
        return None if leader is None or leader.leader_id < 0 else leader.leader_id

    def _frontier(self, partition: TopicIdPartition) -> Frontier | None:
        leader = self._leader(partition)
        return None if leader is None else self._tier.frontiers.get(leader, partition)

    def _row(
        self, partition: TopicIdPartition, summary: PartitionSummary | Exception | None, reason: str | None
    ) -> PartitionStatus:
        if isinstance(summary, Exception):
            raise summary
        leader, frontier = self._leader(partition), self._frontier(partition)
        known_id = self._cluster.topic_id(partition.topic)
        problem = None
        if known_id is not None and known_id != partition.topic_id:
            problem = "the topic was deleted, and its name is another topic's"
        elif partition.topic in self._cluster.denied:
            problem = self._cluster.describe_missing([partition.topic])
        elif leader is None:
            problem = reason or "upstream names no leader"
        elif frontier is None:
            problem = f"broker {leader} does not tell its offsets: it may be away"
        elif summary is not None and (hole := hole_of(summary, frontier)) is not None:
            problem = hole
        row = _row_of(partition, summary, frontier, problem)
        row["leader"] = leader
        if self._tier.frontiers.owner.is_alone:
            row["cloud_storage_mode"] = OWN_TIER_MODE
        fallen_back = self._tier.fallback.reason_of(partition)
        row["left_to_broker"] = None if fallen_back is None else fallen_back.value
        return row

    # --- this process's own ---

    async def _about(self) -> AboutStatus:
        found = about()
        found["cluster_id"], found["tier"] = self._cluster.cluster_id, self._tier.identity
        found["store_tls"] = self._tier.python_tls
        return found

    async def _traffic_now(self) -> TrafficStatus:
        return self._traffic.status()

    async def _copy(self) -> CopyStatus | None:
        return None if self._tier.copying is None else copy_status(self._tier.copying)

    async def _cache(self) -> list[CacheStatus]:
        memory, disk = self._tier.storage.blocks.memory, self._tier.disk
        trouble: str | None = None
        levels = [(CacheLevel.MEMORY, memory.size_bytes + memory.unread_bytes, memory.bytes_max, trouble)]
        if disk is not None:
            levels.append((CacheLevel.DISK, disk.index.size_bytes, disk.index.bytes_max, disk.health.trouble))
        found = []
        for level, size_bytes, max_bytes, trouble in levels:
            hits, misses = self._meter.looked_up(level)
            found.append(
                CacheStatus(
                    level=level.value,
                    size_bytes=size_bytes,
                    max_bytes=max_bytes,
                    trouble=trouble,
                    hits=hits,
                    misses=misses,
                    hit_ratio=hit_ratio(hits, misses),
                )
            )
        return found

    async def _streams(self) -> StreamsStatus:
        streams = self._tier.storage.readers()
        rows = [self._stream(stream) for stream in streams[:ROWS_MAX]]  # those that wait longest come first
        return StreamsStatus(total=len(streams), rows=rows)

    def _stream(self, stream: Stream) -> StreamStatus:
        segment = stream.segment
        offsets = segment.end_offset - segment.start_offset + 1
        about_offset = segment.start_offset + offsets * stream.end // max(1, segment.segment_size_bytes)
        frontier = self._frontier(stream.partition)
        end_offset = None if frontier is None else frontier.log_end_offset
        row: dict[str, object] = {
            "worker": None,
            **stream_row(stream),
            "about_offset": about_offset,
            "log_end_offset": end_offset,
            "lag_offsets": None if end_offset is None else max(0, end_offset - about_offset),
            "idle_ms": round((trio.current_time() - stream.read_at_s) * 1000),
        }
        return cast(StreamStatus, row)

    async def _fallbacks(self) -> list[FallbackStatus]:
        return [
            FallbackStatus(
                reason=spell.reason.value,
                detail=spell.detail,
                partitions=spell.partitions,
                since_ms=round(spell.since_s * 1000),
                examples=[f"{each.topic}-{each.partition}" for each in spell.examples],
            )
            for spell in self._tier.fallback.spells()
        ]

    async def _limits(self) -> list[LimitStatus]:
        slots, accounts = self._server.slots, self._server.accounts
        held, answers, limits = accounts.held, accounts.answers, slots.limits
        found = [
            LimitStatus(key="proxy.connections.max", client=None, used=slots.taken, max=limits.connections_max),
            LimitStatus(key="expert.proxy.held.bytes.max", client=None, used=held.held, max=held.bytes_max),
            LimitStatus(key="expert.tier.inflight.bytes.max", client=None, used=answers.held, max=answers.bytes_max),
        ]
        return [*found, *addresses_at_limit(slots.addresses.connections, limits.connections_max_per_address)]

    async def _clients(self) -> list[ClientStatus]:
        found = []
        for number, account in enumerate([*self._server.accounts], 1):
            since_s = account.waits_since_s
            waits_s = 0.0 if since_s is None else trio.current_time() - since_s
            if waits_s >= WAITS_S_MIN and (kept_bytes := account.kept_bytes):
                waits_ms = round(waits_s * 1000)
                found.append(
                    ClientStatus(worker=None, client=account.client, waits_ms=waits_ms, holds_bytes=kept_bytes)
                )
            if number % IN_A_ROW == 0:
                await trio.lowlevel.checkpoint()
        return sorted(found, key=lambda client: -client["waits_ms"])[:ROWS_MAX]


def empty_status(readiness: Readiness, query: Query) -> Status:
    """Return what a process knows without asking anybody."""
    return Status(
        version=VERSION,
        time_ms=wall_clock_ms(),
        state=readiness.stage.value,
        ready=readiness.ready,
        degraded=readiness.degraded,
        reasons=readiness.reasons,
        complaints=readiness.complaints,
        troubles=readiness.troubles,
        conditions={
            name.value: cast(ConditionStatus, asdict(condition)) for name, condition in readiness.conditions.items()
        },
        about=about(),
        traffic=TrafficStatus(tier_bytes_per_s=0, tier_bytes=0, gets_per_s=0, gets=0),
        brokers=[],
        catalog=CatalogStatus(
            segments=0, segments_max=0, partitions=0, refused_partitions=0, last_applied=None, metadata_partitions=[]
        ),
        cache=[],
        partitions=PartitionsStatus(total=0, page=1, pages=1, topic=query.topic, rows=[]),
        streams=StreamsStatus(total=0, rows=[]),
        fallbacks=[],
        limits=[],
        clients=[],
        copy=None,
        errors=recent_errors(wall_clock_ms()),
        failed_sections=[],
        workers=[],
    )


def about() -> AboutStatus:
    """Return what this process knows of itself."""
    return AboutStatus(
        instance=socket.gethostname(),
        version=own_version(),
        started_ms=_STARTED_MS,
        cluster_id=None,
        tier=None,
        store_tls=None,
    )


def addresses_at_limit(connections: Mapping[str, int], connections_max: int | None) -> list[LimitStatus]:
    """Client addresses that have as many connections as they may."""
    if connections_max is None:
        return []
    return [
        LimitStatus(key="proxy.connections.max.per.ip", client=address, used=used, max=connections_max)
        for address, used in connections.items()
        if used >= connections_max
    ][:ROWS_MAX]


def hole_of(summary: PartitionSummary, frontier: Frontier) -> str | None:
    """Offsets that neither the tier nor the broker's local log has, as far as the catalog knows."""
    for first, end in (
        (frontier.log_start_offset, min(summary.start_offset, frontier.local_log_start_offset)),
        (max(summary.last_offset + 1, frontier.log_start_offset), frontier.local_log_start_offset),
    ):
        if 0 <= first < end:
            return f"offsets {first} to {end - 1} are neither in the tier nor in the local log"
    return None


def _row_of(
    partition: TopicIdPartition, summary: PartitionSummary | None, frontier: Frontier | None, problem: str | None
) -> PartitionStatus:
    def told(offset: int) -> int | None:
        return None if offset < 0 else offset

    return PartitionStatus(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=str(partition.topic_id),
        cloud_storage_mode=TIER_MODE,
        cloud_log_size_bytes=None if summary is None else summary.size_bytes,
        cloud_stored_size_bytes=None,
        cloud_log_segment_count=None if summary is None else summary.segments,
        cloud_log_start_offset=None if summary is None else summary.start_offset,
        cloud_log_last_offset=None if summary is None else summary.last_offset,
        local_log_start_offset=None if frontier is None else told(frontier.local_log_start_offset),
        local_log_last_offset=None if frontier is None else told(frontier.log_end_offset - 1),
        log_start_offset=None if frontier is None else told(frontier.log_start_offset),
        last_stable_offset=None if frontier is None else told(frontier.last_stable_offset),
        high_watermark=None if frontier is None else told(frontier.high_watermark),
        log_end_offset=None if frontier is None else told(frontier.log_end_offset),
        leader=None,
        offsets_age_ms=None if frontier is None else round((trio.current_time() - frontier.learned_at_s) * 1000),
        left_to_broker=None,
        problem=problem,
    )


class _Asked:
    """An answer of upstream's that all who ask within ASKED_S_MAX share."""

    def __init__(self, ask: Callable[[], Awaitable[Any]]) -> None:
        self._ask = ask
        self._lock = trio.Lock()
        self._answer: Any = None
        self._until_s = float("-inf")

    async def get(self) -> Any:
        """The answer, asked for now or a moment ago."""
        async with self._lock:
            if trio.current_time() >= self._until_s:
                self._answer = await self._ask()
                self._until_s = trio.current_time() + ASKED_S_MAX
            return self._answer
