"""Data classes to values of `__remote_log_metadata`, as Kafka 4.3 writes them (docs/kafka-tier.md#record-encoding).

The layouts are the reader's (`storage.metadata.serde`).
"""

import struct
from collections.abc import Mapping

from protocol.wire.primitives import write_uvarint
from storage.errors import IllegalMetadataError, MetadataRecordError
from storage.metadata.serde import (
    DELETE_BODY,
    EPOCH,
    FRAME_VERSION,
    INT8,
    INT32,
    PARTITION_DELETE_API_KEY,
    RANGE,
    SEGMENT_API_KEY,
    TXN_INDEX_EMPTY_TAG,
    UPDATE_API_KEY,
    UPDATE_HEAD,
    MetadataRecord,
)
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TaggedFields,
    TopicIdPartition,
)

_UUID = struct.Struct(">16s")


def encode(record: MetadataRecord) -> bytes:
    """Encode a record as Kafka 4.3 does, byte for byte.

    Raises:
        MetadataRecordError: a number does not fit its field, a uuid is not 16 bytes, or a name is not UTF-8.
    """
    parts: list[bytes]
    try:
        match record:
            case RemoteLogSegmentMetadata():
                parts = [_head(SEGMENT_API_KEY, record), *_segment_id(record.segment_id), *_segment_fields(record)]
                parts.append(_segment_tags(record.txn_index_empty, record.unknown_tagged_fields))
            case RemoteLogSegmentMetadataUpdate():
                parts = [_head(UPDATE_API_KEY, record), *_segment_id(record.segment_id), *_update_fields(record)]
            case RemotePartitionDeleteMetadata():
                parts = [_head(PARTITION_DELETE_API_KEY), *_topic_id_partition(record.topic_id_partition)]
                parts += [DELETE_BODY.pack(record.broker_id, record.event_timestamp_ms, record.state), b"\0"]
    except (struct.error, UnicodeEncodeError) as error:
        raise MetadataRecordError(f"metadata record cannot be written: {error}") from error
    return b"".join(parts)


def encode_for_caller(record: MetadataRecord) -> bytes:
    """The record's wire form. What cannot be written is the caller's fault: IllegalMetadataError."""
    try:
        return encode(record)
    except MetadataRecordError as error:
        raise IllegalMetadataError(str(error)) from error


def _head(api_key: int, record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | None = None) -> bytes:
    return bytes((FRAME_VERSION, api_key, int(record is not None and bool(record.unknown_tagged_fields))))


def _topic_id_partition(partition: TopicIdPartition) -> list[bytes]:
    topic = partition.topic.encode()
    return [write_uvarint(len(topic) + 1), topic, _uuid(partition.topic_id), INT32.pack(partition.partition), b"\0"]


def _segment_id(segment_id: RemoteLogSegmentId) -> list[bytes]:
    return [*_topic_id_partition(segment_id.topic_id_partition), _uuid(segment_id.id), b"\0"]


def _segment_fields(record: RemoteLogSegmentMetadata) -> list[bytes]:
    return [
        RANGE.pack(
            record.start_offset, record.end_offset, record.broker_id, record.max_timestamp_ms, record.event_timestamp_ms
        ),
        _epochs(record.segment_leader_epochs),
        INT32.pack(record.segment_size_bytes),
        _nullable_bytes(record.custom_metadata),
        INT8.pack(record.state),
    ]


def _update_fields(update: RemoteLogSegmentMetadataUpdate) -> list[bytes]:
    return [
        UPDATE_HEAD.pack(update.broker_id, update.event_timestamp_ms),
        _nullable_bytes(update.custom_metadata),
        INT8.pack(update.state),
        _tagged_fields(update.unknown_tagged_fields),
    ]


def _segment_tags(txn_index_empty: bool, unknown: TaggedFields) -> bytes:
    return _tagged_fields(((TXN_INDEX_EMPTY_TAG, b"\1"), *unknown) if txn_index_empty else unknown)


def _tagged_fields(fields: TaggedFields) -> bytes:
    parts = [write_uvarint(len(fields))]
    for tag, raw in sorted(fields):
        parts += (write_uvarint(tag), write_uvarint(len(raw)), raw)
    return b"".join(parts)


def _epochs(epochs: Mapping[int, int]) -> bytes:
    entries = [EPOCH.pack(epoch, offset) + b"\0" for epoch, offset in epochs.items()]
    return write_uvarint(len(entries) + 1) + b"".join(entries)


def _nullable_bytes(raw: bytes | None) -> bytes:
    return b"\0" if raw is None else write_uvarint(len(raw) + 1) + raw


def _uuid(uuid: bytes) -> bytes:
    # struct's "16s" would pad or cut a wrong length silently.
    if len(uuid) != 16:
        raise MetadataRecordError(f"metadata record cannot hold a uuid of {len(uuid)} bytes")
    return _UUID.pack(uuid)
