"""The marker that ends a transaction: the only record of its control batch (KIP-98).

Its key is int16 version, int16 type (0 ABORT, 1 COMMIT); its value int16 version, int32 coordinator epoch.
"""

import struct
from typing import NamedTuple

from protocol.record_batches import HEADER_BYTES, BatchHeader

MARKER_BYTES = 64
"""Limit for the batch's body: six numbers of a few bytes each, a key of four bytes and a value of six."""

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class TransactionMarker(NamedTuple):
    """`coordinator_epoch`: -1 where the value does not tell."""

    is_abort: bool
    coordinator_epoch: int


def read_transaction_marker(header: BatchHeader, batch: bytes | memoryview) -> TransactionMarker | None:
    """The marker of a control batch; None of any other batch, and of a control record that is no marker.

    Args:
        batch: from the batch's first byte on, HEADER_BYTES + MARKER_BYTES of it or all.
    """
    if not (header.is_control and header.is_transactional):
        return None
    body = bytes(batch[HEADER_BYTES : HEADER_BYTES + MARKER_BYTES])
    position = 0
    for skipped in (0, 1, 0, 0):  # length, attributes and timestamp delta, offset delta, key length
        position = _behind_varint(body, position + skipped)
    if position + _KEY.size > len(body):
        return None
    kind = _KEY.unpack_from(body, position)[1]
    position = _behind_varint(body, position + _KEY.size)
    epoch = _VALUE.unpack_from(body, position)[1] if position + _VALUE.size <= len(body) else -1
    return TransactionMarker(kind == 0, epoch) if kind in (0, 1) else None


def _behind_varint(body: bytes, position: int) -> int:
    while position < len(body) and body[position] & 0x80:
        position += 1
    return position + 1
