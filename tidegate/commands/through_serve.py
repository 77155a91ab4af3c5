"""As a client of a running `serve`: where it listens, and as whom to ask, for `diff`.

- The address is `proxy.listen` of the same file, or `--bootstrap`. Where `serve` has TLS, the certificate that it shows
  has to be the file's own: that says more than any name in it.
- The identity is Tidegate's own (`upstream.*`), or that of `--command-config`, a file as Kafka's scripts take it. Its
  transport (`security.protocol`, `ssl.*`) is for `serve`; brokers are reached as FILE says, as for clients' connections
  (docs/protocol.md#own-connections).
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from protocol.client.settings import ClientSettings
from storage.config.client_settings import client_settings
from storage.config.model import ClientSecurity, ClientTls, HostPort, SecurityProtocol, UpstreamConfig
from storage.config.security import client_file_security
from storage.config.sources import ConfigError
from tidegate.config.model import Config


@dataclass(frozen=True, slots=True)
class BothSides:
    """Settings for connections through `serve`, and for those to the brokers, as the same principal."""

    serve: ClientSettings
    brokers: ClientSettings


def both_sides(
    config: Config, bootstrap: HostPort | None, command_config: Path | None, environ: Mapping[str, str]
) -> BothSides:
    """Return how to reach both.

    Raises:
        ConfigError: the file of the identity is wrong, or nobody can tell where `serve` listens.
    """
    upstream, tls = config.upstream.security, config.proxy.tls
    pinned = None if tls is None else ClientTls(ca_certificates_pem=tls.certificate_chain_pem, verify_hostname=False)
    ours = ClientSecurity(
        protocol=_protocol(pinned is not None, upstream.sasl is not None), tls=pinned, sasl=upstream.sasl
    )
    theirs = upstream
    if command_config is not None:
        ours = client_file_security(command_config, environ, ours)
        theirs = replace(upstream, sasl=ours.sasl, protocol=_protocol(upstream.tls is not None, ours.sasl is not None))
    address = bootstrap or _listening(config)
    serve = client_settings(UpstreamConfig(bootstrap_servers=(address,), security=ours))
    if serve.tls is not None and ours.tls is pinned:
        serve.tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    brokers = UpstreamConfig(bootstrap_servers=config.upstream.bootstrap_servers, security=theirs)
    return BothSides(serve, client_settings(brokers))


def _protocol(has_tls: bool, has_sasl: bool) -> SecurityProtocol:
    if has_sasl:
        return SecurityProtocol.SASL_SSL if has_tls else SecurityProtocol.SASL_PLAINTEXT
    return SecurityProtocol.SSL if has_tls else SecurityProtocol.PLAINTEXT


def _listening(config: Config) -> HostPort:
    host, port = config.proxy.listen.host, config.proxy.listen.port
    if not port:
        raise ConfigError(["proxy.listen has no port of its own (0: any): say --bootstrap HOST:PORT"])
    try:
        address = ip_address(host or "0.0.0.0")
    except ValueError:
        return config.proxy.listen
    if address.is_unspecified:
        return HostPort("::1" if address.version == 6 else "127.0.0.1", port)
    return config.proxy.listen
