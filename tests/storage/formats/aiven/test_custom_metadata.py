"""Custom metadata of the plug-in: its bytes, and everything that is not its bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.formats.aiven.custom_metadata import (
    CUSTOM_METADATA_BYTES_MAX,
    CustomMetadataFields,
    decode_custom_metadata,
)
from storage.formats.aiven.encoding import encode_custom_metadata
from storage.formats.aiven.object_keys import KEY_BYTES_MAX
from storage.model import CustomMetadata
from tests.support.for_each import for_each

NONE = CustomMetadataFields()


def decoded(text: str) -> CustomMetadataFields:
    return decode_custom_metadata(CustomMetadata(bytes.fromhex(text)))


@for_each(
    "text, fields",
    [
        ("01 00 03 c4e104", CustomMetadataFields(remote_size_bytes=39010)),
        ("01 01 05 05 7066782f", CustomMetadataFields(object_prefix="pfx/")),
        ("02 00 02 c801 02 04 04 666f6f", CustomMetadataFields(remote_size_bytes=100, object_key="foo")),
        ("01 01 01 01", CustomMetadataFields(object_prefix="")),
        ("01 00 01 00", CustomMetadataFields(remote_size_bytes=0)),
        ("01 00 0a feffffffffffffffff01", CustomMetadataFields(remote_size_bytes=2**63 - 1)),
    ],
)
def test_the_worked_examples_hold_in_both_directions(text: str, fields: CustomMetadataFields) -> None:
    assert decoded(text) == fields
    assert encode_custom_metadata(fields) == bytes.fromhex(text)


def test_no_bytes_are_no_fields() -> None:
    assert decode_custom_metadata(None) == decode_custom_metadata(CustomMetadata(b"")) == decoded("00") == NONE
    assert encode_custom_metadata(NONE) is None


def test_unknown_tags_are_passed_over() -> None:
    assert decoded("03 00 01 02 03 02 ffff ff01 00") == CustomMetadataFields(remote_size_bytes=1)


@given(
    remote_size=st.none() | st.integers(0, 2**63 - 1),
    prefix=st.none() | st.from_regex(r"[a-z/ü]{0,40}", fullmatch=True),
    key=st.none() | st.from_regex(r"[a-zA-Z0-9_/-]{0,200}", fullmatch=True),
)
def test_what_is_written_is_read(remote_size: int | None, prefix: str | None, key: str | None) -> None:
    fields = CustomMetadataFields(remote_size, prefix, key)
    assert decode_custom_metadata(encode_custom_metadata(fields)) == fields


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_corrupt(data: bytes) -> None:
    # Any other error fails the test.
    with contextlib.suppress(CorruptObjectError):
        decode_custom_metadata(CustomMetadata(data))


@for_each(
    "text, message",
    [
        ("00 00", "1 bytes follow"),
        ("01 01 05 05 7066782f 00", "1 bytes follow"),
        ("01", "truncated"),
        ("01 01 05 05 7066", "truncated"),
        ("ffffffffff 01", "varint longer"),
        ("02 00 01 02 00 01 02", "tag 0 comes after tag 0"),
        ("02 02 02 02 61 00 01 02", "tag 0 comes after tag 2"),
        ("01 00 00", "not one varlong"),
        ("01 00 02 02 02", "not one varlong"),
        ("01 00 01 80", "not one varlong"),
        ("01 00 0b 80808080808080808080 01", "not one varlong"),
        ("01 00 01 01", "not a size"),
        ("01 00 0a ffffffffffffffffff 7f", "not a size"),
        ("01 01 01 00", "not one string"),
        ("01 01 03 02 61 62", "not one string"),
        ("01 01 02 03 61", "truncated"),
        ("01 01 00", "truncated"),
        ("01 02 03 03 ff fe", "not UTF-8"),
        ("01 02 03 03 2e2e", "leads out"),
        ("01 02 06 06 612f2e2f62", "leads out"),
        ("01 01 02 02 00", "leads out"),
    ],
)
def test_anything_else_is_corrupt(text: str, message: str) -> None:
    with pytest.raises(CorruptObjectError, match=message):
        decoded(text)


def test_both_limits_hold() -> None:
    longest = CustomMetadataFields(object_key="k" * KEY_BYTES_MAX)
    assert decode_custom_metadata(encode_custom_metadata(longest)) == longest
    with pytest.raises(CorruptObjectError, match="longer than a key"):
        decode_custom_metadata(encode_custom_metadata(CustomMetadataFields(object_key="k" * (KEY_BYTES_MAX + 1))))
    with pytest.raises(CorruptObjectError, match="at most"):
        decode_custom_metadata(CustomMetadata(bytes(CUSTOM_METADATA_BYTES_MAX + 1)))
