"""AES-256-GCM of one segment's chunks and indexes (docs/formats.md#aiven-encryption).

    stored = IV (12 bytes, random, another for each) ‖ ciphertext ‖ tag (16 bytes)

Key and additional data are the segment's, the same for all its chunks and indexes. The plugin binds neither a chunk's
number nor its object into them, so chunks that changed places pass here; the record batches' own checksums and
offsets are what finds those.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from storage.errors import CorruptObjectError

DATA_KEY_BYTES = 32
IV_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = IV_BYTES + TAG_BYTES
"""By these a stored chunk is longer than its plaintext."""


class ChunkCipher:
    """Decrypts one segment's chunks and indexes. Thread-safe: nothing changes after construction.

    Raises:
        ValueError: the data key is not 32 bytes long.
    """

    __slots__ = ("_aad", "_aead")

    def __init__(self, data_key: bytes, aad: bytes) -> None:
        if len(data_key) != DATA_KEY_BYTES:
            raise ValueError(f"a data key has {DATA_KEY_BYTES} bytes, not {len(data_key)}")
        self._aead = AESGCM(data_key)
        self._aad = aad

    def decrypt(self, stored: bytes | bytearray | memoryview, name: str) -> bytes:
        """The plaintext, OVERHEAD_BYTES shorter than `stored`, of which nothing is copied. `name` is for the message.

        Raises:
            CorruptObjectError: too short, or the tag does not hold.
        """
        view = memoryview(stored)
        if len(view) < OVERHEAD_BYTES:
            raise CorruptObjectError(f"{name}: {len(view)} bytes are too few for an encrypted chunk")
        try:
            return self._aead.decrypt(view[:IV_BYTES], view[IV_BYTES:], self._aad)
        except InvalidTag:
            # Without a cause: InvalidTag says nothing more.
            raise CorruptObjectError(
                f"{name}: AES-GCM tag does not hold: damaged, or encrypted with another key or other additional data"
            ) from None
