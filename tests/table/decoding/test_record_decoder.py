"""The decoder against an independent one (aiokafka): every codec and shape of batch gives the same rows."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from table.decoding import inflated_batches
from table.decoding.inflated_batches import RecordDecoder
from table.schema import COLUMNS, arrow_schema
from table.tasks import ReadOptions
from tests.support.for_each import for_each
from tests.support.record_rows import Given, Row, decoded, independent_rows, record_batch, scanned
from tests.support.segments import FIRST_TIMESTAMP_MS
from tests.support.timed_batches import CODECS, CONTROL, GZIP, LZ4, NONE, SNAPPY, TRANSACTIONAL, ZSTD, timed_messages

FOREVER = 2**62


def produced(
    blobs: list[bytes], *, first_offset: int = 0, end_offset: int = FOREVER, **options: Any
) -> list[pa.RecordBatch]:
    decoder = RecordDecoder(ReadOptions(**{"columns": COLUMNS, **options}), "topic", 3, where="a log")
    return list(decoder.decode(scanned(blobs), first_offset=first_offset, end_offset=end_offset))


def rows_of(blobs: list[bytes], **options: Any) -> list[Row]:
    return decoded(produced(blobs, **options))


Skipped = list[tuple[int, int, str]]


def rows_and_skipped(blobs: list[bytes], *, task_bytes_max: int = 2**26) -> tuple[list[Row], Skipped]:
    """Position, size and reason of each batch that is left out because it is bad."""
    skipped: Skipped = []
    options = ReadOptions(columns=COLUMNS, skips_bad_records=True, task_bytes_max=task_bytes_max)
    decoder = RecordDecoder(options, "topic", 3, where="a log", on_bad=lambda *bad: skipped.append(bad))
    return decoded(decoder.decode(scanned(blobs), first_offset=0, end_offset=FOREVER)), skipped


def only(rows: list[Row], columns: tuple[str, ...]) -> list[Row]:
    return [{name: row[name] for name in columns} for row in rows]


def many_records(count: int, *, seed: int = 1, value_bytes_max: int = 300) -> list[Given]:
    """With holes, nulls, empty ones, times that go back, and headers here and there."""
    rng = random.Random(seed)
    records, delta = [], -1
    for _ in range(count):
        delta += rng.choice((1, 1, 1, 2, 70))
        key = rng.choice((None, b"", rng.randbytes(rng.randrange(90))))
        value = rng.choice((None, b"", rng.randbytes(rng.randrange(value_bytes_max))))
        headers = tuple((f"name-{n}", rng.choice((None, b"", b"x" * 80))) for n in range(rng.choice((0, 0, 1, 5))))
        records.append(Given(delta, rng.randrange(-(10**6), 10**9), key, value, headers))
    return records


def batches_of(counts: list[int], codecs: Sequence[int] = CODECS) -> list[bytes]:
    """Batches of so many records, in ascending order of offset."""
    blobs, offset = [], 0
    for number, (count, codec) in enumerate(zip(counts, itertools.cycle(codecs), strict=False)):
        records = many_records(count, seed=number)
        blobs.append(record_batch(offset, records, codec=codec, append_time_ms=5 if number % 7 == 3 else None))
        offset += records[-1].delta + 1 + number % 3
    return blobs


bytes_or_null = st.none() | st.binary(max_size=200)
records_strategy = st.lists(
    st.tuples(
        st.integers(1, 200),
        st.integers(-(2**40), 2**40),
        bytes_or_null,
        bytes_or_null,
        st.lists(st.tuples(st.text(max_size=70), bytes_or_null), max_size=4),
    ),
    min_size=1,
    max_size=30,
)


@given(st.lists(st.tuples(records_strategy, st.sampled_from(CODECS), st.booleans(), st.booleans()), max_size=6))
def test_any_batches_give_the_rows_of_an_independent_decoder(
    given_batches: list[
        tuple[list[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]], int, bool, bool]
    ],
) -> None:
    blobs, offset = [], 7
    for given_records, codec, is_append_time, is_raw in given_batches:
        records, delta = [], -1
        for step, timestamp_delta, key, value, headers in given_records:
            delta += step
            records.append(Given(delta, timestamp_delta, key, value, tuple(headers)))
        append_time_ms = FIRST_TIMESTAMP_MS if is_append_time else None
        blobs.append(record_batch(offset, records, codec=codec, append_time_ms=append_time_ms, raw_snappy=is_raw))
        offset += delta + 1
    assert rows_of(blobs) == independent_rows(blobs)


def test_many_batches_of_different_sizes_are_read_side_by_side() -> None:
    rng = random.Random(5)
    blobs = batches_of([rng.choice((1, 2, 30, 31, rng.randrange(1, 120))) for _ in range(200)])
    assert rows_of(blobs) == independent_rows(blobs)


def test_long_records_among_short_ones_are_read() -> None:
    """Lengths of one, two, three and four bytes, in lockstep and alone."""
    sizes = [1, 50, 58, 60, 64, 200, 8_150, 8_190, 8_200, 70_000, 1_048_560, 1_048_590]
    records = [Given(number, value=bytes(size)) for number, size in enumerate(sizes)]
    blobs = [record_batch(20 * number, records[number % 3 :], codec=LZ4) for number in range(60)]
    assert rows_of(blobs) == independent_rows(blobs)
    assert rows_of(blobs[:1]) == independent_rows(blobs[:1])


@for_each("codec", CODECS)
def test_a_batch_that_is_larger_than_a_group_is_read_in_pieces(codec: int) -> None:
    records = [Given(n, n % 1000 - 500, b"%d" % n, b"v" * (n % 300)) for n in range(0, 40_000, 2)]
    blobs = [record_batch(5, records[:3]), record_batch(100, records, codec=codec), record_batch(10**6, records[:3])]
    rows = rows_of(blobs, task_bytes_max=1024 * 1024)
    assert rows == independent_rows(blobs)


def test_produced_batches_are_bounded_in_rows_and_bytes() -> None:
    large = record_batch(0, [Given(n, value=b"v" * 1000) for n in range(5000)])
    batches = produced([large] * 4, columns=("value", "offset"), task_bytes_max=4 * 1024 * 1024)
    assert sum(batch.num_rows for batch in batches) == 20_000
    assert max(batch.get_total_buffer_size() for batch in batches) <= 512 * 1024 + 16 * 600
    small = record_batch(0, [Given(n) for n in range(40_000)])
    batches = produced([small] * 3, columns=("offset",))
    assert sum(batch.num_rows for batch in batches) == 120_000
    assert max(batch.num_rows for batch in batches) <= inflated_batches.RECORDS_MAX


@for_each("size", [0, 1, 2, len(COLUMNS)])
def test_columns_are_those_asked_for_in_that_order(size: int) -> None:
    blobs = [*batches_of([3, 70, 5]), timed_messages(1, [(50_000, 7), (50_003, 9)], codec=GZIP)]
    everything = independent_rows(blobs)
    for columns in itertools.permutations(COLUMNS, size) if size < 3 else [COLUMNS]:
        batches = produced(blobs, columns=columns)
        assert {tuple(batch.schema) for batch in batches} == {tuple(arrow_schema(columns))}
        assert sum(batch.num_rows for batch in batches) == len(everything)
        if columns:
            assert decoded(batches) == only(everything, columns)


def test_rows_outside_the_offsets_are_cut() -> None:
    blobs = batches_of([40, 1, 60, 20])
    everything = independent_rows(blobs)
    offsets = [row["offset"] for row in everything]
    for first in (0, offsets[0] + 1, offsets[30], offsets[41], offsets[90] + 1):
        for end in (first, offsets[39], offsets[60] + 1, offsets[-1], offsets[-1] + 1):
            expected = [row for row in everything if first <= row["offset"] < end]
            assert rows_of(blobs, first_offset=first, end_offset=end) == expected


@for_each("columns", [COLUMNS, ("offset",), ("value",)])
def test_rows_outside_the_timestamps_are_cut(columns: tuple[str, ...]) -> None:
    blobs = [*batches_of([40, 1, 60, 20, 30]), timed_messages(1, [(90_000, 7), (90_003, 10**14)], codec=GZIP)]
    everything = independent_rows(blobs)
    times = sorted(row["timestamp"] // 1000 for row in everything)
    for low in (None, 5, 6, times[50], times[-1], times[-1] + 1):
        for high in (None, 4, 5, times[70], times[-1]):
            expected = [
                row
                for row in everything
                if (low is None or row["timestamp"] >= low * 1000) and (high is None or row["timestamp"] <= high * 1000)
            ]
            rows = rows_of(blobs, columns=columns, timestamp_min_ms=low, timestamp_max_ms=high)
            assert rows == only(expected, columns)


def test_markers_and_emptied_batches_have_no_rows_and_transactional_ones_have() -> None:
    records = [Given(0, key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")]
    blobs = [
        record_batch(0, records, attributes=TRANSACTIONAL),
        record_batch(1, records, attributes=TRANSACTIONAL | CONTROL),
        record_batch(2, records),
        record_batch(3, [], last_delta=9),
        record_batch(13, records, codec=ZSTD),
    ]
    assert [row["offset"] for row in rows_of(blobs)] == [0, 2, 13]


@for_each("codec", [NONE, SNAPPY])
def test_absent_timestamps_are_a_millisecond_before_the_epoch(codec: int) -> None:
    blobs = [record_batch(0, [Given(0), Given(1)], base_timestamp_ms=-1, codec=codec)]
    assert [(row["timestamp"], row["timestampType"]) for row in rows_of(blobs)] == [(-1000, 0)] * 2
