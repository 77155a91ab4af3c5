"""Entries of the offset and time index against batches."""

from collections.abc import Sequence

import pytest

from protocol.record_batches import BatchHeader, read_header
from storage.checks.index_checks import (
    BatchCheck,
    OffsetIndexCheck,
    Problems,
    TimeIndexCheck,
    cut_problem,
)
from storage.indexes.offset_index import encode_offset_index
from tests.support.index_writer import encode_time_index
from tests.support.segments import FIRST_TIMESTAMP_MS, build_segment, data_batch

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
    check = OffsetIndexCheck(encode_offset_index(BASE, entries), BASE)
    follow(check, bad=bad, skipped=skipped)
    return check.problems.sentence()


def time_problem(entries: list[tuple[int, int]], bad: Sequence[int] = (), skipped: range = range(0)) -> str:
    check = TimeIndexCheck(encode_time_index(BASE, entries), BASE)
    follow(check, bad=bad, skipped=skipped)
    return check.problems.sentence()


def last_offset(number: int) -> int:
    return BASE + 10 * number + 9


def time_of(number: int) -> int:
    return FIRST_TIMESTAMP_MS + last_offset(number)


FINAL = (time_of(39), last_offset(39))


@pytest.mark.parametrize("interval_bytes", [0, 1000, 4096, 10**6])
def test_indexes_as_kafka_writes_them_have_no_problem(interval_bytes: int) -> None:
    segment = build_segment(BATCHES, interval_bytes=interval_bytes)
    offsets, times = OffsetIndexCheck(segment.offset_index, BASE), TimeIndexCheck(segment.time_index, BASE)
    follow(offsets)
    follow(times)
    assert (offsets.problems.first, times.problems.first) == (None, None)
    assert cut_problem(offsets, times) is None


def test_an_empty_offset_index_has_no_problem() -> None:
    assert offset_problem([]) == ""


def test_one_entry_for_all_batches_of_an_append_is_right() -> None:
    assert offset_problem([(last_offset(7), POSITIONS[5]), (last_offset(9), POSITIONS[8])]) == ""


def test_an_entry_that_points_into_a_batch_is_found() -> None:
    assert "no batch of the log begins" in offset_problem([(last_offset(5), POSITIONS[5] + 1)])
    assert "no batch of the log begins" in offset_problem([(last_offset(5), POSITIONS[-1] + BATCH_BYTES)])


def test_an_entry_with_another_offset_is_found() -> None:
    assert "entry 0 has offset" in offset_problem([(last_offset(5) - 1, POSITIONS[5])])
    assert "entry 0 has offset" in offset_problem([(last_offset(4), POSITIONS[5])])
    assert "do not reach" in offset_problem([(last_offset(39) + 1, POSITIONS[39])])
    assert "do not reach" in offset_problem([(last_offset(8) - 1, POSITIONS[5]), (last_offset(9), POSITIONS[6])])


def test_several_problems_are_one_sentence() -> None:
    wrong = [(last_offset(number), POSITIONS[number] + 1) for number in (3, 5, 7)]
    check = OffsetIndexCheck(encode_offset_index(BASE, wrong), BASE)
    follow(check)
    assert check.problems.first is not None
    assert check.problems.first[0] == 0
    assert check.problems.sentence().endswith("; and 2 more")
    assert Problems().sentence() == ""


def test_where_the_log_is_corrupt_entries_are_not_judged() -> None:
    entries = [(last_offset(number), POSITIONS[number]) for number in (3, 5, 7, 12)]
    assert offset_problem(entries, bad=[5]) == ""
    assert offset_problem(entries, skipped=range(4, 9)) == ""
    wrong = [(last_offset(3) - 1, POSITIONS[3]), *entries[1:]]
    assert offset_problem(wrong, bad=[5]) != ""
    assert offset_problem(wrong, bad=[3]) == ""


def test_time_entries_name_the_batch_that_first_was_so_new() -> None:
    assert time_problem([(time_of(5), last_offset(5)), (time_of(9), BASE + 93), FINAL]) == ""
    assert "entry 0" in time_problem([(time_of(5) + 1, last_offset(5)), FINAL])
    assert "entry 0" in time_problem([(time_of(5), last_offset(4)), FINAL])
    assert "which no batch" in time_problem([(time_of(5), last_offset(5)), (FINAL[0], last_offset(39) + 1)])


def test_the_last_time_entry_is_the_newest_time() -> None:
    assert "the log's newest" in time_problem([(time_of(5), last_offset(5))])
    assert "the log's newest" in time_problem([])


def test_where_the_log_is_corrupt_times_are_not_judged() -> None:
    assert time_problem([(time_of(5), last_offset(5))], bad=[39]) == ""
    assert time_problem([(time_of(5), last_offset(5)), FINAL], skipped=range(4, 9)) == ""
    assert time_problem([(time_of(5) + 1, last_offset(5)), FINAL], skipped=range(6, 9)) != ""


def test_an_older_batch_after_a_newer_one_has_no_entry() -> None:
    batches = [
        data_batch(0, first_timestamp_ms=FIRST_TIMESTAMP_MS + 500),
        data_batch(1, first_timestamp_ms=FIRST_TIMESTAMP_MS),
        data_batch(2, first_timestamp_ms=FIRST_TIMESTAMP_MS + 900),
    ]
    segment = build_segment(batches, interval_bytes=0)
    for index, is_right in (
        (segment.time_index, True),
        (encode_time_index(0, [(FIRST_TIMESTAMP_MS, 1), (FIRST_TIMESTAMP_MS + 900, 2)]), False),
    ):
        check = TimeIndexCheck(index, 0)
        for position, batch in zip(segment.batch_positions, batches, strict=True):
            check.batch(position, read_header(batch, 0), True, None)
        check.finish(True)
        assert (check.problems.first is None) is is_right


@pytest.mark.parametrize("interval_bytes", [0, 2000, 4096, 10_000])
@pytest.mark.parametrize("entries", [1, 2, 3])
def test_an_offset_index_cut_between_entries_is_told_by_the_time_index(interval_bytes: int, entries: int) -> None:
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
