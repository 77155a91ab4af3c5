"""AES-256-GCM for blocks on disk (`cache.encrypt`), and the key file (`cache.encrypt.key.file`).

- The key id is a digest's first eight bytes: it tells keys apart, and tells nothing about a random key.
- Nonces are random, 96 bits: one key is good for 2^32 blocks, which is 4 PiB written in blocks of 1 MiB.
- What the header says about a block is authenticated with it, so that no file can be passed off as another block's.
"""

import base64
import binascii
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from storage.errors import CorruptObjectError, StorageConfigError

KEY_BYTES = 32
KEY_ID_BYTES = 8
NONCE_BYTES = 12
TAG_BYTES = 16

_KEY_FILE_BYTES_MAX = 4096
_KEY_ID_DOMAIN = b"tidegate disk cache key id\n"
_SPARE_BYTES = 15
"""`update_into` may ask for room for one cipher block more than it writes."""


class SealedBlock(NamedTuple):
    """A block's ciphertext, with the checksum of its plaintext sealed before it."""

    checksum: bytes
    tag: bytes
    ciphertext: memoryview


class BlockCipher:
    """One key. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of AES-256 has {KEY_BYTES} bytes, not {len(key)}")
        self._algorithm = algorithms.AES(key)
        self.key_id = hashlib.sha256(_KEY_ID_DOMAIN + key).digest()[:KEY_ID_BYTES]

    @classmethod
    def generate(cls) -> "BlockCipher":
        """A key that nobody else knows and that is gone with the process: so are the blocks."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def from_file(cls, path: Path) -> "BlockCipher":
        """The key in a file: 32 raw bytes, 64 hex digits, or base64 of 32 bytes.

        Raises:
            StorageConfigError: it cannot be read, can be read by others than its owner, or holds no key.
        """
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(_KEY_FILE_BYTES_MAX)
        except OSError as error:
            raise StorageConfigError(f"cache.encrypt.key.file {path}: {error.strerror}") from error
        if mode & 0o077:
            raise StorageConfigError(
                f"cache.encrypt.key.file {path} is open to others than its owner (mode {mode:04o}): chmod 0400 it"
            )
        key = _key_in(content)
        if key is None:
            raise StorageConfigError(
                f"cache.encrypt.key.file {path} holds no key: 32 bytes, 64 hex digits or base64 of 32 bytes"
            )
        return cls(key)

    def seal(self, nonce: bytes, about: bytes, checksum: bytes, plaintext: memoryview) -> SealedBlock:
        """Encrypt a block; `about` is authenticated with it."""
        encryptor = Cipher(self._algorithm, modes.GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(about)
        sealed_checksum = encryptor.update(checksum)
        ciphertext = bytearray(len(plaintext) + _SPARE_BYTES)
        size_bytes = encryptor.update_into(plaintext, ciphertext)
        encryptor.finalize()
        return SealedBlock(sealed_checksum, encryptor.tag, memoryview(ciphertext)[:size_bytes])

    def unseal(self, nonce: bytes, about: bytes, sealed: SealedBlock) -> tuple[bytes, memoryview]:
        """The checksum and the plaintext.

        Raises:
            CorruptObjectError: it was not sealed so, with this key.
        """
        decryptor = Cipher(self._algorithm, modes.GCM(nonce, sealed.tag)).decryptor()
        decryptor.authenticate_additional_data(about)
        checksum = decryptor.update(sealed.checksum)
        plaintext = bytearray(len(sealed.ciphertext) + _SPARE_BYTES)
        size_bytes = decryptor.update_into(sealed.ciphertext, plaintext)
        try:
            decryptor.finalize()
        except InvalidTag as error:
            raise CorruptObjectError("the block's authentication tag does not hold") from error
        return checksum, memoryview(plaintext)[:size_bytes]


def _key_in(content: bytes) -> bytes | None:
    # Raw first: 32 bytes are no hex or base64 of a key, whatever they look like.
    if len(content) == KEY_BYTES:
        return content
    text = content.strip()
    try:
        key = binascii.unhexlify(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return key if len(key) == KEY_BYTES else None
