"""The cipher's round trip, what it refuses, and key files."""

import base64
from pathlib import Path

import pytest

from storage.cache.block_cipher import BlockCipher, SealedBlock
from storage.errors import CorruptObjectError, StorageConfigError
from tests.support.cases import case

KEY = bytes(range(32))
NONCE = b"\x01" * 12
PLAINTEXT = bytes(1000)
CHECKSUM = b"\x01\x02\x03\x04"


def sealed(cipher: BlockCipher) -> SealedBlock:
    return cipher.seal(NONCE, b"about", CHECKSUM, memoryview(PLAINTEXT))


def test_another_key_nonce_context_or_byte_is_corrupt() -> None:
    cipher = BlockCipher(KEY)
    block = sealed(cipher)
    flipped = block._replace(ciphertext=memoryview(bytes(block.ciphertext[:-1]) + b"\xff"))
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
    with pytest.raises(ValueError, match="32 bytes, not 16"):
        BlockCipher(bytes(16))


def from_file(path: Path, content: bytes, mode: int = 0o400) -> BlockCipher:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return BlockCipher.from_file(path)


def test_a_key_file_is_raw_hex_or_base64(tmp_path: Path) -> None:
    text = base64.b64encode(KEY)
    for content in (KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", text, text + b"\r\n"):
        assert from_file(tmp_path / "key", content).key_id == BlockCipher(KEY).key_id, content


def test_a_file_without_a_key_or_open_to_others_is_refused(tmp_path: Path) -> None:
    short = (KEY.hex().encode()[:-2], base64.b64encode(KEY[:-1]))
    for content in (b"", KEY[:-1], KEY + b"\n", *short, b"g" * 64, b"\xff" * 44):
        with case(content), pytest.raises(StorageConfigError, match=r"^cache\.encrypt\.key\.file .* holds no key: "):
            from_file(tmp_path / "key", content)
    for mode in (0o440, 0o404, 0o620, 0o700 | 0o010):
        with case(mode), pytest.raises(StorageConfigError, match=r"^cache\..*file .* open to others .*chmod 0400"):
            from_file(tmp_path / "key", KEY, mode)
    with pytest.raises(StorageConfigError, match=r"^cache\.encrypt\.key\.file .*: No such file or directory$"):
        BlockCipher.from_file(tmp_path / "none")
