"""The context towards brokers does what the configuration says: a whole handshake in memory."""

import ssl
from pathlib import Path

import pytest

from storage.config.model import ClientTls
from storage.config.ssl_contexts import client_ssl_context, load_identity
from tests.support.certificates import server_certificate
from tests.support.tls_handshake import handshake


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
