"""A segment as Aiven's plug-in stores it: chunks in, stored chunks out, and the manifest of them
(docs/formats.md#aiven). No input or output: the uploader pulls.

    encoder = LogEncoder(file_bytes, chunk_bytes, compression=True, encryption=encryption)
    store.put(key, encoder.encode(pieces))            # one chunk at a time is held, plain and stored
    manifest = Manifest(encoder.chunk_index(), …)     # known when the last chunk has gone

- A chunk is compressed, then encrypted, under an IV of its own. Only whole chunks of the very file are let through:
  a file that is shorter or longer than its metadata says is an error in the midst of the upload, never an object.
- Without encryption the same file gives the same bytes; keys, additional data and IVs are drawn again each time.
- The plug-in refuses a manifest with a member that it does not know, so there is none of ours.
"""

import base64
import json
import secrets
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protocol.wire.primitives import write_string, write_uvarint
from storage.errors import RemoteStorageError
from storage.formats.aiven.checked_json import INT32_MAX
from storage.formats.aiven.chunk_index import FixedChunkIndex, VariableChunkIndex
from storage.formats.aiven.cipher import DATA_KEY_BYTES, IV_BYTES, OVERHEAD_BYTES
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.manifest import INDEX_MEMBERS, VERSION, Manifest, StoredIndex
from storage.model import CustomMetadata, IndexType, RemoteLogSegmentMetadata, uuid_to_text

AAD_BYTES = 32
"""What the plug-in draws for each segment; a reader takes any size."""

ZSTD_LEVEL = 3
"""zstd-jni's default, and so the plug-in's: with one version of zstd the compressed bytes are the same."""


@dataclass(frozen=True, slots=True)
class ChunkEncryption:
    """Encrypts one segment's chunks and indexes: the other half of ChunkCipher."""

    data_key: bytes = field(repr=False)
    aad: bytes = field(repr=False)

    @classmethod
    def new(cls) -> "ChunkEncryption":
        """Draw keys for a segment that is written now."""
        return cls(secrets.token_bytes(DATA_KEY_BYTES), secrets.token_bytes(AAD_BYTES))

    def encrypt(self, plaintext: bytes | bytearray | memoryview) -> bytes:
        """A chunk or an index as it is stored, under an IV of its own."""
        iv = secrets.token_bytes(IV_BYTES)
        return iv + AESGCM(self.data_key).encrypt(iv, plaintext, self.aad)


def compress(data: bytes | bytearray | memoryview, level: int = ZSTD_LEVEL) -> bytes:
    """One frame with its content size, without checksum or dictionary, as the plug-in writes it."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


class LogEncoder:
    """One log's way from plain to stored chunks, once, in one thread."""

    def __init__(
        self, file_bytes: int, chunk_bytes: int, *, compression: bool, encryption: ChunkEncryption | None
    ) -> None:
        self._file_bytes = file_bytes
        self._chunk_bytes = chunk_bytes
        self._encryption = encryption
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True) if compression else None
        self._sizes = array("I")
        self._is_whole = False

    def encode(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Stored chunks, in order.

        Args:
            chunks: the log in pieces of `chunk_bytes`, the last one shorter.

        Raises:
            RemoteStorageError: they are not the file that was announced.
        """
        left_bytes = self._file_bytes
        for chunk in chunks:
            if len(chunk) != min(self._chunk_bytes, left_bytes):
                raise self._other_size()
            left_bytes -= len(chunk)
            stored = chunk if self._compressor is None else self._compressor.compress(chunk)
            if self._encryption is not None:
                stored = self._encryption.encrypt(stored)
            self._sizes.append(len(stored))
            yield stored
        if left_bytes:
            raise self._other_size()
        self._is_whole = True

    def chunk_index(self) -> FixedChunkIndex | VariableChunkIndex:
        """Return where the chunks lie, when all have been taken."""
        if not self._is_whole:
            raise AssertionError("the index of a log that has not been written whole")
        if self._compressor is not None:
            # The plug-in's writer ends with a last chunk, if with an empty one for an empty file: it says 0 chunks.
            return VariableChunkIndex.of_sizes(self._chunk_bytes, self._file_bytes, self._sizes)
        overhead_bytes = 0 if self._encryption is None else OVERHEAD_BYTES
        return fixed_chunk_index(self._file_bytes, self._chunk_bytes, overhead_bytes)

    def _other_size(self) -> RemoteStorageError:
        return RemoteStorageError(f"the local log has another size than the {self._file_bytes} bytes of its metadata")


def fixed_chunk_index(file_bytes: int, chunk_bytes: int, overhead_bytes: int) -> FixedChunkIndex:
    """Return the index of chunks that are not compressed. A whole chunk's size is written even where there is none."""
    last_bytes = (file_bytes - 1) % chunk_bytes + 1 + overhead_bytes if file_bytes else 0
    return FixedChunkIndex(chunk_bytes, file_bytes, chunk_bytes + overhead_bytes, last_bytes)


def encode_indexes(
    contents: Iterable[tuple[IndexType, bytes | None]],
    encryption: ChunkEncryption | None,
    places: dict[IndexType, StoredIndex | None],
) -> Iterator[bytes]:
    """The `.indexes` object, an index at a time, never compressed. `places` is filled: where each lies.

    An empty index is stored as nothing, without IV and tag, and one that is absent as an empty one; but the format has
    a word for an absent transaction index.
    """
    position = 0
    for index_type, content in contents:
        if content is None and index_type is IndexType.TRANSACTION:
            places[index_type] = None
            continue
        stored = encryption.encrypt(content) if encryption and content else content or b""
        places[index_type] = StoredIndex(position, len(stored))
        position += len(stored)
        yield stored


def encode_manifest(
    manifest: Manifest, metadata: RemoteLogSegmentMetadata, *, txn_index_empty: bool | None = None
) -> bytes:
    """The manifest as the plug-in writes it: exactly its members in its order, without spaces.

    `txn_index_empty`: the plug-in writes it last on a Kafka 4.3 broker, and not at all on one as old as 3.8 (None).
    """
    members: dict[str, Any] = {
        "version": VERSION,
        "chunkIndex": encode_chunk_index(manifest.chunk_index),
        "segmentIndexes": {
            member: None if stored is None else {"position": stored.position, "size": stored.size_bytes}
            for member, stored in (
                (member, manifest.segment_indexes[index_type]) for index_type, member in INDEX_MEMBERS.items()
            )
        },
        "compression": manifest.compression,
    }
    if manifest.encryption is not None:
        members["encryption"] = {
            "dataKey": manifest.encryption.data_key,
            "aad": base64.b64encode(manifest.encryption.aad).decode("ascii"),
        }
    members["remoteLogSegmentMetadata"] = _encode_metadata(metadata, txn_index_empty)
    return encode_json(members)


def encode_json(members: Mapping[str, Any]) -> bytes:
    """As the plug-in's library writes JSON: no spaces, and no escapes where none are needed."""
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def _encode_metadata(metadata: RemoteLogSegmentMetadata, txn_index_empty: bool | None) -> dict[str, Any]:
    partition = metadata.topic_id_partition
    members: dict[str, Any] = {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": uuid_to_text(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": uuid_to_text(metadata.segment_id.id),
        },
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "brokerId": metadata.broker_id,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": {str(epoch): offset for epoch, offset in metadata.segment_leader_epochs.items()},
    }
    if txn_index_empty is not None:
        members["txnIdxEmpty"] = txn_index_empty
    return members


def encode_chunk_index(index: FixedChunkIndex | VariableChunkIndex) -> dict[str, Any]:
    """The index as JSON members, in the plug-in's order."""
    if isinstance(index, FixedChunkIndex):
        return {
            "type": "fixed",
            "originalChunkSize": index.original_chunk_bytes,
            "originalFileSize": index.original_file_bytes,
            "transformedChunkSize": index.transformed_chunk_bytes,
            "finalTransformedChunkSize": index.final_transformed_chunk_bytes,
        }
    # The plug-in's reader wants the content size in the frame's header.
    frame = compress(encode_chunk_sizes(chunk_sizes(index)))
    return {
        "type": "variable",
        "originalChunkSize": index.original_chunk_bytes,
        "originalFileSize": index.original_file_bytes,
        "transformedChunks": base64.b64encode(frame).decode("ascii"),
    }


def chunk_sizes(index: VariableChunkIndex) -> list[int]:
    """The chunks' sizes in the store."""
    return [end - start for start, end in zip((0, *index.stored_ends), index.stored_ends, strict=False)]


def encode_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """The binary form, as narrow as it can be.

    Raises:
        ValueError: a size is no int32 from 0 on.
    """
    if sizes and (min(sizes) < 0 or max(sizes) > INT32_MAX):
        raise ValueError("a chunk's size is not an int32 from 0 on")
    if len(sizes) < 2:
        return struct.pack(f">i{len(sizes)}i", len(sizes), *sizes)
    deltas, last = sizes[:-1], sizes[-1]
    base = min(deltas)
    width = max(1, -(-(max(deltas) - base).bit_length() // 8))
    packed = b"".join((size - base).to_bytes(width, "big") for size in deltas)
    return struct.pack(">iiB", len(sizes), base, width) + packed + struct.pack(">i", last)


def encode_custom_metadata(fields: CustomMetadataFields) -> CustomMetadata | None:
    """The bytes of the fields that are not None; None if all are."""
    values: list[tuple[int, bytes]] = []
    if fields.remote_size_bytes is not None:
        # Zig-zag, of a number that is never negative.
        values.append((0, write_uvarint(fields.remote_size_bytes << 1)))
    if fields.object_prefix is not None:
        values.append((1, write_string(fields.object_prefix, flexible=True)))
    if fields.object_key is not None:
        values.append((2, write_string(fields.object_key, flexible=True)))
    if not values:
        return None
    parts = [write_uvarint(len(values))]
    for tag, value in values:
        parts += [write_uvarint(tag), write_uvarint(len(value)), value]
    return CustomMetadata(b"".join(parts))
