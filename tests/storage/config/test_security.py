"""Who we are to the brokers, in both spellings: what must be there, what has no effect, what cannot be read.

PEM and PKCS#12 in, plain PEM out, JKS refused; and contexts that do what the configuration says, by handshakes."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
from cryptography.x509 import load_pem_x509_certificate

from storage.config import TierClientConfig, ssl_contexts
from storage.config.model import ClientTls, SaslMechanism, SecurityProtocol
from storage.config.security import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasError,
    jaas_credentials,
    parse_login_module,
)
from storage.config.ssl_contexts import (
    TlsMaterialError,
    client_ssl_context,
    identity,
    load_identity,
    read_material,
    store_identity,
    trusted_certificates,
)
from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.tier_config_files import load_tier_lines, tier_problems_of
from tests.support.tls_handshake import handshake

SECRET = "hunter2"
UPSTREAM_SASL = (
    "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\n"
    "upstream.sasl.username=up\nupstream.sasl.password=p\n"
)
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
COMMON = "rlmm.config.remote.log.metadata.common.client."
CONSUMER = "rlmm.config.remote.log.metadata.consumer."
PRODUCER = "remote.log.metadata.producer."


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


JAAS = f'sasl.mechanism=SCRAM-SHA-512\n{{prefix}}sasl.jaas.config={SCRAM} username="{{user}}" password="p";\n'


def identity_lines(prefix: str, user: str) -> str:
    return prefix + JAAS.format(prefix=prefix, user=user)


def users_of(config: TierClientConfig) -> list[str]:
    """Who asks, who reads the metadata topic, who writes it."""
    clients = (config.upstream, config.metadata_client, config.metadata_producer)
    return [client.security.sasl.username if client.security.sasl else "" for client in clients]


def test_whose_identity_counts_is_said(tmp_path: Path) -> None:
    # Failed before: a broker's file silently made Tidegate the brokers' super user.
    (tmp_path / "server.properties").write_text(f"x=1\n{identity_lines(COMMON, 'admin')}")
    both = f"{UPSTREAM_SASL}broker.config=server.properties\n"
    mine = UPSTREAM_SASL.partition("username=")[2].partition("\n")[0]
    for wanted, users in (
        ("", [mine, "admin", "admin"]),
        ("broker", [mine, "admin", "admin"]),
        ("upstream", 3 * [mine]),
    ):
        config = load_tier_lines(tmp_path, both + (f"metadata.identity={wanted}\n" if wanted else ""))
        assert users_of(config) == users
        assert (config.identity_trouble is not None) == (wanted == "")
        assert config.warnings == ((config.identity_trouble,) if config.identity_trouble else ())
    trouble = load_tier_lines(tmp_path, both).identity_trouble
    assert trouble is not None
    assert (
        f"read with those of {COMMON}sasl.jaas.config, broker.config server.properties:3, not with upstream." in trouble
    )
    assert "upstream.sasl.username, tidegate.properties:" in trouble
    assert trouble.endswith("set metadata.identity to broker or upstream")


def test_upstream_without_credentials_means_broker_and_one_identity_is_no_question(tmp_path: Path) -> None:
    brokers = f"{COMMON}security.protocol=SASL_PLAINTEXT\n{identity_lines(COMMON, 'admin')}"
    config = load_tier_lines(tmp_path, f"metadata.identity=upstream\n{brokers}")
    assert users_of(config) == ["", "admin", "admin"]
    assert load_tier_lines(tmp_path, brokers).identity_trouble is None
    assert load_tier_lines(tmp_path, UPSTREAM_SASL).identity_trouble is None


def test_a_broken_identity_of_the_brokers_is_not_read_where_upstreams_counts(tmp_path: Path) -> None:
    # Failed before: a store of Java's own kind in the broker's file stopped the start.
    (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed")
    broken = f"{COMMON}security.protocol=SASL_SSL\n{COMMON}ssl.truststore.location=store.jks\n"
    assert "keytool" in tier_problems_of(tmp_path, f"{UPSTREAM_SASL}{broken}")[0]
    config = load_tier_lines(tmp_path, f"{UPSTREAM_SASL}{broken}metadata.identity=upstream\n")
    assert config.metadata_client == config.metadata_producer == config.upstream


def test_the_producers_own_keys_come_before_the_common_ones(tmp_path: Path) -> None:
    # Failed before: they were accepted and never read; a copier published under the consumer's name.
    lines = f"mode=standalone\n{UPSTREAM_SASL}{identity_lines(COMMON, 'reads')}"
    config = load_tier_lines(tmp_path, lines + identity_lines(PRODUCER, "writes"))
    assert users_of(config)[1:] == ["reads", "writes"]
    (problem,) = tier_problems_of(tmp_path, f"{lines}{PRODUCER}bootstrap.servers=nowhere\n")
    assert f"{PRODUCER}bootstrap.servers = nowhere: must be host:port" in problem
    replica = load_tier_lines(tmp_path, f"{UPSTREAM_SASL}{PRODUCER}bootstrap.servers=nowhere\n")
    assert replica.metadata_producer == replica.metadata_client, "a replica writes nothing"


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


def test_plain_gives_user_and_password() -> None:
    found = jaas_credentials(f'{PLAIN_MODULE} required username="tide" password="{SECRET}";', SaslMechanism.PLAIN)
    assert (found.mechanism, found.username, found.password) == (SaslMechanism.PLAIN, "tide", SECRET)
    assert SECRET not in repr(found)


@for_each("mechanism", [SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512])
def test_scram_takes_either_hash(mechanism: SaslMechanism) -> None:
    found = jaas_credentials(f"{SCRAM_MODULE} required username='tide' password='p';", mechanism)
    assert (found.mechanism, found.username, found.password) == (mechanism, "tide", "p")


def test_oauthbearer_keeps_the_modules_options() -> None:
    found = jaas_credentials(
        f'{OAUTHBEARER_MODULE} required clientId="a" clientSecret="b" ;', SaslMechanism.OAUTHBEARER
    )
    assert dict(found.options) == {"clientId": "a", "clientSecret": "b"}


def test_quotes_escapes_and_comments_are_javas() -> None:
    _, options = parse_login_module(
        'a.B required // to the end "of the line"\n /* and ; this */ a="x\\"y\\\\z\\n\\101\\7q" b=\'"\' c-d_e$=w1.2 ;\n'
    )
    assert dict(options) == {"a": 'x"y\\z\nA\x07q', "b": '"', "c-d_e$": "w1.2"}


@for_each(
    "text, reason",
    [
        ("", "lacks the login module's class"),
        (PLAIN_MODULE, "lacks a control flag"),
        (f"{PLAIN_MODULE} maybe;", "must have one of required"),
        (f'{PLAIN_MODULE} required username="a"', "must end with ';'"),
        (f"{PLAIN_MODULE} required username;", "name=value"),
        (f"{PLAIN_MODULE} required username=;", "lacks a value of username"),
        (f'{PLAIN_MODULE} required username="a" password="{SECRET};', "open quote at character"),
        (f"{PLAIN_MODULE} required password={SECRET}@x;", "unquoted sign"),
        (f'{PLAIN_MODULE} required username="a";', "has no password"),
        (f'{PLAIN_MODULE} required password="{SECRET}";', "has no username"),
        (f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;", "exactly one"),
        (f'{SCRAM_MODULE} required username="a" password="{SECRET}";', "not for the mechanism PLAIN"),
        ("com.sun.security.auth.module.Krb5LoginModule required;", "Kerberos is not supported"),
        ("com.example.Login required;", "names the login module com.example.Login"),
    ],
)
def test_what_does_not_fit_is_refused_without_its_values(text: str, reason: str) -> None:
    with pytest.raises(JaasError, match=reason) as caught:
        jaas_credentials(text, SaslMechanism.PLAIN)
    assert SECRET not in str(caught.value)


def test_delegation_tokens_are_refused() -> None:
    text = f'{SCRAM_MODULE} required username="a" password="b" tokenauth="true";'
    with pytest.raises(JaasError, match="delegation token"):
        jaas_credentials(text, SaslMechanism.SCRAM_SHA_256)


# --- keys, certificates and contexts ---


PASSWORD = "changeit"


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


def test_no_key_is_left_on_disk(pem: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    client_ssl_context(ClientTls(certificate_chain_pem=pem[0], private_key_pem=pem[1]))
    assert list(folder.iterdir()) == []


def encrypted(key_pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(key_pem, None)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def key_store(certificate_pem: bytes, key_pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    return pkcs12.serialize_key_and_certificates(
        b"tide", key, load_pem_x509_certificate(certificate_pem), None, encryption
    )


def test_pem_gives_chain_and_key(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    assert identity(b"Bag Attributes: comment\n" + certificate, key, None) == (certificate, key)


def test_an_encrypted_key_comes_out_plain(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    assert identity(certificate, encrypted(key), PASSWORD) == (certificate, key)


def test_one_pem_file_may_hold_key_and_chain(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    assert store_identity(encrypted(key) + certificate, PASSWORD) == (certificate, key)


def test_pkcs12_gives_the_same(pem: tuple[bytes, bytes]) -> None:
    store = key_store(*pem)
    assert store_identity(store, PASSWORD) == pem
    assert trusted_certificates(store, PASSWORD) == pem[0]


def test_a_pkcs12_trust_store_gives_its_certificates(pem: tuple[bytes, bytes]) -> None:
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    certificate = load_pem_x509_certificate(pem[0])
    store = pkcs12.serialize_key_and_certificates(None, None, None, [certificate], encryption)
    assert trusted_certificates(store, PASSWORD) == pem[0]
    with pytest.raises(TlsMaterialError, match="holds no private key"):
        store_identity(store, PASSWORD)


@for_each("magic, kind", [(b"\xfe\xed\xfe\xed", "JKS"), (b"\xce\xce\xce\xce", "JCEKS")])
def test_a_java_store_is_refused_with_the_keytool_line(magic: bytes, kind: str, tmp_path: Path) -> None:
    store = tmp_path / "client store.jks"
    store.write_bytes(magic + bytes(100))
    with pytest.raises(TlsMaterialError) as caught:
        read_material(store)
    assert (
        f"keytool -importkeystore -srckeystore '{store}' -srcstoretype {kind} "
        f"-destkeystore '{tmp_path}/client store.p12' -deststoretype PKCS12"
    ) in str(caught.value)


def test_a_key_that_is_not_the_certificates_is_refused(pem: tuple[bytes, bytes]) -> None:
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TlsMaterialError, match="does not belong"):
        identity(pem[0], other, None)
    exchange = x25519.X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TlsMaterialError, match="a kind that TLS does not use"):
        identity(pem[0], exchange, None)


def test_passwords_that_do_not_fit_are_refused_without_being_shown(pem: tuple[bytes, bytes]) -> None:
    certificate, key = pem
    with pytest.raises(TlsMaterialError, match="encrypted and has no password"):
        identity(certificate, encrypted(key), None)
    with pytest.raises(TlsMaterialError, match="is not"):
        identity(certificate, key, PASSWORD)
    with pytest.raises(TlsMaterialError, match="password is wrong") as caught:
        identity(certificate, encrypted(key), "hunter2")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(TlsMaterialError, match="its password opens"):
        store_identity(key_store(*pem), "hunter2")


def test_garbage_is_refused(pem: tuple[bytes, bytes]) -> None:
    for read in (lambda: trusted_certificates(b"garbage", None), lambda: store_identity(b"", None)):
        with pytest.raises(TlsMaterialError, match="neither PEM nor a PKCS#12 store"):
            read()
    with pytest.raises(TlsMaterialError, match="no readable PEM certificate"):
        trusted_certificates(pem[1], None)
    with pytest.raises(TlsMaterialError, match="no readable private key"):
        identity(pem[0], pem[0], None)


def test_a_file_that_cannot_be_read_or_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TlsMaterialError, match=r"absent\.pem cannot be read: No such file"):
        read_material(tmp_path / "absent.pem")
    monkeypatch.setattr(ssl_contexts, "FILE_BYTES_MAX", 4)
    (tmp_path / "large.pem").write_bytes(b"12345")
    with pytest.raises(TlsMaterialError, match="larger than 4 bytes"):
        read_material(tmp_path / "large.pem")
