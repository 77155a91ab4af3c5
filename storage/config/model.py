"""The parts of a configuration that no single key is: frozen, typed, checked. `storage.config.security` makes them.

Field names are the keys' words with units last. Secrets are left out of every repr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Mode(StrEnum):
    """Who writes the tier (docs/protocol.md#modes)."""

    REPLICA = "replica"
    STANDALONE = "standalone"


class MetadataIdentity(StrEnum):
    """Whose identity the metadata topic is read and written with."""

    UPSTREAM = "upstream"
    BROKER = "broker"


class SecurityProtocol(StrEnum):
    """Kafka's own names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SaslMechanism(StrEnum):
    """The mechanisms that Tidegate's own identity can use. Clients' own exchanges are relayed, whatever they are."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A TCP address; the host without the brackets of IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslCredentials:
    """One identity. `options` holds the login module's own options of OAUTHBEARER and is empty otherwise."""

    mechanism: SaslMechanism
    username: str = ""
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS towards a broker. All PEM: CA certificates (None: the system's), own certificate chain and its key.

    The key is unencrypted PKCS#8: `storage.config.ssl_contexts` hands it to OpenSSL without a plain copy on disk.
    """

    ca_certificates_pem: bytes | None = field(default=None, repr=False)
    certificate_chain_pem: bytes | None = field(default=None, repr=False)
    private_key_pem: bytes | None = field(default=None, repr=False)
    verify_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """How Tidegate's own connections reach a broker: `tls` is set exactly if the protocol has it, so is `sasl`."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: ClientTls | None = None
    sasl: SaslCredentials | None = None

    @property
    def has_credentials(self) -> bool:
        """Return whether a broker can tell us from anybody else."""
        return self.sasl is not None or (self.tls is not None and self.tls.certificate_chain_pem is not None)

    @property
    def relay_tls(self) -> ClientTls | None:
        """The transport for clients' upstream connections: never our certificate, never our credentials
        (docs/protocol.md#own-connections)."""
        return None if self.tls is None else replace(self.tls, certificate_chain_pem=None, private_key_pem=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig:
    """Which brokers, and as whom: of `upstream.*`, or with the broker's `remote.log.metadata.*` client keys over it."""

    bootstrap_servers: tuple[HostPort, ...]
    security: ClientSecurity
    identity_at: str = field(default="", compare=False)
    """The key that gives the credentials, and in which line of which file it stands; empty: there are none."""
