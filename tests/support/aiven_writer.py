"""Segments as Aiven's plugin writes them (docs/formats.md#aiven): objects in any object store.

    options = AivenWriterOptions(key_prefix="tier/", compression=True, key_pair=make_key_pair(folder, "key1"))
    metadata = replace(metadata, custom_metadata=write_segment(store, metadata, segment.objects(), options))
    finished = convert_tier(tier_dir, metadatas, store, options)      # what LocalTieredStorage holds, once more

Without encryption the same arguments give the same bytes; keys, additional data and IVs are drawn anew each time.
"""

import base64
import json
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import zstandard
from Crypto.Cipher import PKCS1_OAEP
from Crypto.Hash import SHA3_512
from Crypto.PublicKey import RSA
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from protocol.wire.primitives import write_string, write_uvarint
from storage.formats.aiven.manifest import (
    INT32_MAX,
    FixedChunkIndex,
    Manifest,
    SegmentEncryption,
    StoredIndex,
    VariableChunkIndex,
)
from storage.formats.aiven.opened_segment import DATA_KEY_BYTES, IV_BYTES, OVERHEAD_BYTES
from storage.formats.aiven.segment_objects import CustomMetadataFields, ObjectSuffix, main_path, object_key
from storage.formats.segment_files import LOG_SUFFIX, OBJECT_SUFFIXES
from storage.model import CustomMetadata, IndexType, RemoteLogSegmentMetadata, uuid_to_text
from storage.object_store.object_store import ObjectStore
from tests.support.segments import object_path

AAD_BYTES = 32
"""What the plugin draws for each segment; a reader takes any size."""

ZSTD_LEVEL = 3
"""zstd-jni's default, and so the plugin's: the compressed bytes are the same."""

_INDEX_MEMBERS: Mapping[IndexType, str] = {
    IndexType.OFFSET: "offset",
    IndexType.TIMESTAMP: "timestamp",
    IndexType.PRODUCER_SNAPSHOT: "producerSnapshot",
    IndexType.LEADER_EPOCH: "leaderEpoch",
    IndexType.TRANSACTION: "transaction",
}
"""In the order of the `.indexes` object and of the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenWriterOptions:
    """The plugin's configuration, as far as the objects depend on it.

    `key_pair`: as of make_key_pair; None: no encryption. `custom_fields`: of
    `custom.metadata.fields.include`. `txn_index_empty_written`: whether the manifest's copy of the metadata says so,
    as it does on a Kafka 4.3 broker and does not on 3.8.
    """

    key_prefix: str = ""
    chunk_bytes: int = 65536
    compression: bool = False
    key_pair: Mapping[str, str] | None = None
    custom_fields: tuple[str, ...] = ()
    txn_index_empty_written: bool = True


def write_segment(
    store: ObjectStore,
    metadata: RemoteLogSegmentMetadata,
    objects: Mapping[str, bytes],
    options: AivenWriterOptions,
) -> CustomMetadata | None:
    """Put a segment's three objects, the manifest last, and give the custom metadata that the plugin returns.

    `objects` are by the suffix of LocalTieredStorage; without a transaction index the manifest has null, and another
    index that is absent is an empty one.
    """
    encryption, cipher = _new_encryption(options.key_pair) if options.key_pair else (None, None)
    chunks = list(_stored_chunks(objects[LOG_SUFFIX], options, cipher))
    places, stored_indexes = _stored_indexes(objects, cipher)
    manifest = encode_manifest(
        Manifest(
            _chunk_index(len(objects[LOG_SUFFIX]), [len(chunk) for chunk in chunks], options),
            places,
            options.compression,
            encryption,
        ),
        metadata,
        txn_index_empty=metadata.txn_index_empty if options.txn_index_empty_written else None,
    )
    path = main_path(metadata)
    store.put(object_key(options.key_prefix, path, ObjectSuffix.LOG), chunks)
    store.put(object_key(options.key_prefix, path, ObjectSuffix.INDEXES), stored_indexes)
    store.put(object_key(options.key_prefix, path, ObjectSuffix.MANIFEST), manifest)
    remote_size_bytes = sum(map(len, chunks)) + len(stored_indexes) + len(manifest)
    return _custom_metadata(remote_size_bytes, path, options)


def convert_tier(
    tier_dir: Path, metadatas: Iterable[RemoteLogSegmentMetadata], store: ObjectStore, options: AivenWriterOptions
) -> list[RemoteLogSegmentMetadata]:
    """Write these segments of a LocalTieredStorage `dir` once more, as the plugin would have; the tier stays.

    Returns their metadata with the custom metadata of the new objects.
    """
    converted = []
    for metadata in metadatas:
        paths = {suffix: object_path(tier_dir, metadata, suffix) for suffix in OBJECT_SUFFIXES}
        objects = {suffix: path.read_bytes() for suffix, path in paths.items() if path.exists()}
        converted.append(replace(metadata, custom_metadata=write_segment(store, metadata, objects, options)))
    return converted


def make_key_pair(directory: Path, key_id: str) -> Mapping[str, str]:
    """Write a pair for tests into `directory` and give the plugin's keys that turn encryption on with it.

    An id has the same pair as long as this process lives, another id has another.
    """
    key = _throw_away_key(key_id)
    directory.mkdir(parents=True, exist_ok=True)
    private_file, public_file = directory / f"{key_id}-private.pem", directory / f"{key_id}-public.pem"
    private_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public_file.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return {
        "encryption.enabled": "true",
        "encryption.key.pair.id": key_id,
        "encryption.key.pairs": key_id,
        f"encryption.key.pairs.{key_id}.public.key.file": str(public_file),
        f"encryption.key.pairs.{key_id}.private.key.file": str(private_file),
    }


@cache
def _throw_away_key(key_id: str) -> rsa.RSAPrivateKey:
    """By id, through the cache alone: making one takes a tenth of a second and more."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def wrap_data_key(keys: Mapping[str, str], data_key: bytes) -> str:
    """A manifest's `dataKey` for a data key, by the active pair of the plugin's keys."""
    key_id = keys["encryption.key.pair.id"]
    public_file = Path(keys[f"encryption.key.pairs.{key_id}.public.key.file"])
    ciphertext = PKCS1_OAEP.new(RSA.import_key(public_file.read_bytes()), hashAlgo=SHA3_512).encrypt(data_key)
    return f"{key_id}:{base64.b64encode(ciphertext).decode('ascii')}"


@dataclass(frozen=True, slots=True)
class ChunkEncryption:
    """Encrypts one segment's chunks and indexes: the other half of ChunkCipher."""

    data_key: bytes
    aad: bytes

    def encrypt(self, plaintext: bytes | bytearray | memoryview) -> bytes:
        """A chunk or an index as it is stored, under an IV of its own."""
        iv = secrets.token_bytes(IV_BYTES)
        return iv + AESGCM(self.data_key).encrypt(iv, plaintext, self.aad)


def compress(data: bytes | bytearray | memoryview, level: int = ZSTD_LEVEL) -> bytes:
    """One frame with its content size, without checksum or dictionary, as the plugin writes it."""
    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(data)


def encode_manifest(
    manifest: Manifest, metadata: RemoteLogSegmentMetadata, *, txn_index_empty: bool | None = None
) -> bytes:
    """The manifest as the plugin writes it: exactly its members in its order, without spaces.

    `txn_index_empty`: the plugin writes it last on a Kafka 4.3 broker, and not at all on one as old as 3.8 (None).
    """
    members: dict[str, Any] = {
        "version": "1",
        "chunkIndex": encode_chunk_index(manifest.chunk_index),
        "segmentIndexes": {
            member: None if stored is None else {"position": stored.position, "size": stored.size_bytes}
            for member, stored in (
                (member, manifest.segment_indexes[index_type]) for index_type, member in _INDEX_MEMBERS.items()
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
    """The index as JSON members, in the plugin's order."""
    if isinstance(index, FixedChunkIndex):
        return {
            "type": "fixed",
            "originalChunkSize": index.original_chunk_bytes,
            "originalFileSize": index.original_file_bytes,
            "transformedChunkSize": index.transformed_chunk_bytes,
            "finalTransformedChunkSize": index.final_transformed_chunk_bytes,
        }
    # The plugin's reader wants the content size in the frame's header.
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


def _new_encryption(key_pair: Mapping[str, str]) -> tuple[SegmentEncryption, ChunkEncryption]:
    data_key, aad = secrets.token_bytes(DATA_KEY_BYTES), secrets.token_bytes(AAD_BYTES)
    return SegmentEncryption(wrap_data_key(key_pair, data_key), aad), ChunkEncryption(data_key, aad)


def _stored_chunks(log: bytes, options: AivenWriterOptions, cipher: ChunkEncryption | None) -> Iterator[bytes]:
    for position in range(0, len(log), options.chunk_bytes):
        chunk = log[position : position + options.chunk_bytes]
        if options.compression:
            chunk = compress(chunk)
        yield cipher.encrypt(chunk) if cipher else chunk


def _chunk_index(
    log_bytes: int, stored_sizes: list[int], options: AivenWriterOptions
) -> FixedChunkIndex | VariableChunkIndex:
    if options.compression:
        return VariableChunkIndex.of_sizes(options.chunk_bytes, log_bytes, stored_sizes)
    # What a whole chunk would have, also where there is none.
    whole_chunk_bytes = options.chunk_bytes + (OVERHEAD_BYTES if options.key_pair else 0)
    return FixedChunkIndex(options.chunk_bytes, log_bytes, whole_chunk_bytes, stored_sizes[-1] if stored_sizes else 0)


def _stored_indexes(
    objects: Mapping[str, bytes], cipher: ChunkEncryption | None
) -> tuple[dict[IndexType, StoredIndex | None], bytes]:
    """Where each index lies, and the `.indexes` object."""
    places: dict[IndexType, StoredIndex | None] = {}
    joined = bytearray()
    for index_type in _INDEX_MEMBERS:
        content = objects.get(index_type.value)
        if content is None and index_type is IndexType.TRANSACTION:
            places[index_type] = None
            continue
        # An empty index is stored as nothing, without IV and tag.
        stored = cipher.encrypt(content) if cipher and content else content or b""
        places[index_type] = StoredIndex(len(joined), len(stored))
        joined += stored
    return places, bytes(joined)


def _custom_metadata(remote_size_bytes: int, path: str, options: AivenWriterOptions) -> CustomMetadata | None:
    return encode_custom_metadata(
        CustomMetadataFields(
            remote_size_bytes=remote_size_bytes if "REMOTE_SIZE" in options.custom_fields else None,
            object_prefix=options.key_prefix if "OBJECT_PREFIX" in options.custom_fields else None,
            object_key=path if "OBJECT_KEY" in options.custom_fields else None,
        )
    )
