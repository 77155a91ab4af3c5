"""Segments that were written through RemoteStorageManager.copy, as a decoder that is not ours finds them.

config = {**aiven_config(compression=True, encryption=True, keys=folder), **server.config(bucket)}
manager = AivenRemoteStorageManager(config, store=store)
metadata = copied(manager, local, segment)
assert found_segment(store, metadata, keys).files == segment.objects()
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from storage.errors import RemoteResourceNotFoundError
from storage.model import RemoteLogSegmentMetadata, uuid_to_text
from storage.object_store.object_store import ObjectStore
from storage.remote_storage_manager import RemoteStorageManager
from tests.support.aiven_decoder import DecodedSegment, decode_segment
from tests.support.aiven_writer import make_key_pair
from tests.support.segments import SyntheticSegment, metadata_of, segment_files, topic_partition

PARTITION = topic_partition("orders", 3)
PREFIX = "tier/"
CHUNK_BYTES = 1000
SUFFIXES = ("log", "indexes", "rsm-manifest")


def aiven_config(
    folder: Path, *, compression: bool = False, encryption: bool = False, chunk_bytes: int = CHUNK_BYTES
) -> dict[str, str]:
    """The plug-in's keys for one way to write; key files go to `folder`."""
    return {
        "key.prefix": PREFIX,
        "chunk.size": str(chunk_bytes),
        "compression.enabled": str(compression).lower(),
        "custom.metadata.fields.include": "REMOTE_SIZE,OBJECT_PREFIX",
        **(make_key_pair(folder, "key1") if encryption else {}),
    }


def private_keys(folder: Path, *key_ids: str) -> dict[str, bytes]:
    """PEM by key id, of pairs that `make_key_pair` made there."""
    return {key_id: (folder / f"{key_id}-private.pem").read_bytes() for key_id in key_ids}


def copied(
    manager: RemoteStorageManager, folder: Path, segment: SyntheticSegment, *, copy_attempt: int = 0
) -> RemoteLogSegmentMetadata:
    """The segment's metadata after a copy, with what that returned."""
    metadata = metadata_of(PARTITION, segment, copy_attempt=copy_attempt)
    data = segment_files(folder, segment)
    return replace(metadata, custom_metadata=manager.copy_log_segment_data(metadata, data))


def found_segment(
    store: ObjectStore, metadata: RemoteLogSegmentMetadata, keys: Mapping[str, bytes] | None = None
) -> DecodedSegment | None:
    """Return what the store holds of it; None without a manifest: no segment. Anything in between fails."""
    objects: dict[str, bytes] = {}
    for suffix in SUFFIXES:
        try:
            objects[suffix] = whole(store, object_key(metadata, suffix))
        except RemoteResourceNotFoundError:
            continue
    if "rsm-manifest" not in objects:
        return None
    return decode_segment(objects["log"], objects["indexes"], objects["rsm-manifest"], keys)


def object_key(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    """Return where docs/formats.md says that an object lies."""
    partition = metadata.topic_id_partition
    folder = f"{PREFIX}{partition.topic}-{uuid_to_text(partition.topic_id)}/{partition.partition}"
    return f"{folder}/{metadata.start_offset:020d}-{uuid_to_text(metadata.segment_id.id)}.{suffix}"


def whole(store: ObjectStore, key: str) -> bytes:
    """An object."""
    size_bytes = store.head(key).size_bytes
    if not size_bytes:
        return b""
    stream = store.get(key, 0, size_bytes)
    try:
        content = bytearray(size_bytes)
        stream.readinto(memoryview(content))
        return bytes(content)
    finally:
        stream.close()
