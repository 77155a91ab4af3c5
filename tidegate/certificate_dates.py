"""Until when the certificates that are in use are valid: a gauge each, and a warning a day below thirty days.

In use is what was loaded, not what a file holds by now: a renewed file that no reload has taken up yet does not help.
"""

import datetime
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from metrics.process_meters import TlsMeter
from proxy.settings import ServerTls
from tidegate.config.model import Config

_log = structlog.get_logger(__name__)

EXPIRY_WARNING_S: Final = 30 * 86_400.0
WARNING_INTERVAL_S: Final = 86_400.0
INTERVAL_S: Final = 3600.0

_METADATA_KEYS: Final = ("ssl.keystore.certificate.chain", "ssl.keystore.location")


def certificates_in_use(config: Config, server_tls: ServerTls | None) -> dict[str, bytes]:
    """PEM chains that we present, by the key that names them: to clients, to brokers, for the metadata topic.

    Args:
        config: as it was at the start.
        server_tls: towards clients, as it is now.
    """
    chains: dict[str, bytes] = {}
    if server_tls is not None:
        chains["proxy.tls.certificate.file"] = server_tls.certificate_chain_pem
    upstream = config.upstream.security.tls
    if upstream is not None and upstream.certificate_chain_pem is not None:
        store, certificate = "upstream.ssl.keystore.location", "upstream.ssl.certificate.location"
        chains[store if store in config.files else certificate] = upstream.certificate_chain_pem
    metadata = config.metadata_client.security.tls
    if metadata is not None and metadata != upstream and metadata.certificate_chain_pem is not None:
        chains[_metadata_key(config)] = metadata.certificate_chain_pem
    return chains


def expires_at_s(chain_pem: bytes) -> float:
    """When the first certificate of a chain to expire does, Unix time."""
    from cryptography.x509 import load_pem_x509_certificates  # a tenth of a second that most starts need not spend

    return min(certificate.not_valid_after_utc.timestamp() for certificate in load_pem_x509_certificates(chain_pem))


def shown_date(at_s: float) -> str:
    """A moment as logs have it."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class CertificateWatch:
    """Tells `meter`, and the log."""

    def __init__(self, meter: TlsMeter, now_s: Callable[[], float] = time.time) -> None:
        self._meter = meter
        self._now_s = now_s
        self._warned: dict[tuple[str, float], float] = {}

    def tell(self, chains: Mapping[str, bytes]) -> None:
        """Set the gauges; warn of what expires soon, once a day."""
        now_s = self._now_s()
        for key, chain in chains.items():
            at_s = expires_at_s(chain)
            self._meter.on_certificate(key, at_s)
            warned_s = self._warned.get((key, at_s), -float("inf"))
            if at_s - now_s < EXPIRY_WARNING_S and now_s - warned_s >= WARNING_INTERVAL_S:
                self._warned = {seen: when for seen, when in self._warned.items() if seen[0] != key}
                self._warned[key, at_s] = now_s
                event = "certificate_expired" if at_s <= now_s else "certificate_expires_soon"
                _log.warning(event, key=key, expires=shown_date(at_s))

    async def run(self, chains: Callable[[], Mapping[str, bytes]]) -> None:
        """Tell every hour; until cancelled."""
        while True:
            self.tell(chains())
            await trio.sleep(INTERVAL_S)


def _metadata_key(config: Config) -> str:
    """The strongest of the keys that may name the metadata client's certificate, as it was spelt."""
    given = [shown.name for shown in config.effective]
    for end in _METADATA_KEYS:
        for client in ("consumer", "common.client"):
            for name in given:
                if name.endswith(f"remote.log.metadata.{client}.{end}"):
                    return name
    return f"remote.log.metadata.common.client.{_METADATA_KEYS[-1]}"
