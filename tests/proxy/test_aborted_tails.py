"""Aborted tails: which answers tell them, and for how long they count."""

import pytest

from protocol.fetch.messages import PartitionAnswer
from protocol.wire.errors import ErrorCode
from proxy.fetch import known as module
from proxy.fetch.known import AbortedTail, AbortedTails
from tests.support.segments import topic_partition

PARTITION = topic_partition()
START = 1000
EPOCH = 5
ABORTED = [(7, 990), (8, 1000), (9, 995), (10, 1001)]
TAIL = ((7, 990), (9, 995))


def answer(
    *,
    high_watermark: int = 1500,
    last_stable_offset: int = 1400,
    aborted: list[tuple[int, int]] | None = ABORTED,
    records: bytes = b"a batch",
    error_code: int = 0,
    preferred_read_replica: int = -1,
) -> PartitionAnswer:
    """The broker's to a READ_COMMITTED fetch at START."""
    return PartitionAnswer(
        None,
        PARTITION.topic_id,
        0,
        error_code,
        high_watermark,
        last_stable_offset,
        0,
        aborted_transactions=aborted,
        preferred_read_replica=preferred_read_replica,
        records=(memoryview(records),) if records else (),
    )


def learned(tails: AbortedTails, said: PartitionAnswer | None, *, node_id: int = 1, start: int = START) -> AbortedTail:
    tail = tails.learn(node_id, PARTITION, start, EPOCH, said)
    assert tail is not None
    return tail


@pytest.mark.parametrize(
    ("said", "tail"),
    [
        (answer(), TAIL),
        (answer(aborted=[]), ()),
        # Nothing in the local log: a marker to come would keep the last stable offset lower.
        (answer(high_watermark=START, last_stable_offset=START, aborted=None, records=b""), ()),
        # A transaction is open that begins right there, and hides the markers behind it.
        (answer(last_stable_offset=START, aborted=None, records=b""), None),
        (answer(last_stable_offset=START - 10, aborted=None, records=b""), None),
        (answer(high_watermark=START + 1, last_stable_offset=START, aborted=[], records=b""), None),
        (answer(aborted=[], records=b""), None),
        (answer(aborted=None), None),
        (answer(last_stable_offset=START), None),
        (answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE), None),
        (answer(preferred_read_replica=2), None),
        (None, None),
    ],
)
def test_a_tail_is_what_an_answer_with_records_lists_below_the_local_log_start(
    said: PartitionAnswer | None, tail: AbortedTail | None
) -> None:
    tails = AbortedTails()
    assert tails.learn(1, PARTITION, START, EPOCH, said) == tail
    assert tails.get(1, PARTITION, START, EPOCH) == tail


def test_it_counts_for_its_broker_partition_local_log_start_and_leader_epoch() -> None:
    tails = AbortedTails()
    learned(tails, answer())
    assert tails.get(2, PARTITION, START, EPOCH) is None
    assert tails.get(1, topic_partition("other"), START, EPOCH) is None
    assert tails.get(1, PARTITION, START + 1, EPOCH) is None
    assert tails.get(1, PARTITION, START, EPOCH + 1) is None
    assert tails.get(1, PARTITION, START, EPOCH) == TAIL


def test_it_is_kept_while_the_last_stable_offset_rises_and_dropped_when_it_falls() -> None:
    tails = AbortedTails()
    learned(tails, answer())
    for last_stable_offset in (1400, 2000):
        tails.saw(1, PARTITION, last_stable_offset)
        assert tails.get(1, PARTITION, START, EPOCH) == TAIL
    tails.saw(2, PARTITION, 1)
    tails.saw(1, PARTITION, 1399)
    assert tails.get(1, PARTITION, START, EPOCH) is None


@pytest.mark.parametrize("said", [None, answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_an_answer_that_does_not_tell_ends_what_was_known(said: PartitionAnswer | None) -> None:
    tails = AbortedTails()
    learned(tails, answer())
    assert tails.learn(1, PARTITION, START, EPOCH, said) is None
    assert len(tails) == 0


def test_what_is_forgotten_is_asked_for_again() -> None:
    tails = AbortedTails()
    learned(tails, answer())
    tails.forget(1, PARTITION)
    tails.forget(1, PARTITION)
    assert tails.get(1, PARTITION, START, EPOCH) is None


def test_a_partition_has_one_tail_a_broker_and_the_least_used_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TAILS_MAX", 2)
    tails = AbortedTails()
    for node_id, start in ((1, START), (1, START + 100), (2, START)):
        learned(tails, answer(), node_id=node_id, start=start)
    assert len(tails) == 2
    assert tails.get(1, PARTITION, START + 100, EPOCH) is not None
    learned(tails, answer(), node_id=3)
    assert [tails.get(node_id, PARTITION, START, EPOCH) is None for node_id in (2, 3)] == [True, False]


def test_a_very_long_tail_is_used_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAIL_ENTRIES_MAX", 1)
    tails = AbortedTails()
    assert learned(tails, answer()) == TAIL
    assert len(tails) == 0
