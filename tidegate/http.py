"""A small HTTP/1.1 server for the admin pages: h11 reads and writes the protocol, trio the sockets.

Servers for trio that know HTTP/2 as well have no switch against it, and hold as many connections as come.

Rule 1. HTTP/1.1 and 1.0 only. HTTP/2 without negotiation is answered with 505; an upgrade that is offered is passed
        over, as RFC 9110 allows.
Rule 2. No more than `connections_max` connections. At that number the one that has waited longest for its request, idle
        or half-sent, makes way for a newcomer; an answer under way never does.
Rule 3. A request has HEAD_S_MAX from its first byte, a connection IDLE_S_MAX between two, an answer SEND_S_MAX.
Rule 4. Request bodies are not read: a request that has one is answered, and its connection closed.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qsl

import h11
import structlog
import trio

REQUEST_HEAD_BYTES_MAX: Final = 16 * 1024
"""Request line and headers; a scraper's are below 1 KiB."""

IDLE_S_MAX: Final = 75.0
"""It is above Prometheus' usual scrape intervals of 15 to 60 s, so that its connection is used again."""

HEAD_S_MAX: Final = 10.0
SEND_S_MAX: Final = 30.0

FAREWELL_S_MAX: Final = 1.0
"""What the end of a client is waited for that was refused: closed at once, its unread bytes would take the answer
away."""

_RECEIVE_BYTES: Final = 16 * 1024

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """`host` is the Host header, empty where HTTP/1.0 has none; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    host: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; `headers` beside the content's type and length."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def text(status: int, body: str) -> Response:
    """An answer in plain words."""
    return Response(status, "text/plain; charset=utf-8", body.encode())


Answer = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves what listeners accept. Owned by the trio thread."""

    def __init__(self, answer: Answer, connections_max: int) -> None:
        self._answer = answer
        self._connections_max = connections_max
        self._open: set[trio.CancelScope] = set()
        self._waiting: dict[trio.CancelScope, tuple[trio.SocketStream, float]] = {}
        """Those that wait for a request, or the rest of one, and since when; the longest wait first."""

    @property
    def connections(self) -> int:
        return len(self._open)

    async def handle(self, stream: trio.SocketStream) -> None:
        """One connection, until it ends."""
        async with stream:
            if len(self._open) >= self._connections_max and not self.make_room():
                return
            scope = trio.CancelScope()
            self._open.add(scope)
            try:
                with scope:
                    await self._serve(stream, scope)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                _log.debug("admin_connection_ended", reason=str(error))
            except Exception:
                _log.exception("admin_connection_fault")
            finally:
                self._open.discard(scope)
                self._waiting.pop(scope, None)

    def make_room(self, waited_s_min: float = 0.0) -> bool:
        """Close the connection that waits longest for a request; return whether there is one that waits so long."""
        longest = next(iter(self._waiting), None)
        if longest is None or trio.current_time() - self._waiting[longest][1] < waited_s_min:
            return False
        self._waiting.pop(longest)[0].socket.close()
        self._open.discard(longest)
        longest.cancel()
        return True

    async def _serve(self, stream: trio.SocketStream, scope: trio.CancelScope) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX)
        while True:
            self._waiting[scope] = stream, trio.current_time()
            try:
                event = await _next_request(stream, connection)
                has_body = event is not None and not isinstance(connection.next_event(), h11.EndOfMessage)
            except h11.RemoteProtocolError as error:
                if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await _send(stream, connection, text(error.error_status_hint, f"{error}\n"), is_head=False)
                    await _farewell(stream)
                return
            finally:
                self._waiting.pop(scope, None)
            if event is None:
                return
            await _send(stream, connection, await self._response(event), is_head=event.method == b"HEAD")
            if has_body or connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                await _farewell(stream)
                return
            connection.start_next_cycle()

    async def _response(self, event: h11.Request) -> Response:
        if event.http_version not in (b"1.0", b"1.1"):
            return text(505, "HTTP/1.1 only\n")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        path, _, query = event.target.decode("latin-1").partition("?")
        request = Request(
            event.method.decode("latin-1"), path, dict(parse_qsl(query)), headers.get("host", ""), headers
        )
        try:
            return await self._answer(request)
        except Exception:
            _log.exception("admin_page_failed", path=path)
            return text(500, "this page failed; the log says why\n")


async def _next_request(stream: trio.SocketStream, connection: h11.Connection) -> h11.Request | None:
    """None: the client has ended, or has said nothing for too long.

    Raises:
        h11.RemoteProtocolError: it sent something else.
    """
    with trio.move_on_after(IDLE_S_MAX) as limit:
        has_begun = bool(connection.trailing_data[0])
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            received = await stream.receive_some(_RECEIVE_BYTES)
            connection.receive_data(received)
            if not has_begun:
                limit.deadline, has_begun = trio.current_time() + HEAD_S_MAX, True
    return None


async def _send(stream: trio.SocketStream, connection: h11.Connection, response: Response, *, is_head: bool) -> None:
    fields = {
        "Date": formatdate(usegmt=True),
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    if connection.their_state is not h11.DONE:
        fields["Connection"] = "close"
    parts = [
        connection.send(h11.Response(status_code=response.status, headers=[*fields.items()])),
        b"" if is_head else connection.send(h11.Data(data=response.body)),
        connection.send(h11.EndOfMessage()),
    ]
    with trio.move_on_after(SEND_S_MAX) as limit:
        await stream.send_all(b"".join(part for part in parts if part))
    if limit.cancelled_caught:
        raise trio.BrokenResourceError(f"it has not taken its answer within {SEND_S_MAX:g} s")


async def _farewell(stream: trio.SocketStream) -> None:
    with trio.move_on_after(FAREWELL_S_MAX):
        await stream.send_eof()
        while await stream.receive_some(_RECEIVE_BYTES):
            pass
