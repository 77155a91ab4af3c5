"""Keys of a segment's three objects (docs/formats.md#aiven-keys).

    <key.prefix><topic>-<topic id>/<partition>/<start offset, 20 digits>-<segment id>.<suffix>
    <key.prefix>└────────────────────────── main path ────────────────────────────────┘

- The prefix is put in front as it is: no separator is added.
- Ids are Kafka's 22 characters, which may begin with or contain `-`, as topic names may. A key is therefore taken
  apart by fixed widths from the right, never at a `-`.
- Only topic names that Kafka accepts become part of a key (storage/model.py says why).
"""

import enum
import re
from dataclasses import dataclass

from storage.model import (
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    Uuid,
    check_partition,
    id_text,
    is_topic_name,
    uuid_from_text,
)

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
