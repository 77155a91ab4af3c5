"""Questions asked of a broker and of Tidegate, and their answers compared.

Both sides get the same bytes. Several connections to each side have one question each under way.

What must be equal: every field, tagged ones too, every record byte, the order of the partitions, and the aborted
transactions as a set. A broker's addresses (NodeEndpoints) must be each side's own for the same node. Two differences
are Kafka's own freedom:

- Partitions of a Fetch take from its max_bytes in request order. Where tier and local log share it, Tidegate gives
  local partitions their part by number (proxy.fetch.plan): only where the limits together are more than max_bytes,
  one answer's bytes may be a prefix of the other's.
- A read from the tier that takes longer than `remote.fetch.max.wait.ms` is answered empty, and a broker may say
  REQUEST_TIMED_OUT to a time look-up (now and then at once: its future and its purgatory race). Only if the answers
  took that long, or were that, the question is asked again; such questions are counted.

Where Tidegate's tier fails (`tier_fails`), a partition may be put off: an error 9, or nothing yet. That is asked again,
and the answer that comes in the end must be the broker's.

And one of ours: in a response too large to hold, Tidegate hides a broker's addresses instead of replacing them.

Where the broker is a twin that kept what Tidegate has of a tier of its own (tests.support.twin_world), segments end
elsewhere, so one answer may go on where the other has ended: what both have must be equal (`_compare_twins`).
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.fetch.messages import FetchResponse, PartitionAnswer
from protocol.fetch.response import decode_response
from protocol.fetch.walker import UNUSED_TAG
from protocol.record_batches import HEADER_BYTES, iterate_batches, read_header
from protocol.wire.errors import ErrorCode
from tests.support.differential_questions import (
    OFFSET_FOR_LEADER_EPOCH,
    TOPIC_ID_VERSION_MIN,
    FetchQuestion,
    OffsetsQuestion,
    Question,
    Versions,
    frame_of,
)
from tests.support.kio_frames import decode, schema
from tests.support.raw_client import FETCH, LIST_OFFSETS, RawClient, decode_frame

LANES = 8
LATE_S = 0.4
"""Below the 0.5 s after which either side may give up a read from the tier."""

ASKED_AGAIN_MAX = 5
PUT_OFF_MAX = 50
NODE_ENDPOINTS_VERSION_MIN = 16
STREAMED_BYTES_MIN = 64 * 1024
"""`expert.relay.rewrite.bytes.max`: beyond, Tidegate streams a Fetch response and hides its addresses
(docs/protocol.md#l7)."""

RENAMED_ENDPOINTS = bytes((1, UNUSED_TAG))

Nodes = Mapping[tuple[str, int], int]
"""A side's brokers: node id by address."""

Key = tuple[str | bytes, int]
"""A partition in a Fetch response: topic, or its id, and number."""


class NoAnswerError(Exception):
    """One side closed the connection, or said nothing in time."""


@dataclass(slots=True)
class Outcome:
    """What came of the questions; `shared_budget` counts partitions that differ by their share of max_bytes alone."""

    kinds: Counter[str] = field(default_factory=Counter)
    fetched_partitions: int = 0
    with_records: int = 0
    with_errors: int = 0
    with_aborts: int = 0
    with_tags: int = 0
    record_bytes: int = 0
    shared_budget: int = 0
    hidden_endpoints: int = 0
    asked_again: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def questions(self) -> int:
        return self.kinds.total()


# --- asking ---


class Asker:
    """Pairs of connections, one to the broker and one to Tidegate."""

    def __init__(
        self, lanes: Sequence[tuple[RawClient, RawClient]], *, tier_fails: bool = False, is_twin: bool = False
    ) -> None:
        self._lanes = lanes
        self._tier_fails = tier_fails
        self._compare_records = _compare_twins if is_twin else _compare_records
        broker, tidegate = lanes[0]
        self._nodes = (_nodes(broker), _nodes(tidegate))

    def versions(self) -> Versions:
        """Return what both sides have in common."""
        broker, tidegate = (client.api_versions() for client in self._lanes[0])
        return {
            key: (max(broker[key][0], tidegate[key][0]), min(broker[key][1], tidegate[key][1]))
            for key in (FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH)
        }

    def ask(self, questions: Sequence[Question]) -> Outcome:
        """Ask all, compare all."""
        outcome = Outcome()
        for at in range(0, len(questions), len(self._lanes)):
            batch = questions[at : at + len(self._lanes)]
            for question, frames, took_s in zip(batch, *self._round(batch), strict=True):
                self._judge(question, frames, took_s, outcome)
        return outcome

    def ask_one(self, question: Question) -> tuple[Outcome, bytes]:
        """One question, and the broker's answer to it."""
        outcome = Outcome()
        (frames,), (took_s,) = self._round([question])
        return outcome, self._judge(question, frames, took_s, outcome)

    def _judge(self, question: Question, frames: tuple[bytes, bytes], took_s: float, outcome: Outcome) -> bytes:
        """Compare, ask again while that may help, and give the broker's last answer."""
        outcome.kinds[question.kind] += 1
        complaints = compare(question, *frames, self._nodes, outcome, self._compare_records)
        for _ in range(PUT_OFF_MAX if self._tier_fails else ASKED_AGAIN_MAX):
            is_put_off = self._tier_fails and bool(complaints) and _is_put_off(question, frames)
            if not is_put_off and not _may_be_late(question, frames, took_s, differs=bool(complaints)):
                break
            outcome.asked_again += 1
            (frames,), (took_s,) = self._round([question])
            complaints = compare(question, *frames, self._nodes, Outcome(), self._compare_records)
        if complaints:
            outcome.differences.append(described(question, *frames, complaints))
        return frames[0]

    def _round(self, questions: Sequence[Question]) -> tuple[list[tuple[bytes, bytes]], list[float]]:
        """(broker's frame, Tidegate's frame) and the seconds that it took, for each question."""
        started_s = time.monotonic()
        pairs = list(zip(questions, self._lanes, strict=False))
        for question, clients in pairs:
            frame = frame_of(question)
            for client in clients:
                client.send_bytes(frame)
        frames, times = [], []
        for question, (broker, tidegate) in pairs:
            frames.append((_answer(broker, "the broker", question), _answer(tidegate, "Tidegate", question)))
            times.append(time.monotonic() - started_s)
        return frames, times


@contextmanager
def asker(
    broker: tuple[str, int],
    tidegate: tuple[str, int],
    lanes: int = LANES,
    *,
    tier_fails: bool = False,
    is_twin: bool = False,
) -> Iterator[Asker]:
    """An Asker between these two addresses.

    Args:
        tier_fails: Tidegate's tier does now and then: what it puts off is asked again.
        is_twin: the broker has in its local log what Tidegate has in its own tier.
    """
    with ExitStack() as stack:
        yield Asker(
            [
                (stack.enter_context(RawClient(*broker)), stack.enter_context(RawClient(*tidegate)))
                for _ in range(lanes)
            ],
            tier_fails=tier_fails,
            is_twin=is_twin,
        )


def _nodes(client: RawClient) -> Nodes:
    return {(str(each.host), int(each.port)): int(each.node_id) for each in client.metadata([]).brokers}


def _may_be_late(question: Question, frames: tuple[bytes, bytes], took_s: float, *, differs: bool) -> bool:
    """Return whether the answers may be others when they are in time. A look-up that timed out teaches nothing, nor
    does a Fetch that brings nothing so late, also if both sides say so."""
    if isinstance(question, FetchQuestion):
        return took_s >= LATE_S and (differs or not _has_records(question, frames[0]))
    if not isinstance(question, OffsetsQuestion):
        return False
    answers = [decode_frame(LIST_OFFSETS, question.version, frame) for frame in frames]
    return any(
        each.error_code == ErrorCode.REQUEST_TIMED_OUT
        for answer in answers
        for topic in answer.topics
        for each in topic.partitions
    )


def _has_records(question: FetchQuestion, frame: bytes) -> bool:
    return any(each.records_bytes for each in decode_response(memoryview(frame), question.version).partitions)


def _is_put_off(question: Question, frames: tuple[bytes, bytes]) -> bool:
    """Return whether Tidegate tells the client to come again where the broker has an answer, or gives nothing yet."""
    if isinstance(question, FetchQuestion):
        theirs, ours = (decode_response(memoryview(frame), question.version).partitions for frame in frames)
        has_records = {_key(answer): bool(answer.records_bytes) for answer in theirs}
        return any(
            answer.error_code == ErrorCode.REPLICA_NOT_AVAILABLE
            or (not answer.error_code and not answer.records_bytes and has_records.get(_key(answer), False))
            for answer in ours
        )
    return isinstance(question, OffsetsQuestion) and any(
        each.error_code == ErrorCode.REPLICA_NOT_AVAILABLE
        for topic in decode_frame(LIST_OFFSETS, question.version, frames[1]).topics
        for each in topic.partitions
    )


def _answer(client: RawClient, side: str, question: Question) -> bytes:
    try:
        return client.read_frame()
    except (EOFError, OSError) as error:
        raise NoAnswerError(f"{side} gave no answer ({error!r}) to {question}") from error


# --- comparing ---


def compare(
    question: Question,
    broker: bytes,
    tidegate: bytes,
    nodes: tuple[Nodes, Nodes],
    outcome: Outcome,
    compare_records: "CompareRecords | None" = None,
) -> list[str]:
    """Return what differs between two response frames, a line each; `outcome` counts what the broker's holds."""
    if not isinstance(question, FetchQuestion):
        return [] if broker == tidegate else _compare_messages(question, broker, tidegate)
    expected = decode_response(memoryview(broker), question.version)
    for answer in expected.partitions:
        _count(answer, outcome)
    if broker == tidegate and question.version < NODE_ENDPOINTS_VERSION_MIN:
        return []
    found = decode_response(memoryview(tidegate), question.version)
    complaints = [
        f"{name}: {getattr(expected, name)} and {getattr(found, name)}"
        for name in ("correlation_id", "error_code", "session_id", "throttle_time_ms")
        if getattr(expected, name) != getattr(found, name)
    ]
    if len(tidegate) > STREAMED_BYTES_MIN and bytes(found.tags).startswith(RENAMED_ENDPOINTS):
        outcome.hidden_endpoints += 1
    else:
        their_nodes, our_nodes = map(_endpoints, (expected, found), (question.version,) * 2, nodes)
        if their_nodes != our_nodes:
            complaints.append(f"node endpoints: {their_nodes} and {our_nodes}")
    theirs, ours = ({_key(each): each for each in side.partitions} for side in (expected, found))
    if theirs.keys() != ours.keys() or len(expected.partitions) != len(found.partitions):
        complaints.append(f"partitions: {sorted(map(str, theirs))} and {sorted(map(str, ours))}")
    if [*theirs] != [*ours]:
        complaints.append(f"order: {[*theirs]} and {[*ours]}")
    given = [answer.records_bytes for answer in ours.values() if answer.records_bytes]
    if sum(given[1:]) > max(0, question.max_bytes):  # the first may exceed it by a batch
        complaints.append(f"more than max_bytes: {given}")
    charged_bytes = max(_charged_bytes(question, side) for side in (theirs, ours))
    for key in theirs.keys() & ours.keys():
        shared_bytes = charged_bytes if question.shares_budget else None
        complaints += _compare_partition(key, theirs[key], ours[key])
        complaints += (compare_records or _compare_records)(
            question, key, theirs[key], ours[key], shared_bytes, outcome
        )
    return complaints


def _key(answer: PartitionAnswer) -> Key:
    return (answer.topic if answer.topic is not None else bytes(answer.topic_id or b""), answer.partition)


def _endpoints(response: FetchResponse, version: int, nodes: Nodes) -> list[tuple[int, int | None, str | None]]:
    """(node, node whose address it has, rack); the records before the tags are left out, as kio would read them."""
    if version < NODE_ENDPOINTS_VERSION_MIN:
        return []
    without_topics = bytes(10) + b"\x01" + bytes(response.tags)
    endpoints = decode(schema(FETCH, version), without_topics).node_endpoints
    return [(int(each.node_id), nodes.get((str(each.host), int(each.port))), each.rack) for each in endpoints]


def _charged_bytes(question: FetchQuestion, answers: Mapping[Key, PartitionAnswer]) -> int:
    """Return what the partitions may take of max_bytes: their limits, or more where one batch was granted beyond."""
    return sum(
        max(limit, answers[key].records_bytes if key in answers else 0) for key, limit in _limits(question).items()
    )


def _limits(question: FetchQuestion) -> dict[Key, int]:
    has_ids = question.version >= TOPIC_ID_VERSION_MIN
    return {
        (target.topic_id if has_ids else target.topic, target.partition): target.limit_bytes
        for target in question.targets
    }


def _count(answer: PartitionAnswer, outcome: Outcome) -> None:
    outcome.fetched_partitions += 1
    outcome.with_records += bool(answer.records_bytes)
    outcome.with_errors += answer.error_code != 0
    outcome.with_aborts += bool(answer.aborted_transactions)
    outcome.with_tags += bytes(answer.tags) != b"\x00"
    outcome.record_bytes += answer.records_bytes


def _compare_messages(question: Question, broker: bytes, tidegate: bytes) -> list[str]:
    """Partitions in any order: a broker answers them as its hash map has them."""
    expected, found = (decode_frame(question.api_key, question.version, frame) for frame in (broker, tidegate))
    theirs, ours = (_flat(side) for side in (expected, found))
    complaints = [f"{each} only from the broker" for each in (theirs - ours).elements()]
    complaints += [f"{each} only from Tidegate" for each in (ours - theirs).elements()]
    if replace(expected, topics=()) != replace(found, topics=()):
        complaints.append(f"head: {expected} and {found}")
    return complaints


def _flat(message: Any) -> Counter[tuple[str, Any]]:
    return Counter(
        (str(topic.name if hasattr(topic, "name") else topic.topic), each)
        for topic in message.topics
        for each in topic.partitions
    )


def _compare_partition(key: Key, theirs: PartitionAnswer, ours: PartitionAnswer) -> list[str]:
    return [
        f"{key} {name}: {getattr(theirs, name)} and {getattr(ours, name)}"
        for name in (
            "error_code",
            "high_watermark",
            "last_stable_offset",
            "log_start_offset",
            "preferred_read_replica",
            "tags",
            "topic_tags",
            "records_are_null",
        )
        if getattr(theirs, name) != getattr(ours, name)
    ]


def _compare_records(
    question: FetchQuestion,
    key: Key,
    theirs: PartitionAnswer,
    ours: PartitionAnswer,
    shared_bytes: int | None,
    outcome: Outcome,
) -> list[str]:
    """`shared_bytes`: what all may take of max_bytes, where the two sides may share it out differently."""
    their_records, our_records = _records(theirs), _records(ours)
    if their_records == our_records:
        if not _same_aborts(question, theirs, ours):
            return [f"{key} aborted: {_aborts(theirs)} and {_aborts(ours)}"]
        return []
    if shared_bytes is None or not _limits_explain(question, key, their_records, our_records, shared_bytes):
        return [f"{key} records: {len(their_records)} and {len(our_records)} bytes"]
    outcome.shared_budget += 1
    short, long = sorted((theirs, ours), key=lambda answer: answer.records_bytes)
    if not set(_aborts(short) or ()) <= set(_aborts(long) or ()):
        return [f"{key} aborted: {_aborts(theirs)} and {_aborts(ours)}"]
    return []


CompareRecords = Callable[[FetchQuestion, Key, PartitionAnswer, PartitionAnswer, int | None, Outcome], list[str]]


def _compare_twins(
    question: FetchQuestion,
    key: Key,
    theirs: PartitionAnswer,
    ours: PartitionAnswer,
    shared_bytes: int | None,
    outcome: Outcome,
) -> list[str]:
    """Whole batches, as far as both have them, and the aborted transactions that begin before the shorter one's end.
    Only one behind another may have none where the other side has some: local logs are charged with what they give."""
    (their_batches, their_end), (our_batches, our_end) = (_whole_batches(_records(side)) for side in (theirs, ours))
    shared = min(len(their_batches), len(our_batches))
    if their_batches[:shared] != our_batches[:shared]:
        return [f"{key} records: {len(their_batches)} and {len(our_batches)} bytes of whole batches"]
    if len(their_batches) != len(our_batches):
        outcome.shared_budget += 1
        if not shared:
            return [] if shared_bytes is not None else [f"{key} records: one side has none"]
    below = min(their_end, our_end)
    their_aborts, our_aborts = ({each for each in _aborts(side) or () if each[1] < below} for side in (theirs, ours))
    return [] if their_aborts == our_aborts else [f"{key} aborted: {their_aborts} and {our_aborts}"]


def _whole_batches(records: bytes) -> tuple[bytes, int]:
    """Without what is cut at the end, and the offset behind the last; 0 without any."""
    size_bytes = end_offset = 0
    for position, header in iterate_batches([records]):
        size_bytes, end_offset = position + header.size_bytes, header.last_offset + 1
    return records[:size_bytes], end_offset


def _records(answer: PartitionAnswer) -> bytes:
    return b"".join(answer.records)


def _same_aborts(question: FetchQuestion, theirs: PartitionAnswer, ours: PartitionAnswer) -> bool:
    if question.shares_budget and not theirs.records_bytes:
        # Why an answer is empty decides between null (not read at all) and a list (read with nothing left for it).
        return None in (_aborts(theirs), _aborts(ours)) or _aborts(theirs) == _aborts(ours)
    return _aborts(theirs) == _aborts(ours)


def _aborts(answer: PartitionAnswer) -> list[tuple[int, int]] | None:
    return None if answer.aborted_transactions is None else sorted(answer.aborted_transactions)


def _limits_explain(question: FetchQuestion, key: Key, theirs: bytes, ours: bytes, charged_bytes: int) -> bool:
    """Return whether one is a prefix of the other, and a limit (or who may exceed it by one batch) may have cut it."""
    short, long = sorted((theirs, ours), key=len)
    if not long.startswith(short):
        return False
    if charged_bytes > question.max_bytes:
        return True
    return not short and _first_batch_bytes(long) > _limits(question)[key]


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
    if not isinstance(question, FetchQuestion):
        yield str(decode_frame(question.api_key, question.version, frame))
        return
    response = decode_response(memoryview(frame), question.version)
    yield f"error {response.error_code}, session {response.session_id}, throttle {response.throttle_time_ms} ms"
    for answer in response.partitions:
        records = _records(answer)
        digest = hashlib.sha256(records).hexdigest()[:16]
        first = read_header(records, 0) if len(records) >= HEADER_BYTES else None
        yield (
            f"{_key(answer)}: error {answer.error_code}, high watermark {answer.high_watermark}, "
            f"last stable {answer.last_stable_offset}, log start {answer.log_start_offset}, "
            f"aborted {_aborts(answer)}, tags {bytes(answer.tags).hex()}, {len(records)} bytes, sha256 {digest}, "
            f"first batch {first}"
        )
