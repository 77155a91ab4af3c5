"""From the first signal handler to the exit code: `ready:`, reload, drain.

SIGTERM or SIGINT drains: listeners are closed, answers that have begun are finished within `proxy.drain.timeout.ms`,
the catalog's snapshot is written, exit 0. A second one stops at once. One that comes before clients are
accepted ends the start. SIGHUP has the configuration read again (`proxy.process.reload`).
"""

import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog
import trio

from proxy.connection.server import Server
from proxy.process.reload import Cause, Reloader
from proxy.process.systemd_notify import SystemdNotify
from proxy.readiness import Readiness

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = structlog.get_logger(__name__)


class Running(Protocol):
    """What runs, as far as its life cycle goes. `closing` is the scope of what is written at the end."""

    readiness: Readiness
    server: Server
    reloader: Reloader
    closing: trio.CancelScope

    @property
    def drain_timeout_s(self) -> float: ...

    @property
    def ready_line(self) -> str: ...


class LifeCycle:
    """Runs an application between signals."""

    def __init__(self, signals: AsyncIterator[int], systemd: SystemdNotify) -> None:
        self._signals = signals
        self._systemd = systemd
        self._running: Running | None = None
        self._stop_asked = trio.Event()
        self._drain_scope = trio.CancelScope()

    async def run(self, start: Callable[[], AbstractAsyncContextManager[Running]]) -> None:
        """Start, serve until a signal, drain, and return when everything has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, nursery)
            async with start() as running, trio.open_nursery() as serving:
                self._running = running
                self._systemd.ready()
                nursery.start_soon(self._systemd.run)
                serving.start_soon(self._say_ready, running)
                await self._stop_asked.wait()
                await self._drain(running)
                serving.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    async def _hear(self, nursery: trio.Nursery) -> None:
        async for number in self._signals:
            if number == signal.SIGHUP:
                nursery.start_soon(self._reload)
            elif self._running is None:
                _log.info("stopped_while_starting")
                nursery.cancel_scope.cancel()
            elif not self._stop_asked.is_set():
                self._stop_asked.set()
            else:
                _log.warning("stopped_at_once", connections=self._running.server.connections)
                self._drain_scope.cancel()
                self._running.closing.cancel()

    async def _reload(self) -> None:
        if self._running is None or self._stop_asked.is_set():
            return  # it was read a moment ago, or does not matter any more
        self._systemd.reloading()
        await self._running.reloader.reload(Cause.SIGNAL)
        self._systemd.ready()

    async def _say_ready(self, running: Running) -> None:
        self._systemd.status("; ".join(running.readiness.reasons) or "ready")
        await running.readiness.wait_ready()
        print(running.ready_line, file=sys.stderr, flush=True)
        self._systemd.status(running.ready_line)

    async def _drain(self, running: Running) -> None:
        server = running.server
        _log.info("draining", connections=server.connections)
        self._systemd.stopping()
        running.readiness.drain()
        server.drain()
        with self._drain_scope, trio.move_on_after(running.drain_timeout_s) as drain:
            await server.wait_empty()
        if drain.cancelled_caught:
            _log.warning("drain_timed_out", connections=server.connections)
