"""A file of this process's user alone, replaced as a whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from storage.owned_file import NotOwnedError, OwnedFile


def write(file: OwnedFile, content: bytes) -> None:
    with file.draft() as draft:
        draft.write(content)
    file.keep_draft()


def read(file: OwnedFile) -> bytes | None:
    opened = file.open()
    if opened is None:
        return None
    with opened:
        return opened.read()


def test_what_was_kept_is_read_by_its_user_alone(tmp_path: Path) -> None:
    file = OwnedFile(tmp_path / "made" / "file")
    assert read(file) is None
    for content in (b"one", b"two"):
        write(file, content)
        assert read(file) == content
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_a_draft_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    file = OwnedFile(tmp_path / "file")
    write(file, b"whole")
    with pytest.raises(TypeError), file.draft() as draft:
        draft.writelines([b"half", None])  # type: ignore[list-item]  # it fails in the midst of it
    assert read(file) == b"whole"
    assert os.listdir(tmp_path) == ["file"]


def test_a_draft_of_a_run_that_was_killed_is_replaced(tmp_path: Path) -> None:
    file = OwnedFile(tmp_path / "file")
    (tmp_path / "file.draft").write_bytes(b"half")
    write(file, b"whole")
    assert read(file) == b"whole"
    assert os.listdir(tmp_path) == ["file"]


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    write(OwnedFile(tmp_path / "theirs"), b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="link"):
        OwnedFile(tmp_path / "link").open()
    for name in ("pipe", "folder"):
        with pytest.raises(NotOwnedError, match="not a file of this process's user"):
            OwnedFile(tmp_path / name).open()
