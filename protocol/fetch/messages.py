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
from dataclasses import dataclass

from protocol.record_batches import Buffer
from protocol.wire.errors import LocalProtocolError, PeerProtocolError
from protocol.wire.primitives import Cursor

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
