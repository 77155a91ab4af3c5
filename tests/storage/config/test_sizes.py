"""Sizes: what is read, what is refused, and what is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config.sizes import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_size,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", MIB),
        ("7B", 7),
        ("16 GiB", 16 * GIB),
        ("64KiB", 64 * KIB),
        ("64 kib", 64 * KIB),
        ("1.5 GiB", 3 * GIB // 2),
        ("0.5 TiB", TIB // 2),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_binary_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1 GB", "1G", "1,5 GiB", "0x10", "1e3", "1 GiB extra", "0.3 B", "9" * 40]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**17))
def test_what_is_shown_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
