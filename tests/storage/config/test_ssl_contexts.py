"""PEM and PKCS#12 in, plain PEM out, JKS refused; and contexts that do what the configuration says, by handshakes."""

import ssl
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from storage.config import ssl_contexts
from storage.config.model import ClientTls
from storage.config.ssl_contexts import (
    TlsMaterialError,
    client_ssl_context,
    identity,
    inline_pem,
    load_identity,
    read_material,
    store_identity,
    trusted_certificates,
)
from tests.support.certificates import server_certificate
from tests.support.tls_handshake import handshake

PASSWORD = "changeit"


@pytest.fixture
def pem(tmp_path: Path) -> tuple[bytes, bytes]:
    certificate_file, key_file = server_certificate(tmp_path)
    return certificate_file.read_bytes(), key_file.read_bytes()


@pytest.fixture
def server(pem: tuple[bytes, bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(context, *pem)
    return context


def test_a_trusted_server_is_accepted(pem: tuple[bytes, bytes], server: ssl.SSLContext) -> None:
    done = handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "localhost")
    assert done.version() == "TLSv1.3"


def test_an_untrusted_server_is_refused(server: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_ssl_context(ClientTls()), server, "localhost")


def test_the_host_name_is_checked_unless_told_otherwise(pem: tuple[bytes, bytes], server: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "elsewhere")
    unchecked = client_ssl_context(ClientTls(ca_certificates_pem=pem[0], verify_hostname=False))
    assert handshake(unchecked, server, "elsewhere").version() == "TLSv1.3"


def test_a_client_shows_the_certificate_that_it_has(pem: tuple[bytes, bytes], server: ssl.SSLContext) -> None:
    server.load_verify_locations(cadata=pem[0].decode())
    server.verify_mode = ssl.CERT_REQUIRED
    known = ClientTls(ca_certificates_pem=pem[0], certificate_chain_pem=pem[0], private_key_pem=pem[1])
    assert handshake(client_ssl_context(known), server, "localhost").getpeercert()


def test_no_key_is_left_on_disk(pem: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    client_ssl_context(ClientTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    assert list(folder.iterdir()) == []


def encrypted(key_pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(key_pem, None)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def key_store(certificate_pem: bytes, key_pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    return pkcs12.serialize_key_and_certificates(
        b"tide", key, load_pem_x509_certificate(certificate_pem), None, encryption
    )


def test_pem_gives_chain_and_key(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    assert identity(b"Bag Attributes: comment\n" + certificate, key, None) == (certificate, key)


def test_an_encrypted_key_comes_out_plain(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    assert identity(certificate, encrypted(key), PASSWORD) == (certificate, key)


def test_one_pem_file_may_hold_key_and_chain(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    assert store_identity(encrypted(key) + certificate, PASSWORD) == (certificate, key)


def test_pkcs12_gives_the_same(pem: tuple[bytes, bytes]) -> None:
    store = key_store(*pem)
    assert store_identity(store, PASSWORD) == pem
    assert trusted_certificates(store, PASSWORD) == pem[0]


def test_a_pkcs12_trust_store_gives_its_certificates(pem: tuple[bytes, bytes]) -> None:
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    certificate = load_pem_x509_certificate(pem[0])
    store = pkcs12.serialize_key_and_certificates(None, None, None, [certificate], encryption)
    assert trusted_certificates(store, PASSWORD) == pem[0]
    with pytest.raises(TlsMaterialError, match="holds no private key"):
        store_identity(store, PASSWORD)


def test_inline_pem_survives_the_loss_of_its_line_ends(pem: tuple[bytes, bytes]) -> None:
    certificate, _ = pem
    one_line = certificate.decode().replace("\n", " ")
    assert trusted_certificates(inline_pem(one_line), None) == certificate
    assert inline_pem("no pem at all") == b""


@pytest.mark.parametrize(("magic", "kind"), [(b"\xfe\xed\xfe\xed", "JKS"), (b"\xce\xce\xce\xce", "JCEKS")])
def test_a_java_store_is_refused_with_the_keytool_line(magic: bytes, kind: str, tmp_path: Path) -> None:
    store = tmp_path / "client store.jks"
    store.write_bytes(magic + bytes(100))
    with pytest.raises(TlsMaterialError) as caught:
        read_material(store)
    assert (
        f"keytool -importkeystore -srckeystore '{store}' -srcstoretype {kind} "
        f"-destkeystore '{tmp_path}/client store.p12' -deststoretype PKCS12"
    ) in str(caught.value)


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


def test_a_key_that_is_not_the_certificates_is_refused(pem: tuple[bytes, bytes]) -> None:
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TlsMaterialError, match="does not belong"):
        identity(pem[0], other, None)
    exchange = x25519.X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TlsMaterialError, match="a kind that TLS does not use"):
        identity(pem[0], exchange, None)


def test_passwords_that_do_not_fit_are_refused_without_being_shown(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    with pytest.raises(TlsMaterialError, match="encrypted and has no password"):
        identity(certificate, encrypted(key), None)
    with pytest.raises(TlsMaterialError, match="is not"):
        identity(certificate, key, PASSWORD)
    with pytest.raises(TlsMaterialError, match="password is wrong") as caught:
        identity(certificate, encrypted(key), "hunter2")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TlsMaterialError, match="its password opens"):
        store_identity(key_store(*pem), "hunter2")


def test_garbage_is_refused(pem: tuple[bytes, bytes]) -> None:
    for read in (lambda: trusted_certificates(b"garbage", None), lambda: store_identity(b"", None)):
        with pytest.raises(TlsMaterialError, match="neither PEM nor a PKCS#12 store"):
            read()
    with pytest.raises(TlsMaterialError, match="no readable PEM certificate"):
        trusted_certificates(pem[1], None)
    with pytest.raises(TlsMaterialError, match="no readable private key"):
        identity(pem[0], pem[0], None)


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TlsMaterialError, match=r"absent\.pem cannot be read: No such file"):
        read_material(tmp_path / "absent.pem")
    monkeypatch.setattr(ssl_contexts, "FILE_BYTES_MAX", 4)
    (tmp_path / "large.pem").write_bytes(b"12345")
    with pytest.raises(TlsMaterialError, match="larger than 4 bytes"):
        read_material(tmp_path / "large.pem")
