"""The contexts do what the configuration says: a whole handshake in memory, both sides authenticated."""

import ssl
from pathlib import Path

import pytest

from proxy.config.model import ClientAuth, ClientTls, ServerTls
from proxy.config.ssl_contexts import client_ssl_context, server_ssl_context
from tests.support.certificates import server_certificate


@pytest.fixture
def pem(tmp_path: Path) -> tuple[bytes, bytes]:
    certificate_file, key_file = server_certificate(tmp_path)
    return certificate_file.read_bytes(), key_file.read_bytes()


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """The server's side after a handshake over two memory buffers; raises what either side finds wrong."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return server_side


def test_a_trusted_server_is_accepted_and_asks_for_no_certificate(pem: tuple[bytes, bytes]) -> None:
    server = server_ssl_context(ServerTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    done = handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "localhost")
    assert done.version() == "TLSv1.3"
    assert done.getpeercert() is None


def test_an_untrusted_server_is_refused(pem: tuple[bytes, bytes]) -> None:
    server = server_ssl_context(ServerTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client_ssl_context(ClientTls()), server, "localhost")


def test_the_host_name_is_checked_unless_told_otherwise(pem: tuple[bytes, bytes]) -> None:
    server = server_ssl_context(ServerTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "elsewhere")
    unchecked = client_ssl_context(ClientTls(ca_certificates_pem=pem[0], verify_hostname=False))
    assert handshake(unchecked, server, "elsewhere").version() == "TLSv1.3"


def test_a_client_shows_its_certificate_when_it_must(pem: tuple[bytes, bytes]) -> None:
    server = server_ssl_context(
        ServerTls(
            certificate_chain_pem=pem[0],
            private_key_pem=pem[1],
            client_ca_certificates_pem=pem[0],
            client_auth=ClientAuth.REQUIRED,
        )
    )
    known = ClientTls(ca_certificates_pem=pem[0], certificate_chain_pem=pem[0], private_key_pem=pem[1])
    assert handshake(client_ssl_context(known), server, "localhost").getpeercert()
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "localhost")


def test_no_key_is_left_on_disk(pem: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    server_ssl_context(ServerTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    assert list(folder.iterdir()) == []
