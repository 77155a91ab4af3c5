import base64
import hashlib
import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, RemoteStorageError
from storage.formats.aiven import oaep
from storage.formats.aiven.oaep import DECRYPTION_ERROR, HASH_BYTES, OVERHEAD_BYTES, oaep_decrypt, oaep_encrypt
from tests.support.vectors import vector

MODULUS_BYTES = 256
OPENSSL_OPTIONS = ("rsa_padding_mode:oaep", "rsa_oaep_md:sha3-512", "rsa_mgf1_md:sha3-512")


@cache
def private_key(bits: int = 8 * MODULUS_BYTES) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def raw_encrypt(encoded: bytes) -> bytes:
    """RSA without padding: what a sender makes who pads as he likes."""
    numbers = private_key().public_key().public_numbers()
    return pow(int.from_bytes(encoded, "big"), numbers.e, numbers.n).to_bytes(MODULUS_BYTES, "big")


def mask(seed: bytes, size_bytes: int) -> bytes:
    """MGF1, written here once more."""
    found = b""
    while len(found) < size_bytes:
        found += hashlib.sha3_512(seed + (len(found) // HASH_BYTES).to_bytes(4, "big")).digest()
    return found[:size_bytes]


def encoded(block: bytes, *, first: int = 0) -> bytes:
    """EME-OAEP of a whole data block: the label's hash, the padding and the message."""
    seed = bytes(range(HASH_BYTES))
    masked_block = bytes(a ^ b for a, b in zip(block, mask(seed, len(block)), strict=True))
    masked_seed = bytes(a ^ b for a, b in zip(seed, mask(masked_block, HASH_BYTES), strict=True))
    return bytes([first]) + masked_seed + masked_block


def openssl_pkeyutl(*arguments: str, key_file: Path, content: bytes) -> bytes:
    options = [argument for option in OPENSSL_OPTIONS for argument in ("-pkeyopt", option)]
    command = ["openssl", "pkeyutl", *arguments, "-inkey", str(key_file), *options]
    return subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True, timeout=60).stdout


def test_what_bouncy_castle_wrapped_is_unwrapped() -> None:
    key_file = vector("aiven", "oracle-plugin-1.0.0", "test-keys", "private.pem")
    key = load_pem_private_key(key_file.read_bytes(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    cases = json.loads(vector("aiven", "oaep-sha3-512-vectors.json").read_text())
    found = {
        name: oaep_decrypt(key, base64.b64decode(case["dataKey"].partition(":")[2])).hex()
        for name, case in cases.items()
    }
    assert found == {name: case["dek_hex"] for name, case in cases.items()}
    assert len(found) == 4


@settings(max_examples=20)
@given(st.binary(max_size=MODULUS_BYTES - OVERHEAD_BYTES))
def test_decryption_undoes_encryption(message: bytes) -> None:
    ciphertext = oaep_encrypt(private_key().public_key(), message)
    assert len(ciphertext) == MODULUS_BYTES
    assert oaep_decrypt(private_key(), ciphertext) == message


@pytest.mark.parametrize("bits", [1296, 1301, 2048, 2051])
def test_a_modulus_of_any_size_works_also_one_of_broken_bytes(bits: int) -> None:
    ciphertext = oaep_encrypt(private_key(bits).public_key(), bytes(32))
    assert (len(ciphertext), oaep_decrypt(private_key(bits), ciphertext)) == ((bits + 7) // 8, bytes(32))


def test_two_encryptions_of_one_message_differ() -> None:
    public_key = private_key().public_key()
    assert oaep_encrypt(public_key, b"m") != oaep_encrypt(public_key, b"m")


def test_a_message_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="127 bytes do not fit an RSA modulus of 256 bytes"):
        oaep_encrypt(private_key().public_key(), bytes(MODULUS_BYTES - OVERHEAD_BYTES + 1))


@pytest.mark.needs("openssl")
def test_openssl_and_we_read_each_other(tmp_path: Path) -> None:
    private_file, public_file = tmp_path / "private.pem", tmp_path / "public.pem"
    private_file.write_bytes(private_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public_file.write_bytes(private_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    message = bytes(range(32))
    ours = oaep_encrypt(private_key().public_key(), message)
    assert openssl_pkeyutl("-decrypt", key_file=private_file, content=ours) == message
    theirs = openssl_pkeyutl("-encrypt", "-pubin", key_file=public_file, content=message)
    assert oaep_decrypt(private_key(), theirs) == message


LABEL_HASH = hashlib.sha3_512(b"").digest()
PADDING_BYTES = MODULUS_BYTES - 1 - 2 * HASH_BYTES
GOOD_BLOCK = LABEL_HASH + b"\x01".rjust(PADDING_BYTES - 32, b"\x00") + bytes(32)


def test_the_padding_that_these_tests_make_is_good() -> None:
    assert oaep_decrypt(private_key(), raw_encrypt(encoded(GOOD_BLOCK))) == bytes(32)


def test_an_empty_message_and_one_of_full_length_are_found() -> None:
    empty = LABEL_HASH + b"\x01".rjust(PADDING_BYTES, b"\x00")
    full = LABEL_HASH + b"\x01" + b"\x00\x01\x02".ljust(PADDING_BYTES - 1, b"\xff")
    assert oaep_decrypt(private_key(), raw_encrypt(encoded(empty))) == b""
    assert oaep_decrypt(private_key(), raw_encrypt(encoded(full))) == full[HASH_BYTES + 1 :]


MALFORMED: dict[str, Callable[[], bytes]] = {
    "first byte not zero": lambda: raw_encrypt(encoded(GOOD_BLOCK, first=0x01)),
    "another label": lambda: raw_encrypt(encoded(hashlib.sha3_512(b"label").digest() + GOOD_BLOCK[HASH_BYTES:])),
    "label of another hash": lambda: raw_encrypt(encoded(hashlib.sha512(b"").digest() + GOOD_BLOCK[HASH_BYTES:])),
    "no separator": lambda: raw_encrypt(encoded(LABEL_HASH + bytes(PADDING_BYTES))),
    "wrong separator": lambda: raw_encrypt(encoded(GOOD_BLOCK.replace(b"\x00\x01\x00", b"\x00\x02\x01"))),
    "all wrong": lambda: raw_encrypt(encoded(bytes(HASH_BYTES) + bytes(PADDING_BYTES), first=0x01)),
    "zero": lambda: bytes(MODULUS_BYTES),
    "one": lambda: bytes(MODULUS_BYTES - 1) + b"\x01",
    "the modulus": lambda: private_key().public_key().public_numbers().n.to_bytes(MODULUS_BYTES, "big"),
    "beyond the modulus": lambda: b"\xff" * MODULUS_BYTES,
    "empty": lambda: b"",
    "a byte too short": lambda: raw_encrypt(encoded(GOOD_BLOCK))[:-1],
    "a byte too long": lambda: b"\x00" + raw_encrypt(encoded(GOOD_BLOCK)),
    "a bit flipped": lambda: bytes([raw_encrypt(encoded(GOOD_BLOCK))[0] ^ 1]) + raw_encrypt(encoded(GOOD_BLOCK))[1:],
}


@pytest.mark.parametrize("what", MALFORMED)
def test_everything_malformed_gives_one_and_the_same_error(what: str) -> None:
    with pytest.raises(CorruptObjectError) as caught:
        oaep_decrypt(private_key(), MALFORMED[what]())
    assert type(caught.value) is CorruptObjectError
    assert caught.value.args == (DECRYPTION_ERROR,)
    assert caught.value.__cause__ is None


def test_the_private_power_is_taken_of_a_blinded_number_each_time_another() -> None:
    ciphertext = raw_encrypt(encoded(GOOD_BLOCK))
    prime = private_key().private_numbers().p
    bases = []

    def recording_pow(base: int, exponent: int, modulus: int) -> int:
        if modulus == prime:
            bases.append(base)
        return pow(base, exponent, modulus)

    with mock.patch.object(oaep, "pow", recording_pow, create=True):
        for _ in range(2):
            assert oaep_decrypt(private_key(), ciphertext) == bytes(32)
    assert len({*bases, int.from_bytes(ciphertext, "big")}) == 3


def test_a_fault_of_the_computation_is_found_and_nothing_of_its_result_is_shown() -> None:
    """A wrong power modulo one prime would give the other prime away (Boneh, DeMillo, Lipton)."""
    prime = private_key().private_numbers().p

    def faulty_pow(base: int, exponent: int, modulus: int) -> int:
        return pow(base, exponent, modulus) ^ (1 if modulus == prime else 0)

    with (
        mock.patch.object(oaep, "pow", faulty_pow, create=True),
        pytest.raises(RemoteStorageError, match="failed its own check") as caught,
    ):
        oaep_decrypt(private_key(), raw_encrypt(encoded(GOOD_BLOCK)))
    assert not isinstance(caught.value, CorruptObjectError)
