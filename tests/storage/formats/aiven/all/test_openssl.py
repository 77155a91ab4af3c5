"""OpenSSL reads the data keys that we wrap, we read its, and the lines that our messages name convert keys."""

import base64
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.errors import StorageConfigError
from storage.formats.aiven.config import KeyRing
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


def message_of(config: dict[str, str]) -> str:
    with pytest.raises(StorageConfigError) as caught:
        KeyRing(config)
    return str(caught.value)


def data_key_text(ciphertext: bytes) -> str:
    return f"key1:{base64.b64encode(ciphertext).decode()}"


@pytest.mark.needs("openssl")
def test_openssl_and_we_read_each_other(config: dict[str, str], key_ring: KeyRing) -> None:
    settings = ("rsa_padding_mode:oaep", "rsa_oaep_md:sha3-512", "rsa_mgf1_md:sha3-512")
    options = [argument for setting in settings for argument in ("-pkeyopt", setting)]

    def openssl(*arguments: str, content: bytes) -> bytes:
        command = ["openssl", "pkeyutl", *options, *arguments]
        return subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True, timeout=60).stdout

    ours = base64.b64decode(wrap_data_key(config, DATA_KEY).removeprefix("key1:"))
    assert openssl("-decrypt", "-inkey", config[PRIVATE_NAME], content=ours) == DATA_KEY
    theirs = openssl("-encrypt", "-pubin", "-inkey", config[PUBLIC_NAME], content=DATA_KEY)
    assert key_ring.unwrap(data_key_text(theirs)) == DATA_KEY


def write_pair(config: dict[str, str], key: rsa.RSAPrivateKey) -> dict[str, str]:
    """Another pair in the files of the configuration."""
    Path(config[PRIVATE_NAME]).write_bytes(pkcs8(key))
    Path(config[PUBLIC_NAME]).write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return config


def pkcs8(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.needs("openssl")
@for_each("name", [PRIVATE_NAME, PUBLIC_NAME])
def test_the_line_that_converts_pkcs1_gives_what_is_taken(config: dict[str, str], name: str) -> None:
    write_pair(config, rsa_key())
    key, path = rsa_key(), Path(config[name])
    if name == PRIVATE_NAME:
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    else:
        path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1))
    line = message_of(config).partition("convert it: ")[2]
    subprocess.run(shlex.split(line), check=True, capture_output=True, timeout=60)
    config[name] += ".converted"
    assert KeyRing(config).unwrap(wrap_data_key(config, DATA_KEY)) == DATA_KEY
