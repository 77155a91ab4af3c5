"""Segments as Aiven's plug-in writes them (docs/formats.md#aiven), by our own writer: objects in any object store.

    options = AivenWriterOptions(key_prefix="tier/", compression=True, key_pair=make_key_pair(folder, "key1"))
    metadata = replace(metadata, custom_metadata=write_segment(store, metadata, segment.objects(), options))
    finished = convert_tier(tier_dir, metadatas, store, options)      # what LocalTieredStorage holds, once more

Without encryption the same arguments give the same bytes; keys, additional data and IVs are drawn again each time. What
the writer writes is what the plug-in wrote, and an independent decoder reads it (tests/storage/writing).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.formats.aiven.config import WritingConfig
from storage.formats.aiven.key_pairs import KeyRing
from storage.formats.aiven.object_keys import main_path
from storage.formats.aiven.segment_objects import ObjectPlace
from storage.formats.aiven.writer import AivenWriter
from storage.formats.segment_files import LOG_SUFFIX, OBJECT_SUFFIXES
from storage.model import CustomMetadata, IndexType, RemoteLogSegmentMetadata
from storage.object_store.object_store import ObjectStore
from tests.support.segments import object_path


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
    heuristic: bool = False
    key_pair: Mapping[str, str] | None = None
    custom_fields: tuple[str, ...] = ()
    txn_index_empty_written: bool = True


def write_segment(
    store: ObjectStore, metadata: RemoteLogSegmentMetadata, objects: Mapping[str, bytes], options: AivenWriterOptions
) -> CustomMetadata | None:
    """Put a segment's three objects, the manifest last, and give the custom metadata that the plug-in returns.

    `objects` are by the suffix of LocalTieredStorage; the metadata's size is the log's, whatever they say.
    """
    writing = WritingConfig(
        chunk_bytes=options.chunk_bytes,
        compression_enabled=options.compression,
        compression_heuristic=options.heuristic,
        custom_metadata_fields=options.custom_fields,
    )
    writer = AivenWriter(
        store=store,
        config=writing,
        key_ring=KeyRing(options.key_pair) if options.key_pair else None,
        txn_index_empty_written=options.txn_index_empty_written,
    )
    log = objects[LOG_SUFFIX]
    indexes = {each: objects[each.value] for each in IndexType if each.value in objects}
    place = ObjectPlace(options.key_prefix, main_path(metadata))
    return writer.write(place, replace(metadata, segment_size_bytes=len(log)), log, indexes)


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
    return KeyRing(keys).wrap(data_key)
