"""An HTTP server before a store's: passes requests on, and answers some of them itself, as a test says.

    with s3_front(server.endpoint_url) as front:
        front.refuse(s3_error(503, "SlowDown", {"Retry-After": "1"}), path="*.log", times=2)
        front.refuse(s3_error(400, "ExpiredToken"), credential="old-key")      # requests signed with that key, always
        with front.held("*.log"):                                              # a store that is slow to answer
            ...
        assert front.gets("*.log") == [Passed("/bucket/orders.log", 206, 65536)]
        front.lose(path="*.log", method="POST")      # the next POST of it is passed on, and its answer is lost

What is passed on keeps its path and its headers; signatures are the server's to check.
"""

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TIMEOUT_S = 30.0


@dataclass(slots=True, eq=False)
class _Rule:
    answer: bytes
    path: str
    credential: str
    request: str
    times: int | None
    one_in: int
    met: int = 0


@dataclass(frozen=True, slots=True)
class Passed:
    """A GET that was passed on and answered: path, the server's status, and its body's size."""

    path: str
    status: int
    body_bytes: int


@dataclass(slots=True)
class S3Front:
    """The server. Thread-safe."""

    endpoint_url: str
    _rules: list[_Rule] = field(default_factory=list)
    _passed: list[Passed] = field(default_factory=list)
    _refused: int = 0
    _lost: list[tuple[str, str]] = field(default_factory=list)
    _held: tuple[str, threading.Event] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def refused(self) -> int:
        """Requests that were answered here."""
        return self._refused

    def gets(self, path: str) -> list[Passed]:
        """GETs that were passed on, of paths that match a shell pattern, in the order of their answers."""
        with self._lock:
            return [passed for passed in self._passed if fnmatchcase(passed.path, path)]

    @contextmanager
    def held(self, path: str) -> Iterator[None]:
        """Matching GETs are passed on only when this ends."""
        released = threading.Event()
        self._held = path, released
        try:
            yield
        finally:
            self._held = None
            released.set()

    def wait_held(self, path: str) -> None:
        """Return when this path is not held."""
        held = self._held
        if held is not None and fnmatchcase(path, held[0]):
            held[1].wait(TIMEOUT_S)

    def note(self, passed: Passed) -> None:
        """A GET is about to be answered with what the server said."""
        with self._lock:
            self._passed.append(passed)

    def refuse(
        self,
        answer: bytes,
        *,
        path: str = "*",
        credential: str = "",
        request: str = "*",
        times: int | None = None,
        one_in: int = 1,
    ) -> None:
        """Answer matching requests, or each `one_in`-th of them, with these bytes, `times` times (None: for ever).

        Args:
            answer: a whole HTTP answer: tests.support.scripted_http has makers.
            path: a shell pattern of the whole path, bucket included, as it is when it is decoded.
            request: a shell pattern of the verb and, after a space, the query: "DELETE uploadId=*".
            credential: the access key that a request is signed with; empty: any.
        """
        with self._lock:
            self._rules.append(_Rule(answer, path, credential, request, times, one_in))

    def lose(self, *, path: str = "*", method: str, query: str = "*") -> None:
        """Pass the next matching request on, and close the connection in place of its answer."""
        with self._lock:
            self._lost.append((f"{method} {path}", query))

    def loses(self, method: str, path: str, query: str) -> bool:
        """Return whether the answer to this request is to be lost."""
        with self._lock:
            for each in self._lost:
                if fnmatchcase(f"{method} {path}", each[0]) and fnmatchcase(query, each[1]):
                    self._lost.remove(each)
                    return True
        return False

    def heal(self) -> None:
        """Forget all rules, and pass everything on."""
        with self._lock:
            self._rules.clear()
            self._lost.clear()

    def answer(self, path: str, authorization: str, request: str) -> bytes | None:
        """Return what the first rule for the request says; None: pass it on."""
        with self._lock:
            for rule in self._rules:
                signed = f"Credential={rule.credential}/" in authorization if rule.credential else True
                if signed and fnmatchcase(path, rule.path) and fnmatchcase(request, rule.request):
                    rule.met += 1
                    if rule.met % rule.one_in:
                        continue
                    if rule.times is not None:
                        rule.times -= 1
                        if not rule.times:
                            self._rules.remove(rule)
                    self._refused += 1
                    return rule.answer
        return None


@contextmanager
def s3_front(endpoint_url: str) -> Iterator[S3Front]:
    """Start one on a free port."""
    parts = urlsplit(endpoint_url)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    front = S3Front(f"http://127.0.0.1:{server.server_port}")

    class Handler(_Handler):
        upstream = (str(parts.hostname), int(parts.port or 80))
        rules = front

    server.RequestHandlerClass = Handler
    # Connections that a client keeps open are no reason to wait at the end.
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield front
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: tuple[str, int]
    rules: S3Front

    def handle(self) -> None:
        # A client that goes away is the end of a connection, not of a test.
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.command} {urlsplit(self.path).query}"
        refusal = self.rules.answer(path, self.headers.get("Authorization") or "", request)
        if refusal is not None:
            self.wfile.write(refusal)
            return
        self.rules.wait_held(path)
        with closing(http.client.HTTPConnection(*self.upstream, timeout=TIMEOUT_S)) as connection:
            self._send(connection, body)
            answer = connection.getresponse()
            content = answer.read()
            if self.rules.loses(self.command, path, urlsplit(self.path).query):
                self.close_connection = True
                return
            if self.command == "GET":
                self.rules.note(Passed(path, answer.status, len(content)))
            self._answer(answer, content)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _send(self, connection: http.client.HTTPConnection, body: bytes) -> None:
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":  # answered already
                connection.putheader(name, value)
        connection.endheaders(body or None)

    def _answer(self, answer: http.client.HTTPResponse, content: bytes) -> None:
        self.send_response_only(answer.status)
        ours, theirs = self.rules.endpoint_url, f"http://{self.upstream[0]}:{self.upstream[1]}"
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                # Where an upload goes on is the server's own address, and would lead past us.
                self.send_header(name, value.replace(theirs, ours))
        size = answer.getheader("Content-Length") or "0" if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", size)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the base class
        """Say nothing."""
