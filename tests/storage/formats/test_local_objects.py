"""The files of a LocalTieredStorage folder: those that should be there, and those that are."""

from pathlib import Path

import pytest

from storage.formats.local_tiered_storage import inspect_folder, list_folder
from storage.model import IndexType, RemoteLogSegmentId
from storage.remote_storage_manager import ObjectContent
from tests.support.segments import filled_segment, object_path, publish, topic_partition

SEGMENT = filled_segment(100)
PARTITION = topic_partition("a-b-3", 12)


def test_each_file_is_inspected_with_what_it_is_for(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    object_path(tmp_path, metadata, "timeindex").unlink()
    folder = object_path(tmp_path, metadata, "log").parent
    log, *indexes = inspect_folder(folder, metadata)
    assert (log.content, log.size_bytes, log.expected_bytes) == (ObjectContent.LOG, len(SEGMENT.log), len(SEGMENT.log))
    assert [each.index_types for each in indexes] == [(index_type,) for index_type in IndexType]
    absent = {each.index_types[0] for each in indexes if each.size_bytes is None}
    assert absent == {IndexType.TIMESTAMP, IndexType.TRANSACTION}
    assert [each.index_types[0] for each in indexes if not each.is_required] == [IndexType.TRANSACTION]


def test_a_folder_in_a_files_place_is_no_file(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    log = object_path(tmp_path, metadata, "log")
    log.unlink()
    log.mkdir()
    assert inspect_folder(log.parent, metadata)[0].size_bytes is None


def test_names_are_taken_apart_from_the_right(tmp_path: Path) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    root = object_path(tmp_path, metadata, "log").parents[1]
    assert {stored.segment_id for stored in list_folder(root, None)} == {metadata.segment_id}
    assert {stored.segment_id for stored in list_folder(root, "a-b-3")} == {metadata.segment_id}
    assert list(list_folder(root, "a-b")) == []


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000100-AAAAAAAAAAAAAAAAAAAAAA.what",
        "100-AAAAAAAAAAAAAAAAAAAAAA.log",
        ".00000000000000000100-AAAAAAAAAAAAAAAAAAAAAA.log.0a1b2c3d.tmp",
        "00000000000000000100-short.log",
    ],
)
def test_a_file_with_another_name_is_nobodys(tmp_path: Path, name: str) -> None:
    metadata = publish(tmp_path, PARTITION, SEGMENT)
    folder = object_path(tmp_path, metadata, "log").parent
    (folder / name).write_bytes(b"12345")
    (nobodys,) = [stored for stored in list_folder(folder.parent, None) if stored.segment_id is None]
    assert (nobodys.name, nobodys.size_bytes) == (str(folder / name), 5)
    assert all(stored.segment_id is not None for stored in list_folder(folder.parent, "a-b-3"))


def test_a_folder_or_file_in_the_root_with_another_name_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "a.log").write_bytes(b"1")
    (tmp_path / "topic-99999999999-AAAAAAAAAAAAAAAAAAAAAA").mkdir()
    (tmp_path / "notes").write_bytes(b"12")
    listed = list(list_folder(tmp_path, None))
    assert [(Path(stored.name).name, stored.segment_id) for stored in listed] == [("a.log", None), ("notes", None)]


def test_a_root_that_does_not_exist_yet_holds_nothing(tmp_path: Path) -> None:
    assert list(list_folder(tmp_path / "none", None)) == []


def test_segments_of_a_topic_of_the_same_name_are_other_segments(tmp_path: Path) -> None:
    one = publish(tmp_path, PARTITION, SEGMENT)
    other = publish(tmp_path, topic_partition("a-b", 3), SEGMENT)
    root = object_path(tmp_path, one, "log").parents[1]
    found: set[RemoteLogSegmentId | None] = {stored.segment_id for stored in list_folder(root, "a-b")}
    assert found == {other.segment_id}
