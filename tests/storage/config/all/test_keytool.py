"""The line that our message names, run."""

import subprocess
from pathlib import Path

import pytest

from storage.config.ssl_contexts import TlsMaterialError, read_material, store_identity

PASSWORD = "changeit"


@pytest.mark.needs("java")  # keytool comes with it
def test_the_keytool_line_makes_a_store_that_is_read(tmp_path: Path) -> None:
    jks = tmp_path / "a.jks"
    make = ["keytool", "-genkeypair", "-alias", "a", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=a"]
    make += ["-storetype", "JKS", "-keystore", str(jks), "-storepass", PASSWORD, "-keypass", PASSWORD]
    subprocess.run(make, check=True, capture_output=True)
    with pytest.raises(TlsMaterialError, match="keytool") as caught:
        read_material(jks)
    convert = str(caught.value).partition("convert it: ")[2].split()
    subprocess.run([*convert, "-srcstorepass", PASSWORD, "-deststorepass", PASSWORD], check=True, capture_output=True)
    chain, key = store_identity(read_material(tmp_path / "a.p12"), PASSWORD)
    assert chain.startswith(b"-----BEGIN CERTIFICATE")
    assert key.startswith(b"-----BEGIN PRIVATE KEY")
