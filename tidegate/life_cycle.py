"""From the first signal handler to the exit code: `ready:`, reload, drain.

SIGTERM or SIGINT drains in two phases. First `/readyz` fails while listeners go on accepting, for
`proxy.drain.delay.ms`: what sends clients here looks only now and then, and clients that it sends meanwhile are served.
Then listeners are closed, answers that have begun are finished within `proxy.drain.timeout.ms`, the catalog's snapshot
is written, exit 0. A second one stops at once. One that comes before clients are accepted ends the start. SIGHUP has
the configuration read again (`tidegate.reload`).
"""

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog
import trio

from proxy.readiness import Readiness
from storage.errors import StorageConfigError
from tidegate import exit_codes
from tidegate.log_lines import STANDARD_ERROR
from tidegate.reload import Cause

# What systemd hears from a unit of `Type=notify`: sd_notify(3)'s datagrams, when NOTIFY_SOCKET says where.
#
# Rules:
# 1. READY=1 as soon as clients are accepted. It does not wait for upstream and tier: systemd would kill a Tidegate
#    that starts before its brokers do, and start it again and again; `/readyz` and the status line tell that state.
# 2. WATCHDOG=1 at half of WATCHDOG_USEC, from the event loop: it stops when the loop does.
# 3. A datagram that cannot be sent is logged once; nothing depends on it here.


class SystemdNotify:
    """Silent where no NOTIFY_SOCKET is set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        # An abstract socket is written with @ for the zero byte that its name begins with.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._has_failed = False
        self._watchdog_s = _watchdog_s(environ)

    def ready(self) -> None:
        """Clients are accepted, or the configuration has been read again."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The drain has begun."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS=" + " ".join(text.split()))

    async def run(self) -> None:
        """Send the watchdog's sign of life until cancelled; returns at once where there is no watchdog."""
        while self._watchdog_s is not None and self._address:
            self._send("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / 2)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                _log.warning("systemd_not_told", reason=str(error))
            self._has_failed = True


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """The interval that systemd asks for, None without one or when it is meant for another process."""
    text, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 1_000_000


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_log = structlog.get_logger(__name__)


class Draining(Protocol):
    """Client connections, as far as their end goes; see `proxy.connection.server.Server`."""

    @property
    def connections(self) -> int: ...

    def drain(self) -> None: ...

    async def wait_empty(self) -> None: ...


class Reloading(Protocol):
    """What reads the configuration again; see `tidegate.reload.Reloader`."""

    async def reload(self, cause: Cause) -> object: ...


class Running(Protocol):
    """What runs, as far as its life cycle goes. `closing` is the scope of what is written at the end."""

    @property
    def readiness(self) -> Readiness: ...

    @property
    def server(self) -> Draining: ...

    @property
    def reloader(self) -> Reloading: ...

    @property
    def closing(self) -> trio.CancelScope: ...

    @property
    def drain_delay_s(self) -> float: ...

    @property
    def drain_timeout_s(self) -> float: ...

    @property
    def ready_line(self) -> str | None: ...


class LifeCycle:
    """Runs an application between signals."""

    def __init__(self, signals: AsyncIterator[int], systemd: SystemdNotify) -> None:
        self._signals = signals
        self._systemd = systemd
        self._running: Running | None = None
        self._stop_asked = trio.Event()
        # A scope is entered once: the first ends the delay, the second the wait for answers.
        self._drain_scope, self._stop_scope = trio.CancelScope(), trio.CancelScope()

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
                self._stop_scope.cancel()
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
        line = running.ready_line
        if line is not None:
            STANDARD_ERROR.write(f"{line}\n")
            STANDARD_ERROR.flush()
            self._systemd.status(line)

    async def _drain(self, running: Running) -> None:
        server = running.server
        _log.info("draining", connections=server.connections, listeners_close_in_s=running.drain_delay_s)
        self._systemd.stopping()
        running.readiness.drain()
        with self._drain_scope:
            await trio.sleep(running.drain_delay_s)
        server.drain()
        with self._stop_scope, trio.move_on_after(running.drain_timeout_s) as drain:
            await server.wait_empty()
        if drain.cancelled_caught:
            _log.warning("drain_timed_out", connections=server.connections)


async def exit_code_of(life: Awaitable[None], found_wrong: tuple[type[Exception], ...] = (OSError,)) -> int:
    """Return the exit code of a process that lives so; what has ended it is written to standard error, a line each.

    Args:
        found_wrong: errors that end it beside those of the configuration.
    """
    exit_code = exit_codes.DONE
    try:
        await life
    except* StorageConfigError as group:
        exit_code = exit_codes.USAGE
        _say_errors(group)
    except* found_wrong as group:
        exit_code = exit_codes.FOUND_WRONG
        _say_errors(group)
    return exit_code


def _say_errors(group: BaseExceptionGroup[Exception]) -> None:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _say_errors(error)
        else:
            STANDARD_ERROR.write(f"tidegate: {error}\n")
