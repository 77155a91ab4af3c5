"""Fetch (api 1): the messages as Tidegate sees them.

Contract:
- Versions 4 to 18 (flexible from 12). Below 4 the record format is not v2; those are never announced
  (docs/protocol.md#l7).
- Partitions are flat lists in wire order. The wire's grouping by topic is rebuilt on encoding from runs of
  consecutive equal topics, so an answer list in request order keeps the request's order.
- Topics have names up to v12 and ids from v13 on (KIP-516). The other one is None after decoding; a caller that encodes
  at another version fills it in first.
- Sections of unknown tagged fields are kept as raw bytes, count included, and written back (KIP-482).
- Records are never looked at and never copied: they are views into the frame they came in.

Version notes: 5 log start offset (both ways) · 7 sessions (KIP-227) · 9 current leader epoch (KIP-320) · 11 rack and
preferred read replica (KIP-392) · 12 flexible, last fetched epoch (KIP-595) · 13 topic ids · 15 replica state moved
into a tag (KIP-903) · 16 node endpoints (KIP-951) · 17, 18 followers only.

Not here: `KAFKA_STORAGE_ERROR` as v5 and older know it, which is the error table's matter.

The code: `request`, `response`, `walker` (responses that stream by);
`fetch_sessions` is what KIP-227 has both sides remember.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from protocol.record_batches import Buffer
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.framing import RequestHeader, encode_request_header
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import Cursor, write_array_length, write_string, write_uvarint

FETCH_VERSION_MIN = 4
FETCH_VERSION_MAX = 18
FLEXIBLE_VERSION_MIN = 12
TOPIC_ID_VERSION_MIN = 13
TOPIC_ID_BYTES = 16

NO_TAGS = b"\x00"
"""A tagged section without fields, as it stands on the wire."""

NO_SESSION_ID = 0
OPENING_EPOCH = 0
"""A full fetch that wants a session, and closes the one it names (KIP-227)."""
SESSIONLESS_EPOCH = -1
"""A full fetch that wants no session, and closes the one it names."""

PARTITIONS_MAX = 10_000
"""In a request that is read, forgotten ones and topics without any counted with them; and in a session that is kept.

A broker leads a few thousand partitions. What names more is the broker's alone. Measured for this many: 3 MiB while a
request is decoded, 10 MiB with its answer merged; 3 to 10 µs a partition, from decoding to answer.
"""

REQUEST_BYTES_MAX = 1024 * 1024
"""For a request that is read: PARTITIONS_MAX of them with long topic names."""

PartitionKey = tuple[str | None, bytes | None, int]
"""Topic name, topic id, partition: as the client's version names it."""

_DIVERGING_EPOCH_TAG = 0
_DIVERGING_EPOCH = struct.Struct(">iqB")  # epoch, end offset, an empty tagged section


# Not frozen: these are made by the hundred per request, and a frozen __init__ costs five times as much.
@dataclass(slots=True)
class FetchPartition:
    """What one Fetch asks of one partition. Epochs and log start are −1 where the version has none."""

    topic: str | None
    topic_id: bytes | None
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    tags: bytes = NO_TAGS
    topic_tags: bytes = NO_TAGS


@dataclass(slots=True)
class FetchRequest:
    """A Fetch request. `replica_id` is −1 for consumers, wherever the version carries it.

    `session_epoch_position` is where the session epoch's int32 stands, counted from the frame's length field: writing
    −1 there makes the request sessionless without re-encoding it, and the session id stands right before it. None below
    v7. `forgotten` are the partitions that the session shall no longer hold. `tags` is the raw tagged section of the
    body: cluster id (0), replica state (1, v15+) and whatever else is there. `is_unread`: it names more than
    PARTITIONS_MAX, or is larger than REQUEST_BYTES_MAX; of what follows the session epoch nothing is here.
    """

    api_version: int
    correlation_id: int
    client_id: str | None
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    session_epoch_position: int | None
    partitions: list[FetchPartition]
    rack_id: str
    tags: bytes = NO_TAGS
    forgotten: Sequence[PartitionKey] = ()
    is_unread: bool = False


@dataclass(slots=True)
class PartitionAnswer:
    """What a Fetch response says of one partition.

    `aborted_transactions` holds (producer id, first offset); None is the wire's null, which READ_UNCOMMITTED gets.
    `records` are buffers whose concatenation is the record set; () with `records_are_null` False is what a broker
    sends for "nothing" (its MemoryRecords.EMPTY: length 0, not null).
    """

    topic: str | None
    topic_id: bytes | None
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: list[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Sequence[Buffer] = ()
    tags: bytes = NO_TAGS
    topic_tags: bytes = NO_TAGS
    records_are_null: bool = False
    dropped_bytes: int = 0
    """How much of its records was dropped as it arrived."""

    @classmethod
    def error(
        cls, topic: str | None, topic_id: bytes | None, partition: int, error_code: int, tags: bytes = NO_TAGS
    ) -> "PartitionAnswer":
        """A failed partition as the broker writes it: all offsets −1, no records (docs/protocol.md#fetch-answers)."""
        return cls(topic, topic_id, partition, error_code, -1, -1, -1, tags=tags)

    @property
    def records_bytes(self) -> int:
        """Size of the record set."""
        return sum(map(len, self.records))

    @property
    def has_diverging_epoch(self) -> bool:
        """Return whether the broker says that the client's log and its own have parted (tag 0, KIP-595)."""
        if self.tags == NO_TAGS:
            return False
        cursor = Cursor(memoryview(self.tags))
        for _ in range(cursor.uvarint()):
            if cursor.uvarint() == _DIVERGING_EPOCH_TAG:
                return True
            cursor.skip(cursor.uvarint())
        return False


@dataclass(slots=True)
class FetchResponse:
    """A Fetch response; `tags` is the raw tagged section that ends the frame (node endpoints from v16 on)."""

    correlation_id: int
    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: list[PartitionAnswer]
    tags: bytes = NO_TAGS


def diverging_epoch_tags(epoch: int, end_offset: int) -> bytes:
    """A partition's tagged section (v12 and later) that says where the client's log and the leader's have parted."""
    return bytes((1, _DIVERGING_EPOCH_TAG, _DIVERGING_EPOCH.size)) + _DIVERGING_EPOCH.pack(epoch, end_offset, 0)


def key_of(item: FetchPartition | PartitionAnswer) -> PartitionKey:
    """Return what tells the partitions of one request, or of one session, apart."""
    return item.topic, item.topic_id, item.partition


def last_mentions(partitions: list[FetchPartition]) -> list[FetchPartition]:
    """Return each partition once. If one is named twice, the broker takes the first place and the last wish."""
    by_key = {(asked.topic, asked.topic_id, asked.partition): asked for asked in partitions}
    return partitions if len(by_key) == len(partitions) else list(by_key.values())


def less_asked(room: int | None, count: int) -> int | None:
    """Return how many partitions a response may still have after a topic of `count`; None: any number.

    Raises:
        PeerProtocolError: it has more than were asked for.
    """
    if room is None:
        return None
    if (left := room - max(1, count)) < 0:
        raise PeerProtocolError("a response has more partitions than were asked for")
    return left


def require_version(api_version: int) -> None:
    """Refuse a version that this codec does not know: the router relays those, so this is our bug."""
    if not FETCH_VERSION_MIN <= api_version <= FETCH_VERSION_MAX:
        raise LocalProtocolError(f"Fetch v{api_version} is not one that is decoded")


def topic_key(item: FetchPartition | PartitionAnswer, api_version: int) -> bytes:
    """The bytes that name the item's topic on the wire at that version, for lookups that must work for both kinds.

    Raises:
        LocalProtocolError: the version wants the other kind of name than the item has.
    """
    if api_version >= TOPIC_ID_VERSION_MIN:
        if item.topic_id is None or len(item.topic_id) != TOPIC_ID_BYTES:
            raise LocalProtocolError(f"Fetch v{api_version} wants a topic id of {TOPIC_ID_BYTES} bytes")
        return item.topic_id
    if item.topic is None:
        raise LocalProtocolError(f"Fetch v{api_version} wants a topic name")
    return item.topic.encode("utf-8")


# Fetch requests: decoding a client's, encoding our own.
#
# Contract: see `messages`. Decoding reads each partition with one unpack and is bounded by the frame: a count that
# the bytes left cannot hold is refused before anything is built, and nothing but PeerProtocolError comes out of a bad
# frame. Bytes left over after the last field are an error too: no client sends any, and they would mean that we and
# the client disagree on the layout.


_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")  # session id, session epoch
_SESSION_EPOCH_OFFSET = 4
_SESSION_ID_OFFSET = -4  # seen from the epoch

_PARTITION_V4 = struct.Struct(">iqi")  # partition, fetch offset, max bytes
_PARTITION_V5 = struct.Struct(">iqqi")  # partition, fetch offset, log start offset, max bytes
_PARTITION_V9 = struct.Struct(">iiqqi")  # partition, leader epoch, fetch offset, log start offset, max bytes
_PARTITION_V12 = struct.Struct(">iiqiqi")  # … fetch offset, last fetched epoch, log start offset, max bytes
_PARTITION_V12_NO_TAGS = struct.Struct(">iiqiqiB")  # the same and its tagged section's first byte

_REPLICA_STATE_TAG = 1
_REPLICA_STATE_VERSION_MIN = 15


def decode_request(frame: memoryview, header: RequestHeader) -> FetchRequest:
    """Decode a whole frame (length field included) whose header was read already.

    If it names too much, only the head is read (`FetchRequest.is_unread`).

    Raises:
        PeerProtocolError: the frame is truncated, too long, or holds an impossible length or count.
        LocalProtocolError: the version is outside v4–v18.
    """
    require_version(header.api_version)
    try:
        return _decode_request(frame, header)
    except struct.error as error:
        raise PeerProtocolError(f"truncated Fetch v{header.api_version} request") from error


def encode_request(
    request: FetchRequest,
    partitions: Sequence[FetchPartition],
    *,
    correlation_id: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    session_id: int = NO_SESSION_ID,
    session_epoch: int = SESSIONLESS_EPOCH,
    forgotten: Sequence[PartitionKey] = (),
    api_version: int | None = None,
) -> bytes:
    """A whole frame (length field included) that asks for `partitions` on behalf of `request`.

    Client id, isolation level, rack, replica id and body tags are the request's. The version is the request's unless
    given; partitions must then have the kind of topic name which it wants, and what it has no field for is left out.

    Raises:
        LocalProtocolError: a version outside v4–v18, a missing topic name or id, or a follower's request raised
            over the version at which its replica id became a tag.
    """
    version = request.api_version if api_version is None else api_version
    require_version(version)
    flexible = version >= FLEXIBLE_VERSION_MIN
    parts = [encode_request_header(ApiKey.FETCH, version, correlation_id, request.client_id)]
    if version < _REPLICA_STATE_VERSION_MIN:
        parts.append(_INT32.pack(request.replica_id))
    elif request.replica_id != -1 and request.api_version < _REPLICA_STATE_VERSION_MIN:
        raise LocalProtocolError("a follower's Fetch is relayed, not raised to a newer version")
    parts.append(_LIMITS.pack(max_wait_ms, min_bytes, max_bytes, request.isolation_level))
    if version >= 7:
        parts.append(_SESSION.pack(session_id, session_epoch))
    _encode_topics(parts, partitions, version, flexible=flexible)
    if version >= 7:
        _encode_forgotten(parts, forgotten, version, flexible=flexible)
    if version >= 11:
        parts.append(write_string(request.rack_id, flexible=flexible))
    if flexible:
        parts.append(request.tags)
    body = b"".join(parts)
    return _INT32.pack(len(body)) + body


def patch_session(frame: memoryview, request: FetchRequest, *, session_id: int, session_epoch: int) -> None:
    """Write another session id and epoch into a request's frame, in place. Nothing below v7, which has none."""
    at = request.session_epoch_position
    if at is not None:
        _SESSION.pack_into(frame, at + _SESSION_ID_OFFSET, session_id, session_epoch)


def _decode_request(frame: memoryview, header: RequestHeader) -> FetchRequest:
    version = header.api_version
    flexible = version >= FLEXIBLE_VERSION_MIN
    cursor = Cursor(frame, header.body_position)
    request = _decode_head(cursor, header)
    room = PARTITIONS_MAX if len(frame) <= REQUEST_BYTES_MAX else -1
    if room >= 0:
        room = _decode_topics(cursor, request, room)
    if room >= 0 and version >= 7:
        room = _decode_forgotten(cursor, request, room)
    if room < 0:
        return replace(request, partitions=[], forgotten=(), is_unread=True)
    if version >= 11:
        request.rack_id = _string(cursor, flexible=flexible)
    if flexible:
        request.tags = cursor.raw_tags()
        if version >= _REPLICA_STATE_VERSION_MIN and request.tags != NO_TAGS:
            request.replica_id = _replica_id(request.tags)
    if cursor.position != cursor.end:
        raise PeerProtocolError(f"{cursor.end - cursor.position} bytes after the end of a Fetch v{version} request")
    return request


def _decode_head(cursor: Cursor, header: RequestHeader) -> FetchRequest:
    """The fields before the topics."""
    version = header.api_version
    replica_id = cursor.int32() if version < _REPLICA_STATE_VERSION_MIN else -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = _LIMITS.unpack_from(cursor.view, cursor.position)
    cursor.skip(_LIMITS.size)
    session_id, session_epoch, session_epoch_position = NO_SESSION_ID, SESSIONLESS_EPOCH, None
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(cursor.view, cursor.position)
        session_epoch_position = cursor.position + _SESSION_EPOCH_OFFSET
        cursor.skip(_SESSION.size)
    return FetchRequest(
        version,
        header.correlation_id,
        header.client_id,
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        session_epoch_position,
        partitions=[],
        rack_id="",
        forgotten=[],
    )


def _decode_topics(cursor: Cursor, request: FetchRequest, room: int) -> int:
    """Return how many more may be named afterwards; negative if these are too many."""
    version, partitions = request.api_version, request.partitions
    flexible = version >= FLEXIBLE_VERSION_MIN
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic, topic_id = decode_topic_name(cursor, version)
        count, first = cursor.present_array_length(flexible=flexible), len(partitions)
        room -= max(1, count)
        if room < 0:
            break
        _require_room(cursor, count, _layout(version).size)
        _decode_partitions(cursor, version, topic, topic_id, count, partitions)
        if flexible:
            decode_topic_tags(cursor, partitions, first)
    return room


def decode_topic_name(cursor: Cursor, version: int) -> tuple[str | None, bytes | None]:
    """A topic's name or id, of a request as of a response; None for the one that the version lacks."""
    if version >= TOPIC_ID_VERSION_MIN:
        return None, cursor.raw(TOPIC_ID_BYTES)
    return _string(cursor, flexible=version >= FLEXIBLE_VERSION_MIN), None


def decode_topic_tags(
    cursor: Cursor, partitions: Sequence[FetchPartition] | Sequence[PartitionAnswer], first: int
) -> None:
    """A topic's tagged section: each of its partitions, from number `first` on, keeps it."""
    if cursor.position < cursor.end and cursor.view[cursor.position] == 0:
        cursor.position += 1
        return
    topic_tags = cursor.raw_tags()
    for partition in partitions[first:]:
        partition.topic_tags = topic_tags


def _layout(version: int) -> struct.Struct:
    """Return the layout of the smallest partition."""
    if version >= FLEXIBLE_VERSION_MIN:
        return _PARTITION_V12_NO_TAGS
    return _PARTITION_V9 if version >= 9 else _PARTITION_V5 if version >= 5 else _PARTITION_V4


def _require_room(cursor: Cursor, count: int, size: int) -> None:
    if count * size > cursor.end - cursor.position:
        raise PeerProtocolError(f"{count} partitions in {cursor.end - cursor.position} bytes")


def _decode_partitions(
    cursor: Cursor,
    version: int,
    topic: str | None,
    topic_id: bytes | None,
    count: int,
    partitions: list[FetchPartition],
) -> None:
    layout = _layout(version)
    if version >= FLEXIBLE_VERSION_MIN:
        _decode_partitions_v12(cursor, topic, topic_id, count, partitions)
        return
    start = cursor.position
    cursor.skip(count * layout.size)
    rows = layout.iter_unpack(cursor.view[start : cursor.position])
    if version >= 9:
        partitions += [
            FetchPartition(topic, None, partition, epoch, offset, -1, log_start, size)
            for partition, epoch, offset, log_start, size in rows
        ]
    elif version >= 5:
        partitions += [
            FetchPartition(topic, None, partition, -1, offset, -1, log_start, size)
            for partition, offset, log_start, size in rows
        ]
    else:
        partitions += [
            FetchPartition(topic, None, partition, -1, offset, -1, -1, size) for partition, offset, size in rows
        ]


def _decode_partitions_v12(
    cursor: Cursor, topic: str | None, topic_id: bytes | None, count: int, partitions: list[FetchPartition]
) -> None:
    view, position, size = cursor.view, cursor.position, _PARTITION_V12_NO_TAGS.size
    unpack, append = _PARTITION_V12_NO_TAGS.unpack_from, partitions.append
    for _ in range(count):
        partition, epoch, offset, last_epoch, log_start, max_bytes, tag_byte = unpack(view, position)
        if tag_byte == 0:
            position += size
            append(FetchPartition(topic, topic_id, partition, epoch, offset, last_epoch, log_start, max_bytes))
            continue
        cursor.position = position + size - 1
        tags = cursor.raw_tags()
        position = cursor.position
        append(FetchPartition(topic, topic_id, partition, epoch, offset, last_epoch, log_start, max_bytes, tags))
    cursor.position = position


def _decode_forgotten(cursor: Cursor, request: FetchRequest, room: int) -> int:
    """As `_decode_topics`, what the session shall forget."""
    version = request.api_version
    flexible = version >= FLEXIBLE_VERSION_MIN
    forgotten: list[PartitionKey] = []
    for _ in range(cursor.present_array_length(flexible=flexible)):
        topic, topic_id = decode_topic_name(cursor, version)
        count = cursor.present_array_length(flexible=flexible)
        room -= max(1, count)
        if room < 0:
            break
        start = cursor.position
        cursor.skip(count * _INT32.size)
        numbers = _INT32.iter_unpack(cursor.view[start : cursor.position])
        forgotten += [(topic, topic_id, number) for (number,) in numbers]
        if flexible:
            cursor.skip_tags()
    request.forgotten = forgotten
    return room


def _replica_id(tags: bytes) -> int:
    """The replica id in ReplicaState (tag 1), −1 without one."""
    cursor = Cursor(memoryview(tags))
    for _ in range(cursor.uvarint()):
        tag, size = cursor.uvarint(), cursor.uvarint()
        if tag == _REPLICA_STATE_TAG:
            return Cursor(cursor.view, cursor.position, cursor.position + size).int32()
        cursor.skip(size)
    return -1


def _string(cursor: Cursor, *, flexible: bool) -> str:
    value = cursor.string(flexible=flexible)
    if value is None:
        raise PeerProtocolError(f"null string at {cursor.position}")
    return value


def _encode_topics(parts: list[bytes], partitions: Sequence[FetchPartition], version: int, *, flexible: bool) -> None:
    at, count = len(parts), 0
    parts.append(NO_TAGS)  # the place of the count
    for key, grouped in groupby(partitions, key=lambda item: topic_key(item, version)):
        group, count = list(grouped), count + 1
        start_topic(parts, key, len(group), version)
        parts += [_encode_partition(partition, version) for partition in group]
        if flexible:
            parts.append(group[0].topic_tags)
    parts[at] = write_array_length(count, flexible=flexible)


def start_topic(parts: list[bytes], key: bytes, count: int, version: int) -> None:
    """Encode what stands before a topic's partitions, of a request as of a response. `key`: of `topic_key`."""
    flexible = version >= FLEXIBLE_VERSION_MIN
    if version < TOPIC_ID_VERSION_MIN:
        parts.append(write_uvarint(len(key) + 1) if flexible else struct.pack(">h", len(key)))
    parts.append(key)
    parts.append(write_array_length(count, flexible=flexible))


def _encode_forgotten(parts: list[bytes], forgotten: Sequence[PartitionKey], version: int, *, flexible: bool) -> None:
    groups = [(topic, [key[2] for key in keys]) for topic, keys in groupby(forgotten, key=lambda key: key[:2])]
    parts.append(write_array_length(len(groups), flexible=flexible))
    for (topic, topic_id), numbers in groups:
        by_id = version >= TOPIC_ID_VERSION_MIN
        parts.append((topic_id or bytes(TOPIC_ID_BYTES)) if by_id else write_string(topic or "", flexible=flexible))
        parts.append(write_array_length(len(numbers), flexible=flexible))
        parts += map(_INT32.pack, numbers)
        if flexible:
            parts.append(NO_TAGS)


def _encode_partition(item: FetchPartition, version: int) -> bytes:
    if version >= FLEXIBLE_VERSION_MIN:
        return (
            _PARTITION_V12.pack(
                item.partition,
                item.current_leader_epoch,
                item.fetch_offset,
                item.last_fetched_epoch,
                item.log_start_offset,
                item.partition_max_bytes,
            )
            + item.tags
        )
    if version >= 9:
        return _PARTITION_V9.pack(
            item.partition,
            item.current_leader_epoch,
            item.fetch_offset,
            item.log_start_offset,
            item.partition_max_bytes,
        )
    if version >= 5:
        return _PARTITION_V5.pack(item.partition, item.fetch_offset, item.log_start_offset, item.partition_max_bytes)
    return _PARTITION_V4.pack(item.partition, item.fetch_offset, item.partition_max_bytes)
