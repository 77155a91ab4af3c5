"""The broker is the way out (docs/protocol.md#l2): what the tier fails to read is read by the broker, a little at a
time.

A broker that runs remote storage can read every offset that Tidegate reads. So when a read fails for a reason of ours
or of the store, its partition goes to the broker, and comes back to the tier when that works again.

Rule 1. A fault that will not pass by itself opens a spell for its reason: the partition is not read from the tier while
        it lasts. So does an offset that was asked for three times and `expert.fallback.after.ms`, and of which no byte
        came. Faults that may pass (a reset, a store that throttles) do not: the broker reads the same bucket.
Rule 2. When a spell's time is up, one of its partitions tries the tier. If that works, all are free; if not, the spell
        lasts longer, up to SPELL_S_MAX. A partition that was never in trouble is in no spell: what is cached is served.
        The broker's word comes first: a client that may not read a partition does not use up its try.
Rule 3. At most `fallback.partitions.max` partitions are read by one broker at a time, or an outage of the store would
        become one of the brokers. The others get a retriable error (9), and not at once (`comes_again_s`).
        What no broker can read (`proxy.tier_owner`) comes again, in a spell too.
Rule 4. Where the reason is damage, what the broker reads is looked at as the tier's batches are: it may be of the same
        object. Whole batches are served; a bad one is answered CORRUPT_MESSAGE.
Rule 5. One log line when a spell begins and one when it ends; metrics and /readyz say why, and how much.
Rule 6. What we may not describe never comes to a read of the tier, and nobody need ask for it: a spell that somebody
        else begins and ends (`leave_undescribed`), and in which nothing is tried.
"""

import enum
import math
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import structlog
import trio

from metrics.meters import FallbackMeter, FallbackReason
from protocol.client.errors import UpstreamError
from protocol.wire.errors import ErrorCode
from proxy.connection.client_reads import Patience
from storage.errors import (
    CorruptObjectError,
    IcebergSegmentError,
    MetadataNotReadyError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)
from storage.model import TopicIdPartition

COME_AGAIN = ErrorCode.REPLICA_NOT_AVAILABLE
"""What clients get for a fault of the tier: they ask for metadata and try again. Never OFFSET_OUT_OF_RANGE, on which
they would jump, and not UNKNOWN_SERVER_ERROR, which some of them report to their user."""

COME_AGAIN_S_MIN = 0.5
COME_AGAIN_S_MAX = 30.0
"""A client that gets a retriable error was held so long at least: else it would come 200 times a second. Beyond the
minimum as long as it offers to wait (`max_wait_ms`), as a broker without records would hold it."""

SPELL_S_MIN = 10.0
SPELL_S_MAX = 60.0
"""How long the tier is left alone: doubled each time that it fails again."""

SPELL_IDLE_S_MAX = 120.0
"""A spell whose partitions nobody has asked for so long is over: nobody would try the tier."""

SPELL_PARTITIONS_MAX = 100_000
"""Partitions in spells; one more is not remembered, and tries the tier each time."""

TOLD_MAX = 1000
"""Damaged batches of a spell whose names are remembered; one more is named each time."""

EXAMPLES_MAX = 5
"""Partitions of a spell that are named."""

_REASONS: tuple[tuple[type[Exception], FallbackReason | None], ...] = (
    (StalledTransferError, FallbackReason.STALLED),
    (RetriableRemoteStorageError, None),
    (MetadataNotReadyError, None),
    (UpstreamError, FallbackReason.IDENTITY),
    (RemoteAccessDeniedError, FallbackReason.DENIED),
    (IcebergSegmentError, FallbackReason.ICEBERG),
    (RemoteResourceNotFoundError, FallbackReason.NOT_FOUND),
    (CorruptObjectError, FallbackReason.CORRUPT),
)

_log = structlog.get_logger(__name__)


def reason_of(fault: Exception) -> FallbackReason | None:
    """Why a fault sends its partition to the broker; None if it may pass by itself. What is not named in the table is
    a fault of ours."""
    for kind, reason in _REASONS:
        if isinstance(fault, kind):
            return reason
    return FallbackReason.FAULT


def comes_again_s(started_s: float, max_wait_ms: int) -> float:
    """Return when a request that began at `started_s` may get a retriable error, by the same clock (rule 3)."""
    return started_s + max(COME_AGAIN_S_MIN, min(max_wait_ms / 1000, COME_AGAIN_S_MAX))


class Way(enum.Enum):
    """What becomes of a partition after its read."""

    TIER = "tier"
    """What the tier gave is its answer, nothing yet included."""
    BROKER = "broker"
    """The broker is to read it."""
    LATER = "later"
    """Neither: the client is to come again."""


@dataclass(slots=True)
class FallbackSettings:
    """`after_s`: `expert.fallback.after.ms`, in seconds. One for all connections; a reload changes it."""

    after_s: float
    partitions_max: int


@dataclass(frozen=True, slots=True)
class SpellView:
    """A spell for people; `examples` are some of its partitions."""

    reason: FallbackReason
    detail: str
    partitions: int
    since_s: float
    examples: tuple[TopicIdPartition, ...]


@dataclass(slots=True)
class _Spell:
    reason: FallbackReason
    detail: str
    opened_s: float
    until_s: float
    asked_s: float
    length_s: float
    partitions: set[TopicIdPartition] = field(default_factory=set)
    trial: TopicIdPartition | None = None
    """The partition that tries the tier, and has not yet been heard of."""
    failed_last: TopicIdPartition | None = None
    told: set[tuple[TopicIdPartition, int]] = field(default_factory=set)
    """Batches that are damaged at the broker, too, and were named in the log."""


class Fallback:
    """All spells, and what brokers read at the moment. One for the process; owned by the trio thread.

    Args:
        left_to: what becomes of reads that the tier fails, for people.
    """

    def __init__(self, settings: FallbackSettings, meter: FallbackMeter, *, left_to: str) -> None:
        self.settings = settings
        self._left_to = left_to
        self._meter = meter
        self._spells: dict[FallbackReason, _Spell] = {}
        self._spell_of: dict[TopicIdPartition, _Spell] = {}
        self._reading: Counter[int] = Counter()

    def is_in_spell(self, partition: TopicIdPartition) -> bool:
        """Return whether the tier failed the partition recently; says nothing of whether it is to try again."""
        return bool(self._spell_of) and partition in self._spell_of

    def reason_of(self, partition: TopicIdPartition) -> FallbackReason | None:
        """Why the broker reads the partition, if it does. May be asked from any thread."""
        spell, undescribed = self._spell_of.get(partition), self._spells.get(FallbackReason.NOT_DESCRIBED)
        if spell is None and undescribed is not None and partition in undescribed.partitions:
            spell = undescribed
        return None if spell is None else spell.reason

    def leave_undescribed(self, partitions: Collection[TopicIdPartition], detail: str) -> None:
        """These of the catalog's partitions are of topics that we may not describe; `detail`: and what to do."""
        reason = FallbackReason.NOT_DESCRIBED
        spell = self._spells.get(reason)
        if not partitions:
            if spell is not None:
                self._end(spell, "we may describe their topics")
            return
        if spell is None:
            spell = self._begin(reason, detail, partition=str(next(iter(partitions))))
        spell.partitions, spell.detail, spell.asked_s = set(partitions), detail, math.inf
        self._meter.on_spell(reason, len(partitions))

    def spells(self) -> list[SpellView]:
        """All spells as they are; what `complaints` says in words."""
        return [
            SpellView(
                spell.reason,
                spell.detail,
                len(spell.partitions),
                trio.current_time() - spell.opened_s,
                tuple(islice(spell.partitions, EXAMPLES_MAX)),
            )
            for spell in self._spells.values()
        ]

    def reads_tier(self, partition: TopicIdPartition) -> bool:
        """Return whether a partition is to be read from the tier: it is in no spell, or it is the one to try (rule 2).

        Asked once for each read that the broker has vouched for: the answer makes it the one that tries.
        """
        spell = self._spell_of.get(partition)
        if spell is None:
            return True
        now = spell.asked_s = trio.current_time()
        # Another one first, if another is asked for: this one may fail for a reason that is its own.
        earliest_s = spell.until_s + (SPELL_S_MIN if partition == spell.failed_last else 0.0)
        if now < (earliest_s if len(spell.partitions) > 1 else spell.until_s):
            return False
        spell.trial, spell.until_s = partition, now + SPELL_S_MIN
        return True

    def judge(
        self, partition: TopicIdPartition, offset: int, fault: Exception | None, *, patience: Patience, started_s: float
    ) -> Way:
        """Return what becomes of a read of `offset`, by a request that began at `started_s`, that brought no byte in
        time.

        Args:
            fault: None if it was only late.
        """
        reason = None if fault is None else reason_of(fault)
        if reason is None:
            if isinstance(fault, ThrottledError):
                return Way.LATER
            if not patience.is_over(partition, offset, started_s, self.settings.after_s):
                return Way.TIER if fault is None else Way.LATER
            reason = FallbackReason.LATE
        after_ms = round(self.settings.after_s * 1000)
        self.failed(partition, offset, reason, str(fault) if fault is not None else f"no byte within {after_ms} ms")
        return Way.BROKER

    def failed(self, partition: TopicIdPartition, offset: int, reason: FallbackReason, detail: str) -> None:
        """A read failed for a reason of ours or of the store: its partition is the broker's for now."""
        now = trio.current_time()
        spell = self._spells.get(reason)
        if spell is None:
            spell = self._begin(reason, detail, partition=str(partition), offset=offset)
        elif spell.trial == partition:
            spell.trial, spell.failed_last, spell.detail = None, partition, detail
            spell.length_s = min(2 * spell.length_s, SPELL_S_MAX)
            spell.until_s = now + spell.length_s
        before = self._spell_of.get(partition)
        if before is not spell and before is not None:
            self._leave(before, partition)
        if before is not None or len(self._spell_of) < SPELL_PARTITIONS_MAX:
            spell.partitions.add(partition)
            self._spell_of[partition] = spell
        self._meter.on_spell(reason, len(spell.partitions))

    def served(self, partition: TopicIdPartition) -> None:
        """The tier gave records of it."""
        if self._spell_of and (spell := self._spell_of.get(partition)) is not None:
            self._end(spell, "the tier works again")

    @contextmanager
    def at_broker(self, node_id: int, partitions: int) -> Iterator[int]:
        """Ask for so many partitions to be read by that broker; yield how many may be, while the block lasts (rule
        3)."""
        granted = max(0, min(partitions, self.settings.partitions_max - self._reading[node_id]))
        self._reading[node_id] += granted
        self._meter.on_refused(partitions - granted)
        try:
            yield granted
        finally:
            self._reading[node_id] -= granted
            if not self._reading[node_id]:
                del self._reading[node_id]

    def refuse(self, partitions: int) -> None:
        """Count partitions that nobody can read just now."""
        self._meter.on_refused(partitions)

    def on_broker_read(self, partition: TopicIdPartition, records_bytes: int) -> None:
        """The broker has answered for a partition that it was given."""
        spell = self._spell_of.get(partition)
        self._meter.on_read(FallbackReason.LATE if spell is None else spell.reason, records_bytes)

    def on_corrupt(self, partition: TopicIdPartition, offset: int, reason: str, segment: str | None) -> None:
        """Note that what the broker has read is damaged, too (rule 4)."""
        self._meter.on_corrupt(partition.topic)
        spell = self._spell_of.get(partition)
        if spell is None or (partition, offset) not in spell.told:
            fields = {"partition": str(partition), "offset": offset, "reason": reason}
            _log.error("corrupt_at_broker", **fields, segment=segment)
        if spell is not None and len(spell.told) < TOLD_MAX:
            spell.told.add((partition, offset))

    def complaints(self) -> dict[FallbackReason, str]:
        """Return what an operator is to know of each spell; spells of which nobody wants anything end."""
        now = trio.current_time()
        for spell in [spell for spell in self._spells.values() if now - spell.asked_s > SPELL_IDLE_S_MAX]:
            self._end(spell, "nobody reads them")
        return {
            reason: f"tier reads of {len(spell.partitions)} partitions are {self._left_to} ({reason.value}) "
            f"for {now - spell.opened_s:.0f} s: {spell.detail}"
            for reason, spell in self._spells.items()
        }

    def _begin(self, reason: FallbackReason, detail: str, **example: object) -> _Spell:
        now = trio.current_time()
        spell = self._spells[reason] = _Spell(reason, detail, now, now + SPELL_S_MIN, now, SPELL_S_MIN)
        _log.warning("tier_fallback_begun", reason=reason.value, detail=detail, **example)
        return spell

    def _leave(self, spell: _Spell, partition: TopicIdPartition) -> None:
        spell.partitions.discard(partition)
        self._meter.on_spell(spell.reason, len(spell.partitions))
        if not spell.partitions:
            self._end(spell, "its partitions fail for another reason")

    def _end(self, spell: _Spell, why: str) -> None:
        del self._spells[spell.reason]
        for partition in spell.partitions:
            if self._spell_of.get(partition) is spell:
                del self._spell_of[partition]
        self._meter.on_spell(spell.reason, 0)
        _log.info(
            "tier_fallback_ended",
            reason=spell.reason.value,
            partitions=len(spell.partitions),
            seconds=round(trio.current_time() - spell.opened_s),
            why=why,
        )
