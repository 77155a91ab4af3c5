"""Chunk indexes: positions of both kinds, the binary form, and everything that is neither."""

import base64
import struct
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.formats.aiven.checked_json import INT32_MAX, JsonObject
from storage.formats.aiven.chunk_index import (
    BINARY_BYTES_MAX,
    FixedChunkIndex,
    VariableChunkIndex,
    decode_chunk_index,
    decode_chunk_sizes,
)
from storage.formats.aiven.encoding import chunk_sizes, encode_chunk_index, encode_chunk_sizes
from tests.support.for_each import for_each

FIXED = {
    "type": "fixed",
    "originalChunkSize": 100,
    "originalFileSize": 250,
    "transformedChunkSize": 110,
    "finalTransformedChunkSize": 30,
}
FRAME = bytes.fromhex("28b52ffd200f790000 00000003 0000000a 01000a 0000001e")
VARIABLE = {
    "type": "variable",
    "originalChunkSize": 100,
    "originalFileSize": 250,
    "transformedChunks": "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe",
}


def decoded(members: dict[str, Any]) -> FixedChunkIndex | VariableChunkIndex:
    return decode_chunk_index(JsonObject("seg.rsm-manifest", members, "chunkIndex"))


def framed(binary: bytes) -> str:
    return base64.b64encode(zstandard.ZstdCompressor().compress(binary)).decode()


@for_each(
    "text, sizes",
    [
        ("KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe", [10, 20, 30]),
        ("KLUv/SAWsQAAAAAACgAAB0ABDgwIAgAFAQwRAAACXQ==", [1870, 1868, 1864, 1858, 1856, 1861, 1857, 1868, 1873, 605]),
        ("KLUv/SAIQQAAAAAAAQAAPaE=", [15777]),
    ],
)
def test_the_worked_examples_hold_in_both_directions(text: str, sizes: list[int]) -> None:
    members = {
        "type": "variable",
        "originalChunkSize": 4096,
        "originalFileSize": 4096 * len(sizes),
        "transformedChunks": text,
    }
    index = decoded(members)
    assert isinstance(index, VariableChunkIndex)
    assert chunk_sizes(index) == sizes
    assert encode_chunk_index(index) == members


@for_each(
    "sizes, binary",
    [
        ([], "00000000"),
        ([7], "00000001 00000007"),
        ([10, 20, 30], "00000003 0000000a 01 00 0a 0000001e"),
        ([5, 5], "00000002 00000005 01 00 00000005"),
        ([1, 257, 2], "00000003 00000001 02 0000 0100 00000002"),
        ([0, 65536, 0], "00000003 00000000 03 000000 010000 00000000"),
        ([INT32_MAX, 0, INT32_MAX], "00000003 00000000 04 7fffffff 00000000 7fffffff"),
    ],
)
def test_the_binary_form_is_as_narrow_as_it_can_be(sizes: list[int], binary: str) -> None:
    assert encode_chunk_sizes(sizes) == bytes.fromhex(binary)
    assert list(decode_chunk_sizes(bytes.fromhex(binary))) == sizes


def test_a_wider_form_than_needed_is_read_too() -> None:
    assert list(decode_chunk_sizes(bytes.fromhex("00000003 00000000 03 00000a 000014 0000001e"))) == [10, 20, 30]


@for_each(
    "binary, message",
    [
        ("", "too few"),
        ("000000", "too few"),
        ("ffffffff", "-1 chunks"),
        ("00000000 00", "5 bytes, 4 by its own count"),
        ("00000001", "by its own count"),
        ("00000001 00000007 00", "by its own count"),
        ("00000002 00000005", "too few"),
        ("00000002 00000005 00 00000005", "sizes of 0 bytes"),
        ("00000002 00000005 05 0000000000 00000005", "sizes of 5 bytes"),
        ("00000002 80000000 01 00 00000005", "is negative"),
        ("00000003 0000000a 01 00 0a 0000001e 00", "by its own count"),
        ("00000003 0000000a 01 00 0a 000000", "by its own count"),
        ("7fffffff 0000000a 01 00 0a 0000001e", "by its own count"),
    ],
)
def test_another_binary_form_is_refused(binary: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_chunk_sizes(bytes.fromhex(binary))


@given(st.binary(max_size=40))
def test_any_bytes_are_sizes_or_refused(binary: bytes) -> None:
    try:
        sizes = decode_chunk_sizes(binary)
    except ValueError:
        return
    assert len(sizes) == struct.unpack_from(">i", binary)[0]


@given(data=st.data(), chunk_bytes=st.integers(1, 50), file_bytes=st.integers(1, 1000))
def test_both_kinds_find_what_a_walk_of_chunks_finds(data: st.DataObject, chunk_bytes: int, file_bytes: int) -> None:
    count = -(-file_bytes // chunk_bytes)
    sizes = data.draw(st.lists(st.integers(0, 2000), min_size=count, max_size=count))
    variable = VariableChunkIndex.of_sizes(chunk_bytes, file_bytes, sizes)
    fixed = FixedChunkIndex(chunk_bytes, file_bytes, sizes[0], sizes[-1])
    start = data.draw(st.integers(0, file_bytes - 1))
    end = data.draw(st.integers(start + 1, file_bytes))
    for index, expected in ((variable, sizes), (fixed, [sizes[0]] * (count - 1) + [sizes[-1]])):
        wanted = [n for n in range(count) if n * chunk_bytes < end and (n + 1) * chunk_bytes > start]
        chunks = index.chunks(start, end)
        assert list(chunks) == wanted
        assert index.stored_range(chunks) == (sum(expected[: chunks.start]), sum(expected[: chunks.stop]))
        assert index.stored_file_bytes == sum(expected)
        assert sum(map(index.original_bytes, range(count))) == file_bytes
        assert index.largest_original_bytes == max(map(index.original_bytes, range(count)))
        assert index.largest_stored_bytes == max(expected)
        assert decoded(encode_chunk_index(index)) == index


def test_an_empty_range_has_no_chunks() -> None:
    for index in (decoded(FIXED), decoded(VARIABLE)):
        assert list(index.chunks(250, 250)) == list(index.chunks(250, 300)[:0]) == []
        assert index.stored_range(index.chunks(120, 120)) == (0, 0)


def test_an_empty_segment_has_no_chunks_but_may_name_an_empty_one() -> None:
    fixed = decoded(FIXED | {"originalFileSize": 0})
    variable = VariableChunkIndex.of_sizes(100, 0, [])
    named = decoded(VARIABLE | {"originalFileSize": 0, "transformedChunks": framed(encode_chunk_sizes([28]))})
    for index in (fixed, variable, named):
        assert (index.chunk_count, index.stored_file_bytes, index.largest_original_bytes) == (0, 0, 0)
    assert fixed.largest_stored_bytes == 0


def test_a_single_short_chunk_is_not_as_large_as_whole_ones_would_be() -> None:
    index = FixedChunkIndex(1048576, 38092, 1048576, 38092)
    assert (index.largest_stored_bytes, index.stored_file_bytes) == (38092, 38092)


def test_memory_is_four_bytes_a_chunk() -> None:
    index = VariableChunkIndex.of_sizes(1, 100_000, [3] * 100_000)
    assert 400_000 <= index.memory_bytes < 410_000
    assert FixedChunkIndex(1, 100_000, 3, 3).memory_bytes < 200


@for_each(
    "changed, message",
    [
        ({"type": "linear"}, r"chunkIndex\.type is 'linear'"),
        ({"type": None}, r"chunkIndex\.type is None, not a string"),
        ({"originalChunkSize": 0}, r"chunkIndex\.originalChunkSize is 0"),
        ({"originalChunkSize": 100.0}, r"chunkIndex\.originalChunkSize is 100\.0"),
        ({"originalFileSize": -1}, r"chunkIndex\.originalFileSize is -1"),
        ({"originalFileSize": 2**31}, r"chunkIndex\.originalFileSize is 2147483648"),
        ({"transformedChunkSize": True}, r"chunkIndex\.transformedChunkSize is True"),
        ({"finalTransformedChunkSize": -5}, r"chunkIndex\.finalTransformedChunkSize is -5"),
    ],
)
def test_a_wrong_member_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptObjectError, match=message):
        decoded(FIXED | changed)


@for_each(
    "chunks, message",
    [
        ("", "not one zstd frame"),
        ("!!!!", "not base64"),
        ("KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe\n", "not base64"),
        ("KLUv", "not one zstd frame"),
        (base64.b64encode(b"no frame at all").decode(), "not one zstd frame"),
        (base64.b64encode(FRAME + b"x").decode(), "not one zstd frame"),
        (base64.b64encode(zstandard.ZstdCompressor(write_content_size=False).compress(b"x")).decode(), "-1: unknown"),
        (framed(bytes(BINARY_BYTES_MAX + 1)), "at most 10485760"),
        (framed(b"\0\0\0\1"), "by its own count"),
        (framed(encode_chunk_sizes([10, 20])), "2 chunks, 3 make up the file"),
        (framed(encode_chunk_sizes([10, 20, 30, 40])), "4 chunks, 3 make up the file"),
        (framed(encode_chunk_sizes([])), "0 chunks, 3 make up the file"),
        (framed(bytes.fromhex("00000003 7fffffff 01 00 01 00000000")), "not an int32"),
        (framed(bytes.fromhex("00000003 00000000 01 00 01 ffffffff")), "not an int32"),
        # Beyond an unsigned one, too: adding the base to it would be an OverflowError.
        (framed(bytes.fromhex("00000003 7fffffff 04 00000000 ffffffff 00000000")), "not an int32"),
        (framed(encode_chunk_sizes([INT32_MAX] * 3)), "larger than 4 GiB"),
    ],
)
def test_chunk_sizes_that_are_none_are_corrupt(chunks: str, message: str) -> None:
    with pytest.raises(CorruptObjectError, match=rf"chunkIndex\.transformedChunks is wrong: .*{message}"):
        decoded(VARIABLE | {"transformedChunks": chunks})
