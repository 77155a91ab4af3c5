"""From the configuration to the client's settings."""

import socket
import ssl
from pathlib import Path

from pipeline.brokers.settings import ClientSettings, client_settings
from protocol.client.sasl import SaslCredentials
from storage.config import load_tier_config
from tests.support.certificates import server_certificate


def settings_of(tmp_path: Path, lines: str) -> ClientSettings:
    file = tmp_path / "tidegate.properties"
    tier = (
        f"rsm.config.dir={tmp_path}\n"
        "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage\n"
    )
    file.write_text(tier + lines)
    config = load_tier_config(file, {})
    return client_settings(config.upstream.bootstrap_servers, config.upstream.security)


def test_plaintext_has_servers_and_nothing_else(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "upstream.bootstrap.servers=a:1,[::1]:2\n")
    assert settings.bootstrap_servers == (("a", 1), ("::1", 2))
    assert settings.tls is None
    assert settings.sasl is None
    assert settings.principal == "an anonymous client"
    assert settings.client_id == f"tidegate-spark-{socket.gethostname()}"


def test_sasl_over_tls_has_credentials_and_a_checking_context(tmp_path: Path) -> None:
    certificate, _ = server_certificate(tmp_path)
    lines = (
        "upstream.bootstrap.servers=a:1\n"
        "upstream.security.protocol=SASL_SSL\n"
        "upstream.sasl.mechanism=SCRAM-SHA-512\n"
        "upstream.sasl.username=carol\n"
        "upstream.sasl.password=open sesame\n"
        f"upstream.ssl.ca.location={certificate}\n"
    )
    settings = settings_of(tmp_path, lines)
    assert settings.sasl == SaslCredentials("SCRAM-SHA-512", "carol", "open sesame")
    assert settings.tls is not None
    assert settings.tls.verify_mode is ssl.CERT_REQUIRED
    assert settings.principal == "'carol'"
    assert "open sesame" not in repr(settings)
