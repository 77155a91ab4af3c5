"""The admin listener: `/metrics`, `/livez`, `/readyz` and an index page, on an address of its own.

- `/livez`: 200 whenever the loop turns; nothing else is asked, or a broken tier would restart every replica.
- `/readyz`: 200 or 503 with reasons, and whether it is starting, serving or draining; degraded is told apart and is
  200 (proxy.readiness).
- `/metrics`: rendered in a thread, so that a scrape of thousands of series does not hold up clients.
- `/streams`: who reads what from the tier, how fast, and what read-ahead waits for (JSON).
- `/`: the same state to look at with a browser.

There is no authentication: it listens on the loopback address unless told otherwise, and shows neither records nor
secrets. Only GET and HEAD; request bodies are never read.
"""

import html
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, cast

import hypercorn.trio
import trio
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from metrics.registry import Registry, render
from proxy.readiness import Readiness

Streams = Callable[[], Sequence[Mapping[str, object]]]
"""What `/streams` shows."""


class Pages(Protocol):
    """What the pages are made of: this process's own, or all workers' together."""

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        """Content type and page, by the request's Accept header."""
        ...

    async def report(self) -> Mapping[str, Any]:
        """The body of `/readyz`."""
        ...

    async def streams(self) -> Sequence[Mapping[str, object]]:
        """What `/streams` shows."""
        ...


class OwnPages:
    """Implements `Pages` for a process that does everything itself."""

    def __init__(self, readiness: Readiness, registry: Registry, streams: Streams) -> None:
        self.registry = registry
        self._readiness = readiness
        self._streams = streams

    async def metrics(self, accept: str) -> tuple[str, bytes]:
        return await trio.to_thread.run_sync(render, self.registry, accept)

    async def report(self) -> Mapping[str, Any]:
        return readiness_report(self._readiness)

    async def streams(self) -> Sequence[Mapping[str, object]]:
        return self._streams()


REQUEST_HEAD_BYTES_MAX = 16 * 1024
"""Request line and headers; a scraper's are below 1 KiB."""

KEEP_ALIVE_S = 75
"""Idle connections and half-sent requests are closed after this. It is above Prometheus' usual scrape intervals of
15 to 60 s, so that its connection is used again."""

DRAIN_S = 1.0
"""What open admin requests get to finish once the shutdown trigger has fired."""


async def serve_admin(
    listen_host: str,
    listen_port: int,
    pages: Pages,
    *,
    shutdown_trigger: Callable[[], Awaitable[None]] | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, or until `shutdown_trigger` returns.

    Args:
        listen_port: 0 takes any free port.
        task_status: reports the bound host and port once connections are accepted.

    Raises:
        OSError: the address cannot be bound; the message names it and the key.
    """
    listening = await _bind(listen_host, listen_port)
    host, port = listening.getsockname()[:2]
    serve = partial(
        hypercorn.trio.serve,
        cast(ASGIFramework, admin_application(pages)),  # starlette types ASGI's messages more loosely
        _config(listening.detach()),
        shutdown_trigger=shutdown_trigger,
        mode="asgi",
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        task_status.started((host, port))


def admin_application(pages: Pages) -> Starlette:
    """The pages as an ASGI application, free of sockets."""

    async def metrics_page(request: Request) -> Response:
        content_type, page = await pages.metrics(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        report = await pages.report()
        return JSONResponse(report, status_code=200 if report["ready"] else 503)

    async def streams_page(_request: Request) -> Response:
        return JSONResponse({"streams": await pages.streams()})

    async def index(_request: Request) -> Response:
        return HTMLResponse(_index_page(await pages.report()))

    routes = {"/metrics": metrics_page, "/livez": livez, "/readyz": readyz, "/streams": streams_page, "/": index}
    return Starlette(routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes.items()])


def readiness_report(readiness: Readiness) -> dict[str, Any]:
    """The body of `/readyz`."""
    return {
        "state": readiness.stage.value,
        "ready": readiness.ready,
        "degraded": readiness.degraded,
        "reasons": readiness.reasons,
        "complaints": readiness.complaints,
        "conditions": {
            name.value: {"state": condition.state.value, "reason": condition.reason}
            for name, condition in readiness.conditions.items()
        },
        "partition_problems": {str(number): reason for number, reason in readiness.partition_problems.items()},
        "broker_problems": {str(node_id): reason for node_id, reason in readiness.broker_problems.items()},
        "left_to_brokers": readiness.brokers_read,
    }


def _index_page(report: Mapping[str, Any]) -> str:
    state = "ready" if report["ready"] else "not ready"
    lines = [
        f"{name}: {condition['state']} ({condition['reason']})" for name, condition in report["conditions"].items()
    ]
    lines += report["complaints"]
    # Reasons hold text of brokers and stores: escaped, always.
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in ("/metrics", "/livez", "/readyz", "/streams"))
    degraded = ", degraded" if report["degraded"] else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Tidegate</title>'
        f"<h1>Tidegate: {state}{degraded}</h1><ul>{items}</ul><ul>{links}</ul></html>\n"
    )


async def _bind(host: str, port: int) -> socket.socket:
    # Bound here and not by hypercorn, which would wrap the error in groups and resolve no names for IPv6.
    try:
        family, kind, protocol, _, address = (
            await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise OSError(error.errno, f"admin.listen {host}:{port}: {error.strerror}") from error
    return bound


def _config(file_descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{file_descriptor}"]
    config.accesslog = None
    config.errorlog = logging.getLogger(
        "hypercorn.error"
    )  # goes where proxy.process.logs sends the standard library's logging
    config.include_server_header = False
    config.h11_max_incomplete_size = REQUEST_HEAD_BYTES_MAX
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.read_timeout = KEEP_ALIVE_S
    config.graceful_timeout = DRAIN_S
    return config
