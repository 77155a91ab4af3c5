"""From the configuration to the settings of our own connections to brokers."""

from collections.abc import Sequence

from protocol.client.connection import ClientSettings
from protocol.client.sasl import SaslCredentials
from storage.config.model import ClientSecurity, HostPort
from storage.config.ssl_contexts import client_ssl_context


def client_settings(bootstrap_servers: Sequence[HostPort], security: ClientSecurity) -> ClientSettings:
    """Settings for `config.upstream` or `config.metadata_client`, by their servers and security."""
    sasl = security.sasl
    return ClientSettings(
        bootstrap_servers=tuple((server.host, server.port) for server in bootstrap_servers),
        tls=None if security.tls is None else client_ssl_context(security.tls),
        sasl=None if sasl is None else SaslCredentials(sasl.mechanism.value, sasl.username, sasl.password),
    )
