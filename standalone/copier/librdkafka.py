"""librdkafka's properties for Tidegate's own identity: what the copier's consumer and producers connect with.

`upstream.*` is named as librdkafka names it, but has been read and checked by the time it gets here, and the metadata
topic's client may have other words for the same: so these are made of the parsed values. Certificates and keys go as
PEM text, so that nothing decrypted lies on a disk.
"""

import sys
from typing import Final

import structlog

from protocol.client.settings import ClientSettings
from storage.config.model import UpstreamConfig

Properties = dict[str, str | int | float | bool]

ANSWER_TIMEOUT_MS: Final = 30_000
"""For one request, as on our other connections."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def client_properties(upstream: UpstreamConfig, role: str) -> Properties:
    """Return what every client needs: addresses, identity, and a client id like those of our other connections.

    Args:
        upstream: `config.upstream` or `config.metadata_producer`.
        role: what the client is for, in its client id.
    """
    security = upstream.security
    servers = [(server.host, server.port) for server in upstream.bootstrap_servers]
    properties: Properties = {
        "bootstrap.servers": ",".join(map(str, upstream.bootstrap_servers)),
        "client.id": ClientSettings(bootstrap_servers=tuple(servers)).client_id(role),
        "security.protocol": security.protocol.value,
        "socket.timeout.ms": ANSWER_TIMEOUT_MS,
        "socket.keepalive.enable": True,
    }
    if security.tls is not None:
        tls = security.tls
        properties["ssl.endpoint.identification.algorithm"] = "https" if tls.verify_hostname else "none"
        for name, pem in (
            ("ssl.ca.pem", tls.ca_certificates_pem),
            ("ssl.certificate.pem", tls.certificate_chain_pem),
            ("ssl.key.pem", tls.private_key_pem),
        ):
            if pem is not None:
                properties[name] = pem.decode("ascii")
    if security.sasl is not None:
        properties["sasl.mechanism"] = security.sasl.mechanism.value
        properties["sasl.username"] = security.sasl.username
        properties["sasl.password"] = security.sasl.password
    return properties


class LibrdkafkaLog:
    """A logger as confluent_kafka wants one. What librdkafka says goes into our log at level debug: whatever matters
    of it comes as an error, too, and the tasks that follow the brokers report an outage."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        """One line."""
        del level
        try:
            _log.debug("librdkafka_said", line=message % arguments)
        except Exception as error:  # called from C: nobody above could take it
            print(f"tidegate: librdkafka's line was lost: {error}", file=sys.stderr)
