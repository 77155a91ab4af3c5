"""TLS towards clients: on with a certificate, and what must stand beside it."""

from pathlib import Path

from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines, problems_of


def test_tls_towards_clients_is_on_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = server_certificate(tmp_path)
    (tmp_path / "both.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    config = load_lines(
        tmp_path,
        "proxy.tls.certificate.file=both.pem\nproxy.tls.client.auth=required\nproxy.tls.client.ca.file=server.pem\n",
    )
    assert config.proxy.tls is not None
    assert config.proxy.tls.client_auth == "required"
    assert config.proxy.tls.client_ca_certificates_pem == certificate.read_bytes()
    assert "needs proxy.tls.certificate.file" in problems_of(tmp_path, "proxy.tls.key.file=server.key\n")[0]
    lacking = "proxy.tls.certificate.file=both.pem\nproxy.tls.client.auth=requested\n"
    assert "needs proxy.tls.client.ca.file" in problems_of(tmp_path, lacking)[0]
