"""Questions that a broker and Tidegate must answer alike: made from a seed, asked of both, answers compared.

A question is a function of (seed, number) and of the topics, so any one can be asked again alone. Both sides get the
same bytes. Several connections to each side have one question each under way.

What must be equal: error codes, high watermark, last stable offset, log start, preferred replica, the aborted
transactions as a set, and every record byte. Two differences are Kafka's own freedom:

- A Fetch over several partitions shares out its max_bytes, and the broker and Tidegate may do so in another order
  (design L3): then one answer's bytes are a prefix of the other's, and only where the limits can explain it.
- A read from the tier that takes longer than `remote.fetch.max.wait.ms` is answered empty, and a broker may say
  REQUEST_TIMED_OUT to a time look-up (now and then at once: its future and its purgatory race). Only if the answers
  took that long, or were that, the question is asked again; such questions are counted.
"""

import datetime
import hashlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import ErrorCode
from protocol.record_batches import HEADER_BYTES, read_header
from tests.support.differential_topics import FIRST_TIMESTAMP_MS, KnownPartition
from tests.support.kio_frames import fill, schema
from tests.support.raw_client import (
    FETCH,
    LIST_OFFSETS,
    FetchedPartition,
    FetchTarget,
    RawClient,
    decode_frame,
    fetch_request,
    fetch_result,
)

LANES = 8
LATE_S = 0.4
"""Below the 0.5 s after which either side may give up a read from the tier."""

ASKED_AGAIN_MAX = 5
FETCH_WAIT_MS = 5000
"""Never waited for, as min_bytes is 0; Tidegate takes it as its own deadline."""

TIMEOUT = datetime.timedelta(seconds=30)
LIST_TIMESTAMPS = (-1, -2, -3, -4, -5, -6)
FAR_OFFSETS = (-(2**63), -1000, -2, -1, 2**40, 2**62, 2**63 - 1)
SMALL_LIMITS = (-1, 0, 1, 60, 61, 62, 100, 500, 1000)
LARGE_BYTES_LOG2 = 20

ABSENT_TOPIC = ("differential-absent", bytes(range(16)))


class NoAnswerError(Exception):
    """One side closed the connection, or said nothing in time."""


@dataclass(frozen=True, slots=True)
class FetchQuestion:
    """A Fetch without a session. `shares_budget`: the two sides may share out max_bytes in another order."""

    number: int
    version: int
    targets: tuple[FetchTarget, ...]
    isolation: int
    max_bytes: int
    current_leader_epoch: int
    shares_budget: bool


@dataclass(frozen=True, slots=True)
class OffsetsQuestion:
    """A ListOffsets for (topic, partition, timestamp)."""

    number: int
    version: int
    targets: tuple[tuple[str, int, int], ...]
    isolation: int
    current_leader_epoch: int


Question = FetchQuestion | OffsetsQuestion


@dataclass(frozen=True, slots=True)
class Versions:
    """Lowest and highest version that both sides announce."""

    fetch: tuple[int, int]
    list_offsets: tuple[int, int]


@dataclass(slots=True)
class Outcome:
    """What came of the questions; `shared_budget` counts partitions that differ by their share of max_bytes alone."""

    questions: int = 0
    fetched_partitions: int = 0
    with_records: int = 0
    with_errors: int = 0
    record_bytes: int = 0
    shared_budget: int = 0
    asked_again: int = 0
    differences: list[str] = field(default_factory=list)


# --- questions ---


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
                self._versions.fetch[1],
                ((each.topic, each.topic_id, each.partition, each.offsets.log_start_offset, 1),),
                isolation=0,
                max_bytes=1,
                current_leader_epoch=-1,
                shares_budget=False,
            )
            for number, each in enumerate(self._partitions, start=1)
        ]

    def question(self, number: int) -> Question:
        """Three in four a Fetch of one partition, the rest Fetches of several and ListOffsets."""
        chance = random.Random(f"{self.seed}:{number}")
        kind = chance.random()
        if kind < 0.75:
            return self._fetch(chance, number, [chance.choice(self._partitions)])
        if kind < 0.88:
            count = chance.randrange(2, min(6, len(self._partitions)) + 1)
            return self._fetch(chance, number, chance.sample(self._partitions, count))
        return self._offsets(chance, number)

    def _fetch(self, chance: random.Random, number: int, chosen: Sequence[KnownPartition]) -> FetchQuestion:
        targets: list[FetchTarget] = [
            (each.topic, each.topic_id, each.partition, _offset(chance, each), _limit(chance)) for each in chosen
        ]
        if chance.random() < 0.02:
            topic, topic_id, _, *rest = targets[0]
            odd: FetchTarget = (topic, topic_id, 99, rest[0], rest[1])
            targets[0] = odd if chance.random() < 0.5 else (*ABSENT_TOPIC, 0, rest[0], rest[1])
        isolation = chance.randrange(2)
        return FetchQuestion(
            number,
            chance.randint(*self._versions.fetch),
            tuple(targets),
            isolation,
            max_bytes=50 * 1024 * 1024 if chance.random() < 0.7 else _limit(chance),
            current_leader_epoch=_leader_epoch(chance),
            shares_budget=_shares_budget(isolation, chosen, targets),
        )

    def _offsets(self, chance: random.Random, number: int) -> OffsetsQuestion:
        chosen = chance.sample(self._partitions, chance.randrange(1, 4))
        return OffsetsQuestion(
            number,
            chance.randint(*self._versions.list_offsets),
            tuple((each.topic, each.partition, _timestamp(chance, each)) for each in chosen),
            isolation=chance.randrange(2),
            current_leader_epoch=_leader_epoch(chance),
        )


def _shares_budget(isolation: int, chosen: Sequence[KnownPartition], targets: Sequence[FetchTarget]) -> bool:
    """Whether some partitions may be the tier's and others the broker's; aborts make tiered ones the broker's."""
    offsets = [(each.offsets, target[3]) for each, target in zip(chosen, targets, strict=True)]
    in_tier = [known.log_start_offset <= offset < known.local_log_start_offset for known, offset in offsets]
    is_local = [known.local_log_start_offset <= offset <= known.high_watermark for known, offset in offsets]
    return len(targets) > 1 and any(in_tier) and (isolation == 1 or any(is_local))


def _offset(chance: random.Random, known: KnownPartition) -> int:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(known.borders) + chance.randint(-2, 2)
    if kind < 0.40:
        return chance.choice((*FAR_OFFSETS, known.offsets.high_watermark + chance.randrange(1000)))
    return chance.randrange(max(known.offsets.high_watermark, 1))


def _limit(chance: random.Random) -> int:
    return chance.choice(SMALL_LIMITS) if chance.random() < 0.15 else int(2 ** chance.uniform(5, LARGE_BYTES_LOG2))


def _leader_epoch(chance: random.Random) -> int:
    return -1 if chance.random() < 0.9 else chance.choice((0, 0, 1))


def _timestamp(chance: random.Random, known: KnownPartition) -> int:
    if chance.random() < 0.6:
        return chance.choice(LIST_TIMESTAMPS)
    return chance.choice((0, 2**62, chance.randint(FIRST_TIMESTAMP_MS - 1000, known.last_timestamp_ms + 1000)))


# --- asking ---


class Asker:
    """Pairs of connections, one to the broker and one to Tidegate."""

    def __init__(self, lanes: Sequence[tuple[RawClient, RawClient]]) -> None:
        self._lanes = lanes

    def versions(self) -> Versions:
        """What both sides have in common."""
        broker, tidegate = (client.api_versions() for client in self._lanes[0])
        shared = [
            (max(broker[key][0], tidegate[key][0]), min(broker[key][1], tidegate[key][1]))
            for key in (FETCH, LIST_OFFSETS)
        ]
        return Versions(*shared)

    def ask(self, questions: Sequence[Question]) -> Outcome:
        """Ask all, compare all."""
        outcome = Outcome()
        for at in range(0, len(questions), len(self._lanes)):
            batch = questions[at : at + len(self._lanes)]
            for question, frames, took_s in zip(batch, *self._round(batch), strict=True):
                self._judge(question, frames, took_s, outcome)
        return outcome

    def _judge(self, question: Question, frames: tuple[bytes, bytes], took_s: float, outcome: Outcome) -> None:
        outcome.questions += 1
        complaints = compare(question, *frames, outcome)
        for _ in range(ASKED_AGAIN_MAX):
            if not complaints or not _may_be_late(question, frames, took_s):
                break
            outcome.asked_again += 1
            (frames,), (took_s,) = self._round([question])
            complaints = compare(question, *frames, Outcome())
        if complaints:
            outcome.differences.append(described(question, *frames, complaints))

    def _round(self, questions: Sequence[Question]) -> tuple[list[tuple[bytes, bytes]], list[float]]:
        """(broker's frame, Tidegate's frame) and the seconds that it took, for each question."""
        started_s = time.monotonic()
        pairs = list(zip(questions, self._lanes, strict=False))
        for question, clients in pairs:
            message = message_of(question)
            for client in clients:
                client.send_bytes(client.frame(message, question.number))
        frames, times = [], []
        for question, (broker, tidegate) in pairs:
            frames.append((_answer(broker, "the broker", question), _answer(tidegate, "Tidegate", question)))
            times.append(time.monotonic() - started_s)
        return frames, times


@contextmanager
def asker(broker: tuple[str, int], tidegate: tuple[str, int], lanes: int = LANES) -> Iterator[Asker]:
    """An Asker between these two addresses."""
    with ExitStack() as stack:
        yield Asker(
            [(stack.enter_context(RawClient(*broker)), stack.enter_context(RawClient(*tidegate))) for _ in range(lanes)]
        )


def _may_be_late(question: Question, frames: tuple[bytes, bytes], took_s: float) -> bool:
    if isinstance(question, FetchQuestion):
        return took_s >= LATE_S
    answers = [decode_frame(LIST_OFFSETS, question.version, frame) for frame in frames]
    return any(
        each.error_code == ErrorCode.REQUEST_TIMED_OUT
        for answer in answers
        for topic in answer.topics
        for each in topic.partitions
    )


def _answer(client: RawClient, side: str, question: Question) -> bytes:
    try:
        return client.read_frame()
    except (EOFError, OSError) as error:
        raise NoAnswerError(f"{side} gave no answer ({error!r}) to {question}") from error


def message_of(question: Question) -> Any:
    """The question as kio's request."""
    if isinstance(question, FetchQuestion):
        return fetch_request(
            question.version,
            question.targets,
            isolation=question.isolation,
            max_bytes=question.max_bytes,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=0,
            current_leader_epoch=question.current_leader_epoch,
        )
    topics = [
        {"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp, **_epoch(question)}]}
        for topic, partition, timestamp in question.targets
    ]
    values = {"replica_id": -1, "isolation_level": question.isolation, "topics": topics, "timeout": TIMEOUT}
    return fill(schema(LIST_OFFSETS, question.version, kind="request"), values)


def _epoch(question: OffsetsQuestion) -> dict[str, object]:
    return {"current_leader_epoch": question.current_leader_epoch}


# --- comparing ---


def compare(question: Question, broker: bytes, tidegate: bytes, outcome: Outcome) -> list[str]:
    """What differs between two response frames, a line each; `outcome` counts what the broker's holds."""
    if isinstance(question, OffsetsQuestion):
        return _compare_offsets(question, broker, tidegate)
    names = {topic_id: topic for topic, topic_id, *_ in question.targets if topic_id}
    expected, found = (fetch_result(frame, question.version, names) for frame in (broker, tidegate))
    complaints = []
    for name in ("error_code", "session_id", "throttle_time_ms"):
        if getattr(expected, name) != getattr(found, name):
            complaints.append(f"{name}: {getattr(expected, name)} and {getattr(found, name)}")
    theirs, ours = ({(each.topic, each.partition): each for each in side.partitions} for side in (expected, found))
    if theirs.keys() != ours.keys() or len(expected.partitions) != len(found.partitions):
        complaints.append(f"partitions: {sorted(theirs)} and {sorted(ours)}")
    charged_bytes = max(_charged_bytes(question, side) for side in (theirs, ours))
    for key in theirs.keys() & ours.keys():
        _count(theirs[key], outcome)
        complaints += _compare_partition(question, theirs[key], ours[key], charged_bytes, outcome)
    return complaints


def _charged_bytes(question: FetchQuestion, answers: Mapping[tuple[str, int], FetchedPartition]) -> int:
    """What the partitions may take of max_bytes: their limits, or more where one batch was granted beyond."""
    return sum(
        max(limit, len(answers[topic, partition].records) if (topic, partition) in answers else 0)
        for topic, _, partition, _, limit in question.targets
    )


def _count(answer: FetchedPartition, outcome: Outcome) -> None:
    outcome.fetched_partitions += 1
    outcome.with_records += bool(answer.records)
    outcome.with_errors += answer.error_code != 0
    outcome.record_bytes += len(answer.records)


def _compare_offsets(question: OffsetsQuestion, broker: bytes, tidegate: bytes) -> list[str]:
    expected, found = (decode_frame(LIST_OFFSETS, question.version, frame) for frame in (broker, tidegate))
    theirs, ours = (
        {(str(topic.name), int(each.partition_index)): each for topic in side.topics for each in topic.partitions}
        for side in (expected, found)
    )
    if theirs.keys() != ours.keys():
        return [f"partitions: {sorted(theirs)} and {sorted(ours)}"]
    return [f"{key}: {theirs[key]} and {ours[key]}" for key in theirs if theirs[key] != ours[key]]


def _compare_partition(
    question: FetchQuestion, theirs: FetchedPartition, ours: FetchedPartition, charged_bytes: int, outcome: Outcome
) -> list[str]:
    where = f"{theirs.topic}-{theirs.partition}"
    complaints = [
        f"{where} {name}: {getattr(theirs, name)} and {getattr(ours, name)}"
        for name in ("error_code", "high_watermark", "last_stable_offset", "log_start_offset", "preferred_read_replica")
        if getattr(theirs, name) != getattr(ours, name)
    ]
    if theirs.records == ours.records:
        if not _same_aborts(question, theirs, ours):
            complaints.append(f"{where} aborted: {_aborts(theirs)} and {_aborts(ours)}")
    elif not question.shares_budget or not _limits_explain(question, theirs, ours, charged_bytes):
        complaints.append(f"{where} records: {len(theirs.records)} and {len(ours.records)} bytes")
    else:
        outcome.shared_budget += 1
        short, long = sorted((theirs, ours), key=lambda answer: len(answer.records))
        if not set(_aborts(short) or ()) <= set(_aborts(long) or ()):
            complaints.append(f"{where} aborted: {_aborts(theirs)} and {_aborts(ours)}")
    return complaints


def _same_aborts(question: FetchQuestion, theirs: FetchedPartition, ours: FetchedPartition) -> bool:
    if question.shares_budget and not theirs.records:
        return (_aborts(theirs) or []) == (_aborts(ours) or [])  # why an answer is empty decides between null and []
    return _aborts(theirs) == _aborts(ours)


def _aborts(answer: FetchedPartition) -> list[tuple[int, int]] | None:
    return None if answer.aborted is None else sorted(answer.aborted)


def _limits_explain(
    question: FetchQuestion, theirs: FetchedPartition, ours: FetchedPartition, charged_bytes: int
) -> bool:
    """Whether one is a prefix of the other, and a limit (or who may exceed it by one batch) may have cut it."""
    short, long = sorted((theirs.records, ours.records), key=len)
    if not long.startswith(short):
        return False
    limits = {(topic, partition): limit for topic, _, partition, _, limit in question.targets}
    if charged_bytes > question.max_bytes:
        return True
    return not short and _first_batch_bytes(long) > limits[theirs.topic, theirs.partition]


def _first_batch_bytes(records: bytes) -> int:
    return read_header(records, 0).size_bytes if len(records) >= HEADER_BYTES else len(records)


# --- telling ---


def described(question: Question, broker: bytes, tidegate: bytes, complaints: Sequence[str]) -> str:
    """A difference as a failing test shows it."""
    lines = [f"question {question.number}: {question}"]
    lines += [f"  differs: broker and Tidegate, {complaint}" for complaint in complaints]
    for side, frame in (("broker", broker), ("tidegate", tidegate)):
        lines += [f"  {side}: {line}" for line in _told(question, frame)]
    return "\n".join(lines)


def _told(question: Question, frame: bytes) -> Iterator[str]:
    if isinstance(question, OffsetsQuestion):
        yield str(decode_frame(LIST_OFFSETS, question.version, frame))
        return
    result = fetch_result(
        frame, question.version, {topic_id: topic for topic, topic_id, *_ in question.targets if topic_id}
    )
    yield f"error {result.error_code}, session {result.session_id}, throttle {result.throttle_time_ms} ms"
    for answer in result.partitions:
        digest = hashlib.sha256(answer.records).hexdigest()[:16]
        first = read_header(answer.records, 0) if len(answer.records) >= HEADER_BYTES else None
        yield (
            f"{answer.topic}-{answer.partition}: error {answer.error_code}, high watermark {answer.high_watermark}, "
            f"last stable {answer.last_stable_offset}, log start {answer.log_start_offset}, "
            f"aborted {_aborts(answer)}, {len(answer.records)} bytes, sha256 {digest}, first batch {first}"
        )
