"""The copier in a process: what `tidegate copy` does, and `tidegate serve` with `copy.enabled=true`.

    copying = Copying(parts, make_copier)
    tasks.keep("copying", copying.run)
    ...
    await copying.aclose()       # lets go of all partitions and leaves the group

In this order: the metadata topic is made if it is missing; it is found to be as it must be (standalone.metadata_guard);
topics are looked at; then the copier becomes a member of `copy.group.id` and has partitions. It looks at the topics
again after each `copy.interval.ms`, and at the group: whether somebody has each of their partitions.

Rules:
- Whatever upstream does is waited out: nothing here ends because brokers are away or refuse something. It is logged
  once a spell and shown (`problems`). What ends by a fault of ours is begun again (proxy.tasks); the group has given
  its partitions to others by then.
- The membership's thread calls back into trio by the run's token, so that its calls are answered while tasks end.
- Topics of the tier that are not copied any more are taken part for as well, and only deleted from. But only while all
  of the group name the same topics, which each member's client id tells: else it would be given partitions that
  another one is to copy.
- At the end partitions are let go of before the group is left, within LET_GO_S_MAX of the membership.
"""

import fcntl
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio

from metrics.copy_meters import CopyMeter
from metrics.troubles import TroubleId
from protocol.client.errors import UpstreamError
from protocol.client.leaders import code_name
from protocol.client.offset_questions import Partition
from protocol.wire.errors import ErrorCode
from proxy.upstream.cluster import Cluster
from proxy.upstream.metadata_topic import METADATA_TOPIC
from standalone.cluster_clock import ClusterClock
from standalone.copier.config import CopyConfig, MetadataTopicConfig
from standalone.copier.copier import Copier
from standalone.copier.librdkafka import Properties
from standalone.copier.membership import LET_GO_S_MAX, Membership, MembershipError
from standalone.copier.metadata_feed import Publish
from standalone.copier.metadata_topic import MetadataPublisher, create_metadata_topic
from standalone.copier.progress import PartitionProgress
from standalone.copy_topics import CopyTopics
from standalone.metadata_guard import MetadataTopicGuard
from standalone.serving.group_offsets import GroupOffsets
from storage.backoff import Backoff
from storage.errors import RemoteStorageError, RetriableRemoteStorageError
from storage.model import TopicIdPartition, Uuid

_log = structlog.get_logger(__name__)

UNOWNED_NAMED_MAX = 3

GROUP_LOOK_S_MAX = 5.0
"""Between two looks at a group that keeps us from deleting: it may only be dealing partitions out."""

NOT_OF_ONE_MIND = "other copiers of the group have another copy.topics"

MakeCopier = Callable[[Publish, CopyTopics], Copier]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingParts:
    """What a copier works with.

    `properties`: librdkafka's for the brokers that clients are served from; `metadata_properties`: for those that have
    the metadata topic. `metadata_cluster`: the same cluster by our own client. `in_tier`: the catalog's partitions.
    `guard`: runs beside.
    """

    settings: CopyConfig
    metadata_topic: MetadataTopicConfig
    cluster: Cluster
    metadata_cluster: Cluster
    properties: Properties
    metadata_properties: Properties
    in_tier: Callable[[], Iterable[TopicIdPartition]]
    guard: MetadataTopicGuard
    clock: ClusterClock
    deletions_stopped: Callable[[], str | None]
    meter: CopyMeter


class Copying:
    """Owned by the trio thread.

    Args:
        make_copier: gives who copies, with what it publishes by and the topics.
    """

    def __init__(self, parts: CopyingParts, make_copier: MakeCopier) -> None:
        self._parts = parts
        self._make_copier = make_copier
        self._stop_asked, self._ended = trio.Event(), trio.Event()
        self.topics = CopyTopics(
            parts.cluster, parts.settings, parts.in_tier, lambda: parts.metadata_cluster.cluster_id
        )
        self.copier: Copier | None = None
        """None until it copies."""
        self.joined = trio.Event()
        """Topics were looked at, and the group is being joined."""
        self._membership: Membership | None = None
        self._trouble: str | None = None
        self._lock: int | None = None
        self._group = GroupOffsets(parts.cluster, parts.settings.group_id)
        assert parts.settings.topics is not None, "checked before anything is copied"
        self._wanted = parts.settings.topics
        self._gone: Sequence[TopicIdPartition] = ()
        """In the tier, without a topic at the last look."""
        self._is_of_one_mind = False
        """Whether all of the group were to copy the same topics when it said so last."""
        self._missing: frozenset[Partition] = frozenset()
        """Partitions to copy that nobody in the group had at the last look."""
        self._unowned: frozenset[Partition] = frozenset()
        """… and at the look before."""

    @property
    def group_id(self) -> str:
        """The group that shares the partitions."""
        return self._parts.settings.group_id

    def problems(self) -> list[str]:
        """Return what keeps topics or partitions from being copied, a sentence each."""
        return [reason for reasons in self.troubles().values() for reason in reasons]

    def troubles(self) -> dict[TroubleId, list[str]]:
        """Return the same by kind, also kinds that there are not now."""
        membership = None if self._membership is None else self._membership.trouble
        named = ", ".join(f"{topic}-{number}" for topic, number in sorted(self._unowned)[:UNOWNED_NAMED_MAX])
        unowned = f"{len(self._unowned)} partitions have no copier in group {self.group_id}, such as {named}"
        stopped = self._parts.deletions_stopped() if self._parts.guard.admitted.is_set() else None
        left = [
            f"topic {name} is in the tier, and copied no more; nothing of it is deleted: {reason or NOT_OF_ONE_MIND}"
            for name, reason in self.topics.left.items()
            if reason is not None or name in self.left_to_group()
        ]
        return {
            TroubleId.TOPIC_NOT_COPIED: [
                f"topic {name} is not copied: {reason}" for name, reason in self.topics.refused.items()
            ],
            TroubleId.TOPIC_KEPT: left + ([] if self.topics.kept is None else [self.topics.kept]),
            TroubleId.COPYING_IN_TROUBLE: [] if self._trouble is None else [self._trouble],
            TroubleId.COPY_GROUP_TROUBLE: [] if membership is None else [f"group {self.group_id}: {membership}"],
            TroubleId.COPY_UNOWNED: [unowned] if self._unowned else [],
            TroubleId.DELETIONS_STOPPED: [] if stopped is None else [f"nothing is deleted from the tier: {stopped}"],
        }

    def progress(self) -> Sequence[PartitionProgress]:
        """Return how far this process's partitions are."""
        return [] if self.copier is None else self.copier.progress()

    def gone(self) -> Sequence[PartitionProgress]:
        """Partitions whose topics are gone, and that wait to be deleted."""
        return [] if self.copier is None else self.copier.gone()

    def assigned(self) -> list[TopicIdPartition]:
        """The partitions that this process has now."""
        return [] if self._membership is None else self._membership.owned()

    def partitions(self) -> set[Partition]:
        """Those that the group is to share."""
        return self.topics.partitions(self._taken_part_for())

    def left_to_group(self) -> list[str]:
        """Return the topics that are copied no more and could be deleted from, if all of the group named the same."""
        return [] if self._is_of_one_mind else [*self.topics.held()]

    def _taken_part_for(self) -> dict[str, Uuid]:
        return self.topics.copied() | (self.topics.held() if self._is_of_one_mind else {})

    async def run(self) -> None:
        """Copy until `aclose`, or for ever; called again after a fault, it begins from nothing.

        Raises:
            MembershipError: this librdkafka cannot be used.
            Exception: a fault of ours.
        """
        if self._stop_asked.is_set():
            return
        self._ended = trio.Event()
        try:
            await self._copy()
        except* MembershipError:
            raise
        except* Exception as group:
            reasons = ", ".join(map(repr, group.exceptions))
            self._note_trouble(f"copying has ended by a fault, and begins again soon: {reasons}")
            raise
        finally:
            self._ended.set()

    async def aclose(self) -> None:
        """Let go of everything and leave the group; returns when that is done."""
        self._stop_asked.set()
        await self._ended.wait()

    def note_ended(self, reason: str) -> None:
        """It has ended for good, which is shown from now on."""
        self._trouble = f"copying has ended, and begins again with the next start: {reason}"

    async def _copy(self) -> None:
        """From nothing until `aclose`, or a fault."""
        publisher: MetadataPublisher | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._cancel_when_asked, nursery.cancel_scope)
                await self._prepare()
                publisher = MetadataPublisher(self._parts.metadata_properties, topic=METADATA_TOPIC)
                self.copier = self._make_copier(publisher.publish, self.topics)
                # Not beside the group's thread, which would wait for one that has failed.
                await nursery.start(self.copier.run)
                await self._take_part(self.copier, nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.copier = self._membership = None
            if publisher is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(publisher.close)
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def _cancel_when_asked(self, scope: trio.CancelScope) -> None:
        """Until the group is joined an end needs no order; then `_take_part` sees to it."""
        await self._stop_asked.wait()
        if self._membership is None:
            scope.cancel()
        else:
            self._membership.stop()

    # --- before it copies ---

    async def _prepare(self) -> None:
        """Return when the staging folder is ours, the metadata topic is safe, and topics were looked at."""
        await self._until_done(self._lock_staging)
        await self._until_done(self._ensure_metadata_topic)
        await self._parts.guard.admitted.wait()
        await self._until_done(self._look)

    async def _lock_staging(self) -> None:
        path = self._parts.settings.staging_path
        assert path is not None, "checked before anything is copied"
        self._lock = await trio.to_thread.run_sync(lock_staging, path)

    async def _ensure_metadata_topic(self) -> None:
        parts = self._parts
        await parts.metadata_cluster.refresh()
        [topic] = await parts.metadata_cluster.learn_topics([METADATA_TOPIC])
        if topic.error_code == 0:
            return
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise RemoteStorageError(f"Metadata says of {METADATA_TOPIC}: {code_name(topic.error_code)}")
        make = partial(
            create_metadata_topic,
            parts.metadata_properties,
            parts.metadata_topic,
            topic=METADATA_TOPIC,
            broker_count=len(parts.metadata_cluster.brokers),
        )
        await trio.to_thread.run_sync(make)

    async def _until_done(self, step: Callable[[], Awaitable[object]]) -> None:
        backoff = Backoff()
        while True:
            try:
                await step()
            except (UpstreamError, RemoteStorageError) as error:
                self._note_trouble(f"nothing is copied yet: {error}")
            else:
                self._note_trouble(None)
                return
            await trio.sleep(backoff.next_delay_s())

    # --- while it copies ---

    async def _take_part(self, copier: Copier, nursery: trio.Nursery) -> None:
        parts = self._parts
        listener = _Listener(copier, nursery, trio.lowlevel.current_trio_token())
        properties = {**parts.properties, "client.id": self._wanted.mark(str(parts.properties["client.id"]))}
        membership = self._membership = Membership(
            properties,
            parts.settings.group_id,
            on_assigned=listener.assigned,
            on_revoked=listener.revoked,
            on_lost=listener.lost,
            refresh_ms=parts.settings.interval_ms,
        )
        membership.subscribe(self._taken_part_for())
        copier.follow_gone(self._gone)
        nursery.start_soon(self._follow_topics, copier, membership)
        nursery.start_soon(_stop_when_cancelled, membership)
        if self._stop_asked.is_set():
            membership.stop()
        self.joined.set()
        await trio.to_thread.run_sync(membership.run, limiter=trio.CapacityLimiter(1))

    async def _follow_topics(self, copier: Copier, membership: Membership) -> None:
        while True:
            interval_s = self._parts.settings.interval_ms / 1000
            await trio.sleep(min(interval_s, GROUP_LOOK_S_MAX) if self.left_to_group() else interval_s)
            try:
                await self._look()
            except UpstreamError as error:
                self._note_trouble(f"topics are as they were seen last: {error}")
                continue
            self._note_trouble(None)
            membership.subscribe(self._taken_part_for())
            copier.follow_gone(self._gone)

    async def _look(self) -> None:
        await self._parts.clock.look()
        self._gone = await self.topics.look()
        await self._look_at_group()

    async def _look_at_group(self) -> None:
        """Learn whether all of it are to copy the same, and what nobody in it has at two looks in a row. A group
        that is not described has what we have ourselves."""
        assigned = {(each.topic, each.partition) for each in self.assigned()}
        try:
            members = await self._group.members()
        except UpstreamError as error:
            _log.debug("copy_group_not_described", group=self.group_id, reason=str(error))
        else:
            if members is None:
                return  # partitions are being dealt out
            self._is_of_one_mind = all(self._wanted.marks(member.client_id) for member in members)
            assigned = {each for member in members for each in member.partitions}
        if self._membership is None:
            return
        missing = frozenset(self.topics.partitions(self.topics.copied()) - assigned)
        self._unowned, self._missing = missing & self._missing, missing
        self._parts.meter.on_unowned(len(self._unowned))

    def _note_trouble(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            _log.warning("copying_in_trouble", reason=trouble)
        elif trouble is None and self._trouble is not None:
            _log.info("copying_goes_on")
        self._trouble = trouble


class _Listener:
    """What the membership tells, from its thread into trio."""

    def __init__(self, copier: Copier, nursery: trio.Nursery, token: trio.lowlevel.TrioToken) -> None:
        self._copier, self._nursery, self._token = copier, nursery, token

    def assigned(self, partitions: Sequence[TopicIdPartition], generation: int) -> None:
        _log.info("copy_partitions_assigned", partitions=len(partitions), generation=generation)
        trio.from_thread.run(self._copier.assign, partitions, generation, trio_token=self._token)

    def revoked(self, partitions: Sequence[TopicIdPartition]) -> None:
        trio.from_thread.run(self._let_go, partitions, trio_token=self._token)
        _log.info("copy_partitions_revoked", partitions=len(partitions))

    def lost(self, partitions: Sequence[TopicIdPartition]) -> None:
        trio.from_thread.run_sync(self._nursery.start_soon, self._let_go, partitions, trio_token=self._token)

    async def _let_go(self, partitions: Sequence[TopicIdPartition]) -> None:
        with trio.move_on_after(LET_GO_S_MAX) as limit:
            await self._copier.revoke(partitions)
        if limit.cancelled_caught:
            _log.warning("copy_partitions_not_let_go", partitions=len(partitions), waited_s=LET_GO_S_MAX)


def lock_staging(path: Path) -> int:
    """Lock the folder for this process alone; the descriptor holds it until it is closed, however that comes about.

    Raises:
        RetriableRemoteStorageError: another process has it, or it cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / "lock", os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RetriableRemoteStorageError(f"copy.staging.path {path} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RetriableRemoteStorageError(
            f"copy.staging.path {path} is in use by another process: name a folder for each copier"
        ) from error
    return descriptor


async def _stop_when_cancelled(membership: Membership) -> None:
    try:
        await trio.sleep_forever()
    finally:
        membership.stop()
