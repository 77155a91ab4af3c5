"""What the writer makes of a segment's files, read back through the manager."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from storage.errors import RemoteResourceNotFoundError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.manifest import Manifest, decode_manifest
from storage.formats.aiven.segment_objects import (
    CustomMetadataFields,
    ObjectSuffix,
    decode_custom_metadata,
    main_path,
    object_key,
)
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
from tests.support.aiven_writer import AivenWriterOptions, convert_tier, make_key_pair, write_segment
from tests.support.for_each import for_each
from tests.support.segments import filled_segment, metadata_of, publish, topic_partition

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


@for_each("compression", [False, True])
@for_each("encryption", [False, True])
def test_a_converted_tier_holds_the_same_bytes_and_its_metadata_says_where(
    tmp_path: Path, compression: bool, encryption: bool
) -> None:
    partition = topic_partition()
    segments = [filled_segment(0), filled_segment(200, batch_count=3)]
    metadatas = [publish(tmp_path / "tier", partition, segment) for segment in segments]
    keys = make_key_pair(tmp_path / "keys", "key1") if encryption else {}
    options = AivenWriterOptions(
        key_prefix="a/",
        chunk_bytes=1000,
        compression=compression,
        key_pair=keys if encryption else None,
        custom_fields=("OBJECT_PREFIX", "REMOTE_SIZE"),
    )
    store = FileSystemStore(tmp_path / "bucket")
    converted = convert_tier(tmp_path / "tier", metadatas, store, options)
    heads = list(store.list(""))
    assert len(heads) == 6
    assert [replace(metadata, custom_metadata=None) for metadata in converted] == metadatas
    sizes_bytes = 0
    for metadata, segment in zip(converted, segments, strict=True):
        assert read_back(store, metadata, "a/", keys) == segment.objects()
        fields = decode_custom_metadata(metadata.custom_metadata)
        assert fields == CustomMetadataFields(fields.remote_size_bytes, "a/", None)
        sizes_bytes += fields.remote_size_bytes or 0
    assert sizes_bytes == sum(head.size_bytes for head in heads)


def test_a_log_that_ends_with_a_whole_chunk_has_no_chunk_behind_it(tmp_path: Path) -> None:
    segment = filled_segment(batch_count=2)
    store = FileSystemStore(tmp_path)
    options = AivenWriterOptions(chunk_bytes=len(segment.log) // 2)
    assert len(segment.log) % 2 == 0
    metadata = metadata_of(topic_partition(), segment)
    write_segment(store, metadata, segment.objects(), options)
    assert manifest_of(store, metadata, "").chunk_index.chunk_count == 2
    assert read_back(store, metadata, "", {}) == segment.objects()


def test_no_transaction_index_is_null_and_an_absent_snapshot_is_empty(tmp_path: Path) -> None:
    objects = filled_segment().objects()
    del objects["snapshot"]
    store = FileSystemStore(tmp_path)
    write_segment(store, METADATA, objects, AivenWriterOptions())
    places = manifest_of(store, METADATA, "").segment_indexes
    snapshot = places[IndexType.PRODUCER_SNAPSHOT]
    assert places[IndexType.TRANSACTION] is None
    assert snapshot is not None
    assert snapshot.size_bytes == 0
