"""The configuration's words as settings of own connections."""

import ssl
from pathlib import Path

from protocol.client.sasl import SaslCredentials
from proxy.upstream.from_config import upstream_settings
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines


def test_plaintext_has_servers_and_nothing_else(tmp_path: Path) -> None:
    config = load_lines(tmp_path, "upstream.bootstrap.servers=a:1,[::1]:2\n")
    settings = upstream_settings(config.upstream.bootstrap_servers, config.upstream.security)
    assert settings.bootstrap_servers == (("a", 1), ("::1", 2))
    assert settings.tls is None
    assert settings.sasl is None


def test_sasl_over_tls_has_credentials_and_a_checking_context(tmp_path: Path) -> None:
    certificate, _ = server_certificate(tmp_path)
    lines = (
        "upstream.security.protocol=SASL_SSL\n"
        "upstream.sasl.mechanism=SCRAM-SHA-512\n"
        "upstream.sasl.username=carol\n"
        "upstream.sasl.password=open sesame\n"
        f"upstream.ssl.ca.location={certificate}\n"
    )
    config = load_lines(tmp_path, lines)
    settings = upstream_settings(config.upstream.bootstrap_servers, config.upstream.security)
    assert settings.sasl == SaslCredentials("SCRAM-SHA-512", "carol", "open sesame")
    assert settings.tls is not None
    assert settings.tls.verify_mode is ssl.CERT_REQUIRED
    assert "open sesame" not in repr(settings)
