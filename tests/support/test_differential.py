"""What the comparison asks again, and which answer it gives then."""

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from protocol.fetch.messages import PartitionAnswer
from protocol.fetch.response import encode_response
from protocol.wire.errors import ErrorCode
from tests.support.differential import ASKED_AGAIN_MAX, Asker, Outcome, compare
from tests.support.differential_questions import FetchQuestion, FetchTarget, OffsetsQuestion
from tests.support.for_each import for_each
from tests.support.kio_frames import encode, fill, schema, with_length
from tests.support.raw_client import LIST_OFFSETS, RawClient, decode_frame

VERSION = 4
QUESTION = OffsetsQuestion(7, VERSION, (("orders", 0, 1),))
GOOD, LATE = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT


def answer_of(error_code: ErrorCode) -> bytes:
    partition = {"partition_index": 0, "error_code": error_code, "offset": 5, "leader_epoch": 1}
    message = fill(schema(LIST_OFFSETS, VERSION), {"topics": [{"name": "orders", "partitions": [partition]}]})
    return with_length(struct.pack(">i", QUESTION.number) + encode(message))


class ScriptedClient:
    """Gives its answers one after another, the last again and again."""

    def __init__(self, codes: Sequence[ErrorCode]) -> None:
        self._codes = list(codes)
        self.asked = 0

    def metadata(self, _topics: Sequence[str]) -> SimpleNamespace:
        return SimpleNamespace(brokers=[])

    def send_bytes(self, _data: bytes) -> None:
        self.asked += 1

    def read_frame(self) -> bytes:
        return answer_of(self._codes.pop(0) if len(self._codes) > 1 else self._codes[0])


@for_each(
    "broker, tidegate, rounds, seen",
    [
        ([GOOD], [GOOD], 1, GOOD),
        # Failed before: the answer that was given was the first round's.
        ([LATE, GOOD], [GOOD], 2, GOOD),
        ([LATE, LATE, GOOD], [LATE, GOOD], 3, GOOD),
        ([LATE], [LATE], 1 + ASKED_AGAIN_MAX, LATE),
    ],
)
def test_a_look_up_that_timed_out_is_asked_again_and_the_last_answer_counts(
    broker: Sequence[ErrorCode], tidegate: Sequence[ErrorCode], rounds: int, seen: ErrorCode
) -> None:
    clients = ScriptedClient(broker), ScriptedClient(tidegate)
    outcome, frame = Asker([cast("tuple[RawClient, RawClient]", clients)]).ask_one(QUESTION)
    assert outcome.differences == []
    assert [client.asked for client in clients] == [rounds] * 2
    (partition,) = decode_frame(LIST_OFFSETS, VERSION, frame).topics[0].partitions
    assert partition.error_code == seen


def test_a_difference_that_no_wait_explains_is_told_at_once() -> None:
    clients = ScriptedClient([GOOD]), ScriptedClient([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    outcome, _ = Asker([cast("tuple[RawClient, RawClient]", clients)]).ask_one(QUESTION)
    assert len(outcome.differences) == 1
    assert clients[0].asked == 1


# --- a Fetch that tier and local log share ---


def fetched(sizes: Sequence[int], *, max_bytes: int, limit_bytes: int = 100) -> tuple[FetchQuestion, bytes]:
    """A question and an answer with so many record bytes of each partition."""
    targets = tuple(FetchTarget("orders", bytes(16), number, 0, limit_bytes) for number in range(len(sizes)))
    question = FetchQuestion(7, 12, targets, max_bytes=max_bytes, shares_budget=True)
    answers = [
        PartitionAnswer("orders", None, number, 0, 10, 10, 0, records=[bytes(size)])
        for number, size in enumerate(sizes)
    ]
    return question, b"".join(
        encode_response(12, 7, throttle_time_ms=0, error_code=0, session_id=0, answers=answers, tags=b"\x00")
    )


@for_each(
    "broker, tidegate, differ",
    [
        ([100, 100, 50], [100, 100, 50], []),
        # Behind one that gave less than its limit, or a batch beyond it.
        ([10, 100, 100], [10, 100, 50], []),
        ([10, 100, 100], [10, 50, 100], []),
        ([130, 100, 20], [130, 100, 100], []),
        # That one itself, those in front of it, and those behind others.
        ([10, 100, 100], [0, 100, 100], [0]),
        ([100, 100, 50], [100, 50, 100], [1, 2]),
        ([100, 100, 50], [100, 100, 0], [2]),
    ],
)
def test_shares_may_differ_only_behind_a_partition_that_did_not_give_its_limit(
    broker: Sequence[int], tidegate: Sequence[int], differ: Sequence[int]
) -> None:
    question, theirs = fetched(broker, max_bytes=250)
    _, ours = fetched(tidegate, max_bytes=250)
    complaints = compare(question, theirs, ours, ({}, {}), Outcome())
    differing = sorted(complaint.split(" records")[0] for complaint in complaints)
    assert differing == [f"('orders', {each})" for each in differ]
