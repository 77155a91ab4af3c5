"""What `tidegate diff` asks, and when two answers are the same (docs/tools.md#diff). No I/O.

Both sides are asked as a consumer, of the partition's leader, sessionless, one partition a request. Equal must be the
error code, log start offset, high watermark, last stable offset, every record byte, and the aborted transactions as a
set; of ListOffsets error code, offset, timestamp and leader epoch.

A cluster that is in use moves meanwhile. So where the answers differ, the broker is asked once more: what it says
before and after Tidegate's answer are bounds. Offsets only grow, and must lie between the two, as records do at the
log's end; anything else must be one of the two. What still differs is asked all over again a few times, since either
side may answer empty when the store is slow, and segments go from one place to the other.

A batch whose CRC does not hold is reported as well: equal bytes may be equally wrong.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.client.offset_questions import OffsetAnswer
from protocol.fetch.messages import PartitionAnswer
from protocol.list_offsets import OffsetTimestamp
from protocol.record_batches import Buffer, CorruptBatchError, check_crc, iterate_batches, slice_rope
from protocol.wire.errors import ErrorCode
from protocol.wire.identifiers import IsolationLevel
from storage.model import TopicIdPartition

BEYOND = 1_000_000_000
"""Offsets behind the end, where no broker will be soon."""

_OTHER_BYTE = "records: byte "

OFFSET_FIELDS = ("log_start_offset", "high_watermark", "last_stable_offset")

SPECIAL_TIMESTAMPS = (
    OffsetTimestamp.EARLIEST,
    OffsetTimestamp.LATEST,
    OffsetTimestamp.EARLIEST_LOCAL,
    OffsetTimestamp.LATEST_TIERED,
)


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """What is asked for in a segment: offsets inclusive, milliseconds since the epoch."""

    start_offset: int
    end_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SampledPartition:
    """A partition, where its broker says that its logs begin and end, and the segments that are looked into."""

    partition: TopicIdPartition
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    segments: tuple[SegmentRange, ...]

    def in_tier(self, segment: SegmentRange) -> bool:
        """Return whether clients can read all of the segment from the tier alone."""
        return self.log_start_offset <= segment.start_offset and segment.end_offset < self.local_log_start_offset


@dataclass(frozen=True, slots=True)
class Asked:
    """One question. Either `fetch_offset` or `timestamp` is None. `place`: in words.

    `is_remote`: the broker will read from its tier for the answer.
    """

    number: int
    partition: TopicIdPartition
    place: str
    isolation_level: int
    fetch_offset: int | None = None
    timestamp: int | None = None
    is_remote: bool = False

    def __str__(self) -> str:
        name = f"{self.partition.topic}-{self.partition.partition}"
        if self.fetch_offset is not None:
            committed = ", read_committed" if self.isolation_level == IsolationLevel.READ_COMMITTED else ""
            return f"{name}: Fetch at {self.fetch_offset} ({self.place}{committed})"
        return f"{name}: ListOffsets of {self.timestamp} ({self.place})"


def choose(
    segments: Mapping[TopicIdPartition, Sequence[SegmentRange]], samples: int, chance: random.Random
) -> dict[TopicIdPartition, list[SegmentRange]]:
    """Some segments of some partitions, `samples` in all unless there are fewer: each partition gives one before any
    gives two."""
    partitions = list(segments)
    chance.shuffle(partitions)
    pools = {partition: chance.sample(segments[partition], len(segments[partition])) for partition in partitions}
    chosen: dict[TopicIdPartition, list[SegmentRange]] = {}
    while samples > 0 and any(pools.values()):
        for partition, pool in pools.items():
            if pool and samples > 0:
                chosen.setdefault(partition, []).append(pool.pop())
                samples -= 1
    return chosen


def questions(sampled: Sequence[SampledPartition], chance: random.Random) -> list[Asked]:
    """Return for each partition its edges and its special offsets, for each of its segments both ends, a place between,
    and look-ups by time."""
    found: list[Asked] = []
    for known in sampled:
        for place, fetch_offset, timestamp, is_remote in (*_edges(known), *_inside(known, chance)):
            isolation = chance.choice((IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED))
            found.append(Asked(len(found), known.partition, place, isolation, fetch_offset, timestamp, is_remote))
    return found


_Wish = tuple[str, int | None, int | None, bool]
"""Place, fetch offset, timestamp, whether the broker reads from its tier for it."""


def _edges(known: SampledPartition) -> Iterator[_Wish]:
    in_tier = known.log_start_offset < known.local_log_start_offset
    yield "log start", known.log_start_offset, None, in_tier
    if known.log_start_offset > 0:
        yield "below the log start", known.log_start_offset - 1, None, False
    if in_tier:
        yield "last offset below the local log", known.local_log_start_offset - 1, None, True
    yield "local log start", known.local_log_start_offset, None, False
    yield "high watermark", known.high_watermark, None, False
    yield "beyond the end", known.high_watermark + BEYOND, None, False
    for special in SPECIAL_TIMESTAMPS:
        yield special.name.lower().replace("_", " "), None, int(special), False


def _inside(known: SampledPartition, chance: random.Random) -> Iterator[_Wish]:
    for segment in filter(known.in_tier, known.segments):
        yield "segment start", segment.start_offset, None, True
        yield "in a segment", chance.randint(segment.start_offset, segment.end_offset), None, True
        yield "segment end", segment.end_offset, None, True
        if segment.max_timestamp_ms >= 0:
            yield "newest time of a segment", None, segment.max_timestamp_ms, True
            yield "a time before it", None, max(0, segment.max_timestamp_ms - chance.randint(1, 60_000)), True


Answer = PartitionAnswer | OffsetAnswer


def differences(brokers: Sequence[Answer], ours: Answer) -> list[str]:
    """Return what Tidegate's answer has that none of the broker's explains, a sentence each.

    Args:
        brokers: one, or those from before and after Tidegate's.
    """
    codes = [each.error_code for each in brokers]
    if ours.error_code not in codes:
        return [f"error code: {_either(codes)} from the broker, {ours.error_code} from Tidegate"]
    if isinstance(ours, OffsetAnswer):
        return _offset_differences([each for each in brokers if isinstance(each, OffsetAnswer)], ours)
    fetched = [each for each in brokers if isinstance(each, PartitionAnswer)]
    found = [complaint for name in OFFSET_FIELDS if (complaint := _between(name, fetched, ours)) is not None]
    records = b"".join(ours.records)
    same = [each for each in fetched if b"".join(each.records) == records]
    if not same:
        before, after = (b"".join(each.records) for each in (fetched[0], fetched[-1]))
        has_grown = records.startswith(before) and after.startswith(records)
        return found if has_grown else [*found, _where_records_differ(fetched[-1], ours)]
    if not any(_aborts(each) == _aborts(ours) for each in same):
        found.append(f"aborted transactions: {_aborts(same[-1])} from the broker, {_aborts(ours)} from Tidegate")
    return found


def has_other_bytes(found: Iterable[str]) -> bool:
    """Return whether one of these differences is of a record's bytes: not that one side has more or fewer of them."""
    return any(each.startswith(_OTHER_BYTE) for each in found)


def is_settled(brokers: Sequence[Answer], ours: Answer) -> bool:
    """False: one side had nothing to say yet, so that another try may bring something else."""
    for each in (*brokers, ours):
        if each.error_code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REPLICA_NOT_AVAILABLE):
            return False
    sizes = {each.records_bytes > 0 for each in (*brokers, ours) if isinstance(each, PartitionAnswer)}
    return len(sizes) < 2


def corrupt_batches(answer: Answer) -> list[str]:
    """Whole batches that are none, or whose CRC does not hold."""
    if not isinstance(answer, PartitionAnswer):
        return []
    found = []
    try:
        for position, header in iterate_batches(answer.records):
            if not check_crc(slice_rope(answer.records, position, position + header.size_bytes)):
                found.append(f"the CRC of the batch at offset {header.base_offset} does not hold")
    except CorruptBatchError as error:
        found.append(str(error))
    return found


@dataclass(slots=True)
class Tally:
    """What came of all questions."""

    questions: int = 0
    with_records: int = 0
    record_bytes: int = 0
    remote_reads: int = 0
    asked_again: int = 0
    not_asked: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    """By error code that both sides gave."""
    left_out: list[str] = field(default_factory=list)
    """Partitions of the sample that the brokers do not tell of."""
    differences: list[tuple[Asked, list[str]]] = field(default_factory=list)
    corrupt: list[tuple[Asked, list[str]]] = field(default_factory=list)
    undecided: list[tuple[Asked, str]] = field(default_factory=list)


def _offset_differences(brokers: Sequence[OffsetAnswer], ours: OffsetAnswer) -> list[str]:
    offsets = [each.offset for each in brokers]
    if not min(offsets) <= ours.offset <= max(offsets):
        return [f"offset: {_either(offsets)} from the broker, {ours.offset} from Tidegate"]
    found = []
    for name in ("timestamp_ms", "leader_epoch"):
        theirs = [getattr(each, name) for each in brokers]
        if getattr(ours, name) not in theirs:
            found.append(f"{name}: {_either(theirs)} from the broker, {getattr(ours, name)} from Tidegate")
    return found


def _between(name: str, brokers: Sequence[PartitionAnswer], ours: PartitionAnswer) -> str | None:
    bounds, value = [getattr(each, name) for each in brokers], getattr(ours, name)
    if min(bounds) <= value <= max(bounds):
        return None
    return f"{name}: {_either(bounds)} from the broker, {value} from Tidegate"


def _either(values: Iterable[int]) -> str:
    return " and then ".join(map(str, dict.fromkeys(values)))


def _aborts(answer: PartitionAnswer) -> list[tuple[int, int]]:
    return sorted(answer.aborted_transactions or ())


def _where_records_differ(theirs: PartitionAnswer, ours: PartitionAnswer) -> str:
    broker, tidegate = b"".join(theirs.records), b"".join(ours.records)
    sizes = f"{len(broker)} bytes from the broker, {len(tidegate)} from Tidegate"
    first = next((at for at, pair in enumerate(zip(broker, tidegate, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        return f"records: {sizes}, equal as far as the shorter goes"
    return f"{_OTHER_BYTE}{first}{_batch_at([broker], first)} is another; {sizes}"


def _batch_at(records: Sequence[Buffer], position: int) -> str:
    try:
        for start, header in iterate_batches(records):
            if start <= position < start + header.size_bytes:
                return f" (in the batch at offset {header.base_offset})"
    except CorruptBatchError:
        return " (in what the broker's answer has in place of a batch)"
    return " (in a batch that the limit has cut)"
