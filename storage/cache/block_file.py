"""A block's file: a header of 120 bytes, then the plaintext or as many bytes of ciphertext.

    magic 7 · version 1 · key id 8 (zeros: plaintext) · identity digest 16 · topic id 16 · segment id 16
    · block bytes 8 · number 8 · size 8 · nonce 12 (zeros: plaintext) · CRC-32C of the plaintext 4 · GCM tag 16

Big-endian. A reader of a block knows everything before the CRC, save the nonce, and compares it: a file that
was swapped for another's, or left by another version, is corrupt. In an encrypted file the CRC is encrypted too, as
it tells something about the plaintext, and everything before it is authenticated.

No fsync, ever: a cache may lose what a power cut takes. A file that exists under its name but lacks bytes (a rename
can reach the disk before the data) fails its size or its checksum at the first read, as a flipped bit does.
"""

import hashlib
import os
import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from storage.cache.block_cipher import KEY_ID_BYTES, NONCE_BYTES, TAG_BYTES, BlockCipher, SealedBlock
from storage.errors import CorruptObjectError
from storage.model import Uuid

IDENTITY_BYTES = 16
VERSION = 1

_MAGIC = b"TGBLOCK"
_ABOUT = struct.Struct(f">7sB{KEY_ID_BYTES}s{IDENTITY_BYTES}s16s16sQQQ")
_CHECKSUM = struct.Struct(">I")
_HEADER = struct.Struct(f"{_ABOUT.size}s{NONCE_BYTES}s{_CHECKSUM.size}s{TAG_BYTES}s")
HEADER_BYTES = _HEADER.size

_ALLOCATION_BYTES = 4096
"""What file systems hand out: ext4, XFS, APFS and tmpfs by default."""

FILE_COST_BYTES_MIN = 2 * _ALLOCATION_BYTES
"""What `cost_bytes` says of the smallest file."""

_NO_KEY_ID = bytes(KEY_ID_BYTES)
_NO_NONCE = bytes(NONCE_BYTES)
_NO_TAG = bytes(TAG_BYTES)


class DiskBlockKey(NamedTuple):
    """A block: bytes [number * block_bytes, number * block_bytes + size_bytes) of a segment's log."""

    topic_id: Uuid
    segment_id: Uuid
    block_bytes: int
    number: int
    size_bytes: int


def identity_digest(identity: str) -> bytes:
    """Return what stands for RemoteStorageManager.identity in headers and names."""
    return hashlib.sha256(identity.encode()).digest()[:IDENTITY_BYTES]


def file_bytes(key: DiskBlockKey) -> int:
    """Return how long the block's file is."""
    return HEADER_BYTES + key.size_bytes


def cost_bytes(size_bytes: int) -> int:
    """Return what a file of this size costs the disk at most: whole allocation units, and one for its name and
    folder."""
    return (-(-size_bytes // _ALLOCATION_BYTES) + 1) * _ALLOCATION_BYTES


class BlockFiles:
    """Writes and reads files of one identity and key. Thread-safe; keeps nothing open."""

    def __init__(self, identity: bytes, cipher: BlockCipher | None) -> None:
        self._identity = identity
        self._cipher = cipher
        self._key_id = _NO_KEY_ID if cipher is None else cipher.key_id

    def write(self, path: Path, key: DiskBlockKey, data: memoryview, modified_s: float) -> None:
        """Write a new file, readable by its owner alone, that looks modified at `modified_s`.

        Raises:
            OSError: what there is of the file is left to the caller.
        """
        about = self._about(key)
        checksum = _CHECKSUM.pack(crc32c(data))
        if self._cipher is None:
            nonce, sealed = _NO_NONCE, SealedBlock(checksum, _NO_TAG, data)
        else:
            nonce = os.urandom(NONCE_BYTES)
            sealed = self._cipher.seal(nonce, about + nonce, checksum, data)
        header = about + nonce + sealed.checksum + sealed.tag
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            write_buffers(descriptor, [memoryview(header), sealed.ciphertext])
            os.utime(descriptor, (modified_s, modified_s))
        finally:
            os.close(descriptor)

    def read(self, path: Path, key: DiskBlockKey) -> memoryview:
        """The plaintext, checked, in memory that nobody else holds.

        Raises:
            CorruptObjectError: the file is not this block's, whole and unchanged.
            OSError: as the file system answers.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            content = _read_whole(descriptor, file_bytes(key))
        finally:
            os.close(descriptor)
        if len(content) != file_bytes(key):
            raise CorruptObjectError(f"{path} has {len(content)} bytes, not {file_bytes(key)}")
        checksum, plaintext = self._unsealed(path, key, content)
        if _CHECKSUM.pack(crc32c(plaintext)) != checksum:
            raise CorruptObjectError(f"{path}: the block's checksum does not hold")
        return plaintext

    def stamp(self, path: Path, modified_s: float) -> None:
        """Make a file look modified then: last uses outlive the process so."""
        os.utime(path, (modified_s, modified_s), follow_symlinks=False)

    def _about(self, key: DiskBlockKey) -> bytes:
        return _ABOUT.pack(
            _MAGIC,
            VERSION,
            self._key_id,
            self._identity,
            key.topic_id,
            key.segment_id,
            key.block_bytes,
            key.number,
            key.size_bytes,
        )

    def _unsealed(self, path: Path, key: DiskBlockKey, content: bytes) -> tuple[bytes, memoryview]:
        about, nonce, checksum, tag = _HEADER.unpack_from(content)
        body = memoryview(content)[HEADER_BYTES:]
        if about != self._about(key):
            raise CorruptObjectError(f"{path} is another block's, or was written by another version or key")
        if self._cipher is not None:
            return self._cipher.unseal(nonce, about + nonce, SealedBlock(checksum, tag, body))
        if nonce != _NO_NONCE or tag != _NO_TAG:
            raise CorruptObjectError(f"{path}: a plaintext block's header has bytes where there are none")
        return checksum, body


def write_buffers(descriptor: int, buffers: list[memoryview]) -> None:
    """Write them all, one after another: every byte of the disk cache passes here.

    Raises:
        OSError: some may have been written.
    """
    for buffer in buffers:
        while buffer:
            buffer = buffer[os.write(descriptor, buffer) :]


def _read_whole(descriptor: int, size_bytes: int) -> bytes:
    """Return a file's bytes, of one that is too long one byte too many, in memory that was not zeroed first."""
    content = os.pread(descriptor, size_bytes + 1, 0)
    while len(content) < size_bytes and (more := os.pread(descriptor, size_bytes + 1 - len(content), len(content))):
        content += more
    return content
