"""Inflating what Kafka's producers compress, piece by piece: gzip, snappy, lz4, zstd.

Rules:
1. No piece is larger than PIECE_BYTES, save a snappy block, which cannot be inflated in parts: it is refused before
   when it claims more than SNAPPY_BLOCK_BYTES_MAX, or more than snappy can make of its bytes.
2. What is behind the end of the compressed data is not looked at; data that ends too early gives fewer bytes.
3. snappy comes in xerial's framing (Java) or as one raw block (C).
4. lz4 inside v0 messages has a frame header whose checksum Kafka computed wrongly (KAFKA-3160): it is not checked.

Libraries: zlib; zstandard; lz4, which alone inflates frames in bounded parts; cramjam for raw snappy blocks.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence

import cramjam
import lz4.frame  # type: ignore[import-untyped]  # it ships neither types nor stubs
import zstandard

from protocol.record_batches import Buffer
from storage.errors import CorruptObjectError

PIECE_BYTES = 64 * 1024
FEED_BYTES = 16 * 1024
"""Compressed bytes handed over at once: what a library leaves of them it copies."""

ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024
"""What zstd's own decoders allow unless told otherwise, Kafka's among them."""

SNAPPY_BLOCK_BYTES_MAX = 128 * 1024 * 1024
SNAPPY_RATIO_MAX = 22
"""A copy of 64 bytes takes 3."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">i")
_XERIAL_SIZE_OF_HEADER = _SIZE.unpack(_XERIAL_MAGIC[:4])[0]
"""Where a block's size should be another stream begins, if streams were joined."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_SIZE_FLAG, _LZ4_DICTIONARY_FLAG = 0x08, 0x01
_LZ4_LINKED_FLAG, _LZ4_BLOCK_CHECKSUM_FLAG, _LZ4_CHECKSUM_FLAG = 0x20, 0x10, 0x04


def inflated(codec: int, rope: Sequence[Buffer], *, legacy_lz4: bool = False) -> Iterator[bytes]:
    """The plain bytes, in pieces.

    Args:
        codec: Kafka's number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        legacy_lz4: the lz4 frame's header checksum is Kafka's own.

    Raises:
        CorruptObjectError: no such codec; while iterating: the bytes are not of that codec.
    """
    if codec == 0:
        return _cut(rope, PIECE_BYTES)
    if codec == 1:
        return _gunzip(rope)
    if codec == 2:
        return _unsnap(rope)
    if codec == 3:
        return _unlz4(rope, legacy_lz4)
    if codec == 4:
        return _unzstd(rope)
    raise CorruptObjectError(f"compression codec {codec}")


class _Source:
    """A rope to read from."""

    def __init__(self, rope: Sequence[Buffer]) -> None:
        self._pieces = _cut(rope, FEED_BYTES)
        self._data = b""

    def read(self, size: int) -> bytes:
        """The next `size` bytes, less only at the end."""
        parts, got = [], 0
        while got < size:
            if not self._data:
                self._data = next(self._pieces, b"")
                if not self._data:
                    break
            part, self._data = self._data[: size - got], self._data[size - got :]
            parts.append(part)
            got += len(part)
        return b"".join(parts)


def _cut(rope: Sequence[Buffer], size: int) -> Iterator[bytes]:
    for buffer in rope:
        view = memoryview(buffer)
        for at in range(0, len(view), size):
            yield bytes(view[at : at + size])


def _gunzip(rope: Sequence[Buffer]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        for feed in _cut(rope, FEED_BYTES):
            data = feed
            while True:
                if inflater.eof:
                    if not data:
                        break
                    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
                piece = inflater.decompress(data, PIECE_BYTES)
                if piece:
                    yield piece
                data = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                if not data and len(piece) < PIECE_BYTES:
                    break
    except zlib.error as error:
        raise CorruptObjectError(f"gzip: {error}") from error


def _unzstd(rope: Sequence[Buffer]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    # zstandard asks for no more than a read method.
    source: object = _Source(rope)
    with decompressor.stream_reader(
        source,  # type: ignore[arg-type]  # its stub wants a whole IO
        read_size=FEED_BYTES,
        read_across_frames=True,
    ) as reader:
        try:
            while piece := reader.read(PIECE_BYTES):
                yield piece
        except zstandard.ZstdError as error:
            raise CorruptObjectError(f"zstd: {error}") from error


def _unlz4(rope: Sequence[Buffer], legacy: bool) -> Iterator[bytes]:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    try:
        for data in _with_new_header(rope) if legacy else _cut(rope, FEED_BYTES):
            piece = decompressor.decompress(data, PIECE_BYTES)
            while piece or not (decompressor.eof or decompressor.needs_input):
                yield piece
                piece = b"" if decompressor.eof else decompressor.decompress(b"", PIECE_BYTES)
            if decompressor.eof:
                return
    except (RuntimeError, ValueError, EOFError) as error:
        raise CorruptObjectError(f"lz4: {error}") from error


def _with_new_header(rope: Sequence[Buffer]) -> Iterator[bytes]:
    """The same frame with a header of the library's own: without content size, and with the right checksum."""
    source = _Source(rope)
    header = source.read(6)
    if len(header) < 6 or header[:4] != _LZ4_MAGIC or header[4] & _LZ4_DICTIONARY_FLAG:
        raise CorruptObjectError("lz4: not a frame of Kafka's")
    flags, block_size = header[4], header[5] >> 4 & 0x07
    source.read((8 if flags & _LZ4_SIZE_FLAG else 0) + 1)
    compressor = lz4.frame.LZ4FrameCompressor(
        block_size=block_size,
        block_linked=not flags & _LZ4_LINKED_FLAG,
        block_checksum=bool(flags & _LZ4_BLOCK_CHECKSUM_FLAG),
        content_checksum=bool(flags & _LZ4_CHECKSUM_FLAG),
        auto_flush=True,
    )
    yield compressor.begin()
    while data := source.read(FEED_BYTES):
        yield data


def _unsnap(rope: Sequence[Buffer]) -> Iterator[bytes]:
    size_bytes = sum(map(len, rope))
    source = _Source(rope)
    header = source.read(_XERIAL_HEADER_BYTES)
    if not header.startswith(_XERIAL_MAGIC):
        return _cut([_unsnap_block(header + source.read(size_bytes))], PIECE_BYTES)
    return _unsnap_xerial(source, size_bytes)


def _unsnap_xerial(source: _Source, size_bytes: int) -> Iterator[bytes]:
    while head := source.read(_SIZE.size):
        if len(head) < _SIZE.size:
            raise CorruptObjectError("snappy: a block's size is cut")
        (size,) = _SIZE.unpack(head)
        if size == _XERIAL_SIZE_OF_HEADER:
            source.read(_XERIAL_HEADER_BYTES - _SIZE.size)
        elif not 0 <= size <= size_bytes:
            raise CorruptObjectError(f"snappy: a block of {size} bytes")
        else:
            yield from _cut([_unsnap_block(source.read(size))], PIECE_BYTES)


def _unsnap_block(block: bytes) -> bytes:
    try:
        claimed_bytes = cramjam.snappy.decompress_raw_len(block)
        if claimed_bytes > min(SNAPPY_BLOCK_BYTES_MAX, SNAPPY_RATIO_MAX * len(block)):
            raise CorruptObjectError(f"snappy: {len(block)} bytes claim to be {claimed_bytes}")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptObjectError(f"snappy: {error}") from error
