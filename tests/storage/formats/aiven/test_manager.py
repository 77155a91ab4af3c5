"""The plug-in's format behind RemoteStorageManager: what is its own; the seam's contract is in test_contract.py."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import (
    CorruptObjectError,
    IcebergSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    StorageConfigError,
)
from storage.formats.aiven.custom_metadata import CustomMetadataFields
from storage.formats.aiven.encoding import encode_custom_metadata
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.manifest import MANIFEST_BYTES_MAX
from storage.formats.aiven.object_keys import ObjectSuffix, main_path
from storage.model import CustomMetadata, IndexType, LogSegmentData, RemoteLogSegmentMetadata, uuid_to_text
from storage.object_store.files.store import FileSystemStore
from storage.object_store.object_store import ObjectStore
from tests.contract.remote_storage_manager import PARTITION, SEGMENT, assert_readable
from tests.support.aiven_writer import AivenWriterOptions, make_key_pair, write_segment
from tests.support.for_each import for_each
from tests.support.scripted_object_store import ScriptedObjectStore
from tests.support.segments import metadata_of

METADATA = metadata_of(PARTITION, SEGMENT)
SEGMENT_ID = uuid_to_text(METADATA.segment_id.id)
PREFIX = "tier/"
PATH = main_path(METADATA)
CHUNK_BYTES = 1000


@pytest.fixture
def store(tmp_path: Path) -> ScriptedObjectStore:
    return ScriptedObjectStore(FileSystemStore(tmp_path / "tier"))


def written(
    store: ObjectStore, *, prefix: str = PREFIX, fields: tuple[str, ...] = (), key_pair: Mapping[str, str] | None = None
) -> RemoteLogSegmentMetadata:
    options = AivenWriterOptions(key_prefix=prefix, chunk_bytes=CHUNK_BYTES, key_pair=key_pair, custom_fields=fields)
    return replace(METADATA, custom_metadata=write_segment(store, METADATA, SEGMENT.objects(), options))


def manager_of(store: ObjectStore, **config: str) -> AivenRemoteStorageManager:
    return AivenRemoteStorageManager(
        {"key.prefix": PREFIX, **{key.replace("_", "."): value for key, value in config.items()}}, store=store
    )


def test_opening_is_one_get_and_so_is_each_stream_and_index(store: ScriptedObjectStore) -> None:
    metadata = written(store)
    opened = manager_of(store).open_log_segment(metadata)
    opened.open_stream(1500, 3500).close()
    opened.fetch_index(IndexType.TIMESTAMP)
    manifest, log, indexes = store.gets()
    assert manifest == (f"{PREFIX}{PATH}.rsm-manifest", 0, MANIFEST_BYTES_MAX + 1)
    assert log == (f"{PREFIX}{PATH}.log", 1500, 3500)
    assert indexes[0] == f"{PREFIX}{PATH}.indexes"
    assert store.streams_open == 0


@for_each("moved", ["prefix", "key", "both"])
def test_custom_metadata_say_where_the_objects_are(store: ScriptedObjectStore, moved: str) -> None:
    prefix = PREFIX if moved == "key" else "old/"
    path = PATH if moved == "prefix" else "elsewhere/file"
    written(store, prefix=prefix)
    for suffix in ObjectSuffix:
        move(store, f"{prefix}{PATH}{suffix.value}", f"{prefix}{path}{suffix.value}")
    fields = CustomMetadataFields(
        object_prefix=None if moved == "key" else prefix, object_key=None if moved == "prefix" else path
    )
    metadata = replace(METADATA, custom_metadata=encode_custom_metadata(fields))
    store.calls.clear()
    assert_readable(manager_of(store), metadata, SEGMENT)
    assert all(key.startswith(f"{prefix}{path}.") for key, _, _ in store.gets()), "the first place was right"


def move(store: ScriptedObjectStore, source: str, target: str) -> None:
    if source != target:
        head = store.head(source)
        data = bytearray(head.size_bytes)
        stream = store.inner.get(source, 0, head.size_bytes)
        stream.readinto(memoryview(data))
        stream.close()
        store.put(target, bytes(data))
        store.delete_many([source])


def test_custom_metadata_that_cannot_be_read_are_corrupt(store: ScriptedObjectStore) -> None:
    written(store)
    with pytest.raises(CorruptObjectError, match="custom metadata"):
        manager_of(store).open_log_segment(replace(METADATA, custom_metadata=CustomMetadata(b"\xff")))


def test_a_manifest_of_another_size_is_not_this_segments(store: ScriptedObjectStore) -> None:
    metadata = written(store)
    with pytest.raises(CorruptObjectError, match=rf"{SEGMENT_ID}.*originalFileSize is \d+, and segment"):
        manager_of(store).open_log_segment(replace(metadata, segment_size_bytes=metadata.segment_size_bytes + 1))


@for_each(
    "content, message",
    [
        (b"", "bytes 0 to"),
        (b"{}", "version is missing"),
        (b" " * (MANIFEST_BYTES_MAX + 1), "more than 16777216 bytes"),
        (b"PFA1" + bytes(50), "Iceberg mode"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(store: ScriptedObjectStore, content: bytes, message: str) -> None:
    metadata = written(store)
    store.put(f"{PREFIX}{PATH}.rsm-manifest", content)
    with pytest.raises(RemoteStorageError, match=message) as caught:
        manager_of(store).open_log_segment(metadata)
    assert f"{PATH}.rsm-manifest" in str(caught.value)
    assert store.streams_open == 0


def test_a_classic_segment_is_read_beside_those_of_iceberg_which_only_brokers_read(store: ScriptedObjectStore) -> None:
    # Failed before: `segment.format=iceberg` stopped the start.
    metadata = written(store)
    manager = AivenRemoteStorageManager({"key.prefix": PREFIX, "segment.format": "iceberg"}, store=store)
    assert_readable(manager, metadata, SEGMENT)
    store.delete_many([f"{PREFIX}{PATH}.rsm-manifest"])
    with pytest.raises(IcebergSegmentError, match="Iceberg mode"):
        manager.open_log_segment(metadata)
    with pytest.raises(RemoteResourceNotFoundError):
        manager_of(store).open_log_segment(metadata)
    with pytest.raises(StorageConfigError, match=r"segment\.format=iceberg: only brokers write it"):
        manager.copy_log_segment_data(metadata, LogSegmentData(Path("x"), Path("x"), Path("x"), b""))


def test_an_encrypted_segment_needs_its_key_pair(store: ScriptedObjectStore, tmp_path: Path) -> None:
    keys = make_key_pair(tmp_path / "keys", "key1")
    metadata = written(store, key_pair=keys)
    assert_readable(AivenRemoteStorageManager({"key.prefix": PREFIX, **keys}, store=store), metadata, SEGMENT)
    with pytest.raises(RemoteStorageError, match=r"rsm-manifest: .*encrypted.*encryption\.enabled"):
        manager_of(store).open_log_segment(metadata)
    others = make_key_pair(tmp_path / "keys", "key2")
    another = AivenRemoteStorageManager({"key.prefix": PREFIX, **others}, store=store)
    with pytest.raises(RemoteStorageError, match=r"rsm-manifest: .*key pair 'key1'"):
        another.open_log_segment(metadata)
    # The right id on another key.
    renamed = {key.replace("key2", "key1"): value for key, value in others.items()}
    renamed |= {"encryption.key.pair.id": "key1", "encryption.key.pairs": "key1"}
    with pytest.raises(CorruptObjectError, match="rsm-manifest: the data key"):
        AivenRemoteStorageManager({"key.prefix": PREFIX, **renamed}, store=store).open_log_segment(metadata)


def test_an_unencrypted_segment_is_read_with_encryption_on(store: ScriptedObjectStore, tmp_path: Path) -> None:
    keys = make_key_pair(tmp_path / "keys", "key1")
    manager = AivenRemoteStorageManager({"key.prefix": PREFIX, **keys}, store=store)
    assert_readable(manager, written(store), SEGMENT)


def test_a_delete_takes_the_objects_of_both_places_and_the_manifests_first(store: ScriptedObjectStore) -> None:
    for prefix in ("old/", PREFIX):
        written(store, prefix=prefix)
    recorded = encode_custom_metadata(CustomMetadataFields(object_prefix="old/"))
    store.calls.clear()
    manager_of(store).delete_log_segment_data(replace(METADATA, custom_metadata=recorded))
    assert [call.key for call in store.calls] == [
        f"old/{PATH}.rsm-manifest",
        f"{PREFIX}{PATH}.rsm-manifest",
        *(f"{prefix}{PATH}{suffix}" for prefix in ("old/", PREFIX) for suffix in (".log", ".indexes")),
    ]
    assert list(store.list("")) == []


def test_identity_is_format_store_and_prefix(store: ScriptedObjectStore) -> None:
    assert manager_of(store).identity == f"aiven-v1 {store.identity} {PREFIX}"
    assert manager_of(store).identity != AivenRemoteStorageManager({}, store=store).identity
