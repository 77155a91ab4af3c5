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
    "max_bytes, broker, tidegate, differ",
    [
        (250, [100, 100, 50], [100, 100, 50], []),
        (250, [100, 100, 50], [100, 50, 100], []),
        (250, [10, 100, 100], [10, 100, 50], []),
        (250, [130, 100, 20], [0, 100, 100], []),
        # The limits together are not more than max_bytes.
        (300, [100, 100, 100], [100, 50, 100], [1]),
        (300, [10, 100, 100], [10, 100, 60], [2]),
        # An own batch beyond its limit, which is due to the first alone.
        (300, [130, 100, 70], [130, 100, 100], []),
    ],
)
def test_shares_may_differ_only_where_the_limits_together_are_more(
    max_bytes: int, broker: Sequence[int], tidegate: Sequence[int], differ: Sequence[int]
) -> None:
    question, theirs = fetched(broker, max_bytes=max_bytes)
    _, ours = fetched(tidegate, max_bytes=max_bytes)
    complaints = compare(question, theirs, ours, ({}, {}), Outcome())
    differing = sorted(complaint.split(" records")[0] for complaint in complaints)
    assert differing == [f"('orders', {each})" for each in differ]


def test_all_but_the_first_with_records_stay_within_max_bytes() -> None:
    question, theirs = fetched([100, 100, 50], max_bytes=150)
    for sizes, is_wrong in (([0, 100, 100], False), ([0, 100, 151], True), ([100, 51, 100], True)):
        _, ours = fetched(sizes, max_bytes=150, limit_bytes=1000)
        complaints = compare(question, theirs, ours, ({}, {}), Outcome())
        assert any(complaint.startswith("more than") for complaint in complaints) == is_wrong, sizes
