"""The merged response: the broker's offsets, the tier's bytes, every partition once and in order."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.messages import FetchPartition, FetchResponse, PartitionAnswer, key_of
from protocol.fetch.response import decode_response
from protocol.record_batches import Buffer
from proxy.fetch.aborted_tails import AbortedTail
from proxy.fetch.answer import (
    BrokersWord,
    FetchAnswer,
    assemble,
    encode_answer,
    lacks_aborts,
    pass_whole,
    refusal,
    tier_answer,
    withhold_excess,
)
from proxy.fetch.authorities import Authority
from proxy.fetch.frontiers import Frontier
from proxy.fetch.plan import TierPart
from storage.errors import CorruptObjectError
from storage.reading.aborted_transactions import TierAborts
from storage.reading.reader import TierRecords
from tests.support.for_each import for_each
from tests.support.segments import topic_partition
from tests.support.tier_world import ask, codes_of, fetch_of, records_of

AUTHORITY = Authority(1500, 1490, 3, 5, 1000, 0.0, aborted_tail=((7, 990), (8, 995)))
PART = TierPart(ask(topic_partition(), 17), topic_partition(), Frontier(1000, 1500, 5, 0.0))


def decoded(buffers: list[Buffer], api_version: int = 17) -> FetchResponse:
    return decode_response(memoryview(b"".join(buffers)), api_version)


def records_with(aborted: list[tuple[int, int]], **changes: Any) -> TierRecords:
    aborts = TierAborts(aborted, 1000, is_complete=False, searched_below=1000)
    return TierRecords([memoryview(b"x")], 1, aborts=replace(aborts, **changes))


@for_each(
    "isolation_level, result, aborted",
    [
        (0, TierRecords([memoryview(b"x")], 1), None),
        (1, records_with([], is_complete=True), []),
        (1, records_with([], upper_bound_offset=990), []),
        (1, records_with([], upper_bound_offset=991), [(7, 990)]),
        (1, records_with([(9, 17), (7, 990)]), [(9, 17), (7, 990), (8, 995)]),
        (1, records_with([(9, 17)], is_complete=True), [(9, 17)]),
        (1, TierRecords([], 0, first_batch_too_large=True), None),
        (1, None, None),
    ],
)
def test_aborted_transactions_are_null_or_a_list_as_at_the_broker(
    isolation_level: int, result: TierRecords | None, aborted: list[tuple[int, int]] | None
) -> None:
    answer = tier_answer(fetch_of([], isolation_level=isolation_level), PART, AUTHORITY, result)
    assert answer.aborted_transactions == aborted


@for_each(
    "result, tail, lacks",
    [
        (records_with([]), (), False),
        (records_with([]), None, True),
        (records_with([], is_complete=True), None, False),
        (records_with([], searched_below=999), (), True),
        (records_with([], searched_below=999, is_complete=True), (), False),
        (TierRecords([memoryview(b"x")], 1), None, False),
        (TierRecords([], 0, first_batch_too_large=True), None, False),
        (CorruptObjectError("crc"), None, False),
        (None, None, False),
    ],
)
def test_aborts_are_known_if_the_tier_tells_all_up_to_the_brokers_tail(
    result: TierRecords | Exception | None, tail: AbortedTail | None, lacks: bool
) -> None:
    assert lacks_aborts(replace(AUTHORITY, aborted_tail=tail), result) == lacks


@for_each("version", range(4, 19))
def test_a_refusal_has_no_partitions_in_any_version(version: int) -> None:
    request = fetch_of([], api_version=version)
    response = decoded(encode_answer(request, FetchAnswer((), 5, 70)), version)
    assert (response.throttle_time_ms, response.partitions) == (5, [])
    assert response.error_code == (70 if version >= 7 else 0)
    assert response.correlation_id == 4711


@for_each("version, top, codes", [(6, 0, [35, 35]), (7, 35, []), (17, 35, [])])
def test_an_error_of_the_request_is_where_the_version_looks_for_it(version: int, top: int, codes: list[int]) -> None:
    request = fetch_of([ask(topic_partition("orders", number), 1) for number in range(2)], api_version=version)
    for asked in request.partitions:
        asked.topic_id = None if version < 13 else asked.topic_id
    response = decoded(encode_answer(request, pass_whole(FetchResponse(9, 3, 35, 0, []))), version)
    assert (response.error_code, codes_of(response), response.throttle_time_ms) == (top, codes, 3)


def test_what_the_broker_does_not_read_is_answered_last() -> None:
    """First ids without a name, then what is refused or not there; what it reads keeps its place, errors too."""
    codes = [29, 0, 100, 6, 3, 100, 1, 29, 0]
    asked = [ask(topic_partition("orders", number), 17) for number in range(len(codes))]
    answers = {key_of(each): refusal(each, code) for each, code in zip(asked, codes, strict=True)}
    assembled = assemble(fetch_of(asked), answers, BrokersWord()).partitions
    assert [answer.partition for answer in assembled] == [1, 3, 6, 8, 2, 5, 0, 4, 7]


@for_each(
    "sizes, exceeding, left",
    [
        ([0, 9, 9, 9], {1}, [0, 9, 9, 9]),
        ([0, 9, 9, 9], {2}, [0, 9, 0, 9]),
        ([9, 9, 0, 9], {0, 1, 2, 3}, [9, 0, 0, 0]),
        ([0, 0, 9, None], {2, 3}, [0, 0, 9, None]),
        ([9, 9, 9, 9], set(), [9, 9, 9, 9]),
    ],
)
def test_a_large_batch_is_the_first_ones(sizes: list[int | None], exceeding: set[int], left: list[int | None]) -> None:
    asked = [ask(topic_partition("orders", number), 17) for number in range(4)]
    keys = [key_of(entry) for entry in asked]
    # As they came, which is not the request's order.
    answers = {
        key: PartitionAnswer(*key, 0, 10, 9, 3, aborted_transactions=[(7, 9)], records=[bytes(size)])
        for key, size in reversed([*zip(keys, sizes, strict=True)])
        if size is not None
    }
    withhold_excess(fetch_of(asked), answers, {keys[number] for number in exceeding})
    assert [answers[key].records_bytes if key in answers else None for key in keys] == left
    for key, before, now in zip(keys, sizes, left, strict=True):
        if before and not now:
            # As the broker answers where not even a batch fits.
            assert (answers[key].aborted_transactions, answers[key].high_watermark) == (None, 10)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, list[FetchPartition]]:
    version = draw(st.integers(4, 18))
    keys = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), unique=True, max_size=15))
    asked = [ask(topic_partition(topic, number), 17) for topic, number in keys]
    for entry in asked:
        entry.topic, entry.topic_id = (entry.topic, None) if version < 13 else (None, entry.topic_id)
    return version, asked


@given(requests(), st.data())
def test_every_partition_is_answered_once_in_order_with_its_own_bytes(
    request_of: tuple[int, list[FetchPartition]], data: st.DataObject
) -> None:
    version, asked = request_of
    request = fetch_of(asked, api_version=version)
    records = {key_of(entry): data.draw(st.lists(st.binary(max_size=5), max_size=3)) for entry in asked}
    left_out = data.draw(st.sets(st.sampled_from(sorted(records, key=repr))) if records else st.just(set()))
    answers = {
        key: PartitionAnswer(key[0], key[1], key[2], 0, 10, 10, 0, records=buffers)
        for key, buffers in data.draw(st.permutations(list(records.items())))
        if key not in left_out
    }
    response = decoded(encode_answer(request, assemble(request, answers, BrokersWord())), version)
    assert [key_of(answer) for answer in response.partitions] == [key_of(entry) for entry in asked]
    expected = [b"" if key_of(entry) in left_out else b"".join(records[key_of(entry)]) for entry in asked]
    assert records_of(response) == expected
    assert codes_of(response) == [-1 if key_of(entry) in left_out else 0 for entry in asked]
