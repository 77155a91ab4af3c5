"""A local file as a put's source."""

from pathlib import Path

import pytest

from storage.errors import RemoteStorageError
from storage.object_store.filesystem import FileSystemStore
from storage.object_store.object_store import PIECE_BYTES, LocalFile

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


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RemoteStorageError, match="cannot read the local file"):
        list(LocalFile(tmp_path))


def test_a_put_of_what_is_not_there_leaves_no_object(tmp_path: Path) -> None:
    store = FileSystemStore(tmp_path / "store")
    with pytest.raises(RemoteStorageError, match="cannot read the local file"):
        store.put("a", LocalFile(tmp_path / "a"))
    assert not (tmp_path / "store" / "a").exists()
