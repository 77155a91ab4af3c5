"""Copies in Aiven's format that do not go as they should, keys that change while we run, and what writing holds."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import (
    DeletionRefusedError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    StorageConfigError,
)
from storage.formats.aiven.config import WritingConfig
from storage.formats.aiven.key_pairs import KeyRing
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.segment_objects import ObjectPlace
from storage.formats.aiven.writer import AivenWriter
from storage.model import IndexType
from storage.object_store.files.store import FileSystemStore
from tests.storage.formats.ended_copies import leaves_a_whole_segment_or_none
from tests.support.aiven_writer import make_key_pair
from tests.support.for_each import for_each
from tests.support.memory_store import Killed, MemoryStore, NullStore
from tests.support.scripted_object_store import ScriptedObjectStore, Verb
from tests.support.segments import filled_segment, metadata_of, segment_files
from tests.support.writing_tiers import (
    CHUNK_BYTES,
    PARTITION,
    PREFIX,
    aiven_config,
    copied,
    found_segment,
    object_key,
    private_keys,
)

SEGMENT = filled_segment(100, batch_count=4)
FORMER = filled_segment(100, batch_count=7)
METADATA = metadata_of(PARTITION, SEGMENT)
MIB = 1024 * 1024
every_way = for_each("compression, encryption", [(False, False), (True, False), (False, True), (True, True)])


@pytest.fixture
def bucket() -> ScriptedObjectStore:
    return ScriptedObjectStore(MemoryStore())


@for_each("with_former", [False, True])
@for_each("error", [Killed(), RemoteStorageError("no more")])
@for_each("is_transformed", [False, True])
def test_a_copy_that_ends_at_any_step_leaves_a_whole_segment_or_none(
    tmp_path: Path, is_transformed: bool, error: BaseException, with_former: bool
) -> None:
    """Compressed or encrypted alone: all/test_ended_copies.py."""
    leaves_a_whole_segment_or_none(tmp_path, is_transformed, is_transformed, error, with_former)


def test_a_store_that_lets_nobody_delete_takes_new_segments(bucket: ScriptedObjectStore, tmp_path: Path) -> None:
    """The writer deleted a manifest that may be there before it sent anything: nothing was ever copied."""
    bucket.fail(DeletionRefusedError("no"), verb=Verb.DELETE, times=None)
    manager = AivenRemoteStorageManager(aiven_config(tmp_path), store=bucket)
    metadata = copied(manager, tmp_path / "local", SEGMENT)
    assert [call.verb for call in bucket.calls] == [Verb.HEAD, *[Verb.PUT] * 3]
    assert manager.fetch_log_segment(metadata, 0) == SEGMENT.log
    with pytest.raises(DeletionRefusedError):
        manager.delete_log_segment_data(metadata)


@for_each("change_bytes", [-1, 1, -len(SEGMENT.log), CHUNK_BYTES])
@every_way
def test_a_log_of_another_size_than_its_metadata_says_is_refused(
    bucket: ScriptedObjectStore, tmp_path: Path, compression: bool, encryption: bool, change_bytes: int
) -> None:
    config = aiven_config(tmp_path, compression=compression, encryption=encryption)
    data = segment_files(tmp_path / "local", SEGMENT)
    data.log_segment.write_bytes((SEGMENT.log + bytes(CHUNK_BYTES))[: len(SEGMENT.log) + change_bytes])
    with pytest.raises(RemoteStorageError, match=r"the local log has .*its metadata"):
        AivenRemoteStorageManager(config, store=bucket).copy_log_segment_data(METADATA, data)
    assert list(bucket.list("")) == []


def test_custom_metadata_that_cannot_fit_are_told_before_anything_is_sent(
    bucket: ScriptedObjectStore, tmp_path: Path
) -> None:
    config = {**aiven_config(tmp_path), "key.prefix": "p" * 126, "custom.metadata.fields.include": "OBJECT_PREFIX"}
    manager = AivenRemoteStorageManager(config, store=bucket)
    with pytest.raises(StorageConfigError, match=r"custom\.metadata\.fields\.include=OBJECT_PREFIX .* 130 bytes.* 128"):
        manager.copy_log_segment_data(METADATA, segment_files(tmp_path / "local", SEGMENT))
    assert bucket.calls == []


def test_custom_metadata_that_turn_out_too_long_leave_no_segment(bucket: ScriptedObjectStore) -> None:
    """Only the size of what was uploaded, which is not known before, makes them so."""
    config = WritingConfig(chunk_bytes=CHUNK_BYTES, custom_metadata_fields=("REMOTE_SIZE",))
    for limit, is_taken in ((5, True), (4, False)):
        writer = AivenWriter(store=bucket, config=config, custom_metadata_bytes_max=limit)
        if is_taken:
            encoded = writer.write(ObjectPlace(PREFIX, "p"), METADATA, SEGMENT.log, {})
            assert encoded is not None
            assert len(encoded) == limit
        else:
            with pytest.raises(StorageConfigError, match=r"custom metadata of 5 bytes, and Kafka takes 4"):
                writer.write(ObjectPlace(PREFIX, "p"), METADATA, SEGMENT.log, {})
            assert list(bucket.list("")) == []


@for_each(
    "keys, message",
    [
        ({"chunk.size": None}, r"rsm\.config\.chunk\.size is not set"),
        ({"chunk.size": "268435457", "compression.enabled": "true"}, r"chunk\.size=268435457 is too large"),
    ],
)
def test_what_is_needed_for_writing_alone_is_named_when_something_is_written(
    bucket: ScriptedObjectStore, tmp_path: Path, keys: dict[str, str | None], message: str
) -> None:
    given = {**aiven_config(tmp_path), **keys}
    config = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(StorageConfigError, match=message):
        copied(AivenRemoteStorageManager(config, store=bucket), tmp_path / "local", SEGMENT)
    assert bucket.calls == []


@for_each("log, is_compressed", [(SEGMENT.log, True), (SEGMENT.log[:-1], True), (b"", False)])
def test_the_heuristic_looks_at_the_first_batch(bucket: ScriptedObjectStore, log: bytes, is_compressed: bool) -> None:
    damaged = bytearray(SEGMENT.log)
    damaged[100] ^= 1
    config = WritingConfig(chunk_bytes=CHUNK_BYTES, compression_enabled=True, compression_heuristic=True)
    for content, expected in ((log, is_compressed), (bytes(damaged), False), (b"no batch" * 50, False)):
        metadata = replace(METADATA, segment_size_bytes=len(content))
        place = ObjectPlace("", object_key(metadata, "").removesuffix("."))
        AivenWriter(store=bucket, config=config).write(place, metadata, content, {IndexType.OFFSET: b"12345678"})
        found = found_segment(bucket, metadata)
        assert found is not None
        assert (found.manifest["compression"], found.files["log"]) == (expected, content)


@every_way
def test_a_few_chunks_are_held_whatever_the_segments_size(tmp_path: Path, compression: bool, encryption: bool) -> None:
    config = aiven_config(tmp_path, compression=compression, encryption=encryption, chunk_bytes=MIB)
    manager = AivenRemoteStorageManager(config, store=NullStore())
    copied(manager, tmp_path / "small", SEGMENT)
    data = segment_files(tmp_path / "local", SEGMENT)
    with data.log_segment.open("wb") as file:
        file.truncate(96 * MIB)
    tracemalloc.start()
    try:
        manager.copy_log_segment_data(replace(METADATA, segment_size_bytes=96 * MIB), data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6 * MIB


def ring_file(folder: Path, *key_ids: str, active: str) -> str:
    """Lines of a key ring, as a broker's file has them."""
    lines = [f"rsm.config.encryption.key.pairs={','.join(key_ids)}", f"rsm.config.encryption.key.pair.id={active}"]
    for key_id in key_ids:
        pair = make_key_pair(folder, key_id)
        lines += [f"rsm.config.{key}={value}" for key, value in pair.items() if ".file" in key]
    return "\n".join([*lines, "chunk.size=other keys are left alone", ""])


def test_a_new_active_key_pair_is_taken_up_without_a_restart(bucket: ScriptedObjectStore, tmp_path: Path) -> None:
    file, folder = tmp_path / "keys.properties", tmp_path / "keys"
    file.write_text(ring_file(folder, "key1", active="key1"))
    config = {**aiven_config(tmp_path), "encryption.enabled": "true", "encryption.key.ring.file": str(file)}
    manager = AivenRemoteStorageManager(config, store=bucket)
    wrapped_by = []
    for number, content in enumerate(
        [None, ring_file(folder, "key1", "key2", active="key2"), "encryption.key.pairs=lost\n", None]
    ):
        if content is not None:
            replacement = tmp_path / f"{number}.properties"
            replacement.write_text(content)
            replacement.replace(file)
        if number == 3:
            file.unlink()
        copied(manager, tmp_path / "local", SEGMENT, copy_attempt=number)
        found = found_segment(
            bucket,
            metadata_of(PARTITION, SEGMENT, copy_attempt=number),
            private_keys(folder, "key1", *(["key2"] if number else [])),
        )
        assert found is not None
        assert found.files == SEGMENT.objects()
        wrapped_by.append(found.manifest["encryption"]["dataKey"].partition(":")[0])
    assert wrapped_by == ["key1", "key2", "key2", "key2"], "a file that is broken or gone changes nothing"
    for number in range(4):
        metadata = metadata_of(PARTITION, SEGMENT, copy_attempt=number)
        assert manager.fetch_log_segment(metadata, 0) == SEGMENT.log


@for_each(
    "content, message",
    [
        (None, r"rsm\.config\.encryption\.key\.ring\.file=.*: it "),
        ("\\u00", "it is not a properties file"),
        ("encryption.key.pairs=", r"rsm\.config\.encryption\.key\.pairs is not set"),
        ("encryption.key.pairs=a", r"rsm\.config\.encryption\.key\.pairs\.a\.private\.key\.file is not set"),
    ],
)
def test_a_key_ring_file_has_to_be_good_at_the_start(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "keys.properties"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StorageConfigError, match=message):
        AivenRemoteStorageManager({"encryption.key.ring.file": str(file)}, store=FileSystemStore(tmp_path))


def test_key_pairs_have_one_place(tmp_path: Path) -> None:
    config = {**make_key_pair(tmp_path, "key1"), "encryption.key.ring.file": "keys.properties"}
    with pytest.raises(StorageConfigError, match="are both set"):
        AivenRemoteStorageManager(config, store=FileSystemStore(tmp_path))


def test_a_pair_that_only_reads_wraps_nothing(tmp_path: Path) -> None:
    pairs = {key: value for key, value in make_key_pair(tmp_path, "key1").items() if key != "encryption.key.pair.id"}
    with pytest.raises(StorageConfigError, match=r"encryption\.key\.pair\.id is not set"):
        KeyRing(pairs).wrap(bytes(32))


def test_a_deletion_that_fails_names_what_is_left_and_never_the_masked_prefix(tmp_path: Path) -> None:
    bucket = MemoryStore()
    manager = AivenRemoteStorageManager({**aiven_config(tmp_path), "key.prefix.mask": "true"}, store=bucket)
    metadata = copied(manager, tmp_path / "local", SEGMENT)
    bucket.refused = {object_key(metadata, "log"), object_key(metadata, "indexes")}
    with pytest.raises(RemoteAccessDeniedError, match=r"2 of 2 objects were not deleted.*<prefix>/") as caught:
        manager.delete_log_segment_data(metadata)
    assert [key.rpartition(".")[2] for key in caught.value.undeleted] == ["log", "indexes"]
    told = [str(caught.value), str(caught.value.undeleted), *caught.value.__notes__]
    assert not any(PREFIX in words.replace("<prefix>/", "") for words in told)
    assert set(bucket.objects) == bucket.refused
    with pytest.raises(RemoteResourceNotFoundError):
        manager.open_log_segment(metadata)
