"""Messages of v0 and v1 through the decoder, against an independent one; and what is corrupt in them."""

import struct
from itertools import product

import pytest

from storage.errors import CorruptObjectError
from table.decoding import inflated_batches
from table.decoding.inflation import RecordTooLargeError
from tests.support.for_each import for_each
from tests.support.record_rows import Given, decoded, independent_rows, record_batch
from tests.support.timed_batches import CODECS, GZIP, LZ4, NONE, compressed, message, timed_messages
from tests.table.decoding.test_record_decoder import produced, rows_and_skipped, rows_of

TIMES = [(100, 1700), (103, 1650), (104, 1800)]


@for_each("magic, codec, append_time_ms", product((0, 1), CODECS[:4], (None, 5000)))
def test_messages_give_the_rows_of_an_independent_decoder(magic: int, codec: int, append_time_ms: int | None) -> None:
    if codec == NONE:
        blobs = [timed_messages(magic, [one]) for one in TIMES]
    else:
        blobs = [timed_messages(magic, TIMES, codec=codec, append_time_ms=append_time_ms)]
    blobs = [record_batch(0, [Given(0)]), *blobs, record_batch(200, [Given(0)])]
    rows = rows_of(blobs)
    # aiokafka checks the checksum of lz4's header, which Kafka computed wrongly in v0.
    if (magic, codec) != (0, LZ4):
        assert rows == independent_rows(blobs)
    assert [row["offset"] for row in rows] == [0, 100, 103, 104, 200]
    expected_type = -1 if magic == 0 else 1 if codec and append_time_ms is not None else 0
    assert {row["timestampType"] for row in rows[1:-1]} == {expected_type}


def test_null_keys_and_values_stay_null() -> None:
    blob = struct.pack(">qiIbbqii", 9, 4 + 18, 0, 1, 0, 77, -1, -1)
    assert [(row["key"], row["value"]) for row in rows_of([blob])] == [(None, None)]


def test_a_wrapper_with_many_messages_comes_in_bounded_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflated_batches, "RECORDS_MAX", 70)
    blobs = [timed_messages(1, [(n, n) for n in range(500)], codec=GZIP)]
    batches = produced(blobs)
    assert max(batch.num_rows for batch in batches) == 70
    assert decoded(batches) == independent_rows(blobs)


WRONG = {
    "a wrapped message is cut": message(1, 5, 0, compressed(GZIP, timed_messages(1, TIMES)[:-1]), GZIP),
    "a wrapped head is cut": message(1, 5, 0, compressed(GZIP, bytes(10)), GZIP),
    "a wrapped message of another magic": message(1, 5, 0, compressed(GZIP, timed_messages(0, TIMES)), GZIP),
    "a wrapper in a wrapper": message(1, 5, 0, compressed(GZIP, timed_messages(1, TIMES, codec=GZIP)), GZIP),
    "nothing that inflates": message(1, 5, 0, b"abc", GZIP),
    "a codec that there is not": message(1, 5, 0, b"abc", 5),
    "a wrapped length beyond all bounds": message(
        1, 5, 0, compressed(GZIP, struct.pack(">qiIbb", 0, 2**31 - 1, 0, 1, 0) + bytes(50)), GZIP
    ),
    "bytes behind the value": struct.pack(">qi", 5, 26) + bytes(4) + b"\1\0" + bytes(8) + b"\xff" * 8 + bytes(4),
}


@for_each("what", WRONG)
def test_a_corrupt_message_is_left_out_or_an_error_that_names_its_place(what: str) -> None:
    good, wrong = timed_messages(1, TIMES, codec=LZ4), WRONG[what]
    with pytest.raises(CorruptObjectError, match=rf"a log: the batch at {len(good)}, "):
        rows_of([good, wrong])
    rows, skipped = rows_and_skipped([good, wrong, good])
    assert rows == independent_rows([good, good])
    assert [bad[:2] for bad in skipped] == [(len(good), len(wrong))]


@for_each("codec", [NONE, GZIP])
def test_a_message_that_does_not_fit_the_task_is_named_with_the_option(codec: int) -> None:
    blob = message(1, 5, 0, bytes(300_000))
    if codec:
        blob = message(1, 5, 0, compressed(codec, blob), codec)
    with pytest.raises(RecordTooLargeError, match=r"a log: the batch at 0: .*taskBytes = 1048576"):
        rows_of([blob], task_bytes_max=2**20)
    assert len(rows_of([blob], task_bytes_max=2**21)) == 1
