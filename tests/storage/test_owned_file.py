"""A file of this process's user alone, replaced as a whole or not at all; or one that grows by whole lines."""

import errno
import os
import stat
import threading
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
    (tmp_path / "file.draft").write_bytes(b"half")  # of a run that was killed
    write(file, b"whole")
    with pytest.raises(TypeError), file.draft() as draft:
        draft.writelines([b"half", None])  # type: ignore[list-item]  # it fails in the midst of it
    assert read(file) == b"whole"
    assert os.listdir(tmp_path) == ["file"]


def test_links_pipes_and_folders_are_neither_read_nor_added_to(tmp_path: Path) -> None:
    write(OwnedFile(tmp_path / "theirs"), b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    link, pipe, folder = (OwnedFile(tmp_path / name) for name in ("link", "pipe", "folder"))
    for call in (link.open, lambda: link.append(b"line\n")):
        with pytest.raises(OSError, match="link"):
            call()
    for call in (pipe.open, folder.open, lambda: pipe.append(b"line\n")):
        with pytest.raises(NotOwnedError, match="not a file of this process's user"):
            call()
    with pytest.raises(FileNotFoundError):
        OwnedFile(tmp_path / "no" / "folder").append(b"line\n")
    assert (tmp_path / "theirs").read_bytes() == b"secret"


# --- lines at the end ---


def test_lines_are_added_for_its_user_alone_wherever_the_path_leads_now(tmp_path: Path) -> None:
    file = OwnedFile(tmp_path / "log")
    file.append(b"")
    assert (stat.S_IMODE(file.path.stat().st_mode), read(file)) == (0o600, b"")
    file.append(b"one\n")
    file.append(b"two\nthr")
    rotated = file.path.rename(tmp_path / "log.1")
    file.append(b"four\n")
    assert (rotated.read_bytes(), read(file)) == (b"one\ntwo\nthr", b"four\n")
    OwnedFile(rotated).append(b"five\n")
    assert rotated.read_bytes() == b"one\ntwo\nthr\nfive\n", "a line that somebody was killed in spoils no other"


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write_all = OwnedFile(tmp_path / "log"), os.write
    file.append(b"one\n")
    room_bytes, ours = 7, threading.get_ident()

    def write_into_room(descriptor: int, data: memoryview) -> int:
        nonlocal room_bytes
        if threading.get_ident() != ours:  # of another test, which has given it up
            return write_all(descriptor, data)
        if not room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write_all(descriptor, data[:room_bytes])
        room_bytes -= written
        return written

    monkeypatch.setattr(os, "write", write_into_room)
    with pytest.raises(OSError, match="No space"):
        file.append(b"two\nthree\n")
    monkeypatch.undo()
    file.append(b"four\n")
    assert read(file) == b"one\nfour\n"


def test_several_writers_add_whole_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the file open for itself, as processes have; a write takes only a piece of what it is given."""
    write_all = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write_all(descriptor, data[:1000]))
    batches = [b"".join(b"%d %d\n" % (writer, line) for line in range(500)) for writer in range(4)]

    def add(own: bytes) -> None:
        for _ in range(10):
            OwnedFile(tmp_path / "log").append(own)

    threads = [threading.Thread(target=add, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = (tmp_path / "log").read_bytes()
    assert len(content) == 10 * sum(map(len, batches))
    while content:
        (whole,) = [batch for batch in batches if content.startswith(batch)]
        content = content.removeprefix(whole)
