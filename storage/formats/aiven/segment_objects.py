"""A segment's three objects, wherever they are (docs/formats.md#aiven-keys).

Custom metadata may name another prefix and another main path than the configuration gives today. That place is tried
first, then the configured one: the plug-in applies the override to log and indexes alone, so that after a change of
`key.prefix` a manifest may be at either. Which place held an object is remembered, for each object of its own.

Under `key.prefix.mask` no message shows the prefix, neither ours nor the store's.
"""

import enum
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.wire.errors import PeerProtocolError
from protocol.wire.primitives import Cursor
from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    TruncatedObjectError,
)
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    Uuid,
    check_partition,
    id_text,
    is_topic_name,
    uuid_from_text,
)
from storage.object_store.object_store import ObjectStore, ObjectStream, read_whole

# Keys of a segment's three objects (docs/formats.md#aiven-keys).
#
#     <key.prefix><topic>-<topic id>/<partition>/<start offset, 20 digits>-<segment id>.<suffix>
#     <key.prefix>└────────────────────────── main path ────────────────────────────────┘
#
# - The prefix is put in front as it is: no separator is added.
# - Ids are Kafka's 22 characters, which may begin with or contain `-`, as topic names may. A key is therefore taken
#   apart by fixed widths from the right, never at a `-`.
# - Only topic names that Kafka accepts become part of a key (storage/model.py says why).


KEY_BYTES_MAX = 1024
"""S3's limit for a key, in UTF-8; Google's and Azure's are the same."""

MASKED_PREFIX = "<prefix>/"
_PARTITION_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_MAIN_PATH = re.compile(
    r"(?P<topic>[^/]+)-(?P<topic_id>[A-Za-z0-9_-]{22})/(?P<partition>0|[1-9][0-9]{0,9})"
    r"/(?P<start_offset>[0-9]{20})-(?P<segment_id>[A-Za-z0-9_-]{22})",
    re.ASCII,
)


class ObjectSuffix(enum.Enum):
    """The three objects of a segment, in the order in which the plug-in uploads them: the manifest last."""

    LOG = ".log"
    INDEXES = ".indexes"
    MANIFEST = ".rsm-manifest"


@dataclass(frozen=True, slots=True)
class ParsedObjectKey:
    """What a key says of its object."""

    topic_id_partition: TopicIdPartition
    start_offset: int
    segment_id: Uuid
    suffix: ObjectSuffix


def main_path(metadata: RemoteLogSegmentMetadata) -> str:
    """Return what the keys of a segment's objects have in common, without the prefix.

    Raises:
        IllegalMetadataError: the topic name is not one that Kafka would accept, the partition is negative, or an id
            is no uuid.
    """
    partition = metadata.topic_id_partition
    check_partition(partition)
    return (
        f"{partition.topic}-{id_text(partition.topic_id)}/{partition.partition}"
        f"/{metadata.start_offset:020d}-{id_text(metadata.segment_id.id)}"
    )


def object_key(prefix: str, path: str, suffix: ObjectSuffix) -> str:
    """The whole key of one object; `path` is a main path."""
    return f"{prefix}{path}{suffix.value}"


def masked_object_key(path: str, suffix: ObjectSuffix) -> str:
    """The key as messages show it under `key.prefix.mask`."""
    return f"{MASKED_PREFIX}{path}{suffix.value}"


def parse_object_key(key: str, prefix: str) -> ParsedObjectKey:
    """The inverse of `object_key` and `main_path`.

    Raises:
        ValueError: not the key of an object that the plug-in would have written under `prefix`.
    """
    suffix = next((suffix for suffix in ObjectSuffix if key.endswith(suffix.value)), None)
    if suffix is None or not key.startswith(prefix):
        raise ValueError(f"{key!r} is not a key of this format under {prefix!r}")
    matched = _MAIN_PATH.fullmatch(key[len(prefix) : len(key) - len(suffix.value)])
    if matched is None or not is_topic_name(matched["topic"]):
        raise ValueError(f"{key!r} is not a key of this format under {prefix!r}")
    partition, start_offset = int(matched["partition"]), int(matched["start_offset"])
    if partition > _PARTITION_MAX or start_offset > _OFFSET_MAX:
        raise ValueError(f"partition or offset of {key!r} is beyond Kafka's")
    return ParsedObjectKey(
        TopicIdPartition(uuid_from_text(matched["topic_id"]), partition, matched["topic"]),
        start_offset,
        uuid_from_text(matched["segment_id"]),
        suffix,
    )


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Prefix and main path of a segment's keys. `masked`: the prefix is not for messages."""

    prefix: str
    path: str
    masked: bool = False

    def key(self, suffix: ObjectSuffix) -> str:
        """The key in the store."""
        return object_key(self.prefix, self.path, suffix)

    def name(self, suffix: ObjectSuffix) -> str:
        """The key in messages."""
        return masked_object_key(self.path, suffix) if self.masked else self.key(suffix)

    @contextmanager
    def errors(self, suffix: ObjectSuffix) -> Iterator[None]:
        """Put the name for the key in the store's own messages."""
        try:
            yield
        except RemoteStorageError as error:
            if self.masked:
                key, name = self.key(suffix), self.name(suffix)
                error.args = tuple(str(part).replace(key, name) for part in error.args)
                error.__notes__ = [note.replace(key, name) for note in getattr(error, "__notes__", ())]
                undeleted = error.undeleted.items()
                error.undeleted = {each.replace(key, name): why.replace(key, name) for each, why in undeleted}
                # Below it lies the SDK's error, with the key in its text.
                raise error from None
            raise


class ObjectBody:
    """The body of one GET under way. `name`: the object's, for messages."""

    def __init__(self, stream: ObjectStream, place: ObjectPlace, suffix: ObjectSuffix) -> None:
        self._stream = stream
        self._place = place
        self._suffix = suffix
        self.name = place.name(suffix)

    @property
    def size_bytes(self) -> int:
        return self._stream.size_bytes

    def readinto(self, buffer: memoryview) -> None:
        """As ObjectStream.readinto."""
        with self._place.errors(self._suffix):
            self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()


class SegmentObjects:
    """GETs of a segment's objects. Thread-safe: what is remembered is a hint, and any thread's is as good.

    Args:
        places: where the objects may be, in the order of trial.
    """

    def __init__(self, store: ObjectStore, places: Sequence[ObjectPlace]) -> None:
        self._store = store
        self._places = tuple(places)
        self._found: dict[ObjectSuffix, int] = {}

    def get_range(self, suffix: ObjectSuffix, start: int, end: int) -> ObjectBody:
        """Begin a GET of bytes [start, end), all of which the object should have.

        Raises:
            RemoteResourceNotFoundError: there is no such object in any place.
            TruncatedObjectError: the object ends before `end`.
            RemoteStorageError: as the store answers.
        """
        body = self._get(suffix, start, end)
        if body.size_bytes < end - start:
            body.close()
            raise _too_short(body.name, start, end, start + body.size_bytes)
        return body

    def get_whole(self, suffix: ObjectSuffix, bytes_max: int) -> tuple[bytes, str]:
        """A whole object and its name.

        Raises:
            CorruptObjectError: it is empty, or larger than `bytes_max`.
        """
        body = self._get(suffix, 0, bytes_max + 1)
        return bytes(read_whole(body, body.name, bytes_max)), body.name

    def name(self, suffix: ObjectSuffix) -> str:
        """The object in messages."""
        return self._places[self._likely(suffix)].name(suffix)

    def _get(self, suffix: ObjectSuffix, start: int, end: int) -> ObjectBody:
        likely = self._likely(suffix)
        numbers = (likely, *(number for number in range(len(self._places)) if number != likely))
        for number in numbers:
            place = self._places[number]
            try:
                with place.errors(suffix):
                    stream = self._store.get(place.key(suffix), start, end)
            except RemoteResourceNotFoundError:
                if len(self._places) == 1:
                    raise
                continue
            except InvalidRangeError as error:
                raise _too_short(place.name(suffix), start, end, None) from error
            self._found[suffix] = number
            return ObjectBody(stream, place, suffix)
        names = " nor at ".join(self._places[number].name(suffix) for number in numbers)
        raise RemoteResourceNotFoundError(f"there is no object at {names}")

    def _likely(self, suffix: ObjectSuffix) -> int:
        return self._found.get(suffix, self._found.get(ObjectSuffix.MANIFEST, 0))


def _too_short(name: str, start: int, end: int, size_bytes: int | None) -> TruncatedObjectError:
    ends = f"at or before {start}" if size_bytes is None else f"at {size_bytes}"
    message = f"{name}: bytes {start} to {end - 1} wanted, and the object ends {ends}"
    return TruncatedObjectError(message, start if size_bytes is None else size_bytes)


# What the plug-in returns from copy: one section of Kafka's tagged fields (docs/formats.md#aiven-custom-metadata).
#
#     uvarint count, then per field, tags ascending: uvarint tag, uvarint size, value
#
# | tag | field | value |
# |---|---|---|
# | 0 | remote size | varlong |
# | 1 | object prefix | compact string |
# | 2 | object key: the main path | compact string |
#
# - Each field is there only when `custom.metadata.fields.include` names it. No bytes at all mean no fields.
# - Unknown tags are passed over: Kafka's own reader keeps them without looking at them.
# - Prefix and key come from the metadata topic, and become part of an object's key: `.` and `..` as a part of the path
#   are refused.


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
