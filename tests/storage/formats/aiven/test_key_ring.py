import base64
import hashlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptObjectError, RemoteStorageError, RetriableRemoteStorageError, StorageConfigError
from storage.formats.aiven.key_pairs import DECRYPTION_ERROR, KEY_FILE_BYTES_MAX, KeyRing, has_key_pairs
from tests.support.aiven_writer import make_key_pair, wrap_data_key
from tests.support.for_each import for_each

DATA_KEY = bytes(range(32))
PUBLIC_NAME = "encryption.key.pairs.key1.public.key.file"
PRIVATE_NAME = "encryption.key.pairs.key1.private.key.file"


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    return dict(make_key_pair(tmp_path, "key1"))


@pytest.fixture
def key_ring(config: dict[str, str]) -> KeyRing:
    return KeyRing(config)


@pytest.fixture(scope="module")
def shared_key_ring(tmp_path_factory: pytest.TempPathFactory) -> KeyRing:
    return KeyRing(make_key_pair(tmp_path_factory.mktemp("pairs"), "key1"))


def two_pairs(folder: Path, active_id: str) -> dict[str, str]:
    pairs = {**make_key_pair(folder, "key1"), **make_key_pair(folder, "key2")}
    return {**pairs, "encryption.key.pairs": "key1 , key2", "encryption.key.pair.id": active_id}


def message_of(config: dict[str, str]) -> str:
    with pytest.raises(StorageConfigError) as caught:
        KeyRing(config)
    return str(caught.value)


def test_unwrapping_undoes_wrapping_and_the_text_names_the_active_pair(
    config: dict[str, str], key_ring: KeyRing
) -> None:
    text = wrap_data_key(config, DATA_KEY)
    assert text.startswith("key1:")
    assert key_ring.unwrap(text) == DATA_KEY


def test_after_a_change_of_the_active_pair_old_data_keys_are_unwrapped_by_their_own(tmp_path: Path) -> None:
    before, now = (two_pairs(tmp_path, active_id) for active_id in ("key1", "key2"))
    old_text, new_text = wrap_data_key(before, DATA_KEY), wrap_data_key(now, DATA_KEY)
    assert (old_text[:5], new_text[:5]) == ("key1:", "key2:")
    after = KeyRing(now)
    assert after.unwrap(old_text) == after.unwrap(new_text) == DATA_KEY


def test_without_an_active_pair_data_keys_are_unwrapped(config: dict[str, str]) -> None:
    text = wrap_data_key(config, DATA_KEY)
    del config["encryption.key.pair.id"]
    reader = KeyRing(config)
    assert reader.active_key_id is None
    assert reader.unwrap(text) == DATA_KEY


def test_a_pair_that_is_not_configured_is_named_with_the_key_that_lists_them(tmp_path: Path) -> None:
    text = wrap_data_key(two_pairs(tmp_path, "key2"), DATA_KEY)
    with pytest.raises(RemoteStorageError) as caught:
        KeyRing(make_key_pair(tmp_path, "key1")).unwrap(text)
    assert "'key2'" in str(caught.value)
    assert "rsm.config.encryption.key.pairs" in str(caught.value)
    assert not isinstance(caught.value, RetriableRemoteStorageError | CorruptObjectError)


@for_each("text", ["", ":", "key1", "key1:", "key1:AA==:", "key1:AAA", "key1:AA\n==", "key1:_-==", "key1:ä"])
def test_what_is_not_an_id_and_base64_is_corrupt(key_ring: KeyRing, text: str) -> None:
    with pytest.raises(CorruptObjectError, match="the data key is not"):
        key_ring.unwrap(text)


@given(st.text(max_size=40))
def test_no_text_gives_another_error_than_the_tiers(shared_key_ring: KeyRing, text: str) -> None:
    for each in (text, f"key1:{text}", f"key1:{base64.b64encode(text.encode()).decode()}"):
        with pytest.raises(RemoteStorageError):
            shared_key_ring.unwrap(each)


def test_a_data_key_that_does_not_decrypt_says_only_which_pair(tmp_path: Path) -> None:
    pairs = two_pairs(tmp_path, "key1")
    mislabelled = wrap_data_key(pairs, DATA_KEY).replace("key1:", "key2:")
    with pytest.raises(CorruptObjectError) as caught:
        KeyRing(pairs).unwrap(mislabelled)
    assert str(caught.value) == f"the data key wrapped by key pair 'key2' {DECRYPTION_ERROR}"


# The padding, written here once more


HASH_BYTES = 64
MODULUS_BYTES = 256
PADDING_BYTES = MODULUS_BYTES - 1 - 2 * HASH_BYTES
LABEL_HASH = hashlib.sha3_512(b"").digest()
GOOD_BLOCK = LABEL_HASH + b"\x01".rjust(PADDING_BYTES - 32, b"\x00") + DATA_KEY


def raw_encrypt(padded: bytes) -> bytes:
    """RSA without padding: what a sender makes who pads as he likes."""
    numbers = rsa_key().public_key().public_numbers()
    return pow(int.from_bytes(padded, "big"), numbers.e, numbers.n).to_bytes(MODULUS_BYTES, "big")


def mask(seed: bytes, size_bytes: int) -> bytes:
    """MGF1."""
    counters = range(-(-size_bytes // HASH_BYTES))
    return b"".join(hashlib.sha3_512(seed + count.to_bytes(4, "big")).digest() for count in counters)[:size_bytes]


def encoded(block: bytes, *, first: int = 0) -> bytes:
    """EME-OAEP of a whole data block: the label's hash, the padding and the message."""
    seed = bytes(range(HASH_BYTES))
    masked_block = bytes(a ^ b for a, b in zip(block, mask(seed, len(block)), strict=True))
    masked_seed = bytes(a ^ b for a, b in zip(seed, mask(masked_block, HASH_BYTES), strict=True))
    return bytes([first]) + masked_seed + masked_block


def data_key_text(ciphertext: bytes) -> str:
    return f"key1:{base64.b64encode(ciphertext).decode()}"


MALFORMED: dict[str, Callable[[], bytes]] = {
    "first byte not zero": lambda: raw_encrypt(encoded(GOOD_BLOCK, first=0x01)),
    "another label": lambda: raw_encrypt(encoded(hashlib.sha3_512(b"label").digest() + GOOD_BLOCK[HASH_BYTES:])),
    "label of another hash": lambda: raw_encrypt(encoded(hashlib.sha512(b"").digest() + GOOD_BLOCK[HASH_BYTES:])),
    "no separator": lambda: raw_encrypt(encoded(LABEL_HASH + bytes(PADDING_BYTES))),
    "wrong separator": lambda: raw_encrypt(encoded(GOOD_BLOCK.replace(b"\x00\x01\x00", b"\x00\x02\x00"))),
    "all wrong": lambda: raw_encrypt(encoded(bytes(HASH_BYTES) + bytes(PADDING_BYTES), first=0x01)),
    "zero": lambda: bytes(MODULUS_BYTES),
    "one": lambda: bytes(MODULUS_BYTES - 1) + b"\x01",
    "the modulus": lambda: rsa_key().public_key().public_numbers().n.to_bytes(MODULUS_BYTES, "big"),
    "beyond the modulus": lambda: b"\xff" * MODULUS_BYTES,
    "a byte too short": lambda: raw_encrypt(encoded(GOOD_BLOCK))[:-1],
    "a byte too long": lambda: b"\x00" + raw_encrypt(encoded(GOOD_BLOCK)),
    "a bit flipped": lambda: bytes([raw_encrypt(encoded(GOOD_BLOCK))[0] ^ 1]) + raw_encrypt(encoded(GOOD_BLOCK))[1:],
}


def test_the_padding_that_these_tests_make_is_good(config: dict[str, str]) -> None:
    key_ring = KeyRing(write_pair(config, rsa_key()))
    assert key_ring.unwrap(data_key_text(raw_encrypt(encoded(GOOD_BLOCK)))) == DATA_KEY


@for_each("what", MALFORMED)
def test_everything_malformed_gives_one_and_the_same_error(config: dict[str, str], what: str) -> None:
    key_ring = KeyRing(write_pair(config, rsa_key()))
    with pytest.raises(CorruptObjectError) as caught:
        key_ring.unwrap(data_key_text(MALFORMED[what]()))
    assert type(caught.value) is CorruptObjectError
    assert caught.value.args == (f"the data key wrapped by key pair 'key1' {DECRYPTION_ERROR}",)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@for_each("size_bytes", [0, 16, 31, 33])
def test_a_data_key_of_another_size_is_corrupt(config: dict[str, str], size_bytes: int) -> None:
    key_ring = KeyRing({**config, **write_pair(config, rsa_key())})
    block = LABEL_HASH + b"\x01".rjust(PADDING_BYTES - size_bytes, b"\x00") + bytes(size_bytes)
    with pytest.raises(CorruptObjectError, match=f"has {size_bytes} bytes, not 32"):
        key_ring.unwrap(data_key_text(raw_encrypt(encoded(block))))


# Configuration


def write_pair(config: dict[str, str], key: rsa.RSAPrivateKey) -> dict[str, str]:
    """Another pair in the files of the configuration."""
    Path(config[PRIVATE_NAME]).write_bytes(pkcs8(key))
    Path(config[PUBLIC_NAME]).write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return config


def pkcs8(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def with_password(private_format: PrivateFormat) -> bytes:
    return rsa_key().private_bytes(Encoding.PEM, private_format, BestAvailableEncryption(b"password"))


def test_the_label_of_a_pem_file_does_not_matter_nor_what_stands_around(config: dict[str, str]) -> None:
    text = wrap_data_key(config, DATA_KEY)
    for name in (PUBLIC_NAME, PRIVATE_NAME):
        path = Path(config[name])
        relabelled = re.sub(rb"(BEGIN|END) [A-Z ]+", rb"\1 SOMETHING ELSE", path.read_bytes())
        path.write_bytes(b"A comment\r\n\r\n" + relabelled.replace(b"\n", b"\r\n") + b"another\r\n")
    assert KeyRing(config).unwrap(text) == DATA_KEY


def test_the_private_key_of_every_listed_pair_is_needed(config: dict[str, str]) -> None:
    del config[PRIVATE_NAME]
    assert message_of(config) == f"rsm.config.{PRIVATE_NAME} is not set"


@for_each("path", [None, "/nowhere/public.pem"])
def test_a_reader_need_not_have_the_public_key(config: dict[str, str], path: str | None) -> None:
    # Failed before: it was demanded though the private key holds it.
    text = wrap_data_key(config, DATA_KEY)
    without = {key: value for key, value in config.items() if key != PUBLIC_NAME}
    assert KeyRing(without | ({} if path is None else {PUBLIC_NAME: path})).unwrap(text) == DATA_KEY


@for_each("pairs", [None, "", "  ", ","])
def test_an_empty_list_of_pairs_is_refused(config: dict[str, str], pairs: str | None) -> None:
    without = {key: value for key, value in config.items() if key != "encryption.key.pairs"}
    changed = without if pairs is None else {**config, "encryption.key.pairs": pairs}
    assert message_of(changed) == "rsm.config.encryption.key.pairs is not set"
    assert has_key_pairs(config)
    assert not has_key_pairs(without)


def test_an_active_pair_that_is_not_listed_is_refused(config: dict[str, str]) -> None:
    config["encryption.key.pair.id"] = "key2"
    expected = "rsm.config.encryption.key.pair.id=key2 is not listed in rsm.config.encryption.key.pairs"
    assert message_of(config) == expected


def test_an_id_with_a_colon_is_refused(config: dict[str, str]) -> None:
    config["encryption.key.pairs"] = "key1,a:b"
    assert "rsm.config.encryption.key.pairs holds 'a:b'" in message_of(config)


def test_a_file_that_is_not_there_is_named_with_its_key(config: dict[str, str], tmp_path: Path) -> None:
    config[PRIVATE_NAME] = str(tmp_path / "absent.pem")
    reason = "it cannot be read: No such file or directory"
    assert message_of(config) == f"rsm.config.{PRIVATE_NAME}={tmp_path}/absent.pem: {reason}"


WRONG_PRIVATE: dict[str, tuple[Callable[[], bytes], str]] = {
    "PKCS#1": (
        lambda: rsa_key().private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        "PKCS#1, which the plugin does not take; convert it: openssl pkcs8 -topk8 -nocrypt -in ",
    ),
    "PKCS#8 with a password": (lambda: with_password(PrivateFormat.PKCS8), "protected by a password; convert it"),
    "PKCS#1 with a password": (
        lambda: with_password(PrivateFormat.TraditionalOpenSSL),
        "protected by a password; convert it",
    ),
    "another algorithm": (lambda: pkcs8(ec.generate_private_key(ec.SECP256R1())), "not an RSA key"),
    "a public key": (
        lambda: rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "not an unencrypted PKCS#8 private key",
    ),
    "no key": (lambda: b"-----BEGIN A-----\nAAAA\n-----END A-----\n", "not an unencrypted PKCS#8 private key"),
    "DER": (lambda: rsa_key().private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), "not a PEM file"),
    "an empty file": (lambda: b"", "not a PEM file"),
    "an endless file": (lambda: pkcs8(rsa_key()) + bytes(KEY_FILE_BYTES_MAX), "is larger than"),
    "another pair's": (lambda: pkcs8(rsa_key()), f"is not the private key of rsm.config.{PUBLIC_NAME}"),
}


@for_each("what", WRONG_PRIVATE)
def test_a_private_key_file_is_refused_that_holds(config: dict[str, str], what: str) -> None:
    content, expected = WRONG_PRIVATE[what]
    Path(config[PRIVATE_NAME]).write_bytes(content())
    message = message_of(config)
    assert message.startswith(f"rsm.config.{PRIVATE_NAME}")
    assert expected in message
    body = b"".join(content().splitlines()[1:2])
    assert not body or body.decode("latin-1") not in message


WRONG_PUBLIC: dict[str, tuple[Callable[[], bytes], str]] = {
    "PKCS#1": (
        lambda: rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        "PKCS#1, which the plugin does not take; convert it: openssl rsa -RSAPublicKey_in -pubout -in ",
    ),
    "another algorithm": (
        lambda: (
            ec.generate_private_key(ec.SECP256R1())
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        ),
        "not an RSA key",
    ),
    "a private key": (lambda: pkcs8(rsa_key()), "not a SubjectPublicKeyInfo public key"),
    "no base64": (lambda: b"-----BEGIN A-----\nA*A=\n-----END A-----\n", "not base64"),
}


@for_each("what", WRONG_PUBLIC)
def test_a_public_key_file_is_refused_that_holds(config: dict[str, str], what: str) -> None:
    content, expected = WRONG_PUBLIC[what]
    Path(config[PUBLIC_NAME]).write_bytes(content())
    message = message_of(config)
    assert message.startswith(f"rsm.config.{PUBLIC_NAME}={config[PUBLIC_NAME]}: ")
    assert expected in message


def test_a_modulus_that_holds_no_data_key_is_refused_and_the_next_larger_taken(config: dict[str, str]) -> None:
    assert "an RSA key of 1288 bits is too small" in message_of(write_pair(config, rsa_key(1288)))
    for bits in (1296, 1301):  # the second is one of broken bytes
        key_ring = KeyRing(write_pair(config, rsa_key(bits)))
        assert key_ring.unwrap(wrap_data_key(config, DATA_KEY)) == DATA_KEY
