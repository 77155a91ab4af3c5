"""KIP-405's data classes, under KIP-405's names.

All are immutable and hashable where they are identities. Offsets are Kafka offsets (int64), timestamps
milliseconds since the epoch, sizes bytes. Uuids travel as 16 raw bytes and print as Kafka prints them
(URL-safe base64 without padding, 22 characters).
"""

import base64
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NewType

from storage.errors import IllegalMetadataError

Uuid = NewType("Uuid", bytes)
"""16 raw bytes: most significant half first, as on the wire."""

CustomMetadata = NewType("CustomMetadata", bytes)
"""What a RemoteStorageManager returned from copy; opaque to everyone else."""

TaggedFields = tuple[tuple[int, bytes], ...]
"""Tagged fields of a record that a later Kafka wrote, by tag: kept for when the record is written again."""

ZERO_UUID = Uuid(bytes(16))

_TOPIC_NAME_LENGTH_MAX = 249
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)

_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)


def uuid_to_text(uuid: bytes) -> str:
    """The 22-character form that Kafka prints."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def uuid_from_text(text: str) -> Uuid:
    """Parse the 22-character form.

    Raises:
        ValueError: not 22 characters of URL-safe base64.
    """
    # The pattern first: Python's decoder also takes `+`, `/` and padding, which Kafka does not.
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"not a Kafka uuid: {text!r}")
    return Uuid(base64.urlsafe_b64decode(text + "=="))


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """A partition by topic id. The name is carried for paths and messages; identity is (topic_id, partition)."""

    topic_id: Uuid
    partition: int
    topic: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} ({uuid_to_text(self.topic_id)})"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """A segment's identity: every copy attempt draws another `id`."""

    topic_id_partition: TopicIdPartition
    id: Uuid

    def __str__(self) -> str:
        return f"{self.topic_id_partition}:{uuid_to_text(self.id)}"


class RemoteLogSegmentState(enum.IntEnum):
    """States and their wire values (docs/kafka-tier.md#metadata-records)."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(enum.IntEnum):
    """Partition deletion states and their wire values."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """What is known of one segment. `end_offset` is inclusive; `segment_leader_epochs` maps epoch to the
    first offset of that epoch inside the segment, in ascending order of epoch.

    Raises:
        IllegalMetadataError: start < 0, end < start, or no epochs (as Kafka's constructor does).
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_bytes: int
    segment_leader_epochs: Mapping[int, int]
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: CustomMetadata | None = None
    txn_index_empty: bool = False
    unknown_tagged_fields: TaggedFields = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.start_offset < 0:
            raise IllegalMetadataError(f"{self.segment_id}: start offset {self.start_offset} is negative")
        if self.end_offset < self.start_offset:
            raise IllegalMetadataError(
                f"{self.segment_id}: end offset {self.end_offset} is below start offset {self.start_offset}"
            )
        if not self.segment_leader_epochs:
            raise IllegalMetadataError(f"{self.segment_id}: no leader epochs")
        epochs = MappingProxyType(dict(sorted(self.segment_leader_epochs.items())))
        object.__setattr__(self, "segment_leader_epochs", epochs)

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view cannot be pickled.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        epochs = dict(self.segment_leader_epochs)
        return partial(RemoteLogSegmentMetadata, **values | {"segment_leader_epochs": epochs}), ()

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment_id.topic_id_partition


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A change of state; `custom_metadata` replaces what was there, also by None."""

    segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: CustomMetadata | None = None
    unknown_tagged_fields: TaggedFields = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """A partition's deletion, as `put_remote_partition_delete_metadata` takes it."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files of one local segment that `copy_log_segment_data` uploads."""

    log_segment: Path
    offset_index: Path
    time_index: Path
    leader_epoch_index: bytes
    transaction_index: Path | None = None
    producer_snapshot_index: Path | None = None


class IndexType(enum.Enum):
    """KIP-405's index types; values are the suffixes of LocalTieredStorage."""

    OFFSET = "index"
    TIMESTAMP = "timeindex"
    TRANSACTION = "txnindex"
    PRODUCER_SNAPSHOT = "snapshot"
    LEADER_EPOCH = "leader_epoch_checkpoint"


# What may become part of an object's name. Topic names come from records that anybody with access to the metadata topic
# may have written; only Kafka's legal names become part of a path, so that no object lies outside its folder.


def is_topic_name(name: str) -> bool:
    """Return whether Kafka accepts this topic name: 1 to 249 of its characters, but neither `.` nor `..`."""
    return len(name) <= _TOPIC_NAME_LENGTH_MAX and name not in (".", "..") and bool(_TOPIC_NAME.fullmatch(name))


def check_partition(partition: TopicIdPartition) -> None:
    """Refuse what may not become part of a name.

    Raises:
        IllegalMetadataError: the topic name is not one that Kafka would accept, or the partition is negative.
    """
    if not is_topic_name(partition.topic):
        raise IllegalMetadataError(f"{partition.topic!r} is not a legal topic name")
    if partition.partition < 0:
        raise IllegalMetadataError(f"partition {partition.partition} of topic {partition.topic!r} is negative")


def id_text(uuid: Uuid) -> str:
    """An id as names have it; IllegalMetadataError if it is none."""
    if len(uuid) != 16:
        raise IllegalMetadataError(f"an id of {len(uuid)} bytes is not a uuid")
    return uuid_to_text(uuid)
