"""The file of a block: its header by hand, round trips, and that no change to a file goes unnoticed."""

import os
import stat
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.block_cipher import BlockCipher
from storage.cache.disk_folder import (
    HEADER_BYTES,
    BlockFiles,
    cost_bytes,
    file_bytes,
    identity_digest,
    write_buffers,
)
from storage.errors import CorruptObjectError
from tests.support.disk_cache import START_S, data_of, key_of

IDENTITY = identity_digest("a store")
CIPHERS = [None, BlockCipher(bytes(range(32)))]
KEY = key_of(7)


def written(path: Path, cipher: BlockCipher | None) -> bytes:
    BlockFiles(IDENTITY, cipher).write(path, KEY, memoryview(data_of(KEY)), START_S)
    return path.read_bytes()


def test_a_plaintext_file_is_a_header_and_the_plaintext(tmp_path: Path) -> None:
    content = written(tmp_path / "block", None)
    assert content == b"".join(
        (
            b"TGBLOCK\x01",
            bytes(8),  # key id
            IDENTITY,
            KEY.topic_id,
            KEY.segment_id,
            struct.pack(">QQQ", KEY.block_bytes, KEY.number, KEY.size_bytes),
            bytes(12),  # nonce
            struct.pack(">I", crc32c(data_of(KEY))),
            bytes(16),  # tag
            data_of(KEY),
        )
    )
    assert len(content) == file_bytes(KEY) == HEADER_BYTES + KEY.size_bytes


def test_an_encrypted_file_is_as_long_and_shows_nothing_of_the_plaintext(tmp_path: Path) -> None:
    content = written(tmp_path / "block", CIPHERS[1])
    assert len(content) == file_bytes(KEY)
    assert data_of(KEY)[:8] not in content
    assert struct.pack(">I", crc32c(data_of(KEY))) not in content
    assert content != written(tmp_path / "other", CIPHERS[1]), "every file has a nonce of its own"


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_file_is_its_owners_alone_and_dated_by_our_clock(cipher: BlockCipher | None, tmp_path: Path) -> None:
    written(tmp_path / "block", cipher)
    status = (tmp_path / "block").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_mtime == START_S
    BlockFiles(IDENTITY, cipher).stamp(tmp_path / "block", START_S + 5)
    assert (tmp_path / "block").stat().st_mtime == START_S + 5


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_block_is_read_back_into_a_buffer_of_its_own(cipher: BlockCipher | None, tmp_path: Path) -> None:
    files = BlockFiles(IDENTITY, cipher)
    written(tmp_path / "block", cipher)
    first, second = files.read(tmp_path / "block", KEY), files.read(tmp_path / "block", KEY)
    assert first == second == data_of(KEY)
    assert first is not second


@pytest.mark.parametrize("cipher", CIPHERS)
def test_any_flipped_bit_is_noticed(cipher: BlockCipher | None, tmp_path: Path) -> None:
    path = tmp_path / "block"
    content = written(path, cipher)
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        with pytest.raises(CorruptObjectError):
            BlockFiles(IDENTITY, cipher).read(path, KEY)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_any_other_length_is_noticed(cipher: BlockCipher | None, tmp_path: Path) -> None:
    path = tmp_path / "block"
    content = written(path, cipher)
    for broken in (b"", content[: HEADER_BYTES - 1], content[:HEADER_BYTES], content[:-1], content + b"\0"):
        path.write_bytes(broken)
        with pytest.raises(CorruptObjectError, match=rf"has {len(broken)} bytes, not {len(content)}"):
            BlockFiles(IDENTITY, cipher).read(path, KEY)


@pytest.mark.parametrize("cipher", CIPHERS)
def test_another_blocks_file_is_corrupt(cipher: BlockCipher | None, tmp_path: Path) -> None:
    path = tmp_path / "block"
    written(path, cipher)
    for other in (
        KEY._replace(number=8),
        KEY._replace(block_bytes=101),
        KEY._replace(segment_id=key_of(7, segment="other").segment_id),
        KEY._replace(topic_id=KEY.segment_id),
    ):
        with pytest.raises(CorruptObjectError, match="another block's"):
            BlockFiles(IDENTITY, cipher).read(path, other)


def test_a_file_of_another_identity_or_key_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "block"
    for cipher in CIPHERS:
        written(path, cipher)
        for files in (
            BlockFiles(identity_digest("another store"), cipher),
            BlockFiles(IDENTITY, BlockCipher.generate()),
            BlockFiles(IDENTITY, CIPHERS[cipher is None]),
        ):
            with pytest.raises(CorruptObjectError, match="another block's"):
                files.read(path, KEY)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", None)
    (tmp_path / "block").symlink_to(tmp_path / "elsewhere")
    files = BlockFiles(IDENTITY, None)
    with pytest.raises(OSError, match="symbolic"):
        files.read(tmp_path / "block", KEY)
    with pytest.raises(OSError, match="symbolic"):
        files.write(tmp_path / "block", KEY, memoryview(data_of(KEY)), START_S)


@given(content=st.binary(max_size=300))
def test_a_file_of_any_content_is_the_block_or_corrupt(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-block"
    path.write_bytes(content)
    for cipher in CIPHERS:
        with pytest.raises(CorruptObjectError):
            BlockFiles(IDENTITY, cipher).read(path, KEY)


@pytest.mark.parametrize("step_bytes", [1, 3, 5, 100])
def test_short_writes_are_gone_on_with(step_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_some(descriptor: int, buffers: list[memoryview]) -> int:
        return os.write(descriptor, b"".join(buffers)[:step_bytes])

    monkeypatch.setattr(os, "writev", write_some)
    with (tmp_path / "block").open("wb") as file:
        write_buffers(file.fileno(), [memoryview(b"abcd"), memoryview(b""), memoryview(b"efghi")])
    assert (tmp_path / "block").read_bytes() == b"abcdefghi"


@pytest.mark.parametrize("step_bytes", [1, 7, 99])
def test_short_reads_are_gone_on_with(step_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "block", None)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: read(descriptor, min(size, step_bytes), at))
    assert BlockFiles(IDENTITY, None).read(tmp_path / "block", KEY) == data_of(KEY)


def test_a_file_that_shrinks_while_it_is_read_is_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "block", None)
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: b"")
    with pytest.raises(CorruptObjectError, match="shorter"):
        BlockFiles(IDENTITY, None).read(tmp_path / "block", KEY)


def test_a_file_costs_whole_allocation_units_and_one_more() -> None:
    assert [cost_bytes(size) for size in (1, 4096, 4097)] == [2 * 4096, 2 * 4096, 3 * 4096]
