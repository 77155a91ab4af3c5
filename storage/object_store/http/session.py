"""The connections of a store whose SDK speaks through `requests`: a session for the SDK, and sockets for our own GETs.

- Both kinds are opened by the session's own pools, so certificates, proxies and time-outs are the same for both.
- All are noted, so that closing the store wakes a thread that waits in one.

It imports requests, which comes with the extras `gcs` and `azure`: import it on first use.
"""

import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import select_proxy

from storage.object_store.clock import StoreClock
from storage.object_store.config_keys import SocksProxy
from storage.object_store.http.get import OpenSockets, noting

NEAR_NAMES = frozenset({"localhost", "metadata", "metadata.google.internal"})
"""Where a machine asks who it is, besides addresses of its link and its own: never through a proxy, which would ask who
that is itself."""


class StoreSession(requests.Session):
    """A session for one store; also the first base of a class that adds an SDK's own session. See `reach`."""

    _proxy_url: str | None = None
    _store_host: str | None = None

    def reach(
        self,
        endpoint_url: str,
        sockets: OpenSockets,
        *,
        connections_max: int,
        proxy: SocksProxy | None,
        clock: StoreClock | None = None,
    ) -> None:
        """Note every connection in `sockets`; keep so many open.

        Args:
            endpoint_url: the store's.
            proxy: goes before the environment's, for the store and for a remote source of tokens.
            clock: hears what time the store's answers say.
        """

        def hear(response: requests.Response, **_: Any) -> None:
            if clock is not None and urlsplit(response.url).hostname == self._store_host:
                clock.heard(response.headers.get("date"))

        self.hooks["response"].append(hear)
        self._proxy_url = None if proxy is None else proxy.url
        self._store_host = urlsplit(endpoint_url).hostname
        for scheme in ("http://", "https://"):
            self.mount(scheme, _NotingAdapter(sockets, connections_max))

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """As requests does, but that a plain-text endpoint is asked without the environment's HTTP proxy: our own GETs
        could not pass one."""
        found: Any = super().merge_environment_settings(url, proxies, stream, verify, cert)
        if self._proxy_url is not None:
            host = urlsplit(str(url)).hostname or ""
            found["proxies"] = (
                {}
                if host != self._store_host and is_near(host)
                else {"http": self._proxy_url, "https": self._proxy_url}
            )
        elif str(url).startswith("http:"):
            found["proxies"] = {}
        return found

    def socket_opener(self, url: str, sockets: OpenSockets, connect_timeout_s: float) -> Callable[[], Any]:
        """Opens connections to the server of `url`, with TLS where that is spoken, as the SDK's own are opened."""
        settings = self.merge_environment_settings(url, {}, None, None, None)
        proxies = dict(settings["proxies"])
        request = requests.Request("GET", url).prepare()
        adapter: Any = self.get_adapter(url)
        pool = adapter.get_connection_with_tls_context(request, settings["verify"], proxies=proxies, cert=None)
        has_tunnel = select_proxy(url, proxies) is not None and pool.proxy is not None

        def open_socket() -> Any:
            connection = pool._new_conn()
            connection.timeout = connect_timeout_s
            return sockets.connected(
                connection, (lambda: pool._prepare_proxy(connection)) if has_tunnel else connection.connect
            )

        return open_socket


def is_near(host: str) -> bool:
    """Return whether a host is this machine, or on its link and no other."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in NEAR_NAMES
    return address.is_loopback or address.is_link_local


class _NotingAdapter(HTTPAdapter):
    def __init__(self, sockets: OpenSockets, connections_max: int) -> None:
        self._sockets = sockets
        super().__init__(pool_maxsize=connections_max)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        manager: Any = self.poolmanager
        manager.pool_classes_by_scheme = noting(manager.pool_classes_by_scheme, self._sockets)

    def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
        is_new = proxy not in self.proxy_manager
        manager: Any = super().proxy_manager_for(proxy, **options)
        if is_new:
            manager.pool_classes_by_scheme = noting(manager.pool_classes_by_scheme, self._sockets)
        return manager
