"""Values of `__remote_log_metadata`: bytes to data classes and back (docs/kafka-tier.md#record-encoding,
docs/kafka-tier.md#metadata-records).

A value is `uvarint frame version (1)`, `uvarint api key`, `uvarint version`, body. All messages are flexible: every
struct, also a nested one, ends with tagged fields.

- Versions 0 and 1 are read: KIP-1266, still discussed, adds version 1 of segment and update, with tagged fields only
  (the broker's leader epoch; of an update the end offset too). Version 0 is written.
- Unknown tagged fields of a segment and an update are kept, and written again, as version 1. Tag 0 of a segment is
  TxnIndexEmpty; it is written only when true, as Kafka does.
- Trailing bytes are an error, as in Kafka.
- Epochs may come in any order; they are sorted on read, and a repeated epoch keeps its last offset.
- A segment of Kafka's snapshot file, api key 3, never belongs in the topic and is refused.

Every failure is a MetadataRecordError. No length is believed: each is checked against what is left of the value.
"""

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from protocol.wire.primitives import write_uvarint
from storage.errors import IllegalMetadataError, MetadataRecordError
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TaggedFields,
    TopicIdPartition,
    Uuid,
)

MetadataRecord = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata

FRAME_VERSION = 1
VERSION_MAX = 1

_SEGMENT = 0
_UPDATE = 1
_PARTITION_DELETE = 2
_SNAPSHOT = 3

_TAG_TXN_INDEX_EMPTY = 0

_UUID = struct.Struct(">16s")
_KEY = struct.Struct(">16si16sb")  # topic id, partition, segment id, state
_INT32 = struct.Struct(">i")
_INT8 = struct.Struct(">b")
_RANGE = struct.Struct(">qqiqq")  # start, end, broker, max timestamp, event timestamp
_EPOCH = struct.Struct(">iq")
_UPDATE_HEAD = struct.Struct(">iq")  # broker, event timestamp
_DELETE_BODY = struct.Struct(">iqb")  # broker, event timestamp, state

_SEGMENT_STATES = {int(state): state for state in RemoteLogSegmentState}
_DELETE_STATES = {int(state): state for state in RemotePartitionDeleteState}


def decode(value: bytes) -> MetadataRecord:
    """Decode one record value.

    Raises:
        MetadataRecordError: it breaks the format, or names a segment that Kafka could not construct.
    """
    reader = _Reader(value)
    frame_version = reader.uvarint()
    if frame_version != FRAME_VERSION:
        raise MetadataRecordError(f"metadata record has frame version {frame_version}, not {FRAME_VERSION}")
    api_key = reader.uvarint()
    version = reader.uvarint()
    if api_key == _SNAPSHOT:
        raise MetadataRecordError("a snapshot record is not an event of the metadata log")
    body = _DECODERS.get(api_key)
    if body is None:
        raise MetadataRecordError(f"metadata record has the unknown api key {api_key}")
    if version > VERSION_MAX:
        raise MetadataRecordError(f"metadata record with api key {api_key} has the unknown version {version}")
    try:
        record = body(reader)
    except IllegalMetadataError as error:
        raise MetadataRecordError(f"metadata record cannot be: {error}") from error
    if reader.left:
        raise MetadataRecordError(f"metadata record has {reader.left} bytes after its end")
    return record


class SegmentKey(NamedTuple):
    """A record's key in one draft of KIP-1266: each state of a segment has its own, so all of them are kept until each
    gets a tombstone, after DELETE_SEGMENT_FINISHED."""

    topic_id: Uuid
    partition: int
    segment_id: Uuid
    state: RemoteLogSegmentState


def decode_key(key: bytes) -> SegmentKey | None:
    """What a record's key names; None for a key of another form.

    The other draft's key names an end offset in place of the segment. Two copies of the same offsets may share it, so
    its tombstones say nothing that the records before them did not say.
    """
    if len(key) != _KEY.size:
        return None
    topic_id, partition, segment_id, state_number = _KEY.unpack(key)
    state = _SEGMENT_STATES.get(state_number)
    return None if state is None else SegmentKey(Uuid(topic_id), partition, Uuid(segment_id), state)


def encode(record: MetadataRecord) -> bytes:
    """Encode a record as Kafka 4.3 does, byte for byte.

    Raises:
        MetadataRecordError: a number does not fit its field, a uuid is not 16 bytes, or a name is not UTF-8.
    """
    parts: list[bytes]
    try:
        match record:
            case RemoteLogSegmentMetadata():
                parts = [_head(_SEGMENT, record), *_segment_id(record.segment_id), *_segment_fields(record)]
                parts.append(_segment_tags(record.txn_index_empty, record.unknown_tagged_fields))
            case RemoteLogSegmentMetadataUpdate():
                parts = [_head(_UPDATE, record), *_segment_id(record.segment_id), *_update_fields(record)]
            case RemotePartitionDeleteMetadata():
                parts = [_head(_PARTITION_DELETE), *_topic_id_partition(record.topic_id_partition)]
                parts += [_DELETE_BODY.pack(record.broker_id, record.event_timestamp_ms, record.state), b"\0"]
    except (struct.error, UnicodeEncodeError) as error:
        raise MetadataRecordError(f"metadata record cannot be written: {error}") from error
    return b"".join(parts)


class _Reader:
    """A position in one value. Every method raises MetadataRecordError where the value ends too soon."""

    __slots__ = ("_position", "_value")

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._value) - self._position

    def take(self, size_bytes: int) -> bytes:
        start = self._position
        end = start + size_bytes
        if end > len(self._value):
            raise MetadataRecordError(
                f"metadata record ends at byte {len(self._value)}, {size_bytes} needed at {start}"
            )
        self._position = end
        return self._value[start:end]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def uvarint(self) -> int:
        """At most five bytes and 32 bits, as Kafka's."""
        number = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number > 0xFFFF_FFFF:
                    break
                return number
        raise MetadataRecordError(f"metadata record has a varint beyond 32 bits before byte {self._position}")

    def string(self) -> str:
        raw = self.nullable_bytes()
        if raw is None:
            raise MetadataRecordError("metadata record has a null topic name")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise MetadataRecordError("metadata record has a topic name that is not UTF-8") from error

    def nullable_bytes(self) -> bytes | None:
        size_plus_one = self.uvarint()
        return None if size_plus_one == 0 else self.take(size_plus_one - 1)

    def tagged_fields(self) -> dict[int, bytes]:
        """A tag takes two bytes at least, so what is left bounds the loop whatever the count says."""
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


def _decode_segment(reader: _Reader) -> RemoteLogSegmentMetadata:
    segment_id = _read_segment_id(reader)
    start, end, broker_id, max_timestamp_ms, event_timestamp_ms = reader.unpack(_RANGE)
    epochs = _read_epochs(reader)
    (size_bytes,) = reader.unpack(_INT32)
    custom_metadata = _read_custom_metadata(reader)
    state = _read_segment_state(reader)
    tags = reader.tagged_fields()
    return RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=broker_id,
        event_timestamp_ms=event_timestamp_ms,
        segment_size_bytes=size_bytes,
        segment_leader_epochs=epochs,
        state=state,
        custom_metadata=custom_metadata,
        txn_index_empty=_txn_index_empty(tags),
        unknown_tagged_fields=tuple((tag, raw) for tag, raw in tags.items() if tag != _TAG_TXN_INDEX_EMPTY),
    )


def _decode_update(reader: _Reader) -> RemoteLogSegmentMetadataUpdate:
    segment_id = _read_segment_id(reader)
    broker_id, event_timestamp_ms = reader.unpack(_UPDATE_HEAD)
    custom_metadata = _read_custom_metadata(reader)
    state = _read_segment_state(reader)
    tags = tuple(reader.tagged_fields().items())
    return RemoteLogSegmentMetadataUpdate(segment_id, event_timestamp_ms, state, broker_id, custom_metadata, tags)


def _decode_partition_delete(reader: _Reader) -> RemotePartitionDeleteMetadata:
    partition = _read_topic_id_partition(reader)
    broker_id, event_timestamp_ms, state_number = reader.unpack(_DELETE_BODY)
    state = _DELETE_STATES.get(state_number)
    if state is None:
        raise MetadataRecordError(f"metadata record has the unknown partition delete state {state_number}")
    reader.tagged_fields()
    return RemotePartitionDeleteMetadata(partition, state, event_timestamp_ms, broker_id)


_DECODERS: Mapping[int, Callable[[_Reader], MetadataRecord]] = {
    _SEGMENT: _decode_segment,
    _UPDATE: _decode_update,
    _PARTITION_DELETE: _decode_partition_delete,
}


def _read_topic_id_partition(reader: _Reader) -> TopicIdPartition:
    topic = reader.string()
    topic_id = Uuid(reader.take(16))
    (partition,) = reader.unpack(_INT32)
    reader.tagged_fields()
    return TopicIdPartition(topic_id, partition, topic)


def _read_segment_id(reader: _Reader) -> RemoteLogSegmentId:
    partition = _read_topic_id_partition(reader)
    segment_id = Uuid(reader.take(16))
    reader.tagged_fields()
    return RemoteLogSegmentId(partition, segment_id)


def _read_epochs(reader: _Reader) -> dict[int, int]:
    """An epoch takes 13 bytes at least: a count that cannot fit is refused before the loop."""
    count_plus_one = reader.uvarint()
    if count_plus_one == 0:
        raise MetadataRecordError("metadata record has a null list of leader epochs")
    count = count_plus_one - 1
    if count * (_EPOCH.size + 1) > reader.left:
        raise MetadataRecordError(f"metadata record claims {count} leader epochs in {reader.left} bytes")
    epochs: dict[int, int] = {}
    for _ in range(count):
        epoch, offset = reader.unpack(_EPOCH)
        epochs[epoch] = offset
        reader.tagged_fields()
    return epochs


def _read_custom_metadata(reader: _Reader) -> CustomMetadata | None:
    raw = reader.nullable_bytes()
    return None if raw is None else CustomMetadata(raw)


def _read_segment_state(reader: _Reader) -> RemoteLogSegmentState:
    (number,) = reader.unpack(_INT8)
    state = _SEGMENT_STATES.get(number)
    if state is None:
        raise MetadataRecordError(f"metadata record has the unknown segment state {number}")
    return state


def _txn_index_empty(tags: Mapping[int, bytes]) -> bool:
    raw = tags.get(_TAG_TXN_INDEX_EMPTY)
    if raw is None:
        return False
    if len(raw) != 1:
        raise MetadataRecordError(f"metadata record has {len(raw)} bytes of TxnIndexEmpty, not 1")
    return raw != b"\0"


def _head(api_key: int, record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | None = None) -> bytes:
    return bytes((FRAME_VERSION, api_key, int(record is not None and bool(record.unknown_tagged_fields))))


def _topic_id_partition(partition: TopicIdPartition) -> list[bytes]:
    topic = partition.topic.encode()
    return [write_uvarint(len(topic) + 1), topic, _uuid(partition.topic_id), _INT32.pack(partition.partition), b"\0"]


def _segment_id(segment_id: RemoteLogSegmentId) -> list[bytes]:
    return [*_topic_id_partition(segment_id.topic_id_partition), _uuid(segment_id.id), b"\0"]


def _segment_fields(record: RemoteLogSegmentMetadata) -> list[bytes]:
    return [
        _RANGE.pack(
            record.start_offset,
            record.end_offset,
            record.broker_id,
            record.max_timestamp_ms,
            record.event_timestamp_ms,
        ),
        _epochs(record.segment_leader_epochs),
        _INT32.pack(record.segment_size_bytes),
        _nullable_bytes(record.custom_metadata),
        _INT8.pack(record.state),
    ]


def _update_fields(update: RemoteLogSegmentMetadataUpdate) -> list[bytes]:
    return [
        _UPDATE_HEAD.pack(update.broker_id, update.event_timestamp_ms),
        _nullable_bytes(update.custom_metadata),
        _INT8.pack(update.state),
        _tagged_fields(update.unknown_tagged_fields),
    ]


def _segment_tags(txn_index_empty: bool, unknown: TaggedFields) -> bytes:
    return _tagged_fields(((_TAG_TXN_INDEX_EMPTY, b"\1"), *unknown) if txn_index_empty else unknown)


def _tagged_fields(fields: TaggedFields) -> bytes:
    parts = [write_uvarint(len(fields))]
    for tag, raw in sorted(fields):
        parts += (write_uvarint(tag), write_uvarint(len(raw)), raw)
    return b"".join(parts)


def _epochs(epochs: Mapping[int, int]) -> bytes:
    entries = [_EPOCH.pack(epoch, offset) + b"\0" for epoch, offset in epochs.items()]
    return write_uvarint(len(entries) + 1) + b"".join(entries)


def _nullable_bytes(raw: bytes | None) -> bytes:
    return b"\0" if raw is None else write_uvarint(len(raw) + 1) + raw


def _uuid(uuid: bytes) -> bytes:
    # struct's "16s" would pad or cut a wrong length silently.
    if len(uuid) != 16:
        raise MetadataRecordError(f"metadata record cannot hold a uuid of {len(uuid)} bytes")
    return _UUID.pack(uuid)
