"""Headers: any number of them for any record, and keys that are not UTF-8."""

import random
from itertools import product

import pyarrow as pa

from pipeline.decoding.arrow_columns import as_text
from pipeline.decoding.record_fields import LANES_MIN
from tests.pipeline.decoding.test_record_decoder import rows_of
from tests.support.for_each import for_each
from tests.support.record_rows import Given, Headers, independent_rows, record_batch
from tests.support.timed_batches import framed_batch


def headers_of(blobs: list[bytes], *, first_offset: int = 0) -> list[object]:
    return [row["headers"] for row in rows_of(blobs, columns=("headers",), first_offset=first_offset)]


@for_each("records, headers_max", product((1, LANES_MIN - 1, LANES_MIN, 500), (0, 1, 3, 40)))
def test_every_header_is_read(records: int, headers_max: int) -> None:
    rng = random.Random(records)
    names = ["", "a", "trace-id", "ü" * 50, "n" * 9_000]
    given = []
    for number in range(records):
        count = rng.randint(0, headers_max)
        headers: Headers = tuple((rng.choice(names), rng.choice((None, b"", b"x", b"y" * 200))) for _ in range(count))
        given.append(Given(number, value=b"v", headers=headers))
    blobs = [record_batch(0, given)]
    expected = [row["headers"] for row in independent_rows(blobs)]
    assert headers_of(blobs) == expected
    assert headers_of(blobs, first_offset=records // 2) == expected[records // 2 :]


def test_one_record_may_have_many_more_headers_than_others() -> None:
    given = [Given(number, headers=(("few", b"1"),)) for number in range(100)]
    given[40] = Given(40, headers=tuple((f"many-{n}", None if n % 3 else b"2") for n in range(20_000)))
    blobs = [record_batch(0, given)]
    assert headers_of(blobs) == [row["headers"] for row in independent_rows(blobs)]


def test_a_key_that_is_not_utf_8_is_decoded_with_replacements() -> None:
    name = b"\xff\xc3"
    body = b"\0\0\0\1\1" + b"\2" + bytes([2 * len(name)]) + name + b"\1"
    blob = framed_batch(0, bytes([2 * len(body)]) + body)
    assert headers_of([blob]) == [[{"key": "\ufffd\ufffd", "value": None}]]


@for_each(
    "key, text",
    [
        (b"plain", "plain"),
        ("grün".encode(), "grün"),
        (b"a\xffb", "a\ufffdb"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"", ""),
    ],
)
def test_text_is_what_java_makes_of_it(key: bytes, text: str) -> None:
    assert as_text(pa.array([b"fine", key, key])).to_pylist() == ["fine", text, text]
