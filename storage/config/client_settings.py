"""From the configuration to the settings of our own connections to brokers."""

from protocol.client.connection import ClientSettings
from protocol.client.sasl import SaslCredentials
from storage.config.model import UpstreamConfig
from storage.config.ssl_contexts import client_ssl_context


def client_settings(upstream: UpstreamConfig) -> ClientSettings:
    """Settings for `config.upstream` or `config.metadata_client`."""
    tls, sasl = upstream.security.tls, upstream.security.sasl
    return ClientSettings(
        bootstrap_servers=tuple((server.host, server.port) for server in upstream.bootstrap_servers),
        tls=None if tls is None else client_ssl_context(tls),
        sasl=None if sasl is None else SaslCredentials(sasl.mechanism.value, sasl.username, sasl.password),
    )
