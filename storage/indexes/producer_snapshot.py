"""The producer snapshot of a segment: every producer's state at the segment's end
(docs/kafka-tier.md#indexes).

Big-endian: int16 version (1), uint32 CRC-32C over everything after it, int32 number of entries, then 46 bytes each:
int64 producer id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta, int64 timestamp in
milliseconds, int32 coordinator epoch, int64 first offset of the current transaction (-1: none).
"""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from crc32c import crc32c

from storage.errors import CorruptObjectError

_VERSION = 1
_HEADER = struct.Struct(">hIi")
_CRC_END = 6
_ENTRY = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer's state, fields in the order of the snapshot."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int
    """-1 when no transaction is open."""


def parse_producer_snapshot(data: bytes, name: str = "producer snapshot") -> tuple[ProducerState, ...]:
    """The entries of a snapshot, in its order.

    Raises:
        CorruptObjectError: cut or overlong, another version, a bad checksum, or a count that is not its length's.
    """
    if len(data) < _HEADER.size:
        raise CorruptObjectError(f"{name}: {len(data)} bytes, the header alone has {_HEADER.size}")
    version, crc, entry_count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CorruptObjectError(f"{name}: version {version} at byte 0, only {_VERSION} is known")
    if crc32c(data[_CRC_END:]) != crc:
        raise CorruptObjectError(f"{name}: checksum at byte 2 does not match")
    # The count is compared with the length before anything is sized by it.
    if entry_count < 0 or len(data) != _HEADER.size + entry_count * _ENTRY.size:
        raise CorruptObjectError(f"{name}: {entry_count} entries at byte {_CRC_END} do not fill {len(data)} bytes")
    return tuple(ProducerState(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :]))


def encode_producer_snapshot(states: Sequence[ProducerState]) -> bytes:
    """The snapshot's bytes, with its checksum."""
    checked = struct.pack(">i", len(states)) + b"".join(_ENTRY.pack(*astuple(state)) for state in states)
    return struct.pack(">hI", _VERSION, crc32c(checked)) + checked
