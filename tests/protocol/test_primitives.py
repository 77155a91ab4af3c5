"""Kafka's primitive encodings: round trips, kio as the oracle, and nothing but PeerProtocolError for bad bytes."""

import io
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.serial import writers
from kio.static.primitive import uvarint

from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.primitives import STRING_BYTES_MAX, Cursor, write_string, write_uvarint
from tests.support.cases import case
from tests.support.for_each import for_each
from tests.support.hostile_bytes import assert_refused_when_cut

texts = st.text(st.characters(codec="utf-8"), max_size=200)
flexibilities = st.booleans()

READS: dict[str, tuple[bytes, Callable[[Cursor], object], object]] = {
    "int8": (b"\x80", Cursor.int8, -128),
    "int16": (b"\xff\xfe", Cursor.int16, -2),
    "int32": (b"\x80\x00\x00\x00", Cursor.int32, -(2**31)),
    "int64": (b"\x7f" + b"\xff" * 7, Cursor.int64, 2**63 - 1),
    "raw": (b"abc", lambda cursor: cursor.raw(3), b"abc"),
    "uvarint of one byte": (b"\x7f", Cursor.uvarint, 127),
    "uvarint of five bytes": (b"\xff\xff\xff\xff\x0f", Cursor.uvarint, 2**32 - 1),
    "compact length": (b"\x81\x01", Cursor.compact_length, 128),
    "null compact length": (b"\x00", Cursor.compact_length, -1),
    "null array": (b"\xff\xff\xff\xff", lambda cursor: cursor.array_length(flexible=False), -1),
    "null compact array": (b"\x00", lambda cursor: cursor.array_length(flexible=True), -1),
    "string": (b"\x00\x03\xc3\xa9!", lambda cursor: cursor.string(flexible=False), "é!"),
    "null string": (b"\xff\xff", lambda cursor: cursor.string(flexible=False), None),
    "compact string": (b"\x04\xc3\xa9!", lambda cursor: cursor.string(flexible=True), "é!"),
    "null compact string": (b"\x00", lambda cursor: cursor.string(flexible=True), None),
    "empty compact string": (b"\x01", lambda cursor: cursor.string(flexible=True), ""),
    "skipped string": (b"\x00\x03abc", lambda cursor: cursor.skip_string(flexible=False), None),
    "skipped null string": (b"\xff\xff", lambda cursor: cursor.skip_string(flexible=False), None),
    "skipped compact string": (b"\x04abc", lambda cursor: cursor.skip_string(flexible=True), None),
    "skipped null compact string": (b"\x00", lambda cursor: cursor.skip_string(flexible=True), None),
    "no tags": (b"\x00", Cursor.skip_tags, None),
    "two tags": (b"\x02\x00\x01a\x80\x01\x03abc", Cursor.skip_tags, None),
}
every_read = for_each("name", READS)


@every_read
def test_a_read_takes_its_own_bytes_and_no_others(name: str) -> None:
    raw, read, expected = READS[name]
    for before, after in product((b"", b"\xff\xff\xff"), (b"", b"\xff\xff\xff\xff")):
        cursor = Cursor(memoryview(before + raw + after), len(before))
        assert read(cursor) == expected
        assert cursor.position == len(before) + len(raw)


@every_read
def test_a_read_cut_at_any_byte_or_at_the_end_that_it_was_given_is_the_peers_error(name: str) -> None:
    raw, read, _ = READS[name]
    assert_refused_when_cut(lambda cut: read(Cursor(cut)), raw)
    for end in range(len(raw)):
        with case("end", end), pytest.raises(PeerProtocolError):
            read(Cursor(memoryview(raw + bytes(20)), 0, end))


REFUSED: dict[str, tuple[bytes, Callable[[Cursor], object]]] = {
    "varint of six bytes": (b"\xff\xff\xff\xff\xff\x01", Cursor.uvarint),
    "string of length -2": (b"\xff\xfe", lambda cursor: cursor.string(flexible=False)),
    "skipped string of length -2": (b"\xff\xfe", lambda cursor: cursor.skip_string(flexible=False)),
    "array of -2": (b"\xff\xff\xff\xfe", lambda cursor: cursor.array_length(flexible=False)),
    "array longer than the rest": (b"\x00\x00\x00\x05abcd", lambda cursor: cursor.array_length(flexible=False)),
    "compact array longer than the rest": (b"\x06abcd", lambda cursor: cursor.array_length(flexible=True)),
    "compact string of 4 GiB": (b"\xff\xff\xff\xff\x0f", lambda cursor: cursor.string(flexible=True)),
    "skip backwards": (b"abcd", lambda cursor: cursor.skip(-1)),
    "raw backwards": (b"abcd", lambda cursor: cursor.raw(-1)),
    "four billion tags": (b"\xff\xff\xff\xff\x0f\x00\x00", Cursor.skip_tags),
}


@for_each("name", REFUSED)
def test_hostile_lengths_are_the_peers_error(name: str) -> None:
    raw, read = REFUSED[name]
    with pytest.raises(PeerProtocolError):
        read(Cursor(memoryview(raw)))


@given(st.integers(0, 2**32 - 1))
@example(0)
@example(127)
@example(128)
@example(2**32 - 1)
def test_varints_are_kafkas(value: int) -> None:
    raw = write_uvarint(value)

    with io.BytesIO() as buffer:
        writers.write_unsigned_varint(buffer, uvarint(value))
        assert raw == buffer.getvalue()
    assert Cursor(memoryview(raw)).uvarint() == value


@given(texts | st.none(), flexibilities)
def test_strings_are_kafkas(value: str | None, flexible: bool) -> None:
    raw = write_string(value, flexible=flexible)

    with io.BytesIO() as buffer:
        write = writers.write_nullable_compact_string if flexible else writers.write_nullable_legacy_string
        write(buffer, value)
        assert raw == buffer.getvalue()
    cursor = Cursor(memoryview(raw))
    assert cursor.string(flexible=flexible) == value
    assert cursor.position == len(raw)


@for_each("flexible", (False, True))
def test_the_longest_string_can_be_written_and_a_longer_one_is_our_error(flexible: bool) -> None:
    longest = "x" * STRING_BYTES_MAX

    assert Cursor(memoryview(write_string(longest, flexible=flexible))).string(flexible=flexible) == longest
    with pytest.raises(LocalProtocolError):
        write_string(longest + "x", flexible=flexible)
