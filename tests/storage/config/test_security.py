"""Tidegate's own identity towards brokers: what must be there, what has no effect, what cannot be read."""

from pathlib import Path

from tests.support.certificates import server_certificate
from tests.support.tier_config_files import load_tier_lines, tier_problems_of


def test_sasl_needs_all_its_keys(tmp_path: Path) -> None:
    assert tier_problems_of(tmp_path, "upstream.security.protocol=sasl_plaintext\nupstream.sasl.username=a\n") == (
        "upstream.sasl.mechanism: is required: upstream.security.protocol has SASL",
        "upstream.sasl.password: is required: upstream.security.protocol has SASL",
    )


def test_keys_without_effect_are_warnings(tmp_path: Path) -> None:
    config = load_tier_lines(tmp_path, "upstream.sasl.username=a\nupstream.ssl.ca.location=ca.pem\n")
    assert config.warnings == (
        "upstream.sasl.username has no effect: upstream.security.protocol is PLAINTEXT",
        "upstream.ssl.ca.location has no effect: upstream.security.protocol is PLAINTEXT",
    )


def test_upstream_tls_reads_its_files_and_clients_get_the_transport_only(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    lines = (
        "upstream.security.protocol=ssl\nupstream.ssl.ca.location=server.pem\n"
        "upstream.ssl.certificate.location=server.pem\nupstream.ssl.key.location=server.key\n"
        "upstream.ssl.endpoint.identification.algorithm=none\n"
    )
    tls = load_tier_lines(tmp_path, lines).upstream.security.tls
    relay = load_tier_lines(tmp_path, lines).upstream.security.relay_tls
    assert tls is not None
    assert relay is not None
    assert tls.private_key_pem == (tmp_path / "server.key").read_bytes()
    assert tls.ca_certificates_pem == (tmp_path / "server.pem").read_bytes() == relay.ca_certificates_pem
    assert (tls.verify_hostname, relay.verify_hostname) == (False, False)
    assert (relay.certificate_chain_pem, relay.private_key_pem) == (None, None)


def test_upstream_tls_problems_name_their_keys(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed")
    tls = "upstream.security.protocol=SSL\n"
    assert "upstream.ssl.ca.location" in tier_problems_of(tmp_path, f"{tls}upstream.ssl.ca.location=absent.pem\n")[0]
    assert (
        "needs upstream.ssl.certificate.location"
        in tier_problems_of(tmp_path, f"{tls}upstream.ssl.key.location=server.key\n")[0]
    )
    (jks,) = tier_problems_of(tmp_path, f"{tls}upstream.ssl.keystore.location=store.jks\n")
    assert "keytool -importkeystore" in jks
    both = f"{tls}upstream.ssl.keystore.location=a.p12\nupstream.ssl.certificate.location=server.pem\n"
    assert "keep one of them" in tier_problems_of(tmp_path, both)[0]
    alone = f"{tls}upstream.ssl.certificate.location=server.pem\n"
    assert "no readable private key" in tier_problems_of(tmp_path, alone)[0]
