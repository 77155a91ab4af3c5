"""Names of a segment's objects as Kafka's LocalTieredStorage has them (docs/formats.md#local-tiered-storage): of files
in its folder, of keys in a bucket of plain objects.

    <topic>-<partition>-<topic id>/<start offset, 20 digits>-<segment id>.<suffix>

Ids are in the 22-character form, which may begin with or contain `-`, as topic names may: whoever takes a name apart
does so from the right, by fixed widths. Topic names come from records that anybody with access to the metadata topic
may have written; only Kafka's legal names become part of a path, so that no object lies outside its folder.
"""

import re
from pathlib import Path

from storage.errors import IllegalMetadataError
from storage.model import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    Uuid,
    uuid_from_text,
    uuid_to_text,
)

LOG_SUFFIX = "log"
OBJECT_SUFFIXES = (LOG_SUFFIX, *(index_type.value for index_type in IndexType))
"""Every suffix that a segment's object may have."""

OPTIONAL_INDEX_TYPES = frozenset({IndexType.TRANSACTION})
"""Kafka's broker hands its storage manager every other file of a segment."""

_TOPIC_NAME_LENGTH_MAX = 249
_PARTITION_MAX = 2**31 - 1
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})-(?P<topic_id>[A-Za-z0-9_-]{22})", re.ASCII)
_OBJECT = re.compile(r"[0-9]{20}-(?P<segment_id>[A-Za-z0-9_-]{22})\.(?P<suffix>[a-z_]+)", re.ASCII)


def partition_directory_name(partition: TopicIdPartition) -> str:
    """The folder of a partition's objects.

    Raises:
        IllegalMetadataError: the topic name is not one that Kafka would accept, or the partition is negative.
    """
    check_partition(partition)
    return f"{partition.topic}-{partition.partition}-{id_text(partition.topic_id)}"


def segment_object_name(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    """An object's name inside its partition's folder; `suffix` without the dot."""
    return f"{metadata.start_offset:020d}-{id_text(metadata.segment_id.id)}.{suffix}"


def sources_by_suffix(data: LogSegmentData) -> dict[str, Path | bytes | None]:
    """What each object of a segment is copied from; None for those that it has not.

    In the order in which they are to be written: the log comes last, so that a log implies its indexes.
    """
    return {
        IndexType.OFFSET.value: data.offset_index,
        IndexType.TIMESTAMP.value: data.time_index,
        IndexType.TRANSACTION.value: data.transaction_index,
        IndexType.PRODUCER_SNAPSHOT.value: data.producer_snapshot_index,
        IndexType.LEADER_EPOCH.value: data.leader_epoch_index,
        LOG_SUFFIX: data.log_segment,
    }


def partition_of_directory(name: str) -> TopicIdPartition | None:
    """The inverse of `partition_directory_name`; None for a name that it does not give."""
    matched = _DIRECTORY.fullmatch(name)
    if matched is None or not is_topic_name(matched["topic"]) or int(matched["partition"]) > _PARTITION_MAX:
        return None
    return TopicIdPartition(uuid_from_text(matched["topic_id"]), int(matched["partition"]), matched["topic"])


def segment_of_object(name: str, partition: TopicIdPartition) -> RemoteLogSegmentId | None:
    """Whose object has this name in a partition's folder; None for a name that `segment_object_name` does not give."""
    matched = _OBJECT.fullmatch(name)
    if matched is None or matched["suffix"] not in OBJECT_SUFFIXES:
        return None
    return RemoteLogSegmentId(partition, uuid_from_text(matched["segment_id"]))


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts this topic name: 1 to 249 of its characters, but neither `.` nor `..`."""
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
