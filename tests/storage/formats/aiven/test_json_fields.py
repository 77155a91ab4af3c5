"""Members of a JSON object: checked, and named when wrong."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.formats.aiven.manifest import INT32_MAX, JsonObject, parse_json_object


def parsed(text: str) -> JsonObject:
    return parse_json_object(text.encode(), "a/manifest")


def test_members_are_read_by_kind() -> None:
    document = parsed('{"size": 7, "flag": false, "name": "x", "part": {"inner": 0}, "nothing": null}')
    assert (document.int32("size"), document.boolean("flag"), document.text("name")) == (7, False, "x")
    assert document.object("part").int32("inner") == 0
    assert document.is_null("nothing")
    assert not document.is_null("part")
    assert document.has("nothing")
    assert not document.has("other")


@pytest.mark.parametrize("value", ["-1", "2147483648", "1.0", "1e3", "true", '"1"', "null", "[]", "NaN"])
def test_a_size_is_an_int32_from_zero_on(value: str) -> None:
    with pytest.raises(CorruptObjectError, match=r"a/manifest: part\.size is .*not an integer"):
        parsed(f'{{"part": {{"size": {value}}}}}').object("part").int32("size")
    assert parsed(f'{{"size": {INT32_MAX}}}').int32("size") == INT32_MAX


def test_a_minimum_of_its_own_holds() -> None:
    with pytest.raises(CorruptObjectError, match="not an integer of 1 to"):
        parsed('{"size": 0}').int32("size", minimum=1)


def test_a_wrong_kind_is_named_with_its_path() -> None:
    part = parsed('{"part": {"member": 5, "list": [1]}}').object("part")
    with pytest.raises(CorruptObjectError, match=r"part\.member is 5, not a boolean"):
        part.boolean("member")
    with pytest.raises(CorruptObjectError, match=r"part\.member is 5, not a string"):
        part.text("member")
    with pytest.raises(CorruptObjectError, match=r"part\.list is an array, not an object"):
        part.object("list")
    with pytest.raises(CorruptObjectError, match=r"part\.other is missing"):
        part.text("other")
    with pytest.raises(CorruptObjectError, match=r"part\.other is missing"):
        part.is_null("other")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(CorruptObjectError) as caught:
        parsed('{"flag": "' + "x" * 10_000 + '"}').boolean("flag")
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{}x", b"\xff", '{"a": 1}'.encode("utf-16"), b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000]
)
def test_what_is_not_json_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="a/manifest: not JSON"):
        parse_json_object(data, "a/manifest")


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"'])
def test_what_is_no_object_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptObjectError, match="is not a JSON object"):
        parsed(text)


@given(st.binary(max_size=50))
def test_any_bytes_are_an_object_or_corrupt(data: bytes) -> None:
    # Any other error fails the test.
    with contextlib.suppress(CorruptObjectError):
        parse_json_object(data, "name")
