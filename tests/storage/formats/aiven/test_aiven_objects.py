"""What the writer makes of a segment's files, read back through the manager."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from storage.errors import RemoteResourceNotFoundError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.manifest import Manifest, decode_manifest
from storage.formats.aiven.object_keys import ObjectSuffix, main_path, object_key
from storage.model import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
    uuid_from_text,
)
from storage.object_store.files.store import FileSystemStore
from storage.object_store.object_store import ObjectStore
from tests.support.aiven_writer import AivenWriterOptions, write_segment
from tests.support.segments import filled_segment, metadata_of, topic_partition

METADATA = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(
        TopicIdPartition(uuid_from_text("lZ6vvmajTWKDBUTV6SQAtQ"), 42, "topic1"),
        uuid_from_text("adh9f8BMS4anaUnD8KWfWg"),
    ),
    start_offset=1234567,
    end_offset=1235566,
    max_timestamp_ms=1_700_000_001_000,
    broker_id=2,
    event_timestamp_ms=1_700_000_002_000,
    segment_size_bytes=38092,
    segment_leader_epochs={0: 0, 3: 1234567},
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)


def stored(store: ObjectStore, metadata: RemoteLogSegmentMetadata, prefix: str, suffix: ObjectSuffix) -> bytes:
    key = object_key(prefix, main_path(metadata), suffix)
    content = bytearray(store.head(key).size_bytes)
    stream = store.get(key, 0, len(content))
    stream.readinto(memoryview(content))
    stream.close()
    return bytes(content)


def manifest_of(store: ObjectStore, metadata: RemoteLogSegmentMetadata, prefix: str) -> Manifest:
    return decode_manifest(stored(store, metadata, prefix, ObjectSuffix.MANIFEST), "manifest")


def read_back(
    store: ObjectStore, metadata: RemoteLogSegmentMetadata, prefix: str, keys: Mapping[str, str]
) -> dict[str, bytes]:
    """A segment's plaintext by the suffix of LocalTieredStorage; what reads it reads the plug-in's own objects too
    (tests/integration/test_vectors_aiven.py)."""
    manager = AivenRemoteStorageManager({"key.prefix": prefix, **keys}, store=store)
    objects = {"log": manager.fetch_log_segment(metadata, 0)}
    for index_type in IndexType:
        with suppress(RemoteResourceNotFoundError):  # one that the segment does not have
            objects[index_type.value] = manager.fetch_index(metadata, index_type)
    return objects


def test_a_kafka_4_3_manifest_says_whether_the_transaction_index_is_empty(tmp_path: Path) -> None:
    store = FileSystemStore(tmp_path)
    metadata = replace(METADATA, txn_index_empty=True)
    write_segment(store, metadata, filled_segment().objects(), AivenWriterOptions())
    assert stored(store, metadata, "", ObjectSuffix.MANIFEST).endswith(b',"txnIdxEmpty":true}}')


def test_a_log_that_ends_with_a_whole_chunk_has_no_chunk_behind_it(tmp_path: Path) -> None:
    segment = filled_segment(batch_count=2)
    store = FileSystemStore(tmp_path)
    options = AivenWriterOptions(chunk_bytes=len(segment.log) // 2)
    assert len(segment.log) % 2 == 0
    metadata = metadata_of(topic_partition(), segment)
    write_segment(store, metadata, segment.objects(), options)
    assert manifest_of(store, metadata, "").chunk_index.chunk_count == 2
    assert read_back(store, metadata, "", {}) == segment.objects()
