"""Objects with Kafka's names, in a store (PlainObjects) and in a folder (LocalTieredStorage): what they are called, the
configuration, what a store and an operating system answer.

What every format does is in tests/contract/remote_storage_manager.py.
"""

import errno
import os
import re
from contextlib import closing
from pathlib import Path

import pytest
import trio

from storage.errors import (
    CorruptObjectError,
    DeletionRefusedError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.formats.plain_objects import PlainObjects
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from storage.model import RemoteLogSegmentMetadata as Metadata
from storage.object_store.files.store import FileSystemStore
from storage.plugin_keys import LOCAL_IDLE
from tests.support.for_each import for_each
from tests.support.s3_server import S3Server
from tests.support.scripted_object_store import ScriptedObjectStore
from tests.support.segments import (
    build_segment,
    control_batch,
    data_batch,
    filled_segment,
    metadata_of,
    object_path,
    publish,
    segment_files,
    topic_partition,
)
from tests.support.tier import PARTITION as READ_PARTITION
from tests.support.tier import expected_bytes, open_reader

PARTITION = topic_partition("orders", 3)
SEGMENT = build_segment(
    [data_batch(40, record_count=5), control_batch(45, producer_id=9)],
    aborted=[AbortedTransaction(producer_id=9, first_offset=40, last_offset=45, last_stable_offset=46)],
)
LOG_BYTES = len(SEGMENT.log)
FILE_SYSTEM = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
S3 = "io.aiven.kafka.tieredstorage.storage.s3.S3Storage"


def open_folder(root: Path, **config: str) -> PlainObjects:
    root.mkdir(exist_ok=True)
    keys = {name.replace("_", "."): value for name, value in config.items()}
    return PlainObjects({"storage.backend.class": FILE_SYSTEM, "storage.root": str(root), **keys})


@pytest.fixture
def scripted(tmp_path: Path) -> ScriptedObjectStore:
    return ScriptedObjectStore(FileSystemStore(tmp_path / "tier" / ROOT_DIRECTORY_NAME))


@pytest.fixture
def published(tmp_path: Path) -> Metadata:
    """A segment of LocalTieredStorage in the folder of `scripted`."""
    return publish(tmp_path / "tier", PARTITION, SEGMENT)


@pytest.fixture
def metadata(tmp_path: Path) -> Metadata:
    """A segment of LocalTieredStorage in the test's folder."""
    return publish(tmp_path, PARTITION, SEGMENT)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- keys ---


def test_the_prefix_is_put_in_front_as_it_is(metadata: Metadata, tmp_path: Path) -> None:
    manager = open_folder(tmp_path, key_prefix=f"{ROOT_DIRECTORY_NAME}/")
    assert manager.fetch_log_segment(metadata, 0) == SEGMENT.log
    assert {stored.segment_id for stored in manager.list_objects()} == {metadata.segment_id}
    manager = open_folder(tmp_path / "bucket", key_prefix="tier")
    manager.copy_log_segment_data(metadata, segment_files(tmp_path / "local", SEGMENT))
    assert all(name.startswith("tierorders-3-") for name in tree(tmp_path / "bucket"))
    assert len(list(manager.list_objects("orders"))) == 6


def test_keys_of_another_pattern_are_nobodys(metadata: Metadata, tmp_path: Path) -> None:
    root = tmp_path / ROOT_DIRECTORY_NAME
    folder = object_path(tmp_path, metadata, "log").parent.name
    log = object_path(tmp_path, metadata, "log").name
    strangers = [
        "notes",
        f"{folder}/100-AAAAAAAAAAAAAAAAAAAAAA.log",
        f"{folder}/{log}.tmp",
        f"{folder}/{log.replace('.log', '.rsm-manifest')}",
        f"{folder}/deeper/{log}",
        f"orders-3/{log}",
        log,
    ]
    for name in strangers:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"12345")
    manager = open_folder(root)
    nobodys = [stored for stored in manager.list_objects() if stored.segment_id is None]
    assert {(stored.name, stored.size_bytes) for stored in nobodys} == {(name, 5) for name in strangers}
    assert len(list(manager.list_objects("orders"))) == 6


def test_a_delete_leaves_what_is_not_the_segments(tmp_path: Path, published: Metadata) -> None:
    root = tmp_path / "tier" / ROOT_DIRECTORY_NAME
    stranger = object_path(tmp_path / "tier", published, "log").with_name("notes.txt")
    stranger.write_text("not a segment")
    open_folder(root).delete_log_segment_data(published)
    assert list(tree(root)) == [str(stranger.relative_to(root))]


# --- configuration ---


def test_every_unknown_key_is_named_with_the_nearest_right_one(tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError) as caught:
        open_folder(tmp_path, **{"storage.s3.buket.name": "x", "key.prefx": "y"})
    assert str(caught.value) == (
        "rsm.config.key.prefx is not a key of tidegate.PlainObjects; the nearest is key.prefix; "
        "rsm.config.storage.s3.buket.name is not a key of tidegate.PlainObjects; "
        "the nearest is storage.s3.bucket.name"
    )


def test_a_key_of_another_store_has_no_nearest_one(tmp_path: Path) -> None:
    """Failed before: `storage.hdfs.root` was to be `storage.root`."""
    for key in ("storage.hdfs.root", "storage.oss.bucket.name"):
        with pytest.raises(StorageConfigError, match=f"{key} is not a key of tidegate.PlainObjects$"):
            open_folder(tmp_path, **{key: "x"})


def test_the_keys_of_a_broker_with_local_tiered_storage_have_no_effect(tmp_path: Path) -> None:
    inherited = dict.fromkeys(["dir", "delete.enable", *LOCAL_IDLE], "false")
    published = publish(tmp_path, PARTITION, SEGMENT)
    manager = open_folder(tmp_path / ROOT_DIRECTORY_NAME, **inherited)
    manager.delete_log_segment_data(published)
    assert list(manager.list_objects()) == []


def test_a_prefix_that_leaves_no_room_for_names_is_refused(tmp_path: Path) -> None:
    longest = 1024 - 249 - len("-2147483647-99Ua091BQDeyDAqtDCo4bQ/") - len("leader_epoch_checkpoint") - 44
    open_folder(tmp_path, key_prefix="x" * longest)
    with pytest.raises(StorageConfigError, match=rf"^rsm\.config\.key\.prefix is longer than {longest} bytes"):
        open_folder(tmp_path, key_prefix="x" * (longest + 1))


def test_identity_is_the_format_its_store_and_its_prefix(tmp_path: Path) -> None:
    assert open_folder(tmp_path, key_prefix="a/").identity == f"plain-objects filesystem:{tmp_path} a/"


# --- reading ---


async def test_a_reader_reads_it_like_the_files(nursery: trio.Nursery, s3_endpoint: S3Server, tmp_path: Path) -> None:
    segments = [filled_segment(0, batch_count=30), filled_segment(300, batch_count=10)]
    manager = PlainObjects(s3_endpoint.config(s3_endpoint.make_bucket()))
    logs = []
    for segment in segments:
        metadata = metadata_of(READ_PARTITION, segment)
        manager.copy_log_segment_data(metadata, segment_files(tmp_path / "local", segment))
        logs.append((metadata, segment.log))
    tier = open_reader(nursery, manager, logs, block_bytes=997)
    for offset in range(0, 400, 7):
        records = await tier.read(offset, max_bytes=5000)
        assert b"".join(records.buffers) == expected_bytes(logs, offset, max_bytes=5000)
    assert tier.sample("tidegate_index_rebuilds_total", {"index": "offset"}) == 0
    manager.close()


def test_an_opened_segment_has_no_chunks(scripted: ScriptedObjectStore, published: Metadata) -> None:
    opened = PlainObjects({}, store=scripted).open_log_segment(published)
    assert (opened.chunk_bytes, opened.stored_bytes(3, 10)) == (1, 7)
    assert 0 < opened.memory_bytes < 4096
    assert not scripted.calls


@for_each("size_bytes", [0, 5, 20])
def test_a_log_that_ends_before_its_size_is_corrupt(
    tmp_path: Path, scripted: ScriptedObjectStore, published: Metadata, size_bytes: int
) -> None:
    path = object_path(tmp_path / "tier", published, "log")
    path.write_bytes(SEGMENT.log[:size_bytes])
    opened = PlainObjects({}, store=scripted).open_log_segment(published)
    ends = "at 20" if size_bytes == 20 else "at or before 5"
    wanted = f"{path.parent.name}/{path.name}: bytes 5 to 99 of {LOG_BYTES} wanted, and the object ends {ends}"
    with pytest.raises(CorruptObjectError, match=f"^{re.escape(wanted)}$"):
        opened.open_stream(5, 100)
    assert scripted.streams_open == 0


def test_a_body_that_breaks_is_closed_and_its_error_told(scripted: ScriptedObjectStore, published: Metadata) -> None:
    manager = PlainObjects({}, store=scripted)
    scripted.reset("*", after_bytes=10, times=None)
    with pytest.raises(RetriableRemoteStorageError):
        manager.fetch_log_segment(published, 0)
    with pytest.raises(RetriableRemoteStorageError):
        manager.fetch_index(published, IndexType.TRANSACTION)
    opened = manager.open_log_segment(published)
    with closing(opened.open_stream(0, 100)) as stream, pytest.raises(RetriableRemoteStorageError):
        stream.read(100)
    assert scripted.streams_open == 0


def test_objects_beyond_the_limits_are_refused_before_they_are_read(
    scripted: ScriptedObjectStore, published: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = PlainObjects({}, store=scripted)
    index_bytes = len(SEGMENT.leader_epoch_checkpoint)
    monkeypatch.setattr("storage.formats.segment_files.INDEX_BYTES_MAX", index_bytes)
    monkeypatch.setattr("storage.formats.segment_files.SEGMENT_BYTES_MAX", LOG_BYTES)
    assert manager.fetch_index(published, IndexType.LEADER_EPOCH) == SEGMENT.leader_epoch_checkpoint
    assert manager.fetch_log_segment(published, 0) == SEGMENT.log
    monkeypatch.setattr("storage.formats.segment_files.INDEX_BYTES_MAX", index_bytes - 1)
    monkeypatch.setattr("storage.formats.segment_files.SEGMENT_BYTES_MAX", LOG_BYTES - 1)
    with pytest.raises(CorruptObjectError, match=rf"leader_epoch_checkpoint: more than {index_bytes - 1} bytes"):
        manager.fetch_index(published, IndexType.LEADER_EPOCH)
    with pytest.raises(CorruptObjectError, match=rf"\.log: more than {LOG_BYTES - 1} bytes"):
        manager.fetch_log_segment(published, 0)
    assert manager.fetch_log_segment(published, 1) == SEGMENT.log[1:]


# --- writing ---


def open_tier(tier_dir: Path, **config: str) -> LocalTieredStorage:
    return LocalTieredStorage({"dir": str(tier_dir), **config})


def test_a_copy_is_laid_out_as_kafka_lays_it_out(tmp_path: Path) -> None:
    metadata = publish(tmp_path / "kafkas", PARTITION, SEGMENT)
    data = segment_files(tmp_path / "local", SEGMENT)
    open_tier(tmp_path / "ours").copy_log_segment_data(metadata, data)
    assert len(tree(tmp_path / "ours")) == 6
    assert tree(tmp_path / "ours") == tree(tmp_path / "kafkas")


def test_opening_reading_and_deleting_create_nothing(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "tier")
    metadata = metadata_of(PARTITION, SEGMENT)
    with pytest.raises(RemoteResourceNotFoundError):
        tier.fetch_log_segment(metadata, 0)
    tier.delete_log_segment_data(metadata)
    tier.close()
    assert list(tmp_path.iterdir()) == []


def test_a_delete_leaves_the_partitions_folder_and_other_files(metadata: Metadata, tmp_path: Path) -> None:
    stranger = object_path(tmp_path, metadata, "log").with_name("notes.txt")
    stranger.write_text("not a segment")
    open_tier(tmp_path).delete_log_segment_data(metadata)
    assert list(stranger.parent.iterdir()) == [stranger]


def test_a_delete_is_refused_while_deletes_are_disabled(metadata: Metadata, tmp_path: Path) -> None:
    """Failed before: it did nothing and said nothing, so a copier published that the objects are gone."""
    with pytest.raises(DeletionRefusedError, match=r"nothing is deleted while rsm\.config\.delete\.enable=false"):
        open_tier(tmp_path, **{"delete.enable": "false"}).delete_log_segment_data(metadata)
    assert len(tree(tmp_path)) == 6


def test_close_deletes_nothing_whatever_kafkas_test_keys_say(metadata: Metadata, tmp_path: Path) -> None:
    tier = open_tier(tmp_path, **dict.fromkeys(LOCAL_IDLE, "true"))
    tier.close()
    assert tier.fetch_log_segment(metadata, 0, 10) == SEGMENT.log[:11]


@for_each("config", [{}, {"dir": ""}, {"dir": "  "}, {"directory": "x"}])
def test_a_tier_needs_a_directory(config: dict[str, str]) -> None:
    with pytest.raises(StorageConfigError, match=r"rsm\.config\.dir"):
        LocalTieredStorage(config)


def test_delete_enable_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError, match=r"rsm\.config\.delete\.enable is 'maybe'"):
        open_tier(tmp_path, **{"delete.enable": "maybe"})
    open_tier(tmp_path, **{"delete.enable": " TRUE "})


def test_a_relative_directory_is_fixed_when_the_tier_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = publish(tmp_path / "tier", PARTITION, SEGMENT)
    monkeypatch.chdir(tmp_path)
    tier = open_tier(Path("tier"))
    monkeypatch.chdir("/")
    assert tier.fetch_log_segment(metadata, 0) == SEGMENT.log


def test_a_copy_that_fails_midway_leaves_no_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_the_disk(file_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    data = segment_files(tmp_path / "local", SEGMENT)
    tier = open_tier(tmp_path / "tier")
    monkeypatch.setattr(os, "fsync", fill_the_disk)
    with pytest.raises(RetriableRemoteStorageError, match="No space left"):
        tier.copy_log_segment_data(metadata_of(PARTITION, SEGMENT), data)
    assert tree(tmp_path / "tier") == {}


def test_the_log_appears_after_its_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appeared: list[str] = []
    replace = Path.replace

    def recording_replace(self: Path, target: Path) -> Path:
        appeared.append(target.suffix)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", recording_replace)
    data = segment_files(tmp_path / "local", SEGMENT)
    open_tier(tmp_path / "tier").copy_log_segment_data(metadata_of(PARTITION, SEGMENT), data)
    assert len(appeared) == 6
    assert appeared[-1] == ".log"


@for_each(
    "number, error_type",
    [
        (errno.ENOENT, RemoteResourceNotFoundError),
        (errno.EACCES, RemoteAccessDeniedError),
        (errno.EPERM, RemoteAccessDeniedError),
        (errno.EIO, RetriableRemoteStorageError),
        (errno.EMFILE, RetriableRemoteStorageError),
        (errno.ESTALE, RetriableRemoteStorageError),
    ],
)
def test_errors_of_the_operating_system_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error_type: type[RemoteStorageError]
) -> None:
    def failing_open(path: Path, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    metadata = publish(tmp_path, PARTITION, SEGMENT)
    monkeypatch.setattr(os, "open", failing_open)
    with pytest.raises(RemoteStorageError) as caught:
        open_tier(tmp_path).fetch_log_segment(metadata, 0)
    assert type(caught.value) is error_type
    assert str(object_path(tmp_path, metadata, "log")) in str(caught.value)


def test_a_name_that_the_file_system_cannot_hold_is_no_reason_to_retry(tmp_path: Path) -> None:
    # Legal in Kafka, but with partition and topic id behind it longer than a file system's 255 bytes.
    publish(tmp_path, PARTITION, SEGMENT)
    metadata = metadata_of(topic_partition("x" * 249), SEGMENT)
    with pytest.raises(RemoteStorageError) as caught:
        open_tier(tmp_path).fetch_log_segment(metadata, 0)
    assert type(caught.value) is RemoteStorageError


# --- streams ---


def test_identity_is_the_format_and_its_folder(tmp_path: Path) -> None:
    assert open_tier(tmp_path).identity == f"local-tiered-storage {tmp_path / 'kafka-tiered-storage'}"


def test_short_reads_are_continued_in_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv

    def short_read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return preadv(descriptor, [buffers[0][:7]], offset)

    monkeypatch.setattr(os, "preadv", short_read)
    opened = open_tier(tmp_path).open_log_segment(publish(tmp_path, PARTITION, SEGMENT))
    with closing(opened.open_stream(3, 100)) as stream:
        assert stream.read(97) == SEGMENT.log[3:100]


def test_errors_of_the_system_within_a_stream_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_read(file_descriptor: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    metadata = publish(tmp_path, PARTITION, SEGMENT)
    monkeypatch.setattr(os, "preadv", failing_read)
    with closing(open_tier(tmp_path).open_log_segment(metadata).open_stream(0, 10)) as stream:
        with pytest.raises(RetriableRemoteStorageError) as caught:
            stream.read(10)
        assert str(object_path(tmp_path, metadata, "log")) in str(caught.value)


def test_a_log_that_is_cut_is_told_with_its_path(metadata: Metadata, tmp_path: Path) -> None:
    path = object_path(tmp_path, metadata, "log")
    os.truncate(path, 20)
    wanted = f"{path}: bytes 5 to 99 of {len(SEGMENT.log)} wanted, and the object ends at 20"
    with pytest.raises(CorruptObjectError, match=re.escape(wanted)):
        open_tier(tmp_path).open_log_segment(metadata).open_stream(5, 100)
