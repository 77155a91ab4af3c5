"""The admin listener: the status page, `/metrics`, `/livez`, `/readyz`, on an address of its own.

- `/livez`: 200 whenever the loop turns; nothing else is asked, or a broken tier would restart every replica.
- `/readyz`: 200 or 503 with reasons, and whether it is starting, serving or draining; degraded is one more word, and
  200 (proxy.readiness).
- `/metrics`: rendered in a thread, so that a scrape of thousands of series does not hold up clients.
- `/streams`: who reads what from the tier, how fast, and what read-ahead waits for (JSON).
- `/` and `/status.json`: what there is to see, for people and for programs (tidegate.status).

There is no authentication: it listens on the loopback address unless told otherwise, and shows neither records nor
secrets. A browser on the same machine may be led here by a page from elsewhere, under that page's name (DNS rebinding),
so the Host header must name this host. Only GET and HEAD.

When clients have used up all open files, newcomers here get the descriptors that are kept for them
(`tidegate.open_files`), then those of connections that wait for a request.
"""

import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from ipaddress import ip_address
from typing import Any, Protocol

import trio

from metrics.page import render
from metrics.registry import Registry
from metrics.troubles import TroubleId
from proxy.connection.address_book import open_listeners
from proxy.connection.names import Groups
from proxy.connection.peer_address import ACCEPT_AGAIN_S, CrowdListener
from proxy.readiness import Readiness
from tidegate.config.model import AdminConfig
from tidegate.http import HttpServer, Request, Response, text
from tidegate.open_files import SpareFiles
from tidegate.status.model import Query, Status
from tidegate.status.page import HEADERS, render_page

Streams = Callable[[], Sequence[Mapping[str, object]]]
"""What `/streams` shows."""

StatusFor = Callable[[Query], Awaitable[Status]]
"""What the status page shows."""

ANY_HOST = "*"

SPARE_FILES = 4
"""Prometheus, two health checks and an operator."""


class Pages(Protocol):
    """What the pages are made of: this process's own, or all workers' together."""

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        """Content type and page, by the request's Accept header."""
        ...

    async def report(self) -> Mapping[str, Any]:
        """The body of `/readyz`."""
        ...

    async def streams(self) -> Sequence[Mapping[str, object]]:
        """Return what `/streams` shows."""
        ...

    async def status(self, query: Query) -> Status:
        """Return what the status page shows."""
        ...


class OwnPages:
    """Implements `Pages` for a process that does everything itself."""

    def __init__(
        self, readiness: Readiness, registry: Registry, streams: Streams, status: StatusFor, groups: Groups | None
    ) -> None:
        self.registry = registry
        self.groups = groups
        self._status = status
        self._readiness = readiness
        self._streams = streams

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        return await trio.to_thread.run_sync(render, self.registry, accept)

    async def report(self) -> Mapping[str, Any]:
        return readiness_report(self._readiness)

    async def streams(self) -> Sequence[Mapping[str, object]]:
        return self._streams()

    async def status(self, query: Query) -> Status:
        return await self._status(query)


async def serve_admin(
    config: AdminConfig, pages: Pages, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled.

    Args:
        config: its port 0 takes any free port.
        task_status: reports the bound host and port once connections are accepted.

    Raises:
        OSError: the address cannot be bound; the message names it and the key.
    """
    listeners = await open_listeners(config.listen, "admin.listen")
    server = HttpServer(partial(_answer, pages, _hosts(config)), config.connections_max)

    async def handle(stream: trio.SocketStream) -> None:
        try:
            await server.handle(stream)
        finally:
            stream.socket.close()
            spare.fill()  # in the same turn of the loop, or a client would have it

    def make_room(_error: OSError) -> bool:
        return spare.spend() or server.make_room(ACCEPT_AGAIN_S)  # a new one's request is on its way

    with closing(SpareFiles(SPARE_FILES)) as spare:
        async with trio.open_nursery() as nursery:
            crowds = [CrowdListener(each, make_room) for each in listeners]
            await nursery.start(trio.serve_listeners, handle, crowds)
            host, port = listeners[0].socket.getsockname()[:2]
            task_status.started((host, port))


def _hosts(config: AdminConfig) -> frozenset[str]:
    """Names that need not be configured: a pod's host name is the pod's own name."""
    own, configured = socket.gethostname().lower(), config.allowed_hosts or ()
    return frozenset({"localhost", own, own.partition(".")[0], config.listen.host.lower(), *configured})


def is_allowed(host: str, allowed: frozenset[str]) -> bool:
    """Return whether a request may name that host: an address cannot be rebound, and no browser leaves the header
    out."""
    if not host or ANY_HOST in allowed:
        return True
    name, _, port = host.rpartition(":")
    bare = (name if name and (port.isdecimal() or not port) else host).removesuffix(".").lower()
    if bare in allowed:
        return True
    try:
        ip_address(bare[1:-1] if bare.startswith("[") and bare.endswith("]") else bare)
    except ValueError:
        return False
    return True


async def _answer(pages: Pages, allowed: frozenset[str], request: Request) -> Response:
    if not is_allowed(request.host, allowed):
        return text(403, f"the host name {request.host[:100]!r} is not one of this host's: see admin.allowed.hosts\n")
    page = _PAGES.get(request.path)
    if page is None:
        return text(404, f"no such page; there are {', '.join(_PAGES)}\n")
    if request.method not in ("GET", "HEAD"):
        return text(405, "only GET and HEAD\n")
    return await page(pages, request)


async def _metrics(pages: Pages, request: Request) -> Response:
    content_type, page = await pages.metrics(request.headers.get("accept", ""))
    return Response(200, content_type, page)


async def _livez(_pages: Pages, _request: Request) -> Response:
    return text(200, "ok\n")


async def _readyz(pages: Pages, _request: Request) -> Response:
    report = await pages.report()
    return _json(report, 200 if report["ready"] else 503)


async def _streams(pages: Pages, _request: Request) -> Response:
    return _json({"streams": await pages.streams()})


async def _status(pages: Pages, request: Request) -> Response:
    status = await pages.status(Query.parse(request.query))
    return await trio.to_thread.run_sync(_json, status)


async def _index(pages: Pages, request: Request) -> Response:
    status = await pages.status(Query.parse(request.query))
    page = await trio.to_thread.run_sync(render_page, status)
    return Response(200, "text/html; charset=utf-8", page.encode(errors="replace"), HEADERS)


_PAGES: Mapping[str, Callable[[Pages, Request], Awaitable[Response]]] = {
    "/metrics": _metrics,
    "/livez": _livez,
    "/readyz": _readyz,
    "/streams": _streams,
    "/status.json": _status,
    "/": _index,
}


def _json(content: Mapping[str, Any] | Status, status: int = 200) -> Response:
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(status, "application/json", body.encode(errors="replace"))


def readiness_report(readiness: Readiness) -> dict[str, Any]:
    """The body of `/readyz`."""
    return {
        "state": readiness.stage.value,
        "ready": readiness.ready,
        "degraded": readiness.degraded,
        "reasons": readiness.reasons,
        "complaints": readiness.complaints,
        "troubles": readiness.troubles,
        "conditions": {name.value: asdict(condition) for name, condition in readiness.conditions.items()},
        "partition_problems": readiness.by_number(TroubleId.METADATA_PARTITION_NOT_READ),
        "broker_problems": readiness.by_number(TroubleId.BROKER_WITHHELD),
    }
