"""The part of the table of keys that all readers of the tier share: who writes it, and how brokers are reached.

The tier's own keys are in `tier_keys`; which of both a reader without a proxy takes, `tier_client` says.
"""

from typing import Final

from storage.config.kinds import HOST_PORTS, IDENTIFICATION, PATH, TEXT, Key, KeyGroup, one_of
from storage.config.model import Mode, SaslMechanism, SecurityProtocol

MODE = Key(
    name="mode", kind=one_of(Mode), default="replica", doc="`replica`: the brokers write the tier; `standalone`: we do."
)
BROKER_CONFIG = Key(
    name="broker.config",
    kind=PATH,
    doc="The broker's `server.properties`, from which the tier's part is taken. Relative to this file.",
)
UPSTREAM_BOOTSTRAP_SERVERS = Key(
    name="upstream.bootstrap.servers", kind=HOST_PORTS, stand_in="unset:1", doc="The brokers that are asked first."
)
UPSTREAM_SECURITY_PROTOCOL = Key(
    name="upstream.security.protocol",
    kind=one_of(SecurityProtocol),
    default="PLAINTEXT",
    doc="How brokers are reached. Clients' upstream connections take only the transport from it.",
)
UPSTREAM_SASL_MECHANISM = Key(
    name="upstream.sasl.mechanism",
    kind=one_of(SaslMechanism),
    aliases=("upstream.sasl.mechanisms",),
    doc="Tidegate's own mechanism; clients' exchanges are relayed, whatever they use.",
)
UPSTREAM_SASL_USERNAME = Key(name="upstream.sasl.username", kind=TEXT, doc="Tidegate's own user.")
UPSTREAM_SASL_PASSWORD = Key(name="upstream.sasl.password", kind=TEXT, secret=True, doc="Its password.")
UPSTREAM_SSL_CA_LOCATION = Key(
    name="upstream.ssl.ca.location", kind=PATH, doc="PEM file of CA certificates; unset: the system's."
)
UPSTREAM_SSL_CERTIFICATE_LOCATION = Key(
    name="upstream.ssl.certificate.location", kind=PATH, doc="PEM file of Tidegate's own certificate and its chain."
)
UPSTREAM_SSL_KEY_LOCATION = Key(
    name="upstream.ssl.key.location", kind=PATH, doc="PEM file of its private key; unset: the certificate's file."
)
UPSTREAM_SSL_KEY_PASSWORD = Key(
    name="upstream.ssl.key.password", kind=TEXT, secret=True, doc="The private key's password."
)
UPSTREAM_SSL_KEYSTORE_LOCATION = Key(
    name="upstream.ssl.keystore.location", kind=PATH, doc="PKCS#12 file instead of certificate and key."
)
UPSTREAM_SSL_KEYSTORE_PASSWORD = Key(
    name="upstream.ssl.keystore.password", kind=TEXT, secret=True, doc="The PKCS#12 file's password."
)
UPSTREAM_SSL_IDENTIFICATION = Key(
    name="upstream.ssl.endpoint.identification.algorithm",
    kind=IDENTIFICATION,
    default="https",
    doc="`none` checks the broker's certificate but not its host name.",
)

UPSTREAM_GROUP: Final = KeyGroup(
    "Upstream: Tidegate's own identity, named as librdkafka names it",
    (
        UPSTREAM_BOOTSTRAP_SERVERS,
        UPSTREAM_SECURITY_PROTOCOL,
        UPSTREAM_SASL_MECHANISM,
        UPSTREAM_SASL_USERNAME,
        UPSTREAM_SASL_PASSWORD,
        UPSTREAM_SSL_CA_LOCATION,
        UPSTREAM_SSL_CERTIFICATE_LOCATION,
        UPSTREAM_SSL_KEY_LOCATION,
        UPSTREAM_SSL_KEY_PASSWORD,
        UPSTREAM_SSL_KEYSTORE_LOCATION,
        UPSTREAM_SSL_KEYSTORE_PASSWORD,
        UPSTREAM_SSL_IDENTIFICATION,
    ),
)
