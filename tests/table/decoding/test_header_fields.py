"""Headers: many of them in one record, and keys that are not UTF-8."""

import pyarrow as pa

from table.decoding.arrow_columns import as_text
from tests.support.for_each import for_each
from tests.support.record_rows import Given, independent_rows, record_batch
from tests.table.decoding.test_record_decoder import rows_of


def headers_of(blobs: list[bytes], *, first_offset: int = 0) -> list[object]:
    return [row["headers"] for row in rows_of(blobs, columns=("headers",), first_offset=first_offset)]


def test_one_record_may_have_many_more_headers_than_others() -> None:
    given = [Given(number, headers=(("few", b"1"),)) for number in range(100)]
    given[40] = Given(40, headers=tuple((f"many-{n}", None if n % 3 else b"2") for n in range(20_000)))
    blobs = [record_batch(0, given)]
    assert headers_of(blobs) == [row["headers"] for row in independent_rows(blobs)]


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
