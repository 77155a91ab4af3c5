"""What a chunk goes through: compression and encryption, and what they refuse."""

import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.formats.aiven.cipher import IV_BYTES, OVERHEAD_BYTES, ChunkCipher
from storage.formats.aiven.compression import WINDOW_BYTES_MAX, decompress
from storage.formats.aiven.encoding import ChunkEncryption, compress
from tests.support.for_each import for_each

MAGIC = b"\x28\xb5\x2f\xfd"
RAW_BLOCK, REPEATED_BYTE_BLOCK = 0, 1


def frame(content_bytes: int, block: bytes, *, kind: int = RAW_BLOCK, block_bytes: int | None = None) -> bytes:
    """Return a frame of one block with these claims (RFC 8878 §3.1.1)."""
    size = len(block) if block_bytes is None else block_bytes
    block_header = struct.pack("<I", size << 3 | kind << 1 | 1)[:3]
    return MAGIC + b"\xa0" + struct.pack("<I", content_bytes) + block_header + block  # 0xa0: single segment


@given(st.binary(min_size=1, max_size=5000), st.sampled_from([1, 3, 19]))
def test_decompression_undoes_compression(content: bytes, level: int) -> None:
    assert decompress(compress(content, level), len(content), "chunk") == content


def test_a_compressed_frame_has_its_content_size_and_no_checksum_and_no_dictionary() -> None:
    parameters = zstandard.get_frame_parameters(compress(bytes(100_000)))
    found = (parameters.content_size, parameters.has_checksum, parameters.dict_id)
    assert found == (100_000, False, 0)


def without_content_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


GOOD = compress(b"content " * 100)
CORRUPT = {
    "claims more than the chunk has": (
        frame(1 << 31, b"abc"),
        3,
        "a content size of 2147483648, its chunk has 3 bytes",
    ),
    "claims less than the chunk has": (frame(2, b"ab"), 3, "a content size of 2, its chunk has 3 bytes"),
    "holds more than it claims": (frame(3, b"abcd"), 3, "decompression error"),
    "unfolds to more than it claims": (
        frame(3, b"x", kind=REPEATED_BYTE_BLOCK, block_bytes=100_000),
        3,
        "decompression error",
    ),
    "holds less than it claims": (frame(3, b"ab"), 3, "decompression error"),
    "no content size": (without_content_size(b"content"), 7, "no content size"),
    "two frames": (frame(3, b"abc") + frame(3, b"def"), 3, "unused data"),
    "two frames, counted together": (frame(3, b"abc") + frame(3, b"def"), 6, "a content size of 3"),
    "a byte behind the frame": (frame(3, b"abc") + b"\x00", 3, "unused data"),
    "an empty frame": (compress(b""), 0, "is empty"),
    "an empty frame with another behind": (compress(b"") + frame(3, b"abc"), 0, "is empty"),
    "a skippable frame": (b"\x50\x2a\x4d\x18" + struct.pack("<I", 3) + b"abc", 3, ""),
    "no frame at all": (b"plain record batches", 20, ""),
    "nothing": (b"", 3, ""),
    "a block of a kind that is none": (frame(3, b"abc", kind=3), 3, "decompression error"),
}


@for_each("what", CORRUPT)
def test_a_chunk_is_corrupt_that(what: str) -> None:
    stored, plaintext_bytes, message = CORRUPT[what]
    with pytest.raises(CorruptObjectError, match=rf"^x\.log, chunk 3: .*{message}"):
        decompress(stored, plaintext_bytes, "x.log, chunk 3")


@for_each("size_bytes", range(len(GOOD)))
def test_a_frame_cut_at_any_byte_is_corrupt(size_bytes: int) -> None:
    with pytest.raises(CorruptObjectError, match=r"^chunk: "):
        decompress(GOOD[:size_bytes], 800, "chunk")


def test_a_thread_goes_on_after_a_corrupt_chunk() -> None:
    with pytest.raises(CorruptObjectError):
        decompress(GOOD[:-1], 800, "chunk")
    assert decompress(GOOD, 800, "chunk") == b"content " * 100


def test_no_memory_is_taken_for_what_a_frame_claims() -> None:
    tracemalloc.start()
    try:
        for bomb in (frame(1 << 31, b"abc"), frame(3, b"x", kind=REPEATED_BYTE_BLOCK, block_bytes=100_000)):
            with pytest.raises(CorruptObjectError):
                decompress(bomb, 3, "chunk")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_a_window_beyond_the_limit_is_corrupt_where_it_would_cost_memory() -> None:
    window_log = 27
    assert 1 << window_log > WINDOW_BYTES_MAX
    block_header = struct.pack("<I", 3 << 3 | 1)[:3]
    stored = MAGIC + b"\x80" + bytes([window_log - 10 << 3]) + struct.pack("<I", 3) + block_header + b"ab"
    with pytest.raises(CorruptObjectError, match="too much memory"):
        decompress(stored, 3, "chunk")


def test_threads_decompress_at_once() -> None:
    contents = [bytes([number]) * 300_000 for number in range(4)]
    results: list[bytes] = []
    start = threading.Barrier(4)

    def work(content: bytes) -> None:
        stored = compress(content)
        start.wait(timeout=100)
        results.extend(decompress(stored, len(content), "chunk") for _ in range(10))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, contents))
    assert sorted(results) == sorted(content for content in contents for _ in range(10))


DATA_KEY = bytes(range(32))
AAD = bytes(range(100, 132))
ENCRYPTION = ChunkEncryption(DATA_KEY, AAD)


@given(st.binary(max_size=2000), st.binary(max_size=40))
def test_decryption_undoes_encryption(plaintext: bytes, aad: bytes) -> None:
    stored = ChunkEncryption(DATA_KEY, aad).encrypt(plaintext)
    assert len(stored) == len(plaintext) + OVERHEAD_BYTES
    assert ChunkCipher(DATA_KEY, aad).decrypt(stored, "chunk") == plaintext


def test_a_stored_chunk_is_iv_then_ciphertext_then_tag() -> None:
    stored = ENCRYPTION.encrypt(b"content")
    assert AESGCM(DATA_KEY).decrypt(stored[:IV_BYTES], stored[IV_BYTES:], AAD) == b"content"


def test_every_chunk_gets_an_iv_of_its_own() -> None:
    assert len({ENCRYPTION.encrypt(b"content")[:IV_BYTES] for _ in range(100)}) == 100


@for_each("size_bytes", [0, 1, OVERHEAD_BYTES - 1])
def test_what_is_too_short_is_corrupt(size_bytes: int) -> None:
    with pytest.raises(CorruptObjectError, match=rf"^x\.log, chunk 3: {size_bytes} bytes are too few"):
        ChunkCipher(DATA_KEY, AAD).decrypt(bytes(size_bytes), "x.log, chunk 3")


@for_each("position", [0, IV_BYTES, -1])
def test_a_changed_bit_anywhere_is_corrupt(position: int) -> None:
    cipher = ChunkCipher(DATA_KEY, AAD)
    stored = bytearray(ENCRYPTION.encrypt(b"content"))
    stored[position] ^= 1
    with pytest.raises(CorruptObjectError, match=r"^x\.log, chunk 3: AES-GCM tag does not hold"):
        cipher.decrypt(stored, "x.log, chunk 3")


@for_each("other", [ChunkCipher(bytes(32), AAD), ChunkCipher(DATA_KEY, b"")])
def test_another_key_and_other_additional_data_are_corrupt(other: ChunkCipher) -> None:
    with pytest.raises(CorruptObjectError, match="tag does not hold"):
        other.decrypt(ENCRYPTION.encrypt(b"content"), "chunk")


@for_each("size_bytes", [0, 16, 31, 33])
def test_a_data_key_of_another_size_is_the_callers_mistake(size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"a data key has 32 bytes, not {size_bytes}"):
        ChunkCipher(bytes(size_bytes), AAD)


def test_a_repr_shows_no_key() -> None:
    assert DATA_KEY.hex() not in repr(ChunkCipher(DATA_KEY, AAD))
    assert repr(DATA_KEY) not in repr(ChunkCipher(DATA_KEY, AAD))
