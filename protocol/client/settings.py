"""How to reach the brokers as ourselves: one plain value, mapped from the configuration by storage.config.

An ssl.SSLContext cannot be pickled and a password must not be: what is shipped to executors is the configuration.
"""

import shlex
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.client.messages import SOFTWARE_NAME
from protocol.client.sasl import SaslCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Addresses, identity and limits of our own connections. `bootstrap_servers` are (host, port).

    `frame_bytes_max` bounds one response: Metadata of 500,000 partitions has about 40 MiB. One batch, which a copier is
    given however little it asks for, may have 100. `deadline_s` is how long one call of the blocking client keeps
    trying. `kafka_principal` is who brokers take us for, where they map no names.
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
    frame_bytes_max: int = 128 * 1024 * 1024
    requests_in_flight_max: int = 64
    topics_max: int = 100_000
    kafka_principal: str = "User:ANONYMOUS"

    @property
    def principal(self) -> str:
        """Who we are, for messages."""
        return "an anonymous client" if self.sasl is None else repr(self.sasl.username)

    def grant(self, rights: Sequence[str], kind: str, names: Sequence[str]) -> str:
        """Return what an administrator types to give us these rights on topics or groups; `admin.properties` stands for
        how that one signs in."""
        host, port = self.bootstrap_servers[0]
        words = ["kafka-acls.sh", "--bootstrap-server", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
        if self.tls is not None or self.sasl is not None:
            words += ["--command-config", "admin.properties"]
        words += ["--add", "--allow-principal", self.kafka_principal]
        words += [word for right in rights for word in ("--operation", right)]
        return shlex.join([*words, *(word for name in names for word in (f"--{kind}", name))])

    def client_id(self, role: str) -> str:
        """`tidegate-<role>-<host>`."""
        return f"{SOFTWARE_NAME}-{role}-{self.client_host}"
