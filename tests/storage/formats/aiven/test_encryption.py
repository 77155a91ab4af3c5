import threading

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError
from storage.formats.aiven.opened_segment import IV_BYTES, OVERHEAD_BYTES, ChunkCipher
from tests.support.aiven_writer import ChunkEncryption

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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    cipher = ChunkCipher(DATA_KEY, AAD)
    assert cipher.decrypt(kind(ENCRYPTION.encrypt(kind(b"content"))), "chunk") == b"content"


@pytest.mark.parametrize("size_bytes", [0, 1, OVERHEAD_BYTES - 1])
def test_what_is_too_short_is_corrupt(size_bytes: int) -> None:
    with pytest.raises(CorruptObjectError, match=rf"^x\.log, chunk 3: {size_bytes} bytes are too few"):
        ChunkCipher(DATA_KEY, AAD).decrypt(bytes(size_bytes), "x.log, chunk 3")


@pytest.mark.parametrize("position", [0, IV_BYTES, -1])
def test_a_changed_bit_anywhere_is_corrupt(position: int) -> None:
    cipher = ChunkCipher(DATA_KEY, AAD)
    stored = bytearray(ENCRYPTION.encrypt(b"content"))
    stored[position] ^= 1
    with pytest.raises(CorruptObjectError, match=r"^x\.log, chunk 3: AES-GCM tag does not hold"):
        cipher.decrypt(stored, "x.log, chunk 3")


@pytest.mark.parametrize("other", [ChunkCipher(bytes(32), AAD), ChunkCipher(DATA_KEY, b"")])
def test_another_key_and_other_additional_data_are_corrupt(other: ChunkCipher) -> None:
    with pytest.raises(CorruptObjectError, match="tag does not hold"):
        other.decrypt(ENCRYPTION.encrypt(b"content"), "chunk")


@pytest.mark.parametrize("size_bytes", [0, 16, 31, 33])
def test_a_data_key_of_another_size_is_the_callers_mistake(size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"a data key has 32 bytes, not {size_bytes}"):
        ChunkCipher(bytes(size_bytes), AAD)


def test_threads_may_share_one_cipher() -> None:
    cipher = ChunkCipher(DATA_KEY, AAD)
    right_count = 0
    lock = threading.Lock()
    start = threading.Barrier(4)

    def work(number: int) -> None:
        nonlocal right_count
        plaintext = bytes([number]) * 50_000
        start.wait(timeout=10)
        for _ in range(20):
            if cipher.decrypt(ENCRYPTION.encrypt(plaintext), "chunk") == plaintext:
                with lock:
                    right_count += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right_count == 80


def test_a_repr_shows_no_key() -> None:
    assert DATA_KEY.hex() not in repr(ChunkCipher(DATA_KEY, AAD))
    assert repr(DATA_KEY) not in repr(ChunkCipher(DATA_KEY, AAD))
