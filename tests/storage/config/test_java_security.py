"""The metadata topic's client: Java properties over upstream, part by part."""

from pathlib import Path

from storage.config import TierClientConfig
from storage.config.model import ClientTls, SaslMechanism, SecurityProtocol
from tests.support.certificates import server_certificate
from tests.support.tier_config_files import load_tier_lines, tier_problems_of

UPSTREAM_SASL = (
    "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\n"
    "upstream.sasl.username=up\nupstream.sasl.password=p\n"
)
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
COMMON = "rlmm.config.remote.log.metadata.common.client."
CONSUMER = "rlmm.config.remote.log.metadata.consumer."


def test_without_keys_of_its_own_it_is_upstreams(tmp_path: Path) -> None:
    config = load_tier_lines(tmp_path, f"{UPSTREAM_SASL}{COMMON}retries=3\n")
    assert config.metadata_client.security == config.upstream.security
    assert config.metadata_client.bootstrap_servers == config.upstream.bootstrap_servers


def test_jaas_and_mechanism_give_another_identity(tmp_path: Path) -> None:
    config = load_tier_lines(
        tmp_path,
        f"{UPSTREAM_SASL}{COMMON}bootstrap.servers=meta:9094\n{COMMON}sasl.mechanism=SCRAM-SHA-512\n"
        f'{COMMON}sasl.jaas.config={SCRAM} username="m" password="a\\\\"b";\n',
    )
    sasl = config.metadata_client.security.sasl
    assert sasl is not None
    assert (sasl.mechanism, sasl.username, sasl.password) == (SaslMechanism.SCRAM_SHA_512, "m", 'a"b')
    assert config.metadata_client.security.protocol is SecurityProtocol.SASL_PLAINTEXT
    assert str(config.metadata_client.bootstrap_servers[0]) == "meta:9094"


def test_the_consumers_own_keys_come_before_the_common_ones(tmp_path: Path) -> None:
    config = load_tier_lines(tmp_path, f"{COMMON}bootstrap.servers=a:1\n{CONSUMER}bootstrap.servers=b:2\n")
    assert str(config.metadata_client.bootstrap_servers[0]) == "b:2"


def test_a_protocol_alone_uses_upstreams_credentials(tmp_path: Path) -> None:
    config = load_tier_lines(tmp_path, f"{UPSTREAM_SASL}{COMMON}security.protocol=SASL_SSL\n")
    assert config.metadata_client.security.sasl == config.upstream.security.sasl
    assert config.metadata_client.security.tls == ClientTls()


def test_what_is_missing_or_wrong_names_its_key(tmp_path: Path) -> None:
    assert tier_problems_of(tmp_path, f"{COMMON}security.protocol=SASL_SSL\n") == (
        f"tidegate.properties:3: {COMMON}security.protocol: SASL_SSL needs sasl.jaas.config beside it, or "
        "upstream.sasl.*",
    )
    jaas = f"{COMMON}sasl.jaas.config={SCRAM} username=a password=hunter2;\n"
    (lacking,) = tier_problems_of(tmp_path, f"{UPSTREAM_SASL}{jaas}")
    assert "needs sasl.mechanism beside it" in lacking
    (kerberos,) = tier_problems_of(tmp_path, f"{UPSTREAM_SASL}{jaas}{COMMON}sasl.mechanism=GSSAPI\n")
    assert kerberos.endswith("OAUTHBEARER; Kerberos is not supported")
    (other,) = tier_problems_of(tmp_path, f"{UPSTREAM_SASL}{jaas}{COMMON}sasl.mechanism=PLAIN\n")
    assert "not for the mechanism PLAIN" in other
    assert "hunter2" not in lacking + kerberos + other
    (bootstrap,) = tier_problems_of(tmp_path, f"{COMMON}bootstrap.servers=nowhere\n")
    assert f"{COMMON}bootstrap.servers = nowhere: must be host:port" in bootstrap


def test_a_jaas_that_cannot_be_looked_up_is_one_problem(tmp_path: Path) -> None:
    lines = f"{COMMON}security.protocol=SASL_PLAINTEXT\n{COMMON}sasl.jaas.config=${{env:JAAS}}\n"
    assert len(tier_problems_of(tmp_path, lines)) == 1


def tls_of(config: TierClientConfig) -> ClientTls:
    found = config.metadata_client.security.tls
    assert found is not None
    return found


def test_stores_are_read_from_files(tmp_path: Path) -> None:
    certificate, key = server_certificate(tmp_path)
    (tmp_path / "both.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    tls = tls_of(
        load_tier_lines(
            tmp_path,
            f"{COMMON}security.protocol=SSL\n{COMMON}ssl.truststore.type=PEM\n"
            f"{COMMON}ssl.truststore.location=server.pem\n{COMMON}ssl.keystore.type=PEM\n"
            f"{COMMON}ssl.keystore.location=both.pem\n{COMMON}ssl.endpoint.identification.algorithm=\n",
        )
    )
    assert tls.ca_certificates_pem == tls.certificate_chain_pem == certificate.read_bytes()
    assert tls.private_key_pem == key.read_bytes()
    assert tls.verify_hostname is False


def test_stores_are_read_inline(tmp_path: Path) -> None:
    certificate, key = server_certificate(tmp_path)
    # As people write them: one value over continued lines, which a properties file joins without line ends.
    chain, private = (path.read_text().replace("\n", " \\\n") + "\n" for path in (certificate, key))
    tls = tls_of(
        load_tier_lines(
            tmp_path,
            f"{COMMON}security.protocol=SSL\n{COMMON}ssl.truststore.certificates={chain}"
            f"{COMMON}ssl.keystore.certificate.chain={chain}{COMMON}ssl.keystore.key={private}",
        )
    )
    assert tls.ca_certificates_pem == tls.certificate_chain_pem == certificate.read_bytes()
    assert tls.private_key_pem == key.read_bytes()
    assert tls.verify_hostname is True


def test_a_java_store_is_refused_with_the_line_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "trust.jks").write_bytes(b"\xfe\xed\xfe\xed")
    tls = f"{COMMON}security.protocol=SSL\n"
    for store in ("truststore", "keystore"):
        (problem,) = tier_problems_of(tmp_path, f"{tls}{COMMON}ssl.{store}.location=trust.jks\n")
        assert problem.startswith(f"tidegate.properties:4: {COMMON}ssl.{store}.location: {tmp_path}/trust.jks is a JKS")
        assert f"keytool -importkeystore -srckeystore {tmp_path}/trust.jks" in problem
