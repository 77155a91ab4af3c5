"""From the configuration to the settings of our own connections to brokers."""

from protocol.client.sasl import SaslCredentials
from protocol.client.settings import ClientSettings
from storage.config.model import ClientSecurity, UpstreamConfig
from storage.config.ssl_contexts import client_ssl_context


def client_settings(upstream: UpstreamConfig) -> ClientSettings:
    """Settings for `config.upstream` or `config.metadata_client`."""
    tls, sasl = upstream.security.tls, upstream.security.sasl
    return ClientSettings(
        bootstrap_servers=tuple((server.host, server.port) for server in upstream.bootstrap_servers),
        tls=None if tls is None else client_ssl_context(tls),
        sasl=None if sasl is None else SaslCredentials(sasl.mechanism.value, sasl.username, sasl.password),
        kafka_principal=kafka_principal(upstream.security),
    )


def kafka_principal(security: ClientSecurity) -> str:
    """Who the brokers take us for, where they map no names."""
    if security.sasl is not None:
        return f"User:{security.sasl.username}"
    if security.tls is not None and security.tls.certificate_chain_pem is not None:
        from cryptography.x509 import load_pem_x509_certificate  # a tenth of a second that others need not spend

        return f"User:{load_pem_x509_certificate(security.tls.certificate_chain_pem).subject.rfc4514_string()}"
    return "User:ANONYMOUS"
