"""OpenSSL reads the data keys that we wrap, we read its, and the lines that our messages name convert keys."""

import base64
import shlex
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from storage.formats.aiven.key_pairs import KeyRing
from tests.storage.formats.aiven.test_key_ring import (
    DATA_KEY,
    PRIVATE_NAME,
    PUBLIC_NAME,
    data_key_text,
    message_of,
    rsa_key,
    write_pair,
)
from tests.support.aiven_writer import make_key_pair, wrap_data_key
from tests.support.for_each import for_each


@pytest.fixture
def config(tmp_path: Path) -> dict[str, str]:
    return dict(make_key_pair(tmp_path, "key1"))


@pytest.fixture
def key_ring(config: dict[str, str]) -> KeyRing:
    return KeyRing(config)


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
