"""Entries of the transaction index and states of the producer snapshot against batches."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.record_batches import read_header
from storage.checks.index_checks import ProducerSnapshotCheck, TransactionIndexCheck
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex
from storage.model import RemoteLogSegmentMetadata
from tests.support.index_writer import encode_transaction_index
from tests.support.segments import (
    ProducerFields,
    build_segment,
    control_batch,
    data_batch,
    metadata_of,
    topic_partition,
)

START = 100
Event = tuple[str, int]
"""`data`, `abort` or `commit`, and the producer id. Each is one offset, from START on."""

ABORTED: list[Event] = [("data", 7), ("data", 8), ("abort", 7), ("data", 9), ("commit", 8), ("abort", 9)]
ENTRIES = (AbortedTransaction(7, 100, 102, 101), AbortedTransaction(9, 103, 105, 106))


def batches_of(events: Sequence[Event]) -> list[bytes]:
    batches = []
    for offset, (kind, producer_id) in enumerate(events, start=START):
        if kind == "data":
            producer = ProducerFields(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
            batches.append(data_batch(offset, producer=producer))
        else:
            batches.append(control_batch(offset, producer_id=producer_id, commit=kind == "commit"))
    return batches


def metadata_for(batches: list[bytes]) -> RemoteLogSegmentMetadata:
    return metadata_of(topic_partition(), build_segment(batches))


def problem(entries: Sequence[AbortedTransaction], events: Sequence[Event] = ABORTED, *, bad: int | None = None) -> str:
    batches = batches_of(events)
    index = TransactionIndex(encode_transaction_index(entries))
    check = TransactionIndexCheck(index, metadata_for(batches))
    position = 0
    for number, ((kind, _), batch) in enumerate(zip(events, batches, strict=True)):
        is_abort = None if kind == "data" else kind == "abort"
        check.batch(position, read_header(batch, 0), number != bad, is_abort)
        position += len(batch)
    check.finish(bad is None)
    return check.problems.sentence()


def test_entries_as_the_broker_writes_them_have_no_problem() -> None:
    assert problem(ENTRIES) == ""
    assert problem([], [("data", 7), ("commit", 7)]) == ""


def test_an_abort_without_records_has_no_entry() -> None:
    assert problem([], [("abort", 7), ("data", 7), ("commit", 7), ("abort", 7)]) == ""


@pytest.mark.parametrize("number", [0, 1])
def test_an_abort_without_its_entry_is_found(number: int) -> None:
    assert "no entry for the ABORT" in problem([entry for entry in ENTRIES if entry is not ENTRIES[number]])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"producer_id": 8}, "names producer 8"),
        ({"first_offset": 101}, "first offset 101"),
        ({"last_offset": 104}, "where there is no ABORT"),
        ({"last_stable_offset": 104}, "last stable offset 104"),
        ({"last_stable_offset": 105}, "last stable offset 105"),
        ({"last_stable_offset": 107}, "where no transaction begins"),
    ],
)
def test_a_wrong_field_is_found(change: dict[str, int], told: str) -> None:
    assert told in problem([ENTRIES[0], replace(ENTRIES[1], **change)])


def test_what_began_before_the_segment_is_believed() -> None:
    assert problem([AbortedTransaction(7, 50, 101, 102)], [("data", 7), ("abort", 7)]) == ""
    assert problem([AbortedTransaction(7, 50, 100, 101)], [("abort", 7)]) == ""
    assert problem([AbortedTransaction(7, 100, 101, 60)], [("data", 7), ("abort", 7)]) == "", "another was open then"


def test_what_cannot_have_begun_before_the_segment_is_found() -> None:
    events: list[Event] = [("commit", 7), ("data", 7), ("abort", 7)]
    assert "first offset 50" in problem([AbortedTransaction(7, 50, 102, 103)], events)
    assert "no batch of it was seen" in problem([AbortedTransaction(7, 100, 100, 101)], [("abort", 7)])


def test_an_append_of_batches_knows_transactions_begun_after_the_marker() -> None:
    events: list[Event] = [("data", 7), ("abort", 7), ("commit", 8), ("data", 9)]
    assert problem([AbortedTransaction(7, 100, 101, 103)], events) == ""
    assert problem([AbortedTransaction(7, 100, 101, 103)], events[:3]) != ""


def test_after_a_corrupt_batch_nothing_is_judged() -> None:
    assert problem(ENTRIES[1:], bad=0) == ""
    assert problem(ENTRIES[:1], bad=4) == ""
    assert problem(ENTRIES[1:], bad=4) != "", "it was found before"


def state(producer_id: int, last_offset: int) -> ProducerState:
    return ProducerState(producer_id, 0, 0, last_offset, 0, 0, 0, -1)


def snapshot_problem(*states: ProducerState, bad: bool = False) -> str:
    batches = batches_of([("data", 7), ("data", 8), ("commit", 7)])
    check = ProducerSnapshotCheck(states, metadata_for(batches))
    for batch in batches:
        check.batch(0, read_header(batch, 0), not bad, None)
    check.finish(not bad)
    return check.problems.sentence()


def test_a_producers_state_is_at_its_last_batch() -> None:
    assert snapshot_problem(state(7, 100), state(8, 101)) == ""
    assert "its last batch in the log ends at 100" in snapshot_problem(state(7, 99))
    assert snapshot_problem(state(7, 99), bad=True) == ""


def test_producers_may_be_missing_or_of_earlier_segments() -> None:
    assert snapshot_problem() == ""
    assert snapshot_problem(state(5, 30), state(7, -1)) == ""


def test_a_state_beyond_the_segment_is_found() -> None:
    assert "the segment ends at 102" in snapshot_problem(state(5, 103))
    assert "the segment ends at 102" in snapshot_problem(state(5, 103), bad=True)
