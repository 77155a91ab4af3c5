"""Values of `__remote_log_metadata`: bytes to data classes (docs/kafka-tier.md#record-encoding,
docs/kafka-tier.md#metadata-records). What writes them is `storage.metadata.encoding`.

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

from storage.errors import IllegalMetadataError, MetadataRecordError
from storage.model import (
    CustomMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    Uuid,
)

MetadataRecord = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata

FRAME_VERSION = 1
VERSION_MAX = 1

SEGMENT_API_KEY = 0
UPDATE_API_KEY = 1
PARTITION_DELETE_API_KEY = 2
_SNAPSHOT = 3

TXN_INDEX_EMPTY_TAG = 0

_KEY = struct.Struct(">16si16sb")  # topic id, partition, segment id, state
INT32 = struct.Struct(">i")
INT8 = struct.Struct(">b")
RANGE = struct.Struct(">qqiqq")  # start, end, broker, max timestamp, event timestamp
EPOCH = struct.Struct(">iq")
UPDATE_HEAD = struct.Struct(">iq")  # broker, event timestamp
DELETE_BODY = struct.Struct(">iqb")  # broker, event timestamp, state

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
    """Return what a record's key names; None for a key of another form.

    The other draft's key names an end offset in place of the segment. Two copies of the same offsets may share it, so
    its tombstones say nothing that the records before them did not say.
    """
    if len(key) != _KEY.size:
        return None
    topic_id, partition, segment_id, state_number = _KEY.unpack(key)
    state = _SEGMENT_STATES.get(state_number)
    return None if state is None else SegmentKey(Uuid(topic_id), partition, Uuid(segment_id), state)


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
    start, end, broker_id, max_timestamp_ms, event_timestamp_ms = reader.unpack(RANGE)
    epochs = _read_epochs(reader)
    (size_bytes,) = reader.unpack(INT32)
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
        unknown_tagged_fields=tuple((tag, raw) for tag, raw in tags.items() if tag != TXN_INDEX_EMPTY_TAG),
    )


def _decode_update(reader: _Reader) -> RemoteLogSegmentMetadataUpdate:
    segment_id = _read_segment_id(reader)
    broker_id, event_timestamp_ms = reader.unpack(UPDATE_HEAD)
    custom_metadata = _read_custom_metadata(reader)
    state = _read_segment_state(reader)
    tags = tuple(reader.tagged_fields().items())
    return RemoteLogSegmentMetadataUpdate(segment_id, event_timestamp_ms, state, broker_id, custom_metadata, tags)


def _decode_partition_delete(reader: _Reader) -> RemotePartitionDeleteMetadata:
    partition = _read_topic_id_partition(reader)
    broker_id, event_timestamp_ms, state_number = reader.unpack(DELETE_BODY)
    state = _DELETE_STATES.get(state_number)
    if state is None:
        raise MetadataRecordError(f"metadata record has the unknown partition delete state {state_number}")
    reader.tagged_fields()
    return RemotePartitionDeleteMetadata(partition, state, event_timestamp_ms, broker_id)


_DECODERS: Mapping[int, Callable[[_Reader], MetadataRecord]] = {
    SEGMENT_API_KEY: _decode_segment,
    UPDATE_API_KEY: _decode_update,
    PARTITION_DELETE_API_KEY: _decode_partition_delete,
}


def _read_topic_id_partition(reader: _Reader) -> TopicIdPartition:
    topic = reader.string()
    topic_id = Uuid(reader.take(16))
    (partition,) = reader.unpack(INT32)
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
    if count * (EPOCH.size + 1) > reader.left:
        raise MetadataRecordError(f"metadata record claims {count} leader epochs in {reader.left} bytes")
    epochs: dict[int, int] = {}
    for _ in range(count):
        epoch, offset = reader.unpack(EPOCH)
        epochs[epoch] = offset
        reader.tagged_fields()
    return epochs


def _read_custom_metadata(reader: _Reader) -> CustomMetadata | None:
    raw = reader.nullable_bytes()
    return None if raw is None else CustomMetadata(raw)


def _read_segment_state(reader: _Reader) -> RemoteLogSegmentState:
    (number,) = reader.unpack(INT8)
    state = _SEGMENT_STATES.get(number)
    if state is None:
        raise MetadataRecordError(f"metadata record has the unknown segment state {number}")
    return state


def _txn_index_empty(tags: Mapping[int, bytes]) -> bool:
    raw = tags.get(TXN_INDEX_EMPTY_TAG)
    if raw is None:
        return False
    if len(raw) != 1:
        raise MetadataRecordError(f"metadata record has {len(raw)} bytes of TxnIndexEmpty, not 1")
    return raw != b"\0"
