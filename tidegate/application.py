"""What runs in a process that serves, for those who start it, and what it says when it is ready."""

from dataclasses import dataclass, field

import trio

from metrics.meters import Meters
from proxy.connection.address_book import Book
from proxy.connection.server import Server
from proxy.readiness import Readiness
from proxy.upstream.cluster import Cluster
from storage.metadata.catalog import Catalog
from tidegate.live_settings import LiveSettings
from tidegate.reload import Reloader


@dataclass(slots=True)
class Application:
    """Implements `tidegate.life_cycle.Running`."""

    bootstrap: tuple[str, int]
    admin: tuple[str, int]
    readiness: Readiness
    meters: Meters
    server: Server
    addresses: Book
    catalog: Catalog
    cluster: Cluster
    settings: LiveSettings
    reloader: Reloader
    python_tls: str | None = None
    """See `start_lines.python_tls`."""
    closing: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def drain_delay_s(self) -> float:
        return self.settings.drain_delay_s

    @property
    def drain_timeout_s(self) -> float:
        return self.settings.drain_timeout_s

    @property
    def ready_line(self) -> str:
        """Return what is said at the first readiness."""
        listened = self.cluster.brokers.keys() - self.addresses.withheld.keys()
        known = len(self.cluster.brokers)
        return ready_line(self.bootstrap, len(listened), known, self.catalog.finished_count, self.python_tls)


def ready_line(
    bootstrap: tuple[str, int], listened: int, known: int, segments: int, python_tls: str | None = None
) -> str:
    """Return what others wait for on standard error (docs/protocol.md).

    Args:
        listened: brokers that this process listens for, of those that are known.
    """
    host, port = bootstrap
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    brokers = f"{known}" if listened == known else f"{listened} of {known}"
    rest = "" if python_tls is None else f", {python_tls}"
    return f"ready: bootstrap {address}, brokers {brokers}, segments {segments}{rest}"
