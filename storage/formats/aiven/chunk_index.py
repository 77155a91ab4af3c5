"""Where a segment's chunks lie in its `.log` object (docs/formats.md#aiven-chunk-index).

The segment is cut into chunks of `original_chunk_bytes`, the last one shorter. Each is compressed and encrypted by
itself; the results follow one another without anything between them.

| `type` | the chunks in the store |
|---|---|
| `fixed` | all of one size but the last |
| `variable` | any sizes: base64 of one zstd frame of the binary form below |

    i32 count; count = 0: nothing more; count = 1: i32 size; else:
    i32 base        the smallest size, the last one left out
    u8 width        1 to 4
    (count - 1) × width bytes, each size less the base
    i32 last size

All numbers are big-endian; sizes are int32 and not negative. A position is found in O(1): a fixed index multiplies, a
variable one keeps the chunks' ends as four bytes each.
"""

import base64
import binascii
import struct
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import zstandard

from storage.formats.aiven.checked_json import INT32_MAX, JsonObject

BINARY_BYTES_MAX = 10 * 1024 * 1024
"""Limit for the binary form: the plug-in's own limit, so no index that it can read is larger."""

_COUNT = struct.Struct(">i")
_PAIR = struct.Struct(">ii")
_HEAD = struct.Struct(">iiB")
_ARRAY_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class ChunkIndex(ABC):
    """What both kinds have in common. Chunks are numbered from 0; positions are bytes."""

    original_chunk_bytes: int
    original_file_bytes: int

    @property
    def chunk_count(self) -> int:
        return -(-self.original_file_bytes // self.original_chunk_bytes)

    @property
    @abstractmethod
    def largest_stored_bytes(self) -> int:
        """The size in the store of the largest chunk; 0 if there are none."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """About what it costs to keep this object."""

    @abstractmethod
    def stored_position(self, chunk: int) -> int:
        """Return where a chunk begins in the store; of `chunk_count`: where the last one ends."""

    @property
    def stored_file_bytes(self) -> int:
        """The size of the `.log` object."""
        return self.stored_position(self.chunk_count)

    @property
    def largest_original_bytes(self) -> int:
        """The plaintext of the largest chunk; 0 if there are none."""
        return min(self.original_chunk_bytes, self.original_file_bytes)

    def original_bytes(self, chunk: int) -> int:
        """The plaintext bytes of a chunk."""
        start = chunk * self.original_chunk_bytes
        return min(self.original_chunk_bytes, self.original_file_bytes - start)

    def stored_bytes(self, chunk: int) -> int:
        """The bytes of a chunk in the store."""
        return self.stored_position(chunk + 1) - self.stored_position(chunk)

    def chunks(self, start: int, end: int) -> range:
        """The chunks that hold plaintext [start, end), end at most the file's; none of an empty range."""
        if start >= end:
            return range(0)
        return range(start // self.original_chunk_bytes, -(-end // self.original_chunk_bytes))

    def stored_range(self, chunks: range) -> tuple[int, int]:
        """Return where those chunks lie in the store: start and end, end exclusive."""
        return self.stored_position(chunks.start), self.stored_position(chunks.stop)


@dataclass(frozen=True, slots=True)
class FixedChunkIndex(ChunkIndex):
    """All chunks of `transformed_chunk_bytes` in the store, the last of `final_transformed_chunk_bytes`."""

    transformed_chunk_bytes: int
    final_transformed_chunk_bytes: int

    @property
    def largest_stored_bytes(self) -> int:
        whole_bytes = self.transformed_chunk_bytes if self.chunk_count > 1 else 0
        return max(whole_bytes, self.final_transformed_chunk_bytes) if self.chunk_count else 0

    @property
    def memory_bytes(self) -> int:
        return sys.getsizeof(self)

    def stored_position(self, chunk: int) -> int:
        if chunk == 0 or chunk < self.chunk_count:
            return chunk * self.transformed_chunk_bytes
        return (chunk - 1) * self.transformed_chunk_bytes + self.final_transformed_chunk_bytes


@dataclass(frozen=True, slots=True)
class VariableChunkIndex(ChunkIndex):
    """Chunks of any size in the store; `stored_ends` is where each ends. Made by `of_sizes`."""

    stored_ends: "array[int]" = field(repr=False)
    largest_size_bytes: int

    @classmethod
    def of_sizes(
        cls, original_chunk_bytes: int, original_file_bytes: int, sizes: Sequence[int]
    ) -> "VariableChunkIndex":
        """From the chunks' sizes in the store.

        Raises:
            ValueError: their number does not fit the file, one is no int32 from 0 on, or they exceed 4 GiB together:
                Kafka's segments end at 2 GiB, and no transformation doubles them.
        """
        expected = -(-original_file_bytes // original_chunk_bytes)
        # The plug-in's writer always ends with a last chunk, if with an empty one for an empty file.
        if len(sizes) != expected and not (expected == 0 and len(sizes) == 1):
            raise ValueError(f"{len(sizes)} chunks, {expected} make up the file")
        if sizes and (min(sizes) < 0 or max(sizes) > INT32_MAX):
            raise ValueError("a chunk's size is not an int32 from 0 on")
        try:
            ends = array("I", accumulate(sizes))
        except OverflowError as error:
            raise ValueError("the chunks are larger than 4 GiB together") from error
        return cls(original_chunk_bytes, original_file_bytes, ends, max(sizes, default=0))

    @property
    def largest_stored_bytes(self) -> int:
        return self.largest_size_bytes

    @property
    def memory_bytes(self) -> int:
        return sys.getsizeof(self) + sys.getsizeof(self.stored_ends)

    def stored_position(self, chunk: int) -> int:
        return self.stored_ends[chunk - 1] if chunk else 0


def decode_chunk_index(fields: JsonObject) -> FixedChunkIndex | VariableChunkIndex:
    """The index from its JSON object.

    Raises:
        CorruptObjectError: a member is missing or wrong, the sizes do not fit together, or the limit is exceeded.
    """
    kind = fields.text("type")
    if kind not in ("fixed", "variable"):
        raise fields.corrupt("type", f"is {kind!r}, not 'fixed' or 'variable'")
    original_chunk_bytes = fields.int32("originalChunkSize", minimum=1)
    original_file_bytes = fields.int32("originalFileSize")
    if kind == "fixed":
        return FixedChunkIndex(
            original_chunk_bytes,
            original_file_bytes,
            fields.int32("transformedChunkSize"),
            fields.int32("finalTransformedChunkSize"),
        )
    try:
        sizes = decode_chunk_sizes(_decompress(fields.text("transformedChunks")))
        return VariableChunkIndex.of_sizes(original_chunk_bytes, original_file_bytes, sizes)
    except ValueError as error:
        raise fields.corrupt("transformedChunks", f"is wrong: {error}") from error


def decode_chunk_sizes(binary: bytes) -> Sequence[int]:
    """Sizes from the binary form.

    Raises:
        ValueError: not that form, to the last byte.
    """
    count = _unpack(_COUNT, binary)[0]
    if count < 0:
        raise ValueError(f"{count} chunks")
    if count == 0:
        _check_length(binary, _COUNT.size)
        return ()
    if count == 1:
        _check_length(binary, _PAIR.size)
        return (_unpack(_PAIR, binary)[1],)
    _, base, width = _unpack(_HEAD, binary)
    if not 1 <= width <= _ARRAY_WORD_BYTES:
        raise ValueError(f"sizes of {width} bytes each")
    if base < 0:
        raise ValueError(f"the base {base} is negative")
    end = _HEAD.size + (count - 1) * width
    _check_length(binary, end + _COUNT.size)
    deltas = _unpack_deltas(binary[_HEAD.size : end], width)
    last = _COUNT.unpack_from(binary, end)[0]
    if last < 0 or base + max(deltas) > INT32_MAX:
        raise ValueError("a chunk's size is not an int32 from 0 on")
    sizes = array("I", map(base.__add__, deltas)) if base else deltas
    sizes.append(last)
    return sizes


def _unpack_deltas(packed: bytes, width: int) -> "array[int]":
    """Unsigned big-endian numbers of `width` bytes, spread over words of four by slices: a loop would take seconds
    for the largest index."""
    words = bytearray(len(packed) // width * _ARRAY_WORD_BYTES)
    for place in range(width):
        words[_ARRAY_WORD_BYTES - width + place :: _ARRAY_WORD_BYTES] = packed[place::width]
    deltas = array("I")
    deltas.frombytes(words)
    if sys.byteorder == "little":
        deltas.byteswap()
    return deltas


def _decompress(text: str) -> bytes:
    """The binary form from base64 and zstd, never more than its limit."""
    try:
        frame = base64.b64decode(text, validate=True)
        size_bytes = zstandard.frame_content_size(frame)
        if not 0 <= size_bytes <= BINARY_BYTES_MAX:
            raise ValueError(f"a zstd frame of {size_bytes} bytes (-1: unknown), at most {BINARY_BYTES_MAX} are read")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    except zstandard.ZstdError as error:
        raise ValueError(f"not one zstd frame: {error}") from error


def _unpack(layout: struct.Struct, binary: bytes) -> tuple[int, ...]:
    if len(binary) < layout.size:
        raise ValueError(f"{len(binary)} bytes are too few")
    return layout.unpack_from(binary)


def _check_length(binary: bytes, expected_bytes: int) -> None:
    if len(binary) != expected_bytes:
        raise ValueError(f"{len(binary)} bytes, {expected_bytes} by its own count")
