"""toxiproxy: a way to a server that is slow, stalls, breaks or is gone, as a test says.

    with toxiproxy() as started, started.link("127.0.0.1:9000") as link:
        with link.toxic("latency", latency=300):     # answers come 300 ms later …
            ...                                      # … on open connections too, until the block ends
        with link.down():                            # connections are closed, new ones refused
            ...

Toxics are on what the server sends (`downstream`). Which ones there are and what they do:
toxiproxy's README, of the version that tests/tools.mk builds.
"""

import itertools
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.needs import TOXIPROXY
from tests.support.server_process import server_process
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

API_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Link:
    """One way to one server."""

    name: str
    address: str
    _api: "Toxiproxy"

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.address}"

    @contextmanager
    def toxic(self, kind: str, **attributes: int) -> Iterator[None]:
        """Let a toxic work until the block ends."""
        made = self._api.call(
            "POST",
            f"/proxies/{self.name}/toxics",
            {"type": kind, "name": self._api.fresh_name(kind), "stream": "downstream", "attributes": attributes},
        )
        try:
            yield
        finally:
            # Not deleted: that takes seconds when what it held back was for a connection that has gone since.
            self._api.call("POST", f"/proxies/{self.name}/toxics/{made['name']}", {"toxicity": 0.0})

    @contextmanager
    def down(self) -> Iterator[None]:
        """Close all connections and refuse new ones until the block ends."""
        self._api.call("POST", f"/proxies/{self.name}", {"enabled": False})
        try:
            yield
        finally:
            self._api.call("POST", f"/proxies/{self.name}", {"enabled": True})


@dataclass(frozen=True, slots=True)
class Toxiproxy:
    """A running toxiproxy, known by the address of its API."""

    api_address: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def link(self, upstream: str) -> Iterator[Link]:
        """A new way to the server at `upstream` (host:port, or its http URL)."""
        name = self.fresh_name("link")
        server = upstream.removeprefix("http://").partition("/")[0]
        made = self.call("POST", "/proxies", {"name": name, "listen": f"{HOST}:0", "upstream": server})
        try:
            yield Link(name, made["listen"], self)
        finally:
            self.call("DELETE", f"/proxies/{name}")

    def fresh_name(self, stem: str) -> str:
        """A name that nothing has yet."""
        return f"{stem}-{next(self._numbers)}"

    def call(self, method: str, path: str, content: object = None) -> Any:
        """One call of the API; its answer, None for an empty one."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"http://{self.api_address}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=API_TIMEOUT_S) as answer:
            body = answer.read()
        return json.loads(body) if body else None


@contextmanager
def toxiproxy() -> Iterator[Toxiproxy]:
    """Start one, without ways to anywhere."""
    with tempfile.TemporaryDirectory(prefix="tidegate-toxiproxy-") as folder:
        port = free_port()
        command = (str(TOXIPROXY), "-host", HOST, "-port", str(port))
        started = Toxiproxy(f"{HOST}:{port}")

        def answers() -> bool:
            try:
                started.call("GET", "/proxies")
            except OSError:
                return False
            return True

        with server_process("toxiproxy", command, Path(folder), port=port, answers=answers):
            yield started
