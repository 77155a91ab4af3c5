"""A real schema registry on this machine, and a guard in front of it that asks who is there.

    with schema_registry(folder) as url:
        SchemaRegistryClient({"url": url})

It is Apicurio Registry, which speaks the interface of Confluent's; records and schemas are written by Confluent's own
Python client. Its schemas are in memory. Who asks is not its business here: `guarded_registry` is TLS, basic
authentication or a bearer token, and client certificates in front of any registry.
"""

import http.client
import http.server
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.needs import REGISTRY_JAR
from tests.support.server_process import server_process
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

QUICK_START = ("-XX:TieredStopAtLevel=1", "-Xmx400m", "-Xshare:auto")


@contextmanager
def schema_registry(folder: Path) -> Iterator[str]:
    """The address of its interface; it ends with the block."""
    port = free_port()
    settings = (
        f"-Dquarkus.http.port={port}",
        f"-Dquarkus.http.host={HOST}",
        "-Dquarkus.log.level=WARN",
        "-Dapicurio.datasource.jdbc.initial-size=1",
        "-Dapicurio.datasource.jdbc.min-size=1",
    )
    command = ("java", *QUICK_START, *settings, "-jar", str(REGISTRY_JAR))
    url = f"http://{HOST}:{port}/apis/ccompat/v7"
    with server_process("schema-registry", command, folder, port=port, answers=lambda: _answers(url)):
        yield url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@dataclass(slots=True)
class Guard:
    """What a guard lets through, and what it was asked.

    Attributes:
        authorization: the header that is let through; None: any.
        failures: answers of HTTP status that are given before the next requests are looked at.
    """

    url: str = ""
    authorization: str | None = None
    failures: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def guarded_registry(
    behind: str, *, authorization: str | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Guard]:
    """Requests go to the registry `behind`, if their header `Authorization` is this one."""
    guard = Guard(authorization=authorization)
    target = urllib.parse.urlsplit(behind)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            guard.paths.append(self.path)
            if guard.failures:
                self._answer(guard.failures.pop(0), b"{}")
            elif guard.authorization not in (None, self.headers.get("Authorization")):
                self._answer(401, b'{"error_code": 40101, "message": "who?"}')
            else:
                self._pass_on()

        def _pass_on(self) -> None:
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=30)
            try:
                connection.request("GET", target.path + self.path)
                answer = connection.getresponse()
                self._answer(answer.status, answer.read())
            finally:
                connection.close()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer((HOST, 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        guard.url = f"{'http' if tls is None else 'https'}://{HOST}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield guard
        finally:
            server.shutdown()
            thread.join()
