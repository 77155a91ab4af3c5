"""How to reach the brokers as ourselves: one plain value, mapped from the configuration by storage.config.

An ssl.SSLContext cannot be pickled and a password must not be: what is shipped to executors is the configuration.
"""

import socket
import ssl
from dataclasses import dataclass, field

from protocol.client.messages import SOFTWARE_NAME
from protocol.client.sasl import SaslCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Addresses, identity and limits of our own connections. `bootstrap_servers` are (host, port).

    `frame_bytes_max` bounds one response: Metadata of 500,000 partitions has about 40 MiB. `deadline_s` is how long one
    call of the blocking client keeps trying.
    """

    bootstrap_servers: tuple[tuple[str, int], ...]
    tls: ssl.SSLContext | None = None
    sasl: SaslCredentials | None = None
    client_host: str = field(default_factory=socket.gethostname)
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    reconnect_backoff_s: float = 0.05
    reconnect_backoff_max_s: float = 1.0
    deadline_s: float = 60.0
    frame_bytes_max: int = 64 * 1024 * 1024
    requests_in_flight_max: int = 64
    topics_max: int = 100_000

    @property
    def principal(self) -> str:
        """Who we are, for messages."""
        return "an anonymous client" if self.sasl is None else repr(self.sasl.username)

    def client_id(self, role: str) -> str:
        """`tidegate-<role>-<host>`."""
        return f"{SOFTWARE_NAME}-{role}-{self.client_host}"
