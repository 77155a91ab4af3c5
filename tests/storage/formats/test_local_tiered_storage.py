"""LocalTieredStorage: Kafka's layout on disk, its configuration, and the operating system's errors.

What every format does is in tests/contract/remote_storage_manager.py.
"""

import errno
import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
from storage.formats.local_tiered_storage import IGNORED_KEYS, LocalTieredStorage
from storage.indexes.transaction_index import AbortedTransaction
from storage.model import IndexType
from tests.support.segments import (
    build_segment,
    control_batch,
    data_batch,
    metadata_of,
    object_path,
    publish,
    segment_files,
    topic_partition,
)

PARTITION = topic_partition("orders", 3)
SEGMENT = build_segment(
    [data_batch(40, record_count=5), control_batch(45, producer_id=9)],
    aborted=[AbortedTransaction(producer_id=9, first_offset=40, last_offset=45, last_stable_offset=46)],
)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def open_tier(tier_dir: Path, **config: str) -> LocalTieredStorage:
    return LocalTieredStorage({"dir": str(tier_dir), **config})


def test_a_copy_is_laid_out_as_kafka_lays_it_out(tmp_path: Path) -> None:
    metadata = publish(tmp_path / "kafkas", PARTITION, SEGMENT)
    data = segment_files(tmp_path / "local", SEGMENT)
    open_tier(tmp_path / "ours").copy_log_segment_data(metadata, data)
    assert len(tree(tmp_path / "ours")) == 6
    assert tree(tmp_path / "ours") == tree(tmp_path / "kafkas")


def test_what_kafka_laid_out_is_read(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    tier = open_tier(tmp_path)
    assert tier.fetch_log_segment(metadata, 0) == SEGMENT.log
    assert tier.fetch_index(metadata, IndexType.TRANSACTION) == SEGMENT.transaction_index


def test_opening_reading_and_deleting_create_nothing(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "tier")
    metadata = metadata_of(PARTITION, SEGMENT)
    with pytest.raises(RemoteResourceNotFoundError):
        tier.fetch_log_segment(metadata, 0)
    tier.delete_log_segment_data(metadata)
    tier.close()
    assert list(tmp_path.iterdir()) == []


def test_a_delete_leaves_the_partitions_folder_and_other_files(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    stranger = object_path(tmp_path, metadata, "log").with_name("notes.txt")
    stranger.write_text("not a segment")
    open_tier(tmp_path).delete_log_segment_data(metadata)
    assert list(stranger.parent.iterdir()) == [stranger]


def test_a_delete_does_nothing_while_deletes_are_disabled(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    open_tier(tmp_path, **{"delete.enable": "false"}).delete_log_segment_data(metadata)
    assert len(tree(tmp_path)) == 6


def test_close_deletes_nothing_whatever_kafkas_test_keys_say(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    tier = open_tier(tmp_path, **dict.fromkeys(IGNORED_KEYS, "true"))
    tier.close()
    assert tier.fetch_log_segment(metadata, 0, 10) == SEGMENT.log[:11]


@pytest.mark.parametrize("config", [{}, {"dir": ""}, {"dir": "  "}, {"directory": "x"}])
def test_a_tier_needs_a_directory(config: dict[str, str]) -> None:
    with pytest.raises(StorageConfigError, match=r"rsm\.config\.dir"):
        LocalTieredStorage(config)


def test_delete_enable_is_true_or_false(tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError, match=r"delete\.enable of LocalTieredStorage is 'maybe'"):
        open_tier(tmp_path, **{"delete.enable": "maybe"})
    open_tier(tmp_path, **{"delete.enable": " TRUE "})


def test_a_relative_directory_is_fixed_when_the_tier_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = publish(tmp_path / "tier", PARTITION, SEGMENT)
    monkeypatch.chdir(tmp_path)
    tier = open_tier(Path("tier"))
    monkeypatch.chdir("/")
    assert tier.fetch_log_segment(metadata, 0) == SEGMENT.log


def test_a_copy_that_fails_midway_leaves_no_file_under_a_final_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("number", "error_type"),
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


def test_an_opened_segment_has_no_chunks_and_costs_little(tmp_path: Path) -> None:
    opened = open_tier(tmp_path).open_log_segment(publish(tmp_path, PARTITION, SEGMENT))
    assert (opened.chunk_bytes, opened.stored_bytes(3, 10)) == (1, 7)
    assert 0 < opened.memory_bytes < 4096


def test_short_reads_are_continued_in_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv

    def short_read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return preadv(descriptor, [buffers[0][:7]], offset)

    monkeypatch.setattr(os, "preadv", short_read)
    opened = open_tier(tmp_path).open_log_segment(publish(tmp_path, PARTITION, SEGMENT))
    with closing(opened.open_stream(3, 100)) as stream:
        assert stream.read(97) == SEGMENT.log[3:100]


def test_a_stream_reads_on_when_its_file_is_deleted(tmp_path: Path) -> None:
    tier, metadata = open_tier(tmp_path), publish(tmp_path, PARTITION, SEGMENT)
    with closing(tier.open_log_segment(metadata).open_stream(0, 100)) as stream:
        tier.delete_log_segment_data(metadata)
        assert stream.read(100) == SEGMENT.log[:100]


def test_errors_of_the_operating_system_within_a_stream_name_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_read(file_descriptor: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    metadata = publish(tmp_path, PARTITION, SEGMENT)
    monkeypatch.setattr(os, "preadv", failing_read)
    with closing(open_tier(tmp_path).open_log_segment(metadata).open_stream(0, 10)) as stream:
        with pytest.raises(RetriableRemoteStorageError) as caught:
            stream.read(10)
        assert str(object_path(tmp_path, metadata, "log")) in str(caught.value)


def test_a_log_that_is_cut_is_told_with_its_path(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    path = object_path(tmp_path, metadata, "log")
    os.truncate(path, 20)
    wanted = f"{path}: bytes 5 to 99 of {len(SEGMENT.log)} wanted, and the object ends at 20"
    with pytest.raises(CorruptObjectError, match=re.escape(wanted)):
        open_tier(tmp_path).open_log_segment(metadata).open_stream(5, 100)
