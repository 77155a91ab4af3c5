"""What systemd is told of a unit of `Type=notify`: sd_notify(3)'s datagrams, when NOTIFY_SOCKET says where.

Rules:
1. READY=1 as soon as clients are accepted. It does not wait for upstream and tier: systemd would kill a Tidegate
   that starts before its brokers do, and start it again and again; `/readyz` and the status line tell that state.
2. WATCHDOG=1 at half of WATCHDOG_USEC, from the event loop: it stops when the loop does.
3. A datagram that cannot be sent is logged once; nothing depends on it here.
"""

import os
import socket
import time
from collections.abc import Mapping

import structlog
import trio

_log = structlog.get_logger(__name__)


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
