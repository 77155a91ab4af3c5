"""The tier as every tool looks at it: a catalog that was read to the metadata topic's end, and the store beside it.

    async def work(tier: OpenTier) -> int:
        for partition in tier.catalog.partitions(): …
    return run_on_tier(config, work)

- Works from the properties file alone. A snapshot that a `serve` has left (`catalog.snapshot.path`) saves most of the
  reading, if it is of this cluster and this topic; it is never written or set aside here.
- Reading has no time limit, since a topic of millions of records takes minutes; silence has one.
- Whatever is wrong is one line that says what to do, and an exit code (`run_on_tier`).

Memory: the catalog (`catalog.segments.max`), and the segments of one partition while they are listed.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.conversation import drive_async
from protocol.client.errors import UpstreamError
from protocol.client.leaders import AskMetadata, LeaderQuestions, Step, Steps
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC, KafkaMetadataTopicClient
from storage.backoff import Backoff
from storage.config.client_settings import client_settings
from storage.config.registry import (
    METADATA_MANAGER_KEY,
    MetadataManagerKind,
    metadata_manager_kind,
    open_remote_storage_manager,
)
from storage.errors import MetadataOffsetOutOfRange, RemoteStorageError, TierError
from storage.metadata.catalog import Catalog
from storage.metadata.follower import CatalogFollower
from storage.metadata.reading import TopicDescription
from storage.metadata.topic_log import TopicMetadataEventLog
from storage.model import RemoteLogSegmentMetadata, TopicIdPartition, uuid_to_text
from storage.remote_storage_manager import RemoteStorageManager
from tidegate import exit_codes
from tidegate.catalog import CatalogSnapshots
from tidegate.commands.failures import say_failure
from tidegate.commands.output import Progress
from tidegate.config.model import Config
from tidegate.logs import configure_logs

SILENCE_S = 30.0
"""Without a record, though there are more: longer than an election of leaders takes."""

POLL_S = 0.05

ROLE = "tool"
ATTEMPTS_MAX = 5
"""For a question to leaders: an election takes a second or two."""

T = TypeVar("T")

Told = Callable[[int, int], None]
"""Takes records of the metadata topic that were read, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTopic:
    """A metadata topic that may be read. `cluster`: the one that it is in; `ranges`: where its partitions begin and
    end, as they said at the beginning."""

    cluster: Cluster
    client: KafkaMetadataTopicClient
    description: TopicDescription
    ranges: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTier:
    """A catalog that was caught up when it was opened and goes on to follow the metadata topic.

    `upstream`: the brokers that clients are served from; `metadata`: where the metadata topic is, whose cluster and
    topic ids the catalog is of.
    """

    config: Config
    upstream: Cluster
    metadata: MetadataTopic
    catalog: Catalog
    storage_manager: RemoteStorageManager
    _follower: CatalogFollower
    _event_log: TopicMetadataEventLog
    _silence_s: float

    @property
    def cluster_id(self) -> str:
        """Id of the metadata topic's cluster; empty if it has none."""
        return self.metadata.cluster.cluster_id or ""

    def identity(self) -> dict[str, str]:
        """Which tier this is, for documents."""
        return {
            "cluster_id": self.cluster_id,
            "metadata_topic_id": uuid_to_text(self.metadata.description.topic_id),
            "store": self.storage_manager.identity,
        }

    def segments(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """A partition's segments, of every state and in no order."""
        return self.catalog.list_segments(partition.topic_id, partition.partition)

    async def ask_leaders(self, conversation: Callable[[LeaderQuestions], Steps[T]]) -> T:
        """Return what the leaders of upstream's partitions answer (protocol.client.leaders), asked again while that may
        help.

        Raises:
            UpstreamError: as the conversation; a retriable one after ATTEMPTS_MAX.
        """
        questions = LeaderQuestions(self.upstream, self.upstream.settings)

        async def answer(step: Step) -> Any:
            if isinstance(step, AskMetadata):
                return await self.upstream.learn_topics(step.names or ())
            return await self.upstream.ask_all(ROLE, step)

        backoff = Backoff()
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await drive_async(conversation(questions), answer)
            except UpstreamError as error:
                if not error.retriable:
                    raise
            await trio.sleep(backoff.next_delay_s())
        return await drive_async(conversation(questions), answer)

    def positions(self) -> dict[int, int]:
        """By metadata partition: every record below this offset is in the catalog."""
        return {number: self._follower.position(number) for number in range(self._event_log.partition_count())}

    def problems(self) -> list[str]:
        """Why the catalog may lack segments, a sentence each; empty: it has all that the metadata topic tells of."""
        found = []
        failure = self._event_log.failure()
        if failure is not None:
            found.append(failure)
        if self.catalog.refused_partitions:
            found.append(
                f"{self.catalog.refused_partitions} partitions are left out, since the catalog is full: raise "
                "catalog.segments.max"
            )
        if count := self._follower.undecodable_records:
            found.append(
                f"{count} records of {METADATA_TOPIC} cannot be decoded: is Tidegate older than the brokers? "
                "`tidegate metadata dump` shows them"
            )
        found += [f"{METADATA_TOPIC}-{number}: {reason}" for number, reason in self._event_log.problems().items()]
        return found

    def tell_problems(self) -> int:
        """Warn of what the catalog may lack, on standard error; the exit code."""
        problems = self.problems()
        for problem in problems:
            print(f"tidegate: warning: {problem}", file=sys.stderr)
        return exit_codes.FOUND_WRONG if problems else exit_codes.DONE

    async def catch_up(self, told: Told | None = None) -> None:
        """Return when every record that the metadata topic holds now is in the catalog.

        Raises:
            TierError: the topic is not the one that was read so far, or it gave nothing for `silence_s`.
            RemoteStorageError: it does not say where it ends.
        """
        ranges = await self._event_log.sample_ranges(range(self._event_log.partition_count()))
        before = self.positions()
        total = sum(max(0, end - max(start, before[number])) for number, (start, end) in ranges.items())
        left_before, heard_at_s = -1, trio.current_time()
        while True:
            failure = self._event_log.failure()
            if failure is not None:
                raise TierError(f"{failure}: run the command again")
            positions = self.positions()
            left = sum(max(0, end - max(start, positions[number])) for number, (start, end) in ranges.items())
            if told is not None:
                told(total - left, total)
            behind = [number for number in ranges if not self._follower.is_caught_up(number)]
            if not left and not behind:
                return
            if left != left_before:
                left_before, heard_at_s = left, trio.current_time()
            elif trio.current_time() - heard_at_s >= self._silence_s:
                self._fail_silent(behind, left)
            await trio.sleep(POLL_S)

    def _fail_silent(self, behind: list[int], left: int) -> NoReturn:
        problems = self._event_log.problems()
        reason = next(iter(problems.values()), f"its metadata partitions {behind or 'all'} say nothing")
        raise TierError(
            f"{METADATA_TOPIC} gave none of the {left} records that are left for {self._silence_s:g} s ({reason}): see "
            "whether its partitions have leaders, and run the command again"
        )


@asynccontextmanager
async def open_metadata_topic(config: Config, upstream: Cluster, nursery: trio.Nursery) -> AsyncIterator[MetadataTopic]:
    """The metadata topic, of which one record at least may be read.

    Raises:
        TierError: there is none by this configuration.
        UpstreamError, RemoteStorageError: it cannot be reached, described or read; a missing ACL is named.
    """
    if metadata_manager_kind(config.remote_log_metadata_manager_class_name) is not MetadataManagerKind.TOPIC_BASED:
        raise TierError(
            f"{METADATA_MANAGER_KEY}={config.remote_log_metadata_manager_class_name} keeps nothing outside of one "
            f"process: name {MetadataManagerKind.TOPIC_BASED.value}, or leave the key out"
        )
    cluster = upstream
    if config.metadata_client != config.upstream:
        cluster = Cluster(client_settings(config.metadata_client), nursery)
        await cluster.refresh()
    client = KafkaMetadataTopicClient(cluster)
    async with aclosing(client):
        description = await client.describe()
        ranges = await client.offsets(range(description.partition_count))
        number, start = next(((number, start) for number, (start, end) in ranges.items() if start < end), (0, -1))
        if start >= 0:
            with suppress(MetadataOffsetOutOfRange):  # retention takes records all the time
                await client.fetch(number, start, max_wait_ms=0)  # Describe was enough so far: this takes Read
        yield MetadataTopic(cluster=cluster, client=client, description=description, ranges=ranges)


@asynccontextmanager
async def open_tier(
    config: Config, *, told: Told | None = None, uses_snapshot: bool = True, silence_s: float = SILENCE_S
) -> AsyncIterator[OpenTier]:
    """The tier, read to the metadata topic's end as of now.

    Args:
        told: hears how far the reading is.
        uses_snapshot: False: every record is read from the topic itself.

    Raises:
        TierError: see OpenTier.catch_up and open_metadata_topic.
        StorageConfigError: the storage plug-in's configuration is wrong.
        UpstreamError, RemoteStorageError: brokers or the metadata topic cannot be reached, described or read.
        What a nursery raises is a group of these.
    """
    storage_manager = open_remote_storage_manager(
        config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
    )
    try:
        async with trio.open_nursery() as nursery:
            upstream = Cluster(client_settings(config.upstream), nursery)
            await upstream.refresh()
            async with open_metadata_topic(config, upstream, nursery) as topic:
                catalog = Catalog(config.catalog.segments_max)
                event_log = TopicMetadataEventLog(KafkaMetadataTopicClient(topic.cluster))
                follower = CatalogFollower(event_log, catalog)
                await nursery.start(event_log.run)
                snapshots = _snapshots(config, topic, catalog, event_log, follower) if uses_snapshot else None
                follower.follow(await _adopted(snapshots))
                tier = OpenTier(
                    config=config,
                    upstream=upstream,
                    metadata=topic,
                    catalog=catalog,
                    storage_manager=storage_manager,
                    _follower=follower,
                    _event_log=event_log,
                    _silence_s=silence_s,
                )
                await tier.catch_up(told)
                yield tier
            nursery.cancel_scope.cancel()
    finally:
        storage_manager.close()


def run_on_tier(config: Config, work: Callable[[OpenTier], Awaitable[int]], *, uses_snapshot: bool = True) -> int:
    """Open the tier, with progress on a terminal, and work on it; the exit code. See run_command for errors."""

    async def on_tier() -> int:
        with Progress("reading metadata", "records") as progress:
            async with open_tier(config, told=progress.told, uses_snapshot=uses_snapshot) as tier:
                progress.close()
                return await work(tier)

    return run_command(on_tier)


def run_command(work: Callable[[], Awaitable[int]]) -> int:
    """Run it in trio. What goes wrong with brokers or store is a line on standard error, and an exit code."""
    configure_logs("error")  # a line of the log between those of the command would say it twice
    try:
        exit_code = trio.run(work)
        sys.stdout.flush()
    except (BaseExceptionGroup, UpstreamError, RemoteStorageError, TierError, OSError) as error:
        causes = list(_causes(error))
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes):
            raise KeyboardInterrupt from None  # the command line knows what to do with that one
        if not all(isinstance(cause, UpstreamError | RemoteStorageError | TierError | OSError) for cause in causes):
            raise
        exit_code = max(map(say_failure, causes))
    return exit_code


def _causes(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _causes(each)
    else:
        yield error


def _snapshots(
    config: Config, topic: MetadataTopic, catalog: Catalog, event_log: TopicMetadataEventLog, follower: CatalogFollower
) -> CatalogSnapshots | None:
    """Return what reads the snapshot that a `serve` has left; None: none is kept."""
    if config.catalog.snapshot_path is None:
        return None
    return CatalogSnapshots(
        config.catalog.snapshot_path,
        interval_s=config.catalog.snapshot_interval_ms / 1000,
        catalog=catalog,
        event_log=event_log,
        follower=follower,
        cluster_id=lambda: topic.cluster.cluster_id,
        meter=Meters(Registry()).catalog,
        is_ours=False,
    )


async def _adopted(snapshots: CatalogSnapshots | None) -> Mapping[int, int]:
    """Return where the metadata topic is to be read from."""
    if snapshots is None:
        return {}
    await snapshots.read()
    return await snapshots.adopt()
