"""The folder: whose it may be, one process at a time, what a listing finds and what it leaves alone. The file of a
block: its header by hand, round trips, and that no change to a file goes unnoticed."""

import itertools
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crc32c import crc32c

from storage.cache.block_cipher import BlockCipher
from storage.cache.block_file import (
    HEADER_BYTES,
    BlockFiles,
    DiskBlockKey,
    cost_bytes,
    file_bytes,
    identity_digest,
    write_buffers,
)
from storage.cache.disk_folder import DiskFolder, ListedFile, examine_folder
from storage.errors import CorruptObjectError, StorageConfigError
from storage.model import Uuid
from tests.support.cases import case
from tests.support.disk_cache import START_S, data_of, key_of

IDENTITY = identity_digest("a store")
OTHER_IDENTITY = identity_digest("another store")
KEY = key_of(3)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DiskFolder]:
    with closing(DiskFolder(tmp_path / "cache", IDENTITY, b"")) as folder:
        assert folder.open()
        yield folder


def publish(folder: DiskFolder, key: DiskBlockKey, content: bytes = b"content") -> Path:
    temporary = folder.temporary_path()
    temporary.write_bytes(content)
    folder.publish(temporary, key)
    return folder.path_of(key)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_name_tells_all_that_a_key_does(folder: DiskFolder) -> None:
    path = publish(folder, KEY)
    generation, segment, block = path.parts[-3:]
    assert generation == f"v1-{IDENTITY.hex()}-plain"
    assert [len(part) for part in segment.split(".")] == [22, 22]
    assert block == "3-100-100"
    os.utime(path, (5, 5))
    assert list(folder.listing()) == [ListedFile(path, KEY, 7, 5.0)]


def test_ids_of_any_bytes_make_names(folder: DiskFolder) -> None:
    keys = [DiskBlockKey(Uuid(fill * 16), Uuid(fill * 16), 2**40, 2**40, 1) for fill in (b"\x00", b"\xff", b"\xfb")]
    for key in keys:
        publish(folder, key)
    assert {file.key for file in folder.listing()} == {*keys}


def test_everything_is_the_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        with closing(DiskFolder(tmp_path / "cache", IDENTITY, b"")) as folder:
            folder.open()
            path = publish(folder, KEY)
            assert {mode_of(parent) for parent in path.parents if parent.is_relative_to(tmp_path / "cache")} == {0o700}
            assert mode_of(tmp_path / "cache" / "blocks" / "lock") == 0o600
    finally:
        os.umask(umask)


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    for name, mode in itertools.product(("", "blocks"), (0o777, 0o770, 0o702, 0o1777)):
        path = tmp_path / f"{name}{mode}" / "cache"
        (path / "blocks").mkdir(parents=True)
        (path / name).chmod(mode)
        told = rf"^cache\.path: .*/cache.* can be written by others \(mode {mode:04o}"
        with case(name), pytest.raises(StorageConfigError, match=told):
            DiskFolder(path, IDENTITY, b"").open()


def test_somebody_elses_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(StorageConfigError, match=rf"belongs to user {owner}, and this process is user {owner + 1}: "):
        DiskFolder(tmp_path, IDENTITY, b"").open()


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "one" / "blocks").parent.mkdir(mode=0o700)
    (tmp_path / "one" / "blocks").write_bytes(b"mine")
    (tmp_path / "two").mkdir(mode=0o700)
    (tmp_path / "two" / "blocks").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    for name in ("file", "one", "two"):
        with case(name), pytest.raises(StorageConfigError, match="is not a folder"):
            DiskFolder(tmp_path / name, IDENTITY, b"").open()
    assert (tmp_path / "file").read_bytes() == (tmp_path / "one" / "blocks").read_bytes() == b"mine"


def test_looking_at_a_folder_says_what_opening_would_and_changes_nothing(folder: DiskFolder, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    with pytest.raises(StorageConfigError, match="is in use by another process"):
        examine_folder(path)
    folder.close()
    before = sorted(path.rglob("*"))
    examine_folder(path)
    examine_folder(tmp_path / "none")
    assert sorted(path.rglob("*")) == before
    assert not (tmp_path / "none").exists()
    path.chmod(0o777)
    with pytest.raises(StorageConfigError, match="can be written by others"):
        examine_folder(path)


def test_a_folder_in_the_place_of_ours_is_not_held(folder: DiskFolder, tmp_path: Path) -> None:
    assert folder.is_held()
    (tmp_path / "cache").rename(tmp_path / "away")
    assert not folder.is_held()
    (tmp_path / "cache" / "blocks").mkdir(parents=True)
    (tmp_path / "cache" / "blocks" / "lock").touch()
    assert not folder.is_held()
    assert folder.open()
    assert folder.is_held()


def test_files_of_other_identities_and_half_written_ones_have_no_key(folder: DiskFolder, tmp_path: Path) -> None:
    mine = publish(folder, KEY)
    half_written = folder.temporary_path()
    half_written.write_bytes(b"half")
    folder.close()
    others = set()
    for identity, key_id in ((OTHER_IDENTITY, b""), (IDENTITY, b"a key id"), (OTHER_IDENTITY, b"a key id")):
        with closing(DiskFolder(tmp_path / "cache", identity, key_id)) as other:
            other.open()
            others.add(publish(other, KEY))
    assert {file.path for file in folder.listing() if file.key is None} == {half_written, *others}
    assert [file.path for file in folder.listing() if file.key is not None] == [mine]


def test_what_is_deleted_takes_empty_folders_along_and_so_does_a_listing(folder: DiskFolder, tmp_path: Path) -> None:
    with closing(DiskFolder(tmp_path / "cache", OTHER_IDENTITY, b"")) as other:
        folder.close()
        other.open()
        theirs = publish(other, KEY)
    folder.open()
    first, second = publish(folder, key_of(1)), publish(folder, key_of(2))
    for path in (theirs, first):
        folder.delete(path)
    assert not theirs.parent.parent.exists()
    assert second.parent.exists()
    folder.delete(second)
    folder.delete(second)
    assert not second.parent.exists()
    path = publish(folder, KEY)
    path.unlink()
    theirs.parent.parent.mkdir()
    assert list(folder.listing()) == []
    assert (path.parent.exists(), theirs.parent.parent.exists()) == (False, False)


def test_nothing_that_is_not_ours_is_listed(folder: DiskFolder, tmp_path: Path) -> None:
    path = publish(folder, KEY)
    segment, generation = path.parent, path.parent.parent
    root = generation.parent
    foreign = [
        tmp_path / "cache" / "notes.txt",
        root / "notes.txt",
        root / "writing" / "notes.txt",
        root / "writing" / "1.part.txt",
        root / "v1-plain" / segment.name / path.name,
        root / f"v1-{IDENTITY.hex().upper()}-plain" / segment.name / path.name,
        generation / "notes.txt",
        generation / "segment" / path.name,
        generation / (segment.name[:-1] + "1") / path.name,
        segment / "notes.txt",
        *(
            segment / name
            for name in ("03-100-100", "3-100", "3-100-101", "3-100-0", "3-0-0", "-3-100-100", "3-100-1 ")
        ),
        segment / "1-100-100" / "a folder's file",
    ]
    for other in foreign:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"mine")
    (segment / "2-100-100").symlink_to(foreign[0])
    (root / f"v1-{OTHER_IDENTITY.hex()}-plain").symlink_to(generation)
    assert [file.path for file in folder.listing()] == [path]
    folder.delete(path)
    assert all(other.read_bytes() == b"mine" for other in foreign)


def test_a_folder_that_goes_before_the_rename_is_made_anew(folder: DiskFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    really_replace = os.replace
    vanishing = [folder.path_of(KEY).parent]
    vanishing[0].mkdir()

    def replace(source: Path, target: Path) -> None:
        if vanishing:
            vanishing.pop().rmdir()
        really_replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert publish(folder, KEY).exists()
    assert not vanishing


CIPHERS = [None, BlockCipher(bytes(range(32)))]
SEVENTH = key_of(7)


def written(path: Path, cipher: BlockCipher | None) -> bytes:
    BlockFiles(IDENTITY, cipher).write(path, SEVENTH, memoryview(data_of(SEVENTH)), START_S)
    return path.read_bytes()


@pytest.fixture(params=CIPHERS, ids=["plain", "encrypted"])
def cipher(request: pytest.FixtureRequest) -> BlockCipher | None:
    found: BlockCipher | None = request.param
    return found


def test_a_plaintext_file_is_a_header_and_the_plaintext(tmp_path: Path) -> None:
    content = written(tmp_path / "block", None)
    assert content == b"".join(
        (
            b"TGBLOCK\x01",
            bytes(8),  # key id
            IDENTITY,
            SEVENTH.topic_id,
            SEVENTH.segment_id,
            struct.pack(">QQQ", SEVENTH.block_bytes, SEVENTH.number, SEVENTH.size_bytes),
            bytes(12),  # nonce
            struct.pack(">I", crc32c(data_of(SEVENTH))),
            bytes(16),  # tag
            data_of(SEVENTH),
        )
    )
    assert len(content) == file_bytes(SEVENTH) == HEADER_BYTES + SEVENTH.size_bytes


def test_an_encrypted_file_is_as_long_and_shows_nothing_of_the_plaintext(tmp_path: Path) -> None:
    content = written(tmp_path / "block", CIPHERS[1])
    assert len(content) == file_bytes(SEVENTH)
    assert data_of(SEVENTH)[:8] not in content
    assert struct.pack(">I", crc32c(data_of(SEVENTH))) not in content
    assert content != written(tmp_path / "other", CIPHERS[1]), "every file has a nonce of its own"


def test_a_file_is_its_owners_alone_and_read_back_into_a_buffer_of_its_own(
    cipher: BlockCipher | None, tmp_path: Path
) -> None:
    path, files = tmp_path / "block", BlockFiles(IDENTITY, cipher)
    written(path, cipher)
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime) == (0o600, START_S)
    files.stamp(path, START_S + 5)
    assert path.stat().st_mtime == START_S + 5
    first, second = files.read(path, SEVENTH), files.read(path, SEVENTH)
    assert first == second == data_of(SEVENTH)
    assert first is not second


def test_any_flipped_bit_and_any_other_length_is_noticed(cipher: BlockCipher | None, tmp_path: Path) -> None:
    path, files = tmp_path / "block", BlockFiles(IDENTITY, cipher)
    content = written(path, cipher)
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        with case(position), pytest.raises(CorruptObjectError):
            files.read(path, SEVENTH)
    for other in (b"", content[: HEADER_BYTES - 1], content[:HEADER_BYTES], content[:-1], content + b"\0"):
        path.write_bytes(other)
        with pytest.raises(CorruptObjectError, match=rf"has {len(other)} bytes, not {len(content)}"):
            files.read(path, SEVENTH)


def test_another_blocks_file_or_one_of_another_identity_or_key_is_corrupt(
    cipher: BlockCipher | None, tmp_path: Path
) -> None:
    path, mine = tmp_path / "block", BlockFiles(IDENTITY, cipher)
    written(path, cipher)
    for files, key in (
        (mine, SEVENTH._replace(number=8)),
        (mine, SEVENTH._replace(block_bytes=101)),
        (mine, SEVENTH._replace(segment_id=key_of(7, segment="other").segment_id)),
        (mine, SEVENTH._replace(topic_id=SEVENTH.segment_id)),
        (BlockFiles(identity_digest("another store"), cipher), SEVENTH),
        (BlockFiles(IDENTITY, BlockCipher.generate()), SEVENTH),
        (BlockFiles(IDENTITY, CIPHERS[cipher is None]), SEVENTH),
    ):
        with case(key), pytest.raises(CorruptObjectError, match="another block's"):
            files.read(path, key)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", None)
    (tmp_path / "block").symlink_to(tmp_path / "elsewhere")
    files = BlockFiles(IDENTITY, None)
    with pytest.raises(OSError, match="symbolic"):
        files.read(tmp_path / "block", SEVENTH)
    with pytest.raises(OSError, match="symbolic"):
        files.write(tmp_path / "block", SEVENTH, memoryview(data_of(SEVENTH)), START_S)


def test_short_writes_and_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "block", None)
    read, write = os.pread, os.write
    for step_bytes in (1, 3, 5, 7, 99, 100):

        def write_some(descriptor: int, buffer: memoryview, size: int = step_bytes) -> int:
            return write(descriptor, buffer[:size])

        def read_some(descriptor: int, size: int, at: int, most: int = step_bytes) -> bytes:
            return read(descriptor, min(size, most), at)

        monkeypatch.setattr(os, "write", write_some)
        monkeypatch.setattr(os, "pread", read_some)
        with (tmp_path / "other").open("wb") as file:
            write_buffers(file.fileno(), [memoryview(b"abcd"), memoryview(b""), memoryview(b"efghi")])
        assert (tmp_path / "other").read_bytes() == b"abcdefghi", step_bytes
        assert BlockFiles(IDENTITY, None).read(tmp_path / "block", SEVENTH) == data_of(SEVENTH), step_bytes


def test_a_file_costs_whole_allocation_units_and_one_more() -> None:
    assert [cost_bytes(size) for size in (1, 4096, 4097)] == [2 * 4096, 2 * 4096, 3 * 4096]
