"""What `tidegate diff` asks, and what it takes for the same answer."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from protocol.client.offset_questions import OffsetAnswer
from protocol.fetch.messages import PartitionAnswer
from tests.support.metadata_records import named_partition
from tests.support.segments import Record, data_batch
from tidegate.commands.diff_questions import (
    Answer,
    SampledPartition,
    SegmentRange,
    choose,
    corrupt_batches,
    differences,
    is_settled,
    questions,
)

ORDERS = named_partition("orders")
BATCHES = b"".join(data_batch(offset, records=[Record(b"key", b"value %d" % offset)] * 3) for offset in (10, 13, 16))


def fetched(
    records: bytes = BATCHES, *, aborted: list[tuple[int, int]] | None = None, **changes: int
) -> PartitionAnswer:
    answer = PartitionAnswer(None, None, 0, 0, 100, 90, 5, aborted_transactions=aborted, records=[records])
    return replace(answer, **changes)  # type: ignore[arg-type]  # the fields that the caller names are numbers


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    samples=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_sample_is_spread_over_partitions_and_can_be_drawn_again(counts: list[int], samples: int, seed: int) -> None:
    segments = {
        named_partition("orders", number): [SegmentRange(at * 10, at * 10 + 9, 0) for at in range(count)]
        for number, count in enumerate(counts)
    }
    chosen = choose(segments, samples, random.Random(seed))
    assert sum(map(len, chosen.values())) == min(samples, sum(counts))
    assert len(chosen) == min(samples, len(counts))
    assert all(len(set(ranges)) == len(ranges) <= len(segments[each]) for each, ranges in chosen.items())
    most = max(map(len, chosen.values()))
    assert all(len(ranges) >= min(most - 1, len(segments[each])) for each, ranges in chosen.items())
    assert chosen == choose(segments, samples, random.Random(seed))


@given(log_start=st.integers(0, 60), local=st.integers(0, 60), seed=st.integers(0, 2**32 - 1))
def test_segments_are_asked_for_only_where_they_are_whole_in_the_tier(log_start: int, local: int, seed: int) -> None:
    local = max(local, log_start)
    ranges = [SegmentRange(start, start + 9, 1000 + start) for start in range(0, 60, 10)]
    asked = questions([SampledPartition(ORDERS, log_start, local, 70, tuple(ranges))], random.Random(seed))
    assert [each.number for each in asked] == list(range(len(asked)))
    wanted = [each for each in ranges if log_start <= each.start_offset and each.end_offset < local]
    for place in ("segment start", "in a segment", "segment end"):
        found = [each.fetch_offset for each in asked if each.place == place]
        assert len(found) == len(wanted)
        for offset, segment in zip(found, wanted, strict=True):
            assert offset is not None
            assert segment.start_offset <= offset <= segment.end_offset
    edges = {each.fetch_offset for each in asked if each.fetch_offset is not None}
    assert {log_start, local, 70} <= edges
    assert all(
        log_start <= each.fetch_offset < local for each in asked if each.is_remote and each.fetch_offset is not None
    )
    assert {-1, -2, -4, -5} <= {each.timestamp for each in asked}


@given(at=st.integers(0, len(BATCHES) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_the_records_is_found(at: int, bit: int) -> None:
    flipped = bytearray(BATCHES)
    flipped[at] ^= 1 << bit
    [said] = differences([fetched(), fetched()], fetched(bytes(flipped)))
    assert said.startswith(f"records: byte {at} ")


def test_what_the_broker_said_before_and_after_are_bounds() -> None:
    marks: list[Answer] = [fetched(high_watermark=100), fetched(high_watermark=120)]
    offset = OffsetAnswer(0, 7, 2, 1000)
    cases: list[tuple[list[Answer], Answer, list[str]]] = [
        ([fetched()], fetched(), []),
        ([fetched(aborted=[])], fetched(aborted=None), []),
        (marks, fetched(high_watermark=110), []),
        (marks, fetched(high_watermark=121), ["high_watermark: 100 and then 120 from the broker, 121 from Tidegate"]),
        ([fetched()], fetched(log_start_offset=4), ["log_start_offset: 5 from the broker, 4 from Tidegate"]),
        ([fetched()], fetched(last_stable_offset=91), ["last_stable_offset: 90 from the broker, 91 from Tidegate"]),
        ([fetched(error_code=1), fetched()], fetched(), []),
        ([fetched(BATCHES[:50]), fetched()], fetched(BATCHES[:90]), []),
        ([fetched(error_code=1)], fetched(error_code=6), ["error code: 1 from the broker, 6 from Tidegate"]),
        (
            [fetched()],
            fetched(BATCHES[:50]),
            [f"records: {len(BATCHES)} bytes from the broker, 50 from Tidegate, equal as far as the shorter goes"],
        ),
        (
            [fetched(aborted=[(1, 2), (3, 4)])],
            fetched(aborted=[(3, 4)]),
            ["aborted transactions: [(1, 2), (3, 4)] from the broker, [(3, 4)] from Tidegate"],
        ),
        ([fetched(aborted=[(3, 4), (1, 2)])], fetched(aborted=[(1, 2), (3, 4)]), []),
        ([offset], offset, []),
        ([OffsetAnswer(0, 7, 2, -1), OffsetAnswer(0, 9, 3, -1)], OffsetAnswer(0, 8, 3, -1), []),
        ([offset], OffsetAnswer(0, 8, 2, 1000), ["offset: 7 from the broker, 8 from Tidegate"]),
        ([offset], OffsetAnswer(0, 7, 2, 999), ["timestamp_ms: 1000 from the broker, 999 from Tidegate"]),
        ([offset], OffsetAnswer(0, 7, 1, 1000), ["leader_epoch: 2 from the broker, 1 from Tidegate"]),
    ]
    for brokers, ours, said in cases:
        assert differences(brokers, ours) == said
    all_said = differences([fetched()], fetched(last_stable_offset=91, log_start_offset=4))
    assert [each.split(":")[0] for each in all_said] == ["log_start_offset", "last_stable_offset"]


def test_a_side_that_has_nothing_yet_is_asked_again() -> None:
    assert is_settled([fetched()], fetched(b"other records"))
    assert is_settled([fetched(b"")], fetched(b""))
    assert not is_settled([fetched()], fetched(b""))
    assert not is_settled([fetched(b""), fetched()], fetched())
    assert not is_settled([OffsetAnswer(7, -1, -1, -1)], OffsetAnswer(7, -1, -1, -1))


def test_equal_bytes_may_be_equally_wrong() -> None:
    flipped = bytearray(BATCHES)
    flipped[-1] ^= 1
    assert corrupt_batches(fetched()) == []
    assert corrupt_batches(fetched(BATCHES[:-1])) == [], "a batch that the limit cut is no batch yet"
    assert corrupt_batches(fetched(bytes(flipped))) == ["the CRC of the batch at offset 16 does not hold"]
    assert corrupt_batches(fetched(bytes(200)))[0].startswith("in the batch at 0 of 200")
    assert corrupt_batches(OffsetAnswer(0, 7, 2, 1000)) == []
