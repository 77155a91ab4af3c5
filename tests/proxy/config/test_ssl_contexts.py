"""The context towards clients does what the configuration says: a whole handshake in memory."""

import ssl
from pathlib import Path

import pytest

from proxy.config.model import ClientAuth, ServerTls
from proxy.config.ssl_contexts import server_ssl_context
from storage.config.model import ClientTls
from storage.config.ssl_contexts import client_ssl_context
from tests.support.certificates import server_certificate
from tests.support.tls_handshake import handshake


@pytest.fixture
def pem(tmp_path: Path) -> tuple[bytes, bytes]:
    certificate_file, key_file = server_certificate(tmp_path)
    return certificate_file.read_bytes(), key_file.read_bytes()


def test_a_trusted_server_is_accepted_and_asks_for_no_certificate(pem: tuple[bytes, bytes]) -> None:
    server = server_ssl_context(ServerTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    done = handshake(client_ssl_context(ClientTls(ca_certificates_pem=pem[0])), server, "localhost")
    assert done.version() == "TLSv1.3"
    assert done.getpeercert() is None


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
