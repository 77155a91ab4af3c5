"""Inflating batches: whole ones into room that is already there, the fast way; and piece by piece what does not fit.

Rules:
1. Nothing is written behind the room, whatever the bytes claim; what a library holds meanwhile is its window.
2. Only what certainly is the whole of the batch's records is an answer. Everything else is None: too little room,
   bytes that are damaged, framings that are rare. storage.log.inflating, which is bounded and reads piece by
   piece, then says what it is. Measured, that is as fast for gzip and for small lz4, and half as fast for snappy, for
   lz4 of 1 MB (423 µs in place of 226) and for small zstd (24 µs for 16 KB in place of 11).
3. Between two equally strict ways, the one that was measured to be faster.
4. What comes in pieces ends at storage.log.batch_records.INFLATED_BYTES_MAX.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import NoReturn

import cramjam
import numpy as np
import zstandard

from storage.errors import CorruptObjectError
from storage.log.batch_records import limited
from storage.log.inflating import ZSTD_WINDOW_BYTES_MAX, inflated
from table.decoding.varint_lanes import Bytes

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

_ZSTD_STREAM_BYTES_MAX = 64 * 1024
"""Compressed. Below, zstandard's stream is twice as fast as cramjam's, and it is slower above."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">i")


class RecordTooLargeError(Exception):
    """A record, or a message of the old formats, has more bytes than a task of this size can decode."""


class Inflater:
    """Inflates whole batches, one after the other: a decompressor of zstd costs 10 µs to make. For one thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)

    def inflate_into(self, codec: int, payload: memoryview, room: Bytes) -> int | None:
        """Write the plain bytes of a codec but NONE to the beginning of the room; how many there are, fewer than the
        room has.

        None if that cannot be done or is not known (rule 2); the room then holds anything.
        """
        if not len(room):
            # To zlib no room is room without end.
            return None
        try:
            size = self._inflate(codec, payload, room)
        except (cramjam.DecompressionError, zlib.error, zstandard.ZstdError, struct.error):
            return None
        # A library that stops at the end of the room does not always say so.
        return size if size is not None and size < len(room) else None

    def _inflate(self, codec: int, payload: memoryview, room: Bytes) -> int | None:
        if codec == ZSTD:
            if len(payload) > _ZSTD_STREAM_BYTES_MAX:
                return int(cramjam.zstd.decompress_into(payload, room.data))
            with self._zstd.stream_reader(payload, read_across_frames=True) as reader:
                return reader.readinto(room.data)
        if codec == LZ4:
            return int(cramjam.lz4.decompress_into(payload, room.data))
        if codec == GZIP:
            return _gunzip(payload, room)
        if codec == SNAPPY:
            return _unsnap(payload, room)
        return None


def inflate_pieces(codec: int, payload: memoryview) -> Iterator[bytes]:
    """The plain bytes in pieces of at most storage.log.inflating.PIECE_BYTES, none of them empty.

    Raises:
        CorruptObjectError: while iterating.
    """
    return limited(inflated(codec, [payload]))


def refuse_large(claimed_bytes: int, have_bytes: int, pieces: Iterator[bytes]) -> NoReturn:
    """Raise what a record that claims too many bytes is: too large if they are there, and corrupt if they are not."""
    while have_bytes < claimed_bytes:
        piece = next(pieces, b"")
        if not piece:
            raise CorruptObjectError(f"a record claims {claimed_bytes} bytes where {have_bytes} are left")
        have_bytes += len(piece)
    raise RecordTooLargeError(f"a record of {claimed_bytes} bytes")


def _gunzip(payload: memoryview, room: Bytes) -> int | None:
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    plain = inflater.decompress(payload, len(room))
    if not inflater.eof or inflater.unused_data:
        return None
    room[: len(plain)] = np.frombuffer(plain, np.uint8)
    return len(plain)


def _unsnap(payload: memoryview, room: Bytes) -> int | None:
    if payload[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _unsnap_block(payload, room)
    at, end, size = _XERIAL_HEADER_BYTES, len(payload), 0
    while at < end:
        (block_bytes,) = _SIZE.unpack_from(payload, at)
        at += _SIZE.size
        if not 0 <= block_bytes <= end - at:
            return None
        written = _unsnap_block(payload[at : at + block_bytes], room[size:])
        if written is None:
            return None
        size += written
        at += block_bytes
    return size


def _unsnap_block(block: memoryview, room: Bytes) -> int | None:
    if cramjam.snappy.decompress_raw_len(block) > len(room):
        return None
    return int(cramjam.snappy.decompress_raw_into(block, room.data))
