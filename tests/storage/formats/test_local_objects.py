"""The files of a LocalTieredStorage folder: those that should be there, and those that are."""

from pathlib import Path

import pytest

from storage.errors import RemoteStoreNotFoundError
from storage.formats.local_tiered_storage import ROOT_DIRECTORY_NAME, LocalTieredStorage
from storage.model import IndexType, RemoteLogSegmentId, RemoteLogSegmentMetadata
from storage.remote_storage_manager import ObjectContent, StoredObject
from tests.support.for_each import for_each
from tests.support.segments import filled_segment, object_path, publish, topic_partition

SEGMENT = filled_segment(100)
PARTITION = topic_partition("a-b-3", 12)


def listed(tier_dir: Path, topic: str | None = None) -> list[StoredObject]:
    return list(LocalTieredStorage({"dir": str(tier_dir)}).list_objects(topic))


@pytest.fixture
def metadata(tmp_path: Path) -> RemoteLogSegmentMetadata:
    return publish(tmp_path, PARTITION, SEGMENT)


def test_each_file_is_inspected_with_what_it_is_for(metadata: RemoteLogSegmentMetadata, tmp_path: Path) -> None:
    object_path(tmp_path, metadata, "timeindex").unlink()
    log, *indexes = LocalTieredStorage({"dir": str(tmp_path)}).inspect_segment(metadata).objects
    assert log.name == str(object_path(tmp_path, metadata, "log"))
    assert (log.content, log.size_bytes, log.expected_bytes) == (ObjectContent.LOG, len(SEGMENT.log), len(SEGMENT.log))
    assert [each.index_types for each in indexes] == [(index_type,) for index_type in IndexType]
    absent = {each.index_types[0] for each in indexes if each.size_bytes is None}
    assert absent == {IndexType.TIMESTAMP, IndexType.TRANSACTION}
    assert [each.index_types[0] for each in indexes if not each.is_required] == [IndexType.TRANSACTION]


def test_names_are_taken_apart_from_the_right(metadata: RemoteLogSegmentMetadata, tmp_path: Path) -> None:
    assert {stored.segment_id for stored in listed(tmp_path)} == {metadata.segment_id}
    assert {stored.segment_id for stored in listed(tmp_path, "a-b-3")} == {metadata.segment_id}
    assert listed(tmp_path, "a-b") == []


@for_each(
    "name",
    [
        "00000000000000000100-AAAAAAAAAAAAAAAAAAAAAA.what",
        "100-AAAAAAAAAAAAAAAAAAAAAA.log",
        ".00000000000000000100-AAAAAAAAAAAAAAAAAAAAAA.log.0a1b2c3d.tmp",
        "00000000000000000100-short.log",
    ],
)
def test_a_file_with_another_name_is_nobodys(metadata: RemoteLogSegmentMetadata, tmp_path: Path, name: str) -> None:
    folder = object_path(tmp_path, metadata, "log").parent
    (folder / name).write_bytes(b"12345")
    (nobodys,) = [stored for stored in listed(tmp_path) if stored.segment_id is None]
    assert (nobodys.name, nobodys.size_bytes) == (str(folder / name), 5)
    assert all(stored.segment_id is not None for stored in listed(tmp_path, "a-b-3"))
    (folder / name).unlink()


def test_a_folder_or_file_in_the_root_with_another_name_is_nobodys(tmp_path: Path) -> None:
    root = tmp_path / ROOT_DIRECTORY_NAME
    (root / "lost+found").mkdir(parents=True)
    (root / "lost+found" / "a.log").write_bytes(b"1")
    (root / "topic-99999999999-AAAAAAAAAAAAAAAAAAAAAA").mkdir()
    (root / "notes").write_bytes(b"12")
    found = [(Path(stored.name).name, stored.segment_id) for stored in listed(tmp_path)]
    assert found == [("a.log", None), ("notes", None)]


def test_a_root_that_does_not_exist_is_no_empty_tier(tmp_path: Path) -> None:
    """It was one, so that a folder that was misspelt or not mounted looked like a tier without orphans."""
    root = tmp_path / "none" / ROOT_DIRECTORY_NAME
    for ask in (lambda: listed(tmp_path / "none"), LocalTieredStorage({"dir": str(tmp_path / "none")}).ask):
        with pytest.raises(RemoteStoreNotFoundError, match=f"{root}.*: there is no (such )?folder"):
            ask()
    assert not root.exists()
    root.mkdir(parents=True)
    assert listed(tmp_path / "none") == []


def test_segments_of_a_topic_of_the_same_name_are_other_segments(tmp_path: Path) -> None:
    publish(tmp_path, PARTITION, SEGMENT)
    other = publish(tmp_path, topic_partition("a-b", 3), SEGMENT)
    found: set[RemoteLogSegmentId | None] = {stored.segment_id for stored in listed(tmp_path, "a-b")}
    assert found == {other.segment_id}
