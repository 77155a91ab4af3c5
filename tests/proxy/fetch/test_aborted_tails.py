"""Aborted tails: which answers tell them, and for how long they count."""

from dataclasses import replace
from typing import Any

import pytest

from protocol.fetch.messages import PartitionAnswer
from protocol.wire.errors import ErrorCode
from proxy.fetch import aborted_tails
from proxy.fetch.aborted_tails import AbortedTail, AbortedTails
from tests.support.for_each import for_each
from tests.support.segments import topic_partition

PARTITION = topic_partition()
START = 1000
EPOCH = 5
ABORTED = [(7, 990), (8, 1000), (9, 995), (10, 1001)]
TAIL = ((7, 990), (9, 995))


def answer(**changes: Any) -> PartitionAnswer:
    """The broker's to a READ_COMMITTED fetch at START."""
    said = PartitionAnswer(None, PARTITION.topic_id, 0, 0, 1500, 1400, 0, aborted_transactions=ABORTED)
    return replace(said, **{"records": (memoryview(b"a batch"),), **changes})


def learned(tails: AbortedTails, said: PartitionAnswer | None, *, node_id: int = 1, start: int = START) -> AbortedTail:
    tail = tails.learn(node_id, PARTITION, start, EPOCH, said)
    assert tail is not None
    return tail


@pytest.fixture
def tails() -> AbortedTails:
    return AbortedTails()


@for_each(
    "said, tail",
    [
        (answer(), TAIL),
        (answer(aborted_transactions=[]), ()),
        # Nothing in the local log: a marker to come would keep the last stable offset lower.
        (answer(high_watermark=START, last_stable_offset=START, aborted_transactions=None, records=()), ()),
        # A transaction is open that begins right there, and hides the markers behind it.
        (answer(last_stable_offset=START, aborted_transactions=None, records=()), None),
        (answer(last_stable_offset=START - 10, aborted_transactions=None, records=()), None),
        (answer(high_watermark=START + 1, last_stable_offset=START, aborted_transactions=[], records=()), None),
        (answer(aborted_transactions=[], records=()), None),
        (answer(aborted_transactions=None), None),
        (answer(last_stable_offset=START), None),
        (answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), None),
        (answer(preferred_read_replica=2), None),
        (None, None),
    ],
)
def test_a_tail_is_what_an_answer_lists_below_the_local_log_start(
    said: PartitionAnswer | None, tail: AbortedTail | None
) -> None:
    tails = AbortedTails()
    assert tails.learn(1, PARTITION, START, EPOCH, said) == tail
    assert tails.get(1, PARTITION, START, EPOCH) == tail


def test_it_is_kept_while_the_last_stable_offset_rises_and_dropped_when_it_falls(tails: AbortedTails) -> None:
    learned(tails, answer())
    for last_stable_offset in (1400, 2000):
        tails.saw(1, PARTITION, last_stable_offset)
        assert tails.get(1, PARTITION, START, EPOCH) == TAIL
    tails.saw(2, PARTITION, 1)
    tails.saw(1, PARTITION, 1399)
    assert tails.get(1, PARTITION, START, EPOCH) is None


def test_a_partition_has_one_tail_a_broker_and_the_least_used_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_tails, "TAILS_MAX", 2)
    tails = AbortedTails()
    for node_id, start in ((1, START), (1, START + 100), (2, START)):
        learned(tails, answer(), node_id=node_id, start=start)
    assert len(tails) == 2
    assert tails.get(1, PARTITION, START + 100, EPOCH) is not None
    learned(tails, answer(), node_id=3)
    assert [tails.get(node_id, PARTITION, START, EPOCH) is None for node_id in (2, 3)] == [True, False]


def test_a_very_long_tail_is_used_and_not_kept(tails: AbortedTails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aborted_tails, "TAIL_ENTRIES_MAX", 1)
    assert learned(tails, answer()) == TAIL
    assert len(tails) == 0
