"""A broker with StandardAuthorizer, signing in by PLAIN and SCRAM, in clear and over TLS, and over TLS by unsecured
tokens of OAUTHBEARER; one topic of it is tiered.

Nobody but the super users may do anything with a topic until a test says `allow`, save for Tidegate's user, who has
the rights that it needs. `identity` is the `upstream.*` part of a Tidegate's configuration.

`operators_kafka` is a cluster as operators have it: three brokers, SASL_SSL, stores of Java's own kind, and an identity
for the metadata topic's clients, in the brokers' own file, that is a super user.
"""

import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its re-exports are not marked as such
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from storage.config.security import PLAIN_MODULE
from tests.support.certificates import server_certificate
from tests.support.kafka import TieredTopic, orders, small_segments, tiered_topic
from tests.support.needs import JARS
from tools.demo.kafka_cluster import KafkaCluster, free_port
from tools.demo.kafka_properties import SUPER_USER

HOST: Final = "127.0.0.1"
METADATA_TOPIC: Final = "__remote_log_metadata"
READ, DESCRIBE, WRITE = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.WRITE
DESCRIBE_CONFIGS: Final = AclOperation.DESCRIBE_CONFIGS
USERS: Final = ("tidegate", "reader", "revoked", "describer", "outsider", "checker")
"""Known to PLAIN and to both SCRAM mechanisms."""
TIMEOUT_S: Final = 60.0
STORE_PASSWORD: Final = "changeit"

Rule = TypeVar("Rule", AclBinding, AclBindingFilter)

_POLL_S = 0.02
_SESSION_LIFETIME_MS = 3_600_000


def password(user: str) -> str:
    return f"{user}-secret"


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """The running broker. `ports` by listener name, `certificate` is every TLS listener's own authority."""

    cluster: KafkaCluster
    ports: Mapping[str, int]
    certificate: Path
    key: Path
    topic: TieredTopic
    admin: AdminClient

    others: str = ""
    """Addresses of more brokers' SASL_SSL listeners, each behind a comma."""

    @property
    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def address(self, protocol: str) -> str:
        return f"{HOST}:{self.ports[protocol]}" + (self.others if protocol == "SASL_SSL" else "")

    def identity(self, user: str, mechanism: str, protocol: str) -> dict[str, str]:
        """Configuration of a Tidegate that is `user`."""
        properties = {
            "upstream.bootstrap.servers": self.address(protocol),
            "upstream.security.protocol": protocol,
            "upstream.sasl.mechanism": mechanism,
            "upstream.sasl.username": user,
            "upstream.sasl.password": password(user),
        }
        return properties | ({"upstream.ssl.ca.location": str(self.certificate)} if protocol == "SASL_SSL" else {})

    def allow(self, user: str, operation: AclOperation, topic: str) -> None:
        """Grant, and return when the broker knows it."""
        for future in self.admin.create_acls([_rule(AclBinding, user, operation, topic)]).values():
            future.result(TIMEOUT_S)
        self._wait(user, operation, topic, is_there=True)

    def withdraw(self, user: str, operation: AclOperation, topic: str) -> None:
        """Take back, and return when the broker knows it."""
        for future in self.admin.delete_acls([_rule(AclBindingFilter, user, operation, topic)]).values():
            future.result(TIMEOUT_S)
        self._wait(user, operation, topic, is_there=False)

    def set_scram_password(self, user: str, secret: str) -> None:
        """For both mechanisms; connections that have signed in go on."""
        _set_scram_password(self.admin, user, secret)

    def set_metadata_topic(self, name: str, value: str) -> None:
        """A setting of the metadata topic."""
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, METADATA_TOPIC, incremental_configs=[entry])
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(TIMEOUT_S)

    def _wait(self, user: str, operation: AclOperation, topic: str, *, is_there: bool) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        wanted = _rule(AclBindingFilter, user, operation, topic)
        while bool(self.admin.describe_acls(wanted).result(TIMEOUT_S)) is not is_there:
            assert time.monotonic() < deadline_s, f"the broker has not heard of {wanted}"
            time.sleep(_POLL_S)


def _rule(
    made: Callable[..., Rule], user: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC
) -> Rule:
    return made(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


@contextmanager
def secured_kafka() -> Iterator[SecuredKafka]:
    """The broker, and 2,000 records in `tiered-secret`, all but the last segment in the tier alone. Tidegate's user
    has the rights that it needs."""
    with tempfile.TemporaryDirectory(prefix="tidegate-kafka-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        certificate, key = server_certificate(work)
        cluster = KafkaCluster(jars=JARS, work=work, sasl_plain_users={user: password(user) for user in USERS})
        ports = {"PLAINTEXT": cluster.broker(1).port, "SASL_PLAINTEXT": cluster.broker(1).sasl_port}
        ports["SASL_SSL"] = free_port()
        # The plan is read when a node is launched: only now are the ports known that the listeners name.
        cast("dict[str, str]", cluster.plan.properties).update(_listeners(cluster, ports, certificate, key))
        with cluster:
            yield _filled(cluster, ports, certificate, key)


def _filled(
    cluster: KafkaCluster, ports: Mapping[str, int], certificate: Path, key: Path, others: str = "", partitions: int = 1
) -> SecuredKafka:
    topic = tiered_topic(
        cluster,
        "tiered-secret",
        partitions=partitions,
        records=orders(2000, partitions),
        configs=small_segments(batches=4),
        batch_num_messages=100,
    )
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    secured = SecuredKafka(cluster, ports, certificate, key, topic, admin, others)
    for user in USERS:
        _set_scram_password(admin, user, password(user))
    _allow_all_groups(admin)
    secured.allow("tidegate", READ, METADATA_TOPIC)
    secured.allow("tidegate", DESCRIBE, topic.name)
    return secured


@contextmanager
def operators_kafka() -> Iterator[SecuredKafka]:
    """Brokers 1 to 3 and a controller, and a topic of two partitions. Else what `secured_kafka` has, but for its
    SASL_PLAINTEXT listener, and tokens."""
    with tempfile.TemporaryDirectory(prefix="tidegate-kafka-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        certificate, key = server_certificate(work)
        users = {user: password(user) for user in (*USERS, SUPER_USER)}
        cluster = KafkaCluster(
            jars=JARS, work=work, brokers=3, sasl_plain_users=users, properties=_java_stores(work, certificate, key)
        )
        with cluster:
            first, *others = [broker.sasl_port for broker in cluster.brokers]
            ports = {"PLAINTEXT": cluster.broker(1).port, "SASL_SSL": first}
            yield _filled(cluster, ports, certificate, key, "".join(f",{HOST}:{port}" for port in others), 2)


def _java_stores(work: Path, certificate: Path, key: Path) -> dict[str, str]:
    """The second listener speaks TLS, by a store that only Java reads, and the metadata clients sign in there as a
    super user."""
    leaf, own = x509.load_pem_x509_certificate(certificate.read_bytes()), load_pem_private_key(key.read_bytes(), None)
    assert isinstance(own, EllipticCurvePrivateKey)
    bundle, store = work / "brokers.p12", work / "brokers.jks"
    bundle.write_bytes(
        serialize_key_and_certificates(b"broker", own, leaf, None, BestAvailableEncryption(STORE_PASSWORD.encode()))
    )
    source = ("-srckeystore", str(bundle), "-srcstorepass", STORE_PASSWORD)
    for command in (
        (
            "-importkeystore",
            *source,
            "-deststoretype",
            "JKS",
            "-destkeystore",
            str(store),
            "-deststorepass",
            STORE_PASSWORD,
        ),
        (
            "-importcert",
            "-noprompt",
            "-alias",
            "authority",
            "-file",
            str(certificate),
            "-keystore",
            str(store),
            "-storepass",
            STORE_PASSWORD,
        ),
    ):
        subprocess.run(["keytool", *command], check=True, capture_output=True)
    kept = {"type": "JKS", "location": str(store), "password": STORE_PASSWORD}
    trusted = {f"ssl.truststore.{name}": value for name, value in kept.items()}
    entry = f'username="{SUPER_USER}" password="{password(SUPER_USER)}";'
    common = "rlmm.config.remote.log.metadata.common.client."
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "remote.log.metadata.manager.listener.name": "SASL_PLAINTEXT",
        **{f"ssl.keystore.{name}": value for name, value in kept.items()},
        "ssl.key.password": STORE_PASSWORD,
        **trusted,
        f"{common}sasl.mechanism": "PLAIN",
        f"{common}sasl.jaas.config": f"{PLAIN_MODULE} required {entry}",
        **{common + name: value for name, value in trusted.items()},
    }


def _listeners(cluster: KafkaCluster, ports: Mapping[str, int], certificate: Path, key: Path) -> dict[str, str]:
    keystore = certificate.with_name("keystore.pem")
    keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
    listeners = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    entries = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
    properties = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{cluster.plan.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{name}:{name}" for name in ports) + ",CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        # A client is who it says it is: the tokens are unsecured.
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {entries};"
        ),
        # Without a lifetime a broker takes no second sign-in on a connection.
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": str(_SESSION_LIFETIME_MS),
    }
    for mechanism in ("scram-sha-256", "scram-sha-512"):
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        properties[f"listener.name.sasl_ssl.{mechanism}.sasl.jaas.config"] = module
    return properties


def _allow_all_groups(admin: AdminClient) -> None:
    """librdkafka asks for the coordinator of a group that it never joins."""
    for future in admin.create_acls([_rule(AclBinding, "*", READ, "*", ResourceType.GROUP)]).values():
        future.result(TIMEOUT_S)


def _set_scram_password(admin: AdminClient, user: str, secret: str) -> None:
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), secret.encode())
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(TIMEOUT_S)
