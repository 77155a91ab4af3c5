"""What the plug-in returns from copy: one section of Kafka's tagged fields (docs/formats.md#aiven-custom-metadata).

    uvarint count, then per field, tags ascending: uvarint tag, uvarint size, value

| tag | field | value |
|---|---|---|
| 0 | remote size | varlong |
| 1 | object prefix | compact string |
| 2 | object key: the main path | compact string |

- Each field is there only when `custom.metadata.fields.include` names it. No bytes at all mean no fields.
- Unknown tags are passed over: Kafka's own reader keeps them without looking at them.
- Prefix and key come from the metadata topic, and become part of an object's key: `.` and `..` as a part of the path
  are refused.
"""

from dataclasses import dataclass

from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor
from storage.errors import CorruptObjectError
from storage.formats.aiven.object_keys import KEY_BYTES_MAX
from storage.model import CustomMetadata

CUSTOM_METADATA_BYTES_MAX = 16 * 1024
"""Kafka takes 128 bytes unless `remote.log.metadata.custom.metadata.max.bytes` is raised; keys end at 1 KiB."""

_TAG_REMOTE_SIZE = 0
_TAG_OBJECT_PREFIX = 1
_TAG_OBJECT_KEY = 2
_VARLONG_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class CustomMetadataFields:
    """The fields; None where the plug-in was not told to include one.

    `remote_size_bytes`: of all three objects. `object_prefix`, `object_key`: prefix and main path at upload time.
    """

    remote_size_bytes: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None


def decode_custom_metadata(custom_metadata: CustomMetadata | None) -> CustomMetadataFields:
    """The fields of a segment's custom metadata; None and no bytes give none.

    Raises:
        CorruptObjectError: the bytes are not the plug-in's.
    """
    if not custom_metadata:
        return CustomMetadataFields()
    if len(custom_metadata) > CUSTOM_METADATA_BYTES_MAX:
        raise _corrupt(f"{len(custom_metadata)} bytes, at most {CUSTOM_METADATA_BYTES_MAX} are read")
    try:
        values = _tagged_values(Cursor(memoryview(custom_metadata)))
        remote_size = values.get(_TAG_REMOTE_SIZE)
        return CustomMetadataFields(
            None if remote_size is None else _varlong(remote_size),
            _path(values.get(_TAG_OBJECT_PREFIX), "object prefix"),
            _path(values.get(_TAG_OBJECT_KEY), "object key"),
        )
    except (PeerProtocolError, UnicodeDecodeError) as error:
        raise _corrupt(str(error)) from error


def _tagged_values(cursor: Cursor) -> dict[int, bytes]:
    """Values by tag. The count needs no limit of its own: every field takes two bytes, and running out is an error."""
    values: dict[int, bytes] = {}
    last_tag = -1
    for _ in range(cursor.uvarint()):
        tag = cursor.uvarint()
        if tag <= last_tag:
            raise _corrupt(f"tag {tag} comes after tag {last_tag}")
        values[tag] = cursor.raw(cursor.uvarint())
        last_tag = tag
    if cursor.position != cursor.end:
        raise _corrupt(f"{cursor.end - cursor.position} bytes follow the fields")
    return values


def _path(value: bytes | None, field: str) -> str | None:
    if value is None:
        return None
    cursor = Cursor(memoryview(value))
    text = cursor.string(flexible=True)
    if text is None or cursor.position != cursor.end:
        raise _corrupt(f"the {field} is not one string")
    if "\N{REPLACEMENT CHARACTER}" in text:  # what the cursor puts for such bytes; another key would be read
        raise _corrupt(f"the {field} is not UTF-8")
    if len(text.encode()) > KEY_BYTES_MAX:
        raise _corrupt(f"the {field} is longer than a key may be")
    if "\0" in text or any(part in (".", "..") for part in text.split("/")):
        raise _corrupt(f"the {field} {text!r} leads out of its folder")
    return text


def _varlong(value: bytes) -> int:
    """A zig-zag varint of up to 64 bits that fills `value`."""
    if not 0 < len(value) <= _VARLONG_BYTES_MAX or value[-1] >= 0x80 or any(byte < 0x80 for byte in value[:-1]):
        raise _corrupt("the remote size is not one varlong")
    folded = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(value))
    number = (folded >> 1) ^ -(folded & 1)
    if not 0 <= number < 2**63:
        raise _corrupt(f"the remote size {number} is not a size")
    return number


def _corrupt(message: str) -> CorruptObjectError:
    return CorruptObjectError(f"custom metadata of Aiven's plug-in: {message}")
