"""Which difference of a Fetch the comparison lets pass."""

from collections.abc import Sequence

from protocol.fetch.messages import PartitionAnswer
from protocol.fetch.response import encode_response
from tests.support.differential import Outcome, compare
from tests.support.differential_questions import FetchQuestion, FetchTarget
from tests.support.for_each import for_each


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
