"""What a running process takes over from a configuration that was read again: the one place that says how.

Every key of the table whose `reload` is not `restart` is read here, at the start and at each reload, and nothing else
is: a test holds each of them to that. Keys that need a restart keep the values of the start.
"""

import ssl
from typing import TYPE_CHECKING

from proxy.connection.accounts import AccountSettings
from proxy.connection.connection import ConnectionLimits
from proxy.connection.server import Server, ServerSettings
from proxy.connection.server_names import hear_server_names
from proxy.connection.slots import SlotLimits
from proxy.fetch.fallback import FallbackSettings
from proxy.fetch.service import FetchSettings
from proxy.settings import ClientAuth, ReadPreference, ServerTls
from storage.config.ssl_contexts import load_identity
from tidegate.config.model import Config
from tidegate.logs import configure_logs
from tidegate.open_files import connections_max

if TYPE_CHECKING:
    from proxy.fetch.frontiers import Frontiers

_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


class LiveSettings:
    """The settings as they are now. `server` and `frontiers` are set when those are made, and follow from then on.
    `tls` is what clients are shown.

    Raises:
        ssl.SSLError: OpenSSL refuses the certificate towards clients.
    """

    def __init__(self, config: Config) -> None:
        self.server: Server | None = None
        self.frontiers: Frontiers | None = None
        self._demands_sign_in = config.upstream.security.protocol.has_sasl
        self._hears_names = config.proxy.tls_sni_pattern is not None
        self._log = config.log
        self.tls = config.proxy.tls
        self._client_tls = self._context(config)
        self.fetch = FetchSettings(authority_age_s_max=0, fetch_wait_s_max=0, linger_s=0, read_prefer_tier=False)
        self.fallback = FallbackSettings(after_s=0, partitions_max=0)
        self.accounts = AccountSettings(send_stall_s=0)
        self._take(config)

    def follow(self, config: Config) -> None:
        """Take over all that may change.

        Raises:
            ssl.SSLError: OpenSSL refuses the certificate towards clients; nothing was changed.
        """
        if config.proxy.tls != self.tls and (config.proxy.tls is None) == (self.tls is None):
            self._client_tls, self.tls = self._context(config), config.proxy.tls
        if config.log != self._log:
            configure_logs(config.log.level, config.log.format, worker=config.log.worker)
            self._log = config.log
        self._take(config)
        if self.server is not None:
            self.server.settings = self.server_settings
        if self.frontiers is not None:
            self.frontiers.age_s_max = self.frontier_age_s_max

    def _take(self, config: Config) -> None:
        proxy, tier, authority = config.proxy, config.tier, config.authority
        self.drain_delay_s = proxy.drain_delay_ms / 1000
        self.drain_timeout_s = proxy.drain_timeout_ms / 1000
        self.frontier_age_s_max = authority.frontier_age_ms_max / 1000
        self.list_offsets_timeout_s = tier.list_offsets_timeout_ms / 1000
        self.fetch.authority_age_s_max = authority.age_ms_max / 1000
        self.fetch.fetch_wait_s_max = tier.fetch_wait_ms_max / 1000
        self.fetch.linger_s = tier.linger_ms / 1000
        self.accounts.send_stall_s = proxy.send_stall_ms / 1000
        self.fallback.after_s = tier.fallback_after_ms / 1000
        self.fallback.partitions_max = tier.fallback_partitions_max
        self.copies = not config.copy.is_disabled
        self.fetch.read_prefer_tier = proxy.read_prefer is ReadPreference.TIER
        self.server_settings = ServerSettings(
            ConnectionLimits(
                request_frame_bytes_max=proxy.request_frame_bytes_max,
                response_held_bytes_max=proxy.response_held_bytes_max,
                relay_rewrite_bytes_max=proxy.relay_rewrite_bytes_max,
                inflight_requests_max=proxy.inflight_requests_max,
                unauthenticated_frame_bytes_max=proxy.unauthenticated_frame_bytes_max,
                demands_sign_in=self._demands_sign_in,
            ),
            SlotLimits(
                connections_max=connections_max(config),
                idle_s_max=proxy.connections_idle_ms_max / 1000,
                connections_max_per_address=proxy.connections_max_per_ip,
                rate_max_per_address=proxy.connections_rate_per_ip,
            ),
            self._client_tls,
            proxy.upstream_connect_timeout_ms / 1000,
        )

    def _context(self, config: Config) -> ssl.SSLContext | None:
        if config.proxy.tls is None:
            return None
        context = server_ssl_context(config.proxy.tls)
        if self._hears_names:
            hear_server_names(context)
        return context


def server_ssl_context(tls: ServerTls) -> ssl.SSLContext:
    """For connections from clients; the context towards brokers is in `storage.config.ssl_contexts`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.client_ca_certificates_pem is not None:
        context.load_verify_locations(cadata=tls.client_ca_certificates_pem.decode("ascii"))
    context.verify_mode = _VERIFY_MODES[tls.client_auth]
    load_identity(context, tls.certificate_chain_pem, tls.private_key_pem)
    return context
