"""What is particular to objects in files; the rest is the contract's."""

import errno
import os
from pathlib import Path

import pytest

from storage.errors import (
    DeletionRefusedError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from storage.object_store.files.store import FileSystemStore
from storage.object_store.local_file import PIECE_BYTES, LocalFile
from tests.contract.object_store import fetched
from tests.support.for_each import for_each


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def store(root: Path) -> FileSystemStore:
    return FileSystemStore(root)


@for_each(
    "key",
    ["", "/etc/passwd", "..", "../x", "a/../../x", "a/./b", "a//b", "a/", "a\0b", ".tidegate-0123456789abcdef.tmp"],
)
def test_no_key_leads_out_of_the_root_or_to_another_name(store: FileSystemStore, root: Path, key: str) -> None:
    (root.parent / "x").write_bytes(b"outside")
    for call in (
        lambda: store.get(key, 0, 1),
        lambda: store.head(key),
        lambda: store.put(key, b"x"),
        lambda: store.delete_many([key]),
    ):
        with pytest.raises(RemoteStorageError):
            call()
    assert (root.parent / "x").read_bytes() == b"outside"


def test_folders_that_a_delete_empties_go_up_to_the_root(store: FileSystemStore, root: Path) -> None:
    for key in ("a/b/c/1", "a/b/c/2", "a/d/3"):
        store.put(key, b"")
    store.delete_many(["a/b/c/1"])
    assert (root / "a/b/c").is_dir()
    store.delete_many(["a/b/c/2"])
    assert not (root / "a/b").exists()
    assert (root / "a").is_dir()
    store.delete_many(["a/d/3"])
    assert list(root.iterdir()) == []


def test_a_failed_put_leaves_no_temporary_file(store: FileSystemStore, root: Path) -> None:
    store.put("a/kept", b"")
    with pytest.raises(RemoteStorageError):
        store.put("a", b"a folder has this name")
    with pytest.raises(RemoteStorageError):
        store.put("a/kept/below", b"a file has that name")
    assert [path.name for path in root.rglob("*")] == ["a", "kept"]


def test_an_unfinished_put_of_another_process_is_not_listed(store: FileSystemStore, root: Path) -> None:
    store.put("a/object", b"")
    (root / "a" / ".tidegate-00112233445566aa.tmp").write_bytes(b"half")
    (root / "a" / ".hidden.tmp").write_bytes(b"")
    assert [found.key for found in store.list("")] == ["a/.hidden.tmp", "a/object"]


def test_a_folder_or_a_pipe_is_no_object(store: FileSystemStore, root: Path) -> None:
    store.put("a/object", b"")
    os.mkfifo(root / "a" / "pipe")
    for key in ("a", "a/pipe", "a/object/below"):
        with pytest.raises(RemoteResourceNotFoundError):
            store.get(key, 0, 1)
    store.delete_many(["a", "a/object/below"])
    assert [found.key for found in store.list("")] == ["a/object"]


def test_a_name_too_long_for_the_file_system_is_no_passing_fault(store: FileSystemStore) -> None:
    store.put("a", b"")
    with pytest.raises(RemoteStorageError) as caught:
        store.put("x" * 300, b"")
    assert not isinstance(caught.value, RetriableRemoteStorageError)


def test_a_file_that_ends_early_is_a_cut_body(store: FileSystemStore, root: Path) -> None:
    store.put("a", b"0123456789")
    stream = store.get("a", 0, 10)
    os.truncate(root / "a", 4)
    with pytest.raises(RetriableRemoteStorageError, match="ended at 4"):
        stream.readinto(memoryview(bytearray(10)))
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.readinto(memoryview(bytearray(1)))


def test_a_deleted_object_is_still_read_by_who_has_begun(store: FileSystemStore) -> None:
    store.put("a", b"0123456789")
    stream = store.get("a", 2, 8)
    store.delete_many(["a"])
    found = bytearray(6)
    stream.readinto(memoryview(found))
    stream.close()
    assert found == b"234567"


@for_each(
    "number, error",
    [
        (errno.EACCES, RemoteAccessDeniedError),
        (errno.EROFS, RemoteAccessDeniedError),
        (errno.EIO, RetriableRemoteStorageError),
        (errno.ENOSPC, RetriableRemoteStorageError),
    ],
)
def test_the_operating_systems_word_decides_the_error(
    store: FileSystemStore, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    store.put("a", b"x")

    def failing(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("storage.object_store.files.store.os.open", failing)
        for call in (lambda: store.get("a", 0, 1), lambda: store.put("b", b"x")):
            with pytest.raises(error, match=os.strerror(number)):
                call()


def test_a_delete_that_fails_says_so_and_deletes_the_others(store: FileSystemStore) -> None:
    store.put("a", b"")
    store.put("b", b"")
    with pytest.raises(RemoteStorageError, match=r"2 of 4 objects were not deleted, the first: .*not a key"):
        store.delete_many(["a", "../x", "/y", "b"])
    assert list(store.list("")) == []


@for_each("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_in_which_nothing_may_be_removed_refuses_deletions(
    store: FileSystemStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store.put("a/b", b"x")

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        with pytest.raises(DeletionRefusedError, match=os.strerror(number)) as caught:
            store.delete_many(["a/b"])
    assert list(caught.value.undeleted) == ["a/b"]


def test_a_link_to_the_root_is_the_same_store(store: FileSystemStore, root: Path, tmp_path: Path) -> None:
    store.put("a", b"x")
    (tmp_path / "link").symlink_to(root)
    linked = FileSystemStore(tmp_path / "link")
    assert linked.identity == store.identity
    assert fetched(linked, "a", 0, 1) == b"x"
    assert FileSystemStore(tmp_path).identity != store.identity


CONTENT = bytes(range(251)) * (3 * PIECE_BYTES // 251)


def test_a_file_comes_in_pieces_and_again_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    source = LocalFile(tmp_path / "a")
    assert source.size_bytes() == len(CONTENT)
    for _ in range(2):
        pieces = list(source)
        assert b"".join(pieces) == CONTENT
        assert max(map(len, pieces)) == PIECE_BYTES
    with source.open() as file:
        assert file.read() == CONTENT


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = LocalFile(tmp_path / "a")
    wanted = f"^cannot read the local file {tmp_path}/a: No such file"
    with pytest.raises(RemoteStorageError, match=wanted):
        list(source)
    with pytest.raises(RemoteStorageError, match=wanted):
        source.size_bytes()
    with pytest.raises(RemoteStorageError, match=wanted), source.open():
        pass


def test_a_put_replaces_nothing_where_that_is_not_wanted(root: Path) -> None:
    """Failed before: `storage.overwrite.enabled=false` was ignored."""
    store = FileSystemStore(root, overwrites=False)
    store.put("a/b", b"first")
    with pytest.raises(RemoteStorageError, match="File exists"):
        store.put("a/b", b"second")
    assert (fetched(store, "a/b", 0, 5), [path.name for path in (root / "a").iterdir()]) == (b"first", ["b"])
