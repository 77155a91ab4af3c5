"""From the configuration to the settings of our own connections."""

import ssl
from pathlib import Path

from protocol.client.connection import ClientSettings
from protocol.client.sasl import SaslCredentials
from storage.config.client_settings import client_settings
from tests.support.certificates import server_certificate
from tests.support.tier_config_files import load_tier_lines


def settings_of(folder: Path, lines: str) -> ClientSettings:
    config = load_tier_lines(folder, lines)
    return client_settings(config.upstream)


def test_plaintext_has_servers_and_nothing_else(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "upstream.bootstrap.servers=a:1,[::1]:2\n")
    assert settings.bootstrap_servers == (("a", 1), ("::1", 2))
    assert (settings.tls, settings.sasl, settings.principal) == (None, None, "an anonymous client")
    assert settings.client_id("spark") == f"tidegate-spark-{settings.client_host}"


def test_sasl_over_tls_has_credentials_and_a_checking_context(tmp_path: Path) -> None:
    certificate, _ = server_certificate(tmp_path)
    settings = settings_of(
        tmp_path,
        "upstream.security.protocol=SASL_SSL\n"
        "upstream.sasl.mechanism=SCRAM-SHA-512\n"
        "upstream.sasl.username=carol\n"
        "upstream.sasl.password=open sesame\n"
        f"upstream.ssl.ca.location={certificate}\n",
    )
    assert settings.sasl == SaslCredentials("SCRAM-SHA-512", "carol", "open sesame")
    assert settings.tls is not None
    assert settings.tls.verify_mode is ssl.CERT_REQUIRED
    assert settings.principal == "'carol'"
    assert "open sesame" not in repr(settings)
