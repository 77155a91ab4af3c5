"""The connections of a store whose SDK speaks through `requests`: a session for the SDK, and sockets for our own GETs.

- Both kinds are opened by the session's own pools, so certificates, proxies and time-outs are the same for both.
- All are noted, so that closing the store wakes whoever waits in one.

It imports requests, which comes with the extras `gcs` and `azure`: import it on first use.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import select_proxy

from storage.object_store.config_keys import SocksProxy
from storage.object_store.http_get import OpenSockets, noting

NEAR_HOSTS = frozenset({"169.254.169.254", "metadata", "metadata.google.internal"})
"""Where a machine asks who it is: never through a proxy, which would say who it is itself."""


class StoreSession(requests.Session):
    """A session for one store; also the first base of a class that adds an SDK's own session. See `reach`."""

    _proxy_url: str | None = None

    def reach(self, sockets: OpenSockets, *, connections_max: int, proxy: SocksProxy | None) -> None:
        """Note every connection in `sockets`; keep so many open. `proxy`: goes before the environment's."""
        self._proxy_url = None if proxy is None else proxy.url
        for scheme in ("http://", "https://"):
            self.mount(scheme, _NotingAdapter(sockets, connections_max))

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """As requests does, but that a plain-text endpoint is asked without the environment's HTTP proxy: our own GETs
        could not pass one."""
        found: Any = super().merge_environment_settings(url, proxies, stream, verify, cert)
        if self._proxy_url is not None:
            is_near = urlsplit(str(url)).hostname in NEAR_HOSTS
            found["proxies"] = {} if is_near else {"http": self._proxy_url, "https": self._proxy_url}
        elif str(url).startswith("http:"):
            found["proxies"] = {}
        return found

    def socket_opener(self, url: str, connect_timeout_s: float) -> Callable[[], Any]:
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
            if has_tunnel:
                pool._prepare_proxy(connection)
            else:
                connection.connect()
            opened, connection.sock = connection.sock, None
            return opened

        return open_socket


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
