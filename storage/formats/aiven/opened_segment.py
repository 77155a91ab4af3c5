"""A segment whose manifest is known: ranges of its log, and its indexes (docs/formats.md#aiven).

- A stream is one GET of the whole chunks that hold its range. Each chunk is decrypted, then decompressed, by itself,
  and must come out with just the size that the chunk index gives it.
- Chunks that are neither compressed nor encrypted need no decoding: such a log is read as it is, from any byte to any
  other, straight into the buffer that is handed out.
- Otherwise a read of one whole chunk hands out what the decoder made; one of several chunks copies each once.
- Indexes are never compressed; an empty one is stored as nothing, also when the segment is encrypted.
"""

import sys

from storage.buffers import unfilled
from storage.errors import CorruptObjectError, IndexLostError, RemoteResourceNotFoundError, RemoteStorageError
from storage.formats.aiven.chunk_index import FixedChunkIndex
from storage.formats.aiven.cipher import OVERHEAD_BYTES, ChunkCipher
from storage.formats.aiven.compression import decompress
from storage.formats.aiven.manifest import Manifest
from storage.formats.aiven.object_keys import ObjectSuffix
from storage.formats.aiven.segment_objects import ObjectBody, SegmentObjects
from storage.model import IndexType
from storage.object_store.object_store import PlainStream, check_read, read_whole
from storage.remote_storage_manager import SegmentStream

CHUNK_BYTES_MAX = 256 * 1024 * 1024
"""For a chunk that is decoded, in the store and as plaintext: it is held whole in both forms. Aiven advises 4 MiB."""

INDEX_BYTES_MAX = 128 * 1024 * 1024
"""A whole index is read into memory. The largest that Kafka writes by default has 10 MiB (`segment.index.bytes`)."""

_BASE_MEMORY_BYTES = 4096
"""An opened segment without its chunk index: names, places of indexes, the cipher's key schedule."""


class AivenSegment:
    """An OpenedSegment.

    Args:
        cipher: of an encrypted segment; None: it is not encrypted.

    Raises:
        CorruptObjectError: the chunks' sizes are not those of uncompressed chunks, and the manifest says that they are.
        RemoteStorageError: a chunk is larger than CHUNK_BYTES_MAX.
    """

    def __init__(self, objects: SegmentObjects, manifest: Manifest, cipher: ChunkCipher | None) -> None:
        self._objects = objects
        self._manifest = manifest
        self._index = manifest.chunk_index
        self._cipher = cipher
        self._is_plain = cipher is None and not manifest.compression
        if not manifest.compression:
            self._check_uncompressed_sizes(0 if cipher is None else OVERHEAD_BYTES)
        if not self._is_plain:
            self._check_largest_chunk()

    @property
    def chunk_bytes(self) -> int:
        return 1 if self._is_plain else self._index.original_chunk_bytes

    @property
    def memory_bytes(self) -> int:
        return _BASE_MEMORY_BYTES + sys.getsizeof(self) + self._index.memory_bytes

    @property
    def size_bytes(self) -> int:
        """The log's plaintext."""
        return self._index.original_file_bytes

    def stored_bytes(self, start_position: int, end_position: int) -> int:
        """As OpenedSegment.stored_bytes."""
        if self._is_plain:
            return end_position - start_position
        stored_start, stored_end = self._index.stored_range(self._index.chunks(start_position, end_position))
        return stored_end - stored_start

    def open_stream(self, start_position: int, end_position: int) -> SegmentStream:
        """As OpenedSegment.open_stream."""
        if not 0 <= start_position < end_position <= self.size_bytes:
            name = self._objects.name(ObjectSuffix.LOG)
            raise ValueError(f"{start_position} to {end_position} is not a range of {name}, {self.size_bytes} bytes")
        if self._is_plain:
            return PlainStream(self._objects.get_range(ObjectSuffix.LOG, start_position, end_position))
        chunks = self._index.chunks(start_position, end_position)
        stored_start, stored_end = self._index.stored_range(chunks)
        if stored_start == stored_end:
            name = self._objects.name(ObjectSuffix.LOG)
            raise CorruptObjectError(f"{name}: chunks {chunks.start} to {chunks.stop - 1} have no bytes in the store")
        body = self._objects.get_range(ObjectSuffix.LOG, stored_start, stored_end)
        return _ChunkStream(self, body, chunks, start_position, end_position)

    def fetches_index(self, index_type: IndexType) -> bool:
        """As OpenedSegment.fetches_index."""
        stored = self._manifest.segment_indexes[index_type]
        return stored is not None and stored.size_bytes > 0

    def fetch_index(self, index_type: IndexType) -> bytes:
        """As OpenedSegment.fetch_index."""
        name = self._objects.name(ObjectSuffix.INDEXES)
        stored = self._manifest.segment_indexes[index_type]
        if stored is None:
            raise RemoteResourceNotFoundError(f"{name}: the segment has no {index_type.name} index")
        if stored.size_bytes == 0:
            return b""
        if stored.size_bytes > INDEX_BYTES_MAX:
            raise CorruptObjectError(
                f"{name}: {index_type.name} index of {stored.size_bytes} bytes, at most {INDEX_BYTES_MAX} are read"
            )
        try:
            body = self._objects.get_range(ObjectSuffix.INDEXES, stored.position, stored.position + stored.size_bytes)
        except RemoteResourceNotFoundError as error:
            what = f"the manifest names a {index_type.name} index of {stored.size_bytes} bytes in it"
            raise IndexLostError(f"{name}: {what}: {error}") from error
        content = read_whole(body, body.name, stored.size_bytes)
        if self._cipher is None:
            return bytes(content)
        return self._cipher.decrypt(content, f"{body.name}: {index_type.name} index")

    def decode(self, chunk: int, stored: memoryview, name: str) -> bytes:
        """The plaintext of a chunk from its bytes in the object `name`.

        Raises:
            CorruptObjectError: tag, frame or size is wrong; the message names the chunk and where it lies.
        """
        chunk_name = f"{name}: chunk {chunk} at {self._index.stored_position(chunk)}"
        content: bytes | memoryview = stored
        if self._cipher is not None:
            content = self._cipher.decrypt(stored, chunk_name)
        if self._manifest.compression:
            content = decompress(content, self._index.original_bytes(chunk), chunk_name)
        # A plain segment has no chunks to decode, so that this never copies.
        return bytes(content)

    def stored_chunk_bytes(self, chunk: int) -> int:
        """The bytes of a chunk in the store."""
        return self._index.stored_bytes(chunk)

    def _check_uncompressed_sizes(self, overhead_bytes: int) -> None:
        """Each chunk has its plaintext's size and what encryption adds. Then no size is left to check when reading."""
        count = self._index.chunk_count
        # All but the last of a fixed index are as its first; the plug-in writes variable ones for compressed chunks.
        ends = sorted({0, count - 1}) if isinstance(self._index, FixedChunkIndex) and count else range(count)
        for chunk in ends:
            expected_bytes = self._index.original_bytes(chunk) + overhead_bytes
            if self._index.stored_bytes(chunk) != expected_bytes:
                raise CorruptObjectError(
                    f"{self._objects.name(ObjectSuffix.MANIFEST)}: chunkIndex gives chunk {chunk} "
                    f"{self._index.stored_bytes(chunk)} bytes in the store; uncompressed it has {expected_bytes}"
                )

    def _check_largest_chunk(self) -> None:
        largest_bytes = max(self._index.largest_original_bytes, self._index.largest_stored_bytes)
        if largest_bytes > CHUNK_BYTES_MAX:
            raise RemoteStorageError(
                f"{self._objects.name(ObjectSuffix.MANIFEST)}: chunks of up to {largest_bytes} bytes, and at most "
                f"{CHUNK_BYTES_MAX} can be decoded at once: the segment was written with too large a chunk.size"
            )


class _ChunkStream:
    """A SegmentStream that decodes chunk after chunk.

    `_chunk` is what was decoded last, and handed out up to `_position`. Bytes as they are stored go into one buffer
    that every chunk of the stream uses.
    """

    def __init__(
        self, segment: AivenSegment, body: ObjectBody, chunks: range, start_position: int, end_position: int
    ) -> None:
        self._segment = segment
        self._body = body
        self._chunks = iter(chunks)
        self._left_bytes = end_position - start_position
        self._skipped_bytes = start_position - chunks.start * segment.chunk_bytes
        self._chunk = b""
        self._position = 0
        self._stored = bytearray()

    def read(self, size_bytes: int) -> bytes | bytearray:
        check_read(size_bytes, self._left_bytes)
        if size_bytes == 0:
            return b""
        if self._position == len(self._chunk):
            self._decode_next()
        if size_bytes <= len(self._chunk) - self._position:
            # A slice of all of it is the very object, so that a whole chunk is handed out as it was decoded.
            data: bytes | bytearray = self._chunk[self._position : self._position + size_bytes]
            self._position += size_bytes
        else:
            data = self._join(size_bytes)
        if self._position == len(self._chunk):
            self._chunk, self._position = b"", 0
        self._left_bytes -= size_bytes
        return data

    def close(self) -> None:
        self._body.close()

    def _join(self, size_bytes: int) -> bytearray:
        data = unfilled(size_bytes)
        filled_bytes = 0
        with memoryview(data) as view:
            while filled_bytes < size_bytes:
                if self._position == len(self._chunk):
                    self._decode_next()
                part_bytes = min(size_bytes - filled_bytes, len(self._chunk) - self._position)
                part = memoryview(self._chunk)[self._position : self._position + part_bytes]
                view[filled_bytes : filled_bytes + part_bytes] = part
                del part  # it would keep this chunk while the next one is decoded
                filled_bytes += part_bytes
                self._position += part_bytes
        return data

    def _decode_next(self) -> None:
        # What the last chunk takes is given back before the next one is made.
        self._chunk, self._position = b"", self._skipped_bytes
        self._skipped_bytes = 0
        chunk = next(self._chunks)
        stored_bytes = self._segment.stored_chunk_bytes(chunk)
        if stored_bytes > len(self._stored):
            self._stored = unfilled(stored_bytes)
        with memoryview(self._stored)[:stored_bytes] as stored:
            self._body.readinto(stored)
            self._chunk = self._segment.decode(chunk, stored, self._body.name)
