"""Entries of the offset, time and transaction index and states of the producer snapshot against batches; indexes by
themselves, and the leader epoch checkpoint against the metadata."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from protocol.record_batches import BatchHeader, read_header
from storage.checks.finding import FindingKind
from storage.checks.index_audit import SegmentIndexes, leader_epochs_problem
from storage.checks.index_checks import BatchCheck, OffsetIndexCheck, ProducerSnapshotCheck, TimeIndexCheck, cut_problem
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import encode_offset_index
from storage.indexes.producer_snapshot import ProducerState
from storage.indexes.transaction_index import AbortedTransaction, TransactionIndex, encode_transaction_index
from storage.log.transaction_check import TransactionIndexCheck
from storage.model import IndexType, RemoteLogSegmentMetadata
from tests.support.cases import case
from tests.support.index_writer import encode_time_index
from tests.support.opened_bytes import OpenedBytes
from tests.support.segments import (
    FIRST_TIMESTAMP_MS,
    ProducerFields,
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    metadata_of,
    topic_partition,
)

BASE = 1000
BATCHES = [data_batch(BASE + 10 * number, record_count=10) for number in range(40)]
SEGMENT = build_segment(BATCHES)
POSITIONS = SEGMENT.batch_positions
BATCH_BYTES = len(BATCHES[0])


def headers() -> list[tuple[int, BatchHeader]]:
    return [(position, read_header(batch, 0)) for position, batch in zip(POSITIONS, BATCHES, strict=True)]


def follow(check: BatchCheck, *, bad: Sequence[int] = (), skipped: range = range(0)) -> None:
    """Tell of all batches but the skipped ones; `bad` are those with a wrong CRC."""
    for number, (position, header) in enumerate(headers()):
        if number in skipped:
            if number == skipped.stop - 1:
                check.skip(position + BATCH_BYTES)
            continue
        check.batch(position, header, number not in bad, None)
    check.finish(not bad and not skipped)


def offset_problem(entries: list[tuple[int, int]], bad: Sequence[int] = (), skipped: range = range(0)) -> str:
    return problem_of(OffsetIndexCheck(encode_offset_index(BASE, entries), BASE), bad, skipped)


def time_problem(entries: list[tuple[int, int]], bad: Sequence[int] = (), skipped: range = range(0)) -> str:
    return problem_of(TimeIndexCheck(encode_time_index(BASE, entries), BASE), bad, skipped)


def problem_of(check: OffsetIndexCheck | TimeIndexCheck, bad: Sequence[int], skipped: range) -> str:
    follow(check, bad=bad, skipped=skipped)
    return check.problems.sentence()


def last_offset(number: int) -> int:
    return BASE + 10 * number + 9


def time_of(number: int) -> int:
    return FIRST_TIMESTAMP_MS + last_offset(number)


FINAL = (time_of(39), last_offset(39))


def test_indexes_as_kafka_writes_them_have_no_problem() -> None:
    for interval_bytes in [0, 1000, 4096, 10**6]:
        with case(interval_bytes):
            segment = build_segment(BATCHES, interval_bytes=interval_bytes)
            offsets, times = OffsetIndexCheck(segment.offset_index, BASE), TimeIndexCheck(segment.time_index, BASE)
            follow(offsets)
            follow(times)
            assert (offsets.problems.first, times.problems.first) == (None, None)
            assert cut_problem(offsets, times) is None


def test_offset_entries_lead_to_batches_and_have_their_last_offsets() -> None:
    into, other, short = "no batch of the log begins", "entry 0 has offset", "do not reach"
    for entries, told in (
        ([(last_offset(5), POSITIONS[5] + 1)], into),
        ([(last_offset(5), POSITIONS[-1] + BATCH_BYTES)], into),
        ([(last_offset(5) - 1, POSITIONS[5])], other),
        ([(last_offset(4), POSITIONS[5])], other),
        ([(last_offset(39) + 1, POSITIONS[39])], short),
        ([(last_offset(8) - 1, POSITIONS[5]), (last_offset(9), POSITIONS[6])], short),
    ):
        assert told in offset_problem(entries), entries
    assert offset_problem([]) == ""
    assert offset_problem([(last_offset(7), POSITIONS[5]), (last_offset(9), POSITIONS[8])]) == "", "one for an append"


def test_time_entries_name_the_batch_that_first_was_so_new_and_end_with_the_newest() -> None:
    assert time_problem([(time_of(5), last_offset(5)), (time_of(9), BASE + 93), FINAL]) == ""
    assert "entry 0" in time_problem([(time_of(5) + 1, last_offset(5)), FINAL])
    assert "entry 0" in time_problem([(time_of(5), last_offset(4)), FINAL])
    assert "which no batch" in time_problem([(time_of(5), last_offset(5)), (FINAL[0], last_offset(39) + 1)])
    assert "the log's newest" in time_problem([(time_of(5), last_offset(5))])
    assert "the log's newest" in time_problem([])


def test_where_the_log_is_corrupt_entries_are_not_judged() -> None:
    entries = [(last_offset(number), POSITIONS[number]) for number in (3, 5, 7, 12)]
    wrong = [(last_offset(3) - 1, POSITIONS[3]), *entries[1:]]
    assert offset_problem(entries, bad=[5]) == offset_problem(entries, skipped=range(4, 9)) == ""
    assert (offset_problem(wrong, bad=[5]) != "", offset_problem(wrong, bad=[3])) == (True, "")
    assert time_problem([(time_of(5), last_offset(5))], bad=[39]) == ""
    assert time_problem([(time_of(5), last_offset(5)), FINAL], skipped=range(4, 9)) == ""
    assert time_problem([(time_of(5) + 1, last_offset(5)), FINAL], skipped=range(6, 9)) != ""


def test_an_offset_index_cut_between_entries_is_told_by_the_time_index() -> None:
    for interval_bytes, entries in itertools.product([0, 2000, 4096, 10_000], [1, 2, 3]):
        segment = build_segment(BATCHES, interval_bytes=interval_bytes)
        offsets = OffsetIndexCheck(segment.offset_index[: -8 * entries], BASE)
        times = TimeIndexCheck(segment.time_index, BASE)
        follow(offsets)
        follow(times)
        problem = cut_problem(offsets, times)
        if interval_bytes == 0 and entries == 1:
            assert problem is None, "the last batch's entry: nothing is lost with it but one step of a scan"
        elif len(segment.offset_index) // 8 > entries + 1:
            assert problem is not None
            assert "entries at its end are missing" in problem


def test_stops_of_the_broker_make_time_entries_of_their_own() -> None:
    """At each stop the newest time so far is written, with no entry of the offset index."""
    few = BATCHES[:3]
    times = TimeIndexCheck(
        encode_time_index(BASE, [(time_of(number), last_offset(number)) for number in range(3)]), BASE
    )
    offsets = OffsetIndexCheck(b"", BASE)
    for position, batch in zip(POSITIONS, few, strict=False):
        for check in (times, offsets):
            check.batch(position, read_header(batch, 0), True, None)
    for check in (times, offsets):
        check.finish(True)
    assert times.problems.first is None
    assert cut_problem(offsets, times) is None


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
    check = TransactionIndexCheck(index, START)
    position = 0
    for number, ((kind, _), batch) in enumerate(zip(events, batches, strict=True)):
        is_abort = None if kind == "data" else kind == "abort"
        check.batch(position, read_header(batch, 0), number != bad, is_abort)
        position += len(batch)
    check.finish(bad is None)
    return check.problems.sentence()


def test_each_abort_with_records_has_its_entry() -> None:
    assert problem(ENTRIES) == ""
    assert problem([], [("data", 7), ("commit", 7)]) == ""
    assert problem([], [("abort", 7), ("data", 7), ("commit", 7), ("abort", 7)]) == "", "no abort has records"
    for number in (0, 1):
        assert "no entry for the ABORT" in problem([entry for entry in ENTRIES if entry is not ENTRIES[number]])


def test_a_wrong_field_is_found() -> None:
    for change, told in [
        ({"producer_id": 8}, "names producer 8"),
        ({"first_offset": 101}, "first offset 101"),
        ({"last_offset": 104}, "where there is no ABORT"),
        ({"last_stable_offset": 104}, "last stable offset 104"),
        ({"last_stable_offset": 105}, "last stable offset 105"),
        ({"last_stable_offset": 107}, "where no transaction begins"),
    ]:
        assert told in problem([ENTRIES[0], replace(ENTRIES[1], **change)])


def test_what_may_have_begun_before_the_segment_is_believed() -> None:
    assert problem([AbortedTransaction(7, 50, 101, 102)], [("data", 7), ("abort", 7)]) == ""
    assert problem([AbortedTransaction(7, 50, 100, 101)], [("abort", 7)]) == ""
    assert problem([AbortedTransaction(7, 100, 101, 60)], [("data", 7), ("abort", 7)]) == "", "another was open then"
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


def test_a_producers_state_is_at_its_last_batch_in_or_before_the_segment() -> None:
    assert snapshot_problem(state(7, 100), state(8, 101)) == ""
    assert "its last batch in the log ends at 100" in snapshot_problem(state(7, 99))
    assert snapshot_problem(state(7, 99), bad=True) == ""
    assert snapshot_problem() == snapshot_problem(state(5, 30), state(7, -1)) == "", "missing, and of earlier segments"
    for bad in (False, True):
        assert "the segment ends at 102" in snapshot_problem(state(5, 103), bad=bad)


FILLED = filled_segment(100)
METADATA = replace(metadata_of(topic_partition(), FILLED), segment_leader_epochs={3: 100, 5: 150})
NAMES = {index_type: f"a.{index_type.value}" for index_type in IndexType}


def no_wait(seconds: float) -> None:
    """Nothing."""


def loaded(contents: dict[IndexType, bytes | Exception]) -> SegmentIndexes:
    def fetch(index_type: IndexType) -> bytes:
        content = contents[index_type]
        if isinstance(content, Exception):
            raise content
        return content

    indexes = SegmentIndexes(METADATA, NAMES)
    for index_type in contents:
        indexes.load(OpenedBytes(METADATA, lambda: b"", fetch), index_type, no_wait)
    return indexes


def test_an_index_that_cannot_be_read_is_found_with_its_object() -> None:
    for error, kind in [
        (CorruptObjectError("tag"), FindingKind.INDEX),
        (RemoteResourceNotFoundError("none"), FindingKind.INDEX_MISSING),
    ]:
        (finding,) = loaded({IndexType.OFFSET: error}).findings
        assert (finding.kind, finding.object_name) == (kind, "a.index")
        assert finding.detail.startswith("OFFSET")


def test_several_that_cannot_be_read_and_none_that_can_are_the_objects_fault() -> None:
    broken: dict[IndexType, bytes | Exception] = {
        IndexType.OFFSET: b"x",
        IndexType.TIMESTAMP: CorruptObjectError("tag"),
    }
    assert loaded(broken).none_readable
    assert not loaded({IndexType.OFFSET: b"x"}).none_readable
    assert not loaded({**broken, IndexType.LEADER_EPOCH: FILLED.leader_epoch_checkpoint}).none_readable
    assert loaded({**broken, IndexType.TRANSACTION: b""}).none_readable, "an empty one tells nothing"
    indexes = loaded(broken)
    indexes.forget("all of it")
    assert [finding.detail for finding in indexes.conclude()] == ["all of it"]


def test_entries_of_an_index_that_the_metadata_call_empty_are_found() -> None:
    assert METADATA.txn_index_empty
    index = encode_transaction_index([AbortedTransaction(1, 100, 101, 102)])
    (finding,) = loaded({IndexType.TRANSACTION: index}).findings
    assert "the metadata says that it is empty" in finding.detail


def test_a_checkpoint_ends_with_the_segments_epochs() -> None:
    for checkpoint in [
        ((3, 100), (5, 150)),
        ((3, 40), (5, 150)),
        ((0, 0), (1, 20), (3, 90), (5, 150)),
        ((2, 100), (3, 100), (5, 150)),
    ]:
        assert leader_epochs_problem(checkpoint, METADATA) is None


def test_a_checkpoint_of_something_else_is_found() -> None:
    for checkpoint, told in [
        ((), "no epoch 3"),
        (((3, 100),), "no epoch 5"),
        (((3, 101), (5, 150)), "epoch 3 begins at offset 101"),
        (((3, 100), (5, 149)), "epoch 5 begins at offset 149"),
        (((3, 100), (5, 150), (6, 200)), "epoch 6 from offset 200"),
        (((3, 100), (5, 150), (6, 10_000)), "the segment ends at"),
        (((3, 100), (4, 120), (5, 150)), "epoch 4 from offset 120"),
    ]:
        assert told in str(leader_epochs_problem(checkpoint, METADATA))
