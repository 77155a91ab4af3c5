"""What the application does between requests: follow upstream's brokers, watch catalog and tier, take gauges.

Each task runs until cancelled and lives through every failure of what it watches: a failure is a condition of
`proxy.readiness`, logged once a spell.
"""

import gc
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from itertools import islice

import structlog
import trio

from metrics.meters import FallbackReason, Meters
from metrics.troubles import TroubleId
from protocol.client.errors import UpstreamConnectionError, UpstreamError
from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import Book
from proxy.connection.brokers_file import KnownBrokersFile
from proxy.connection.server import Server
from proxy.fetch.fallback import Fallback
from proxy.readiness import ConditionName, ConditionState, Readiness
from proxy.tier_owner import TierOwner
from proxy.upstream.cluster import Cluster
from storage.errors import (
    MetadataNotReadyError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
)
from storage.metadata.catalog import Catalog
from storage.metadata.follower import CatalogFollower
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.model import IndexType, RemoteLogSegmentMetadata
from storage.remote_storage_manager import RemoteStorageManager
from tidegate.reasons import catalog_full
from tidegate.tier_storage import TierStorage

UPSTREAM_INTERVAL_S = 5.0
"""How often upstream's brokers are asked for, to listen for those that are new and no more for those that left. A new
one that a relayed answer names before that has its listener at once."""

UPSTREAM_RETRY_S = 0.5
UPSTREAM_AWAITED_S = 0.2
"""Between two looks for brokers that have left: they may only have restarted, and clients wait for their ports."""
BROKER_AWAITED_S_MAX = 600.0
UPSTREAM_ANSWER_S_MAX = 10.0
"""A broker that is out of reach may not even refuse: without a limit /readyz would say ready for half a minute."""

BROKER_ANSWER_S_MAX = 2.0
"""For each broker's answer to a question of no size."""

CATALOG_INTERVAL_S = 0.2
TIER_INTERVAL_S = 30.0
TIER_OBJECTS_LISTED_MAX = 1000
"""One page, to see whether there is any segment where none of those that were asked for is."""
TIER_SEGMENTS_ASKED_MAX = 3
"""In different partitions, one after another while the store does not have the one before: it may have been deleted."""

TIER_RETRY_S = 5.0
TIER_ANSWER_S_MAX = 10.0
GAUGES_INTERVAL_S = 1.0
MEASURE_INTERVAL_S = 15.0
LAG_MAX = 100
"""Records that a metadata partition may be behind at two looks, one after the other."""

_log = structlog.get_logger(__name__)


async def follow_brokers(
    cluster: Cluster, addresses: Book, known: KnownBrokersFile, readiness: Readiness, words: Callable[[Exception], str]
) -> None:
    """Keep the brokers and their listeners current.

    Args:
        words: what an operator reads of an error.
    """
    failing, silent, named_s = False, dict[int, str](), dict[int, float]()
    while True:
        try:
            with trio.fail_after(UPSTREAM_ANSWER_S_MAX):
                await cluster.refresh()
        except (UpstreamError, trio.TooSlowError) as error:
            late = UpstreamConnectionError(f"no broker answers within {UPSTREAM_ANSWER_S_MAX} s")
            reason = words(error if isinstance(error, UpstreamError) else late)
            if not failing:
                _log.warning("upstream_unavailable", reason=reason)
            failing = True
            readiness.upstream_unavailable(reason)
            await addresses.retry_withheld()
            await trio.sleep(UPSTREAM_RETRY_S)
            continue
        if failing:
            _log.info("upstream_back", brokers=len(cluster.brokers))
        failing = False
        brokers = [NodeAddress(node.node_id, node.host, node.port) for node in cluster.brokers.values()]
        await addresses.follow(brokers)
        known.note(brokers, addresses.free_ports)
        # Not before they are listened for: clients that are sent here go to them at once.
        readiness.upstream_answered(len(brokers), addresses.withheld, silent)
        said = await cluster.ask_each(BROKER_ANSWER_S_MAX)
        before, silent = silent, {node_id: answer for node_id, answer in said.items() if isinstance(answer, str)}
        for node_id in silent.keys() - before.keys():
            _log.warning("broker_silent", node=node_id, reason=silent[node_id])
        for node_id in (before.keys() - silent.keys()) & said.keys():
            _log.info("broker_answers", node=node_id)
        readiness.upstream_answered(len(brokers), addresses.withheld, silent)
        named_s |= dict.fromkeys(cluster.brokers, now_s := trio.current_time())
        named_s = {node_id: at_s for node_id, at_s in named_s.items() if now_s - at_s < BROKER_AWAITED_S_MAX}
        await _wait_for_next(cluster, named_s.keys() - cluster.brokers.keys())


async def _wait_for_next(cluster: Cluster, awaited: AbstractSet[int]) -> None:
    """Return after the interval, or as soon as a broker that has left is named again."""
    with trio.move_on_after(UPSTREAM_INTERVAL_S):
        while not awaited & cluster.brokers.keys():
            await trio.sleep(UPSTREAM_AWAITED_S if awaited else math.inf)
            with suppress(UpstreamError):  # which the next look tells
                await cluster.refresh()


async def follow_catalog(
    event_log: TopicMetadataEventLog,
    follower: CatalogFollower,
    catalog: Catalog,
    readiness: Readiness,
    meters: Meters,
    owner: TierOwner,
) -> None:
    """Tell readiness how far the catalog is, and which metadata partitions are in trouble.

    Args:
        owner: the tier's; what it misses is waited for once.
    """
    live = False
    undecodable = 0
    while True:
        failure, behind = event_log.failure(), _behind(event_log, follower)
        if failure is not None and live and owner.is_alone:
            readiness.catalog_degraded(failure, TroubleId.CATALOG_NOT_READ)
        elif failure is not None:
            readiness.catalog_unavailable(failure)
        elif behind is None:
            readiness.catalog_unavailable("the metadata topic has not been described yet", TroubleId.STARTING)
        elif behind:
            problems = event_log.problems()
            trouble = TroubleId.CATALOG_NOT_READ if problems or live else TroubleId.STARTING
            readiness.catalog_unavailable(_why_behind(behind, problems), trouble)
        elif not live and (missing := owner.missing()) is not None:
            readiness.catalog_unavailable(missing, TroubleId.STARTING)
        elif catalog.refused_partitions:
            readiness.catalog_degraded(catalog_full(catalog.segments_max, catalog.refused_partitions))
        else:
            readiness.catalog_live(catalog.segment_count)
            if not live:
                live = True
                # What the catalog holds is not garbage: the collector need not look at it again.
                gc.freeze()
        readiness.tell(TroubleId.METADATA_PARTITION_NOT_READ, event_log.problems())
        while undecodable < follower.undecodable_records:
            undecodable += 1
            meters.catalog.on_record_undecodable()
        meters.catalog.on_segments(catalog.segment_count)
        meters.catalog.on_refused_partitions(catalog.refused_partitions)
        await trio.sleep(CATALOG_INTERVAL_S if not live else GAUGES_INTERVAL_S)


async def measure_catalog(
    event_log: TopicMetadataEventLog, follower: CatalogFollower, catalog: Catalog, readiness: Readiness, meters: Meters
) -> None:
    """Take the gauges that cost something: sizes by topic, and how far each metadata partition is behind its end."""
    topics: set[str] = set()
    behind: dict[int, int] = {}
    while True:
        sizes = await trio.to_thread.run_sync(catalog.topic_sizes)
        meters.catalog.on_memory(await trio.to_thread.run_sync(catalog.memory_bytes))
        for topic in topics - sizes.keys():
            meters.catalog.on_topic(topic, 0, 0)
        topics |= sizes.keys()
        for topic, (segments, size_bytes) in sizes.items():
            meters.catalog.on_topic(topic, segments, size_bytes)
        try:
            ends = await event_log.sample_high_watermarks()
        except RemoteStorageError as error:
            _log.debug("catalog_lag_unknown", reason=str(error))
        else:
            before, behind = behind, {number: max(0, end - follower.position(number)) for number, end in ends.items()}
            for number, lag in behind.items():
                meters.catalog.on_partition_lag(number, lag)
            if readiness.catalog_was_live:
                stay = {number: lag for number, lag in behind.items() if min(lag, before.get(number, 0)) > LAG_MAX}
                reasons = {number: f"{lag:,} records behind" for number, lag in stay.items()}
                readiness.tell(TroubleId.CATALOG_BEHIND, reasons)
        await trio.sleep(MEASURE_INTERVAL_S)


def _behind(event_log: TopicMetadataEventLog, follower: CatalogFollower) -> int | None:
    """Return how many metadata partitions are not read to their end; None until it is known how many there are."""
    try:
        count = event_log.partition_count()
    except MetadataNotReadyError:
        return None
    return sum(not follower.is_caught_up(number) for number in range(count))


def _why_behind(behind: int, problems: Mapping[int, str]) -> str:
    """A right that is missing keeps all of them: it is what to look at, and waiting is not."""
    if not problems:
        return f"{behind} metadata partitions are being read"
    number = min(problems)
    return f"{behind} metadata partitions are not read; of {len(problems)} partition {number} says: {problems[number]}"


async def watch_tier(
    storage_manager: RemoteStorageManager,
    some_segments: Callable[[int], Sequence[RemoteLogSegmentMetadata]],
    limiter: trio.CapacityLimiter,
    readiness: Readiness,
    words: Callable[[RemoteStorageError], str],
) -> None:
    """See whether the object store answers: by a small index of some segment, or by its own question when there is no
    segment yet.

    Args:
        words: what an operator reads of an error.
    """
    questions = _TierQuestions(limiter, readiness, words)
    # Before the first client needs it: the first GET would wait for a second's imports.
    await questions.ask(storage_manager.warm_up)
    await questions.ask(storage_manager.ask)
    # A catalog that is not live names segments that were deleted long ago, and one that is empty yet may not stay so.
    while not await _within(questions.pause_s, readiness.wait_catalog):
        await questions.ask(storage_manager.ask)
    while True:
        if await questions.ask(partial(try_tier, storage_manager, some_segments)):
            readiness.tier_answered()
        await trio.sleep(questions.pause_s)


class _TierQuestions:
    """Asks the store, one question after another, and tells of failures."""

    def __init__(
        self, limiter: trio.CapacityLimiter, readiness: Readiness, words: Callable[[RemoteStorageError], str]
    ) -> None:
        self._limiter = limiter
        self._readiness = readiness
        self._words = words
        self._failing = False

    @property
    def pause_s(self) -> float:
        return TIER_RETRY_S if self._failing else TIER_INTERVAL_S

    async def ask(self, question: Callable[[], None]) -> bool:
        """Return whether it answers as it should."""
        errors: Sequence[RemoteStorageError | BaseExceptionGroup[RemoteStorageError]] = ()
        try:
            # A store that hangs is asked once, and told of meanwhile; at the end the thread is left behind, as
            # nobody wants its answer any more.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._say_late)
                await trio.to_thread.run_sync(question, limiter=self._limiter, abandon_on_cancel=True)
                nursery.cancel_scope.cancel()
        except* RemoteStorageError as group:
            errors = group.exceptions
        if errors:
            self._failed(*(each for each in errors if isinstance(each, RemoteStorageError)))
        elif self._failing:
            _log.info("tier_answers")
            self._failing = False
        return not errors

    async def _say_late(self) -> None:
        await trio.sleep(TIER_ANSWER_S_MAX)
        self._failed(RetriableRemoteStorageError(f"no answer within {TIER_ANSWER_S_MAX} s"))

    def _failed(self, *errors: RemoteStorageError) -> None:
        reason = "; ".join(map(self._words, errors))
        self._readiness.tier_failed(reason)
        if not self._failing:
            degraded = self._readiness.conditions[ConditionName.TIER].state is ConditionState.DEGRADED
            _log.warning("tier_degraded" if degraded else "tier_unavailable", reason=reason)
        self._failing = True


def try_tier(
    storage_manager: RemoteStorageManager, some_segments: Callable[[int], Sequence[RemoteLogSegmentMetadata]]
) -> None:
    """Blocking. Raises RemoteStorageError if the store does not answer, or holds no segment though some are known."""
    absent: RemoteResourceNotFoundError | None = None
    for segment in some_segments(TIER_SEGMENTS_ASKED_MAX):
        try:
            storage_manager.fetch_index(segment, IndexType.LEADER_EPOCH)
        except RemoteStoreNotFoundError:
            raise
        except RemoteResourceNotFoundError as error:
            absent = error
        else:
            return
    if absent is None:
        storage_manager.ask()
    elif not any(found.segment_id for found in islice(storage_manager.list_objects(), TIER_OBJECTS_LISTED_MAX)):
        raise absent  # no segment at all: not the brokers' bucket or prefix


async def _within(limit_s: float, event: Callable[[], Awaitable[None]]) -> bool:
    with trio.move_on_after(limit_s):
        await event()
        return True
    return False


_LEFT_TO_BROKERS = (TroubleId.NOT_DESCRIBED, TroubleId.ICEBERG_SEGMENTS, TroubleId.TIER_READS_FAIL)


def trouble_of(reason: FallbackReason) -> TroubleId:
    """Return what trouble it is that brokers read in the tier's place for this reason."""
    named = {FallbackReason.NOT_DESCRIBED: TroubleId.NOT_DESCRIBED, FallbackReason.ICEBERG: TroubleId.ICEBERG_SEGMENTS}
    return named.get(reason, TroubleId.TIER_READS_FAIL)


async def take_gauges(
    storage: TierStorage, fallback: Fallback, server: Server, readiness: Readiness, meters: Meters
) -> None:
    """Feed the gauges that nobody's request moves, and tell readiness of what the brokers read for us, and of clients
    that do not get in."""
    while True:
        busy, total, waiting = storage.slots()
        meters.tier.on_reader_slots(busy, total, waiting)
        said = fallback.complaints()
        for trouble in _LEFT_TO_BROKERS:
            readiness.tell(trouble, [why for reason, why in said.items() if trouble_of(reason) is trouble])
        readiness.tell(TroubleId.HANDSHAKES_FAIL, server.handshakes.complaints())
        await trio.sleep(GAUGES_INTERVAL_S)
