"""Questions that a broker and Tidegate must answer alike: what they are, how they are made from a seed, their frames.

A question is a function of (seed, number) and of the partitions, so any one can be asked again alone. Every kind of
place is aimed at: borders of segments, epochs and batches and one beside them, the log's ends, timestamps that are
there and one beside them, limits around a batch's size, leader epochs of the past and of the future.
"""

import bisect
import datetime
import itertools
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from tests.support.differential_known import KnownPartition
from tests.support.kio_frames import fill, request_frame, schema
from tests.support.raw_client import FETCH, LIST_OFFSETS

OFFSET_FOR_LEADER_EPOCH = 23
CLIENT_ID = "differential"

FETCH_WAIT_MS = 5000
"""Never waited for, as min_bytes is 0; Tidegate takes it as its own deadline."""

SHORT_WAIT_MS = 20
"""Where min_bytes is more than there is."""

TIMEOUT = datetime.timedelta(seconds=30)
MAX_BYTES = 50 * 1024 * 1024
FAR_OFFSETS = (-(2**63), -1000, -2, -1, 2**40, 2**62, 2**63 - 1)
SMALL_LIMITS = (-1, 0, 1, 60, 61, 62, 100, 500, 1000)
LARGE_BYTES_LOG2 = 20
LIST_TIMESTAMPS = (-1, -2, -3, -4, -5, -6)
FAR_TIMESTAMPS = (-(2**63), -7, 0, 1, 2**62, 2**63 - 1)

TOPIC_ID_VERSION_MIN = 13
NO_EPOCH = -1
ABSENT_TOPIC = ("differential-absent", bytes(range(16)))
ABSENT_PARTITION = 99

Versions = dict[int, tuple[int, int]]
"""Lowest and highest version that both sides announce, by api key."""

KINDS: Final = ("fetch of one", "fetch of several", "list offsets", "offset for leader epoch")


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """What a Fetch asks of one partition. `is_untiered`: all of it is in the local log."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    limit_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    is_untiered: bool = False


@dataclass(frozen=True, slots=True)
class FetchQuestion:
    """A Fetch without a session. `shares_budget`: tier and local log may have to share max_bytes."""

    number: int
    version: int
    targets: tuple[FetchTarget, ...]
    isolation: int = 0
    max_bytes: int = MAX_BYTES
    min_bytes: int = 0
    shares_budget: bool = False
    has_unknown_tags: bool = False
    api_key: ClassVar[int] = FETCH

    @property
    def kind(self) -> str:
        return KINDS[len(self.targets) > 1]


@dataclass(frozen=True, slots=True)
class OffsetsQuestion:
    """A ListOffsets for (topic, partition, timestamp)."""

    number: int
    version: int
    targets: tuple[tuple[str, int, int], ...]
    isolation: int = 0
    current_leader_epoch: int = NO_EPOCH
    has_unknown_tags: bool = False
    api_key: ClassVar[int] = LIST_OFFSETS
    kind: ClassVar[str] = KINDS[2]


@dataclass(frozen=True, slots=True)
class EpochQuestion:
    """An OffsetForLeaderEpoch for (topic, partition, leader epoch)."""

    number: int
    version: int
    targets: tuple[tuple[str, int, int], ...]
    current_leader_epoch: int = NO_EPOCH
    has_unknown_tags: bool = False
    api_key: ClassVar[int] = OFFSET_FOR_LEADER_EPOCH
    kind: ClassVar[str] = KINDS[3]


Question = FetchQuestion | OffsetsQuestion | EpochQuestion


class Questions:
    """The questions of one seed."""

    def __init__(self, seed: int, partitions: Sequence[KnownPartition], versions: Versions) -> None:
        self.seed = seed
        self._partitions = partitions
        self._versions = versions

    def openings(self) -> list[Question]:
        """One of each partition, before all others: a log start that Tidegate has never heard of is found out by a
        probe, and until then a partition below it is taken for the tier's when the budget is shared out."""
        return [
            FetchQuestion(
                -number,
                self._versions[FETCH][1],
                (FetchTarget(each.topic, each.topic_id, each.partition, each.offsets.log_start_offset, 1),),
                max_bytes=1,
            )
            for number, each in enumerate(self._partitions, start=1)
        ]

    def question(self, number: int) -> Question:
        """Mostly a Fetch of one partition, the rest Fetches of several, ListOffsets and OffsetForLeaderEpoch."""
        chance = random.Random(f"{self.seed}:{number}")
        kind = chance.random()
        if kind < 0.60:
            return self._fetch(chance, number, [chance.choice(self._partitions)])
        if kind < 0.74:
            count = chance.randrange(2, min(6, len(self._partitions)) + 1)
            return self._fetch(chance, number, chance.sample(self._partitions, count))
        if kind < 0.92:
            return self._offsets(chance, number)
        return self._epochs(chance, number)

    def _fetch(self, chance: random.Random, number: int, chosen: Sequence[KnownPartition]) -> FetchQuestion:
        version = chance.randint(*self._versions[FETCH])
        targets = [_target(chance, each) for each in chosen]
        isolation = chance.randrange(2)
        shares_budget = _shares_budget(isolation, chosen, targets)
        if chance.random() < 0.02:
            targets[0] = _absent(chance, targets[0])
        if chance.random() < 0.01:
            targets.append(targets[0])
        return FetchQuestion(
            number,
            version,
            tuple(targets),
            isolation,
            max_bytes=MAX_BYTES if chance.random() < 0.7 else _limit(chance, None),
            min_bytes=0 if chance.random() < 0.98 else chance.choice((1, 10_000_000)),
            shares_budget=shares_budget,
            has_unknown_tags=chance.random() < 0.05,
        )

    def _offsets(self, chance: random.Random, number: int) -> OffsetsQuestion:
        chosen = chance.sample(self._partitions, chance.randrange(1, 4))
        targets = [(each.topic, each.partition, _timestamp(chance, each)) for each in chosen]
        if chance.random() < 0.02:
            targets.append(
                chance.choice((targets[0], (ABSENT_TOPIC[0], 0, -1), (chosen[0].topic, ABSENT_PARTITION, 0)))
            )
        return OffsetsQuestion(
            number,
            chance.randint(*self._versions[LIST_OFFSETS]),
            tuple(targets),
            isolation=chance.randrange(2),
            current_leader_epoch=_current_leader_epoch(chance, chosen[0]),
            has_unknown_tags=chance.random() < 0.05,
        )

    def _epochs(self, chance: random.Random, number: int) -> EpochQuestion:
        chosen = chance.sample(self._partitions, chance.randrange(1, 4))
        return EpochQuestion(
            number,
            chance.randint(*self._versions[OFFSET_FOR_LEADER_EPOCH]),
            tuple((each.topic, each.partition, chance.randint(-2, each.leader_epoch + 2)) for each in chosen),
            _current_leader_epoch(chance, chosen[0]),
            has_unknown_tags=chance.random() < 0.05,
        )


# --- places ---


def _target(chance: random.Random, known: KnownPartition) -> FetchTarget:
    offset = _offset(chance, known)
    last_fetched = NO_EPOCH
    kind = chance.random()
    if kind < 0.15:
        last_fetched = known.epoch_of(offset - 1)
    elif kind < 0.25:
        last_fetched = chance.randint(0, known.leader_epoch + 1)
    return FetchTarget(
        known.topic,
        known.topic_id,
        known.partition,
        offset,
        _limit(chance, _bytes_at(known, offset)),
        _current_leader_epoch(chance, known),
        last_fetched,
        is_untiered=known.offsets.local_log_start_offset <= known.offsets.log_start_offset,
    )


def _absent(chance: random.Random, target: FetchTarget) -> FetchTarget:
    if chance.random() < 0.5:
        return FetchTarget(
            target.topic,
            target.topic_id,
            ABSENT_PARTITION,
            target.offset,
            target.limit_bytes,
            target.current_leader_epoch,
        )
    return FetchTarget(*ABSENT_TOPIC, 0, target.offset, target.limit_bytes)


def _shares_budget(isolation: int, chosen: Sequence[KnownPartition], targets: Sequence[FetchTarget]) -> bool:
    """Return whether some partitions may be the tier's and others the broker's. Aborts may make tiered ones the
    broker's, and so may a last fetched epoch: only the leader can say whether and where it diverges."""
    in_tier = is_brokers = False
    for known, target in zip(chosen, targets, strict=True):
        offsets = known.offsets
        in_tier |= offsets.log_start_offset <= target.offset < offsets.local_log_start_offset
        is_brokers |= isolation == 1 or target.last_fetched_epoch != NO_EPOCH
        is_brokers |= offsets.local_log_start_offset <= target.offset <= offsets.high_watermark
    return len(targets) > 1 and in_tier and is_brokers


def _offset(chance: random.Random, known: KnownPartition) -> int:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(known.borders) + chance.randint(-2, 2)
    if kind < 0.40:
        return chance.choice((*FAR_OFFSETS, known.offsets.high_watermark + chance.randrange(1000)))
    if kind < 0.60 and known.batches:
        batch = chance.choice(known.batches)
        return chance.choice((batch.base_offset, batch.last_offset)) + chance.randint(-1, 1)
    return chance.randrange(max(known.offsets.high_watermark, 1))


def _bytes_at(known: KnownPartition, offset: int) -> tuple[int, int] | None:
    """Sizes of the batch that holds `offset` and of it with the next one."""
    at = bisect.bisect_right(known.batches, offset, key=lambda batch: batch.base_offset) - 1
    if at < 0:
        return None
    first = known.batches[at].size_bytes
    return first, first + (known.batches[at + 1].size_bytes if at + 1 < len(known.batches) else 0)


def _limit(chance: random.Random, batch_bytes: tuple[int, int] | None) -> int:
    kind = chance.random()
    if kind < 0.12:
        return chance.choice(SMALL_LIMITS)
    if kind < 0.32 and batch_bytes is not None:
        return chance.choice(batch_bytes) + chance.randint(-1, 1)
    return int(2 ** chance.uniform(5, LARGE_BYTES_LOG2))


def _current_leader_epoch(chance: random.Random, known: KnownPartition) -> int:
    kind = chance.random()
    if kind < 0.80:
        return NO_EPOCH
    return known.leader_epoch if kind < 0.90 else chance.randint(-2, known.leader_epoch + 2)


def _timestamp(chance: random.Random, known: KnownPartition) -> int:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(LIST_TIMESTAMPS)
    if kind < 0.40 or not known.batches:
        return chance.choice(FAR_TIMESTAMPS)
    if kind < 0.50:
        first = min(known.batches, key=lambda batch: batch.base_timestamp_ms)
        last = max(known.batches, key=lambda batch: batch.max_timestamp_ms)
        return chance.choice((first.base_timestamp_ms, last.max_timestamp_ms)) + chance.randint(-1, 1)
    controls = [each for each in known.batches if each.is_control] if kind < 0.60 else []
    batch = chance.choice(controls or known.batches)
    if kind < 0.85:
        return chance.choice((batch.base_timestamp_ms, batch.max_timestamp_ms)) + chance.randint(-1, 1)
    low, high = sorted((batch.base_timestamp_ms, batch.max_timestamp_ms))
    return chance.randint(low, high)


# --- frames ---


def frame_of(question: Question) -> bytes:
    """The question as a whole request frame; its number is the correlation id."""
    request_type = schema(question.api_key, question.version, kind="request", unknown_tag=question.has_unknown_tags)
    message = fill(request_type, _values_of(question))
    return request_frame(message, question.number, CLIENT_ID, unknown_tag=question.has_unknown_tags)


def _values_of(question: Question) -> dict[str, object]:
    if isinstance(question, FetchQuestion):
        return _fetch_values(question)
    current = {"current_leader_epoch": question.current_leader_epoch}
    topics: list[dict[str, object]]
    match question:
        case OffsetsQuestion():
            topics = [
                {"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp, **current}]}
                for topic, partition, timestamp in question.targets
            ]
            isolation = question.isolation
            return {"replica_id": -1, "isolation_level": isolation, "topics": topics, "timeout": TIMEOUT}
        case EpochQuestion():
            topics = [
                {"topic": topic, "partitions": [{"partition": partition, "leader_epoch": leader_epoch, **current}]}
                for topic, partition, leader_epoch in question.targets
            ]
            return {"replica_id": -1, "topics": topics}


def _fetch_values(question: FetchQuestion) -> dict[str, object]:
    topics = [
        {
            "topic": topic,
            "topic_id": uuid.UUID(bytes=topic_id) if any(topic_id) else None,
            "partitions": [_partition_values(target) for target in group],
        }
        for (topic, topic_id), group in itertools.groupby(
            question.targets, key=lambda each: (each.topic, each.topic_id)
        )
    ]
    wait_ms = SHORT_WAIT_MS if question.min_bytes else FETCH_WAIT_MS
    return {
        "cluster_id": None,
        "replica_id": -1,
        "replica_state": {"replica_id": -1, "replica_epoch": -1},
        "max_wait": datetime.timedelta(milliseconds=wait_ms),
        "min_bytes": question.min_bytes,
        "max_bytes": question.max_bytes,
        "isolation_level": question.isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _partition_values(target: FetchTarget) -> dict[str, object]:
    return {
        "partition": target.partition,
        "current_leader_epoch": target.current_leader_epoch,
        "fetch_offset": target.offset,
        "last_fetched_epoch": target.last_fetched_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": target.limit_bytes,
        "replica_directory_id": None,
        "high_watermark": 2**63 - 1,
    }
