"""From the configuration to the settings of Tidegate's own connections: the one place that knows both."""

from collections.abc import Sequence

from protocol.client.sasl import SaslCredentials
from proxy.upstream.settings import UpstreamSettings
from storage.config.model import ClientSecurity, HostPort
from storage.config.ssl_contexts import client_ssl_context


def upstream_settings(bootstrap_servers: Sequence[HostPort], security: ClientSecurity) -> UpstreamSettings:
    """Settings for `config.upstream` or `config.metadata_client`, by their servers and security."""
    sasl = security.sasl
    return UpstreamSettings(
        bootstrap_servers=tuple((server.host, server.port) for server in bootstrap_servers),
        tls=None if security.tls is None else client_ssl_context(security.tls),
        sasl=None if sasl is None else SaslCredentials(sasl.mechanism.value, sasl.username, sasl.password),
    )
