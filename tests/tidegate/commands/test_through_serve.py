"""Where a running `serve` is looked for, and as whom it and the brokers are asked."""

import ssl
from pathlib import Path

import pytest

from storage.config.model import HostPort
from storage.config.sources import ConfigError
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines
from tidegate.commands.through_serve import both_sides

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OWN = (
    "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\n"
    "upstream.sasl.username=tidegate\nupstream.sasl.password=secret\n"
)


def test_serve_is_looked_for_where_it_listens(tmp_path: Path) -> None:
    for listen, address in (
        ("127.0.0.1:19092", ("127.0.0.1", 19092)),
        ("0.0.0.0:1\nproxy.advertised.host=gate", ("127.0.0.1", 1)),
        ("[::]:1\nproxy.advertised.host=gate", ("::1", 1)),
        (":1\nproxy.advertised.host=gate", ("127.0.0.1", 1)),
        ("gate.example.org:1", ("gate.example.org", 1)),
    ):
        config = load_lines(tmp_path, f"proxy.listen={listen}\n")
        assert both_sides(config, None, None, {}).serve.bootstrap_servers == (address,)
        assert both_sides(config, HostPort("other", 2), None, {}).serve.bootstrap_servers == (("other", 2),)


def test_both_are_asked_as_the_own_identity(tmp_path: Path) -> None:
    sides = both_sides(load_lines(tmp_path, OWN), None, None, {})
    for side in (sides.serve, sides.brokers):
        assert (side.principal, side.tls) == ("'tidegate'", None)


def test_the_certificate_has_to_be_the_files_own(tmp_path: Path) -> None:
    certificate, key = server_certificate(tmp_path)
    config = load_lines(tmp_path, f"{OWN}proxy.tls.certificate.file={certificate}\nproxy.tls.key.file={key}\n")
    sides = both_sides(config, None, None, {})
    assert sides.brokers.tls is None
    assert sides.serve.tls is not None
    assert sides.serve.tls.verify_mode is ssl.CERT_REQUIRED
    assert sides.serve.tls.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert len(sides.serve.tls.get_ca_certs()) == 1


def test_another_identity_is_that_of_kafkas_scripts(tmp_path: Path) -> None:
    """Its transport is that towards `serve`; the brokers are reached as FILE says."""
    certificate, _ = server_certificate(tmp_path)
    client = tmp_path / "client.properties"
    client.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={certificate}\nclient.id=mine\nfetch.min.bytes=7\n"
        f'sasl.jaas.config={SCRAM} required username="alice" password="${{env:PW}}";\n'
    )
    sides = both_sides(load_lines(tmp_path, OWN), None, client, {"PW": "wonderland"})
    assert (sides.serve.principal, sides.brokers.principal) == ("'alice'", "'alice'")
    assert sides.serve.tls is not None
    assert sides.brokers.tls is None
    assert sides.brokers.sasl is not None
    assert (sides.brokers.sasl.mechanism, sides.brokers.sasl.password) == ("SCRAM-SHA-256", "wonderland")


def test_a_file_of_another_identity_that_is_wrong_is_named(tmp_path: Path) -> None:
    config = load_lines(tmp_path, OWN)
    client = tmp_path / "client.properties"
    client.write_text("security.protocol=SASL_SSLL\nsasl.jaas.config=nonsense\nsasl.mechanism=GSSAPI\n")
    with pytest.raises(ConfigError) as caught:
        both_sides(config, None, client, {})
    assert any("client.properties:1: security.protocol" in problem for problem in caught.value.problems)
    with pytest.raises(ConfigError, match=r"absent\.properties"):
        both_sides(config, None, tmp_path / "absent.properties", {})
