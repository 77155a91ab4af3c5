"""Segments as Aiven's plugin writes them (docs/formats.md#aiven): objects in any object store.

    options = AivenWriterOptions(key_prefix="tier/", compression=True, key_ring=KeyRing(make_key_pair(folder, "key1")))
    metadata = replace(metadata, custom_metadata=write_segment(store, metadata, segment.objects(), options))
    finished = convert_tier(tier_dir, metadatas, store, options)      # what LocalTieredStorage holds, once more

Without encryption the same arguments give the same bytes; keys, additional data and IVs are drawn anew each time.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.formats.aiven.config import KeyRing
from storage.formats.aiven.manifest import (
    FixedChunkIndex,
    Manifest,
    SegmentEncryption,
    StoredIndex,
    VariableChunkIndex,
    encode_manifest,
)
from storage.formats.aiven.opened_segment import AAD_BYTES, DATA_KEY_BYTES, OVERHEAD_BYTES, ChunkCipher, compress
from storage.formats.aiven.segment_objects import (
    CustomMetadataFields,
    ObjectSuffix,
    encode_custom_metadata,
    main_path,
    object_key,
)
from storage.formats.object_names import LOG_SUFFIX, OBJECT_SUFFIXES
from storage.model import CustomMetadata, IndexType, RemoteLogSegmentMetadata
from storage.object_store.object_store import ObjectStore
from tests.support.segments import object_path

INDEX_ORDER = (
    IndexType.OFFSET,
    IndexType.TIMESTAMP,
    IndexType.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH,
    IndexType.TRANSACTION,
)
"""Of the `.indexes` object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AivenWriterOptions:
    """The plugin's configuration, as far as the objects depend on it.

    `key_ring`: encrypts with its active pair; None: no encryption. `custom_fields`: of
    `custom.metadata.fields.include`. `txn_index_empty_written`: whether the manifest's copy of the metadata says so,
    as it does on a Kafka 4.3 broker and does not on 3.8.
    """

    key_prefix: str = ""
    chunk_bytes: int = 65536
    compression: bool = False
    key_ring: KeyRing | None = None
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
    encryption, cipher = _new_encryption(options.key_ring) if options.key_ring else (None, None)
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


def _new_encryption(key_ring: KeyRing) -> tuple[SegmentEncryption, ChunkCipher]:
    data_key, aad = secrets.token_bytes(DATA_KEY_BYTES), secrets.token_bytes(AAD_BYTES)
    return SegmentEncryption(key_ring.wrap(data_key), aad), ChunkCipher(data_key, aad)


def _stored_chunks(log: bytes, options: AivenWriterOptions, cipher: ChunkCipher | None) -> Iterator[bytes]:
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
    whole_chunk_bytes = options.chunk_bytes + (OVERHEAD_BYTES if options.key_ring else 0)
    return FixedChunkIndex(options.chunk_bytes, log_bytes, whole_chunk_bytes, stored_sizes[-1] if stored_sizes else 0)


def _stored_indexes(
    objects: Mapping[str, bytes], cipher: ChunkCipher | None
) -> tuple[dict[IndexType, StoredIndex | None], bytes]:
    """Where each index lies, and the `.indexes` object."""
    places: dict[IndexType, StoredIndex | None] = {}
    joined = bytearray()
    for index_type in INDEX_ORDER:
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
