"""An HTTP proxy that opens tunnels (CONNECT, RFC 9110 §9.3.6) to names which nobody else knows.

    with tunnel_proxy({"store.test": "127.0.0.1"}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)

`asked` are the names and ports in the order they came.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.socks_server import copy

TIMEOUT_S = 30.0


@dataclass(slots=True)
class TunnelProxy:
    url: str
    names: Mapping[str, str]
    asked: list[str] = field(default_factory=list)


@contextmanager
def tunnel_proxy(names: Mapping[str, str]) -> Iterator[TunnelProxy]:
    """Serve until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    proxy = TunnelProxy(f"http://127.0.0.1:{server.server_port}", names)

    class Handler(_Handler):
        told = proxy

    server.RequestHandlerClass = Handler
    # Tunnels that a client keeps open are no reason to wait at the end.
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join(TIMEOUT_S)
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    told: TunnelProxy

    def do_CONNECT(self) -> None:
        name, _, port = self.path.rpartition(":")
        self.told.asked.append(self.path)
        if name not in self.told.names:
            self.send_error(502)
            return
        with socket.create_connection((self.told.names[name], int(port))) as store:
            self.send_response_only(200)
            self.end_headers()
            back = threading.Thread(target=copy, args=(store, self.connection), daemon=True)
            back.start()
            copy(self.connection, store)
            back.join(TIMEOUT_S)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the base class
        """Say nothing."""
