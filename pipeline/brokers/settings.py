"""How the pipeline reaches the brokers: one plain value, made on each process from the configuration.

An ssl.SSLContext cannot be pickled and a password must not be: what is shipped to executors is the configuration.
"""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.client.messages import SOFTWARE_NAME
from protocol.client.sasl import SaslCredentials
from storage.config.model import ClientSecurity, HostPort
from storage.config.ssl_contexts import client_ssl_context


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Addresses, identity and limits. `bootstrap_servers` are (host, port).

    `deadline_s` is how long one call of BrokerClient keeps trying; `frame_bytes_max` bounds one response: Metadata of
    500,000 partitions has about 40 MiB.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    tls: ssl.SSLContext | None = None
    sasl: SaslCredentials | None = None
    client_id: str = field(default_factory=lambda: f"{SOFTWARE_NAME}-spark-{socket.gethostname()}")
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    deadline_s: float = 60.0
    backoff_first_s: float = 0.1
    backoff_max_s: float = 2.0
    frame_bytes_max: int = 64 * 1024 * 1024

    @property
    def principal(self) -> str:
        """Who we are, for messages."""
        return "an anonymous client" if self.sasl is None else repr(self.sasl.username)


def client_settings(bootstrap_servers: Sequence[HostPort], security: ClientSecurity) -> ClientSettings:
    """Settings for `config.upstream` or `config.metadata_client`, by their servers and security."""
    sasl = security.sasl
    return ClientSettings(
        bootstrap_servers=tuple((server.host, server.port) for server in bootstrap_servers),
        tls=None if security.tls is None else client_ssl_context(security.tls),
        sasl=None if sasl is None else SaslCredentials(sasl.mechanism.value, sasl.username, sasl.password),
    )
