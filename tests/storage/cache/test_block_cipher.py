"""The cipher's round trip, what it refuses, and key files."""

import base64
from pathlib import Path

import pytest

from storage.cache.block_cipher import BlockCipher, SealedBlock
from storage.errors import CorruptObjectError, StorageConfigError

KEY = bytes(range(32))
NONCE = b"\x01" * 12
PLAINTEXT = bytes(1000)
CHECKSUM = b"\x01\x02\x03\x04"


def sealed(cipher: BlockCipher) -> SealedBlock:
    return cipher.seal(NONCE, b"about", CHECKSUM, memoryview(PLAINTEXT))


def test_another_key_nonce_context_or_byte_is_corrupt() -> None:
    cipher = BlockCipher(KEY)
    block = sealed(cipher)
    flipped = block._replace(ciphertext=block.ciphertext[:-1] + b"\xff")
    for other, nonce, about, changed in (
        (BlockCipher(bytes(32)), NONCE, b"about", block),
        (cipher, bytes(12), b"about", block),
        (cipher, NONCE, b"About", block),
        (cipher, NONCE, b"about", flipped),
        (cipher, NONCE, b"about", block._replace(checksum=bytes(4))),
        (cipher, NONCE, b"about", block._replace(tag=bytes(16))),
    ):
        with pytest.raises(CorruptObjectError, match="tag"):
            other.unseal(nonce, about, changed)


def test_key_ids_tell_keys_apart_and_do_not_show_them() -> None:
    assert BlockCipher(KEY).key_id == BlockCipher(KEY).key_id != BlockCipher(bytes(32)).key_id
    assert BlockCipher(KEY).key_id not in KEY
    assert BlockCipher.generate().key_id != BlockCipher.generate().key_id


def test_a_key_of_another_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 16"):
        BlockCipher(bytes(16))


def key_file(folder: Path, content: bytes, mode: int = 0o400) -> Path:
    path = folder / "cache.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "content",
    [
        KEY,
        KEY.hex().encode(),
        KEY.hex().upper().encode() + b"\n",
        base64.b64encode(KEY),
        base64.b64encode(KEY) + b"\r\n",
    ],
    ids=["raw", "hex", "hex with a line's end", "base64", "base64 with a line's end"],
)
def test_a_key_file_is_raw_hex_or_base64(content: bytes, tmp_path: Path) -> None:
    assert BlockCipher.from_file(key_file(tmp_path, content)).key_id == BlockCipher(KEY).key_id


@pytest.mark.parametrize(
    "content",
    [b"", KEY[:-1], KEY + b"\n", KEY.hex().encode()[:-2], base64.b64encode(KEY[:-1]), b"g" * 64, b"\xff" * 44],
)
def test_a_file_without_a_key_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError, match=r"^cache\.encrypt\.key\.file .* holds no key: "):
        BlockCipher.from_file(key_file(tmp_path, content))


@pytest.mark.parametrize("mode", [0o440, 0o404, 0o620, 0o700 | 0o010])
def test_a_key_file_that_is_open_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError, match=r"^cache\.encrypt\.key\.file .* open to others .*chmod 0400"):
        BlockCipher.from_file(key_file(tmp_path, KEY, mode))


def test_an_absent_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageConfigError, match=r"^cache\.encrypt\.key\.file .*: No such file or directory$"):
        BlockCipher.from_file(tmp_path / "cache.key")
