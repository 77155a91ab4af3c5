"""Corrupt batches: an error that names the first one, or just that batch left out; and records that are too large."""

import random
import struct
from itertools import product

import pytest

from protocol.record_batches import HEADER_BYTES
from storage.errors import CorruptObjectError
from table.decoding.inflation import RecordTooLargeError
from table.schema import COLUMNS, DEFAULT_COLUMNS
from tests.support.for_each import for_each
from tests.support.record_rows import Given, independent_rows, record_batch
from tests.support.timed_batches import CODECS, GZIP, LZ4, NONE, ZSTD, compressed, framed_batch, timed_messages
from tests.table.decoding.test_record_decoder import rows_and_skipped, rows_of

RECORDS = [Given(n, n - 3, b"key-%d" % n, b"value" * n, (("name", b"x"),) * (n % 3)) for n in range(12)]
PLAIN = b"".join(record.plain for record in RECORDS)
COUNT_AT = 57
LAST_DELTA_AT = 23


def patched(blob: bytes, at: int, data: bytes) -> bytes:
    return blob[:at] + data + blob[at + len(data) :]


def batch_of(
    plain: bytes, *, record_count: int = 1, last_delta: int = 0, codec: int = NONE, left_out_bytes: int = 0
) -> bytes:
    """A batch around any bytes for its records, with some of the compressed ones left out at the end."""
    body = compressed(codec, plain)
    body = body[: len(body) - left_out_bytes]
    return framed_batch(0, body, flags=codec, last_delta=last_delta, record_count=record_count, times=(0, 0))


WRONG = {
    "more records than are there": patched(record_batch(0, RECORDS), COUNT_AT, struct.pack(">i", 13)),
    "fewer records than are there": patched(record_batch(0, RECORDS), COUNT_AT, struct.pack(">i", 11)),
    "no records and bytes": patched(record_batch(0, RECORDS), COUNT_AT, struct.pack(">i", 0)),
    "records beyond all bounds": patched(record_batch(0, RECORDS), COUNT_AT, struct.pack(">i", 2**31 - 1)),
    "records and no bytes": batch_of(b""),
    "an offset behind the last": patched(record_batch(0, RECORDS), LAST_DELTA_AT, struct.pack(">i", 10)),
    "offsets that stand still": record_batch(0, [Given(1), Given(1)]),
    "offsets that go back": record_batch(0, [Given(1), Given(0)], last_delta=1),
    "an offset below the base": record_batch(0, [Given(-1)], last_delta=1),
    "a negative length": batch_of(b"\x0d\0\0\0\1\1\0\0"),
    "a length that does not end": batch_of(b"\xff" * 30),
    "a time that does not end": batch_of(b"\x20\0" + b"\xff" * 11 + b"\0" * 4),
    "a key length that does not end": batch_of(b"\x20\0\0\0" + b"\xff" * 11 + b"\0" * 2),
    "a key of length -2": batch_of(b"\x0c\0\0\0\3\1\0"),
    "a key that is longer than the record": batch_of(b"\x0c\0\0\0\x20\1\0"),
    "a key that is longer than everything": batch_of(b"\x14\0\0\0\xfe\xff\xff\xff\x0f\1\0"),
    "a value of length -2": batch_of(b"\x0c\0\0\0\1\3\0"),
    "a value that is longer than the record": batch_of(b"\x0c\0\0\0\1\x20\0"),
    "minus one header": batch_of(b"\x0c\0\0\0\1\1\1"),
    "more headers than bytes": batch_of(b"\x10\0\0\0\1\1\4\0\1"),
    "headers beyond all bounds": batch_of(b"\x14\0\0\0\1\1\xfe\xff\xff\xff\x0f"),
    "a header's null key": batch_of(b"\x10\0\0\0\1\1\2\1\1"),
    "a header's value that is too long": batch_of(b"\x10\0\0\0\1\1\2\0\x10"),
    "bytes behind the headers": batch_of(b"\x12\0\0\0\1\1\2\0\1\0"),
    "bytes behind the value": batch_of(b"\x0e\0\0\0\1\1\0\0"),
    "a codec that there is not": framed_batch(0, RECORDS[0].plain, flags=5),
    "bytes that are not gzip": framed_batch(0, RECORDS[0].plain, flags=GZIP),
    "bytes that are not lz4": framed_batch(0, RECORDS[0].plain, flags=LZ4),
    "bytes that are not zstd": framed_batch(0, RECORDS[0].plain, flags=ZSTD),
    "half of what zstd gave": batch_of(PLAIN, record_count=12, last_delta=11, codec=ZSTD, left_out_bytes=20),
    "half of what lz4 gave": batch_of(PLAIN, record_count=12, last_delta=11, codec=LZ4, left_out_bytes=20),
    "a message of an old format that is cut": patched(timed_messages(1, [(0, 7)]), 26, struct.pack(">i", 100)),
}


@for_each("what", WRONG)
def test_a_corrupt_batch_is_an_error_that_names_object_and_position(what: str) -> None:
    good, wrong = record_batch(100, RECORDS), WRONG[what]
    where = rf"a log: the batch at {len(good)}, of offset \d+: "
    for blobs in ([good, wrong], [good, wrong, good], [good, wrong] + [good] * 60):
        with pytest.raises(CorruptObjectError, match=where):
            rows_of(blobs)


@for_each("what, task_bytes_max", product(WRONG, (2**20, 2**26)))
def test_a_corrupt_batch_alone_can_be_left_out(what: str, task_bytes_max: int) -> None:
    wrong = WRONG[what]
    good = [record_batch(100 * n, RECORDS, codec=n % 5) for n in range(4)]
    blobs = [good[0], wrong, good[1], wrong, wrong, *good[2:]]
    rows, skipped = rows_and_skipped(blobs, task_bytes_max=task_bytes_max)
    assert rows == independent_rows(good)
    positions = [sum(map(len, blobs[:number])) for number in (1, 3, 4)]
    assert [(position, size) for position, size, _ in skipped] == [(position, len(wrong)) for position in positions]
    assert all(reason for _, _, reason in skipped)


@for_each("codec, columns", product(CODECS, (COLUMNS, DEFAULT_COLUMNS, ("key",), ("timestamp", "offset"))))
def test_any_flipped_bit_is_an_error_or_what_an_independent_decoder_reads(codec: int, columns: tuple[str, ...]) -> None:
    good = record_batch(0, RECORDS[:7], codec=codec)
    rng = random.Random(codec)
    for at in range(HEADER_BYTES, len(good)):
        blob = patched(good, at, bytes([good[at] ^ 1 << rng.randrange(8)]))
        try:
            rows = rows_of([blob], columns=columns)
        except CorruptObjectError:
            continue
        try:
            expected = independent_rows([blob])
        except Exception:
            # It has no one error of its own, and is stricter in places.
            continue
        assert rows == [{name: row[name] for name in columns} for row in expected]


@for_each("codec", CODECS)
def test_a_corrupt_record_late_in_a_batch_that_comes_in_pieces_leaves_out_all_of_it(codec: int) -> None:
    plain = b"".join(Given(n, value=b"v" * 50).plain for n in range(20_000)) + Given(5).plain
    blob = framed_batch(0, compressed(codec, plain), flags=codec, last_delta=30_000, record_count=20_001)
    good = record_batch(50_000, RECORDS)
    rows, skipped = rows_and_skipped([blob, good], task_bytes_max=2**20)
    assert rows == independent_rows([good])
    ((position, size, reason),) = skipped
    assert (position, size) == (0, len(blob))
    assert "no larger offset" in reason
    with pytest.raises(CorruptObjectError, match=r"at 0, of offset 0: .*no larger offset"):
        rows_of([blob, good], task_bytes_max=2**20)


@for_each("codec", CODECS)
def test_a_record_that_does_not_fit_the_task_is_named_with_its_option(codec: int) -> None:
    good = record_batch(0, RECORDS)
    blob = record_batch(20, [Given(0), Given(1, value=bytes(300_000)), Given(2)], codec=codec)
    with pytest.raises(RecordTooLargeError, match=rf"a log: the batch at {len(good)}: .*taskBytes = 1048576"):
        rows_and_skipped([good, blob], task_bytes_max=2**20)
    assert len(rows_of([good, blob], task_bytes_max=2**21)) == 15
    # One that claims more than is there is corrupt.
    with pytest.raises(CorruptObjectError, match="claims"):
        rows_of([batch_of(b"\xfe\xff\xff\x7f" + bytes(300_000), codec=codec)], task_bytes_max=2**20)


def test_a_timestamp_that_spark_cannot_have_is_an_error_where_it_would_be_a_row() -> None:
    largest = (2**63 - 1) // 1000
    fine = record_batch(0, [Given(0)], base_timestamp_ms=largest)
    absurd = record_batch(1, [Given(0), Given(1, 1), Given(2, 2)], base_timestamp_ms=largest)
    assert rows_of([fine], columns=("timestamp",)) == [{"timestamp": largest * 1000}]
    with pytest.raises(CorruptObjectError, match=f"at {len(fine)}, of offset 1: .*timestamp of {largest + 1} ms"):
        rows_of([fine, absurd])
    assert len(rows_of([fine, absurd], columns=("offset",))) == 4
    rows, skipped = rows_and_skipped([fine, absurd, fine])
    assert len(rows) == 2
    assert len(skipped) == 1
    assert len(rows_of([fine, absurd], columns=("timestamp",), end_offset=2)) == 2


@for_each("codec", [GZIP, LZ4, ZSTD])
def test_what_inflates_without_end_is_bounded(codec: int) -> None:
    """A bomb: most of it is never held."""
    blob = batch_of(bytes(20_000_000), codec=codec)
    with pytest.raises(CorruptObjectError):
        rows_of([blob], task_bytes_max=2**20)
