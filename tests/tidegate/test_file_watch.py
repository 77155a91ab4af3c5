"""Files are seen to change by what a path leads to, and a change counts when it is complete."""

import os
from pathlib import Path

import pytest

from tidegate.changed_files import FileWatch, look


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def test_another_content_time_or_inode_is_seen(file: Path) -> None:
    seen = [look([file])]
    file.write_text("other content")
    seen.append(look([file]))
    os.utime(file, ns=(1, 1))
    seen.append(look([file]))
    (file.parent / "new").write_text("OTHER content")
    os.utime(file.parent / "new", ns=(1, 1))
    (file.parent / "new").replace(file)
    seen.append(look([file]))
    file.unlink()
    seen.append(look([file]))
    assert len({str(each) for each in seen}) == 5


def test_a_link_in_the_middle_of_the_path_is_followed(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "file").write_text("same length")
        os.utime(tmp_path / version / "file", ns=(1, 1))
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "file").symlink_to("data/file")
    before = look([tmp_path / "file"])
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").replace(tmp_path / "data")
    assert look([tmp_path / "file"]) != before


def test_a_change_counts_when_it_was_seen_twice_and_once_only(file: Path) -> None:
    watch = FileWatch(look([file]))
    assert not watch.has_settled(look([file]))
    file.write_text("half a ch")
    assert not watch.has_settled(look([file]))
    file.write_text("half a change, and the rest of it")
    assert not watch.has_settled(look([file]))
    assert watch.has_settled(look([file]))
    watch.acted_upon(look([file]))
    assert not watch.has_settled(look([file]))
