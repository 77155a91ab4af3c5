"""TLS that another process speaks (`tls_process`), for the connections of our own GETs: what urllib3 takes for an
SSLContext, and the process behind it.

A connection is opened as ever: by the SDK's classes, through their proxies, with their certificates. Only its TLS is
spoken elsewhere, and what comes back is a plain socket. If that process ends, so do its connections; their GETs fail
as those of any connection that ended and are sent again, and the next connection starts another process. Where none
can be had, TLS is spoken here.
"""

import json
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any

import structlog

from storage.object_store.http import tls_process
from storage.object_store.http.tls_process import DONE, MESSAGE_BYTES_MAX, Wanted

SEND_BUFFER_BYTES = 1024 * 1024
"""Asked for; the system's own limit is mostly lower."""

_ERRORS: dict[str, type[OSError]] = {
    "SSLCertVerificationError": ssl.SSLCertVerificationError,
    "ConnectionResetError": ConnectionResetError,
    "FileNotFoundError": FileNotFoundError,
}

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TlsProcess:
    """The process: started for the first connection, and again where it has ended. Thread-safe."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._has_worked = False
        self._is_off = sys.platform != "linux" or not sys.executable
        self._lock = threading.Lock()

    def connect(self, tcp: socket.socket, wanted: Wanted) -> socket.socket | None:
        """A plain socket to the peer of `tcp`, which is closed; None: there is no process, nothing was done.

        Raises:
            TimeoutError: the handshake took longer than the socket's own limit.
            ssl.SSLError, OSError: it failed.
        """
        message = json.dumps(asdict(wanted)).encode()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
                if not self._send(message, [tcp.fileno(), theirs.fileno()]):
                    ours.close()
                    return None
            ours.settimeout(tcp.gettimeout())
            tcp.close()
            self.hear(ours)
        except BaseException:
            ours.close()
            raise
        return ours

    def hear(self, ours: socket.socket) -> None:
        """Wait for the process's word on a connection; what follows it is the peer's.

        Raises:
            OSError: there is no connection.
        """
        said = ours.recv(len(DONE))  # and no more: a server may speak first
        if not said:
            with self._lock:
                if not self._has_worked:
                    self._give_up("it ended at once")
            raise ConnectionResetError("the process that speaks TLS has ended")
        self._has_worked = True
        if said != DONE:
            name, words = json.loads(said + ours.recv(MESSAGE_BYTES_MAX))
            raise _ERRORS.get(name, ssl.SSLError)(words)

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._is_off = True
            self._end()

    def _send(self, message: bytes, fds: list[int]) -> bool:
        with self._lock:
            for _ in range(2):
                if self._is_off:
                    return False
                is_new = self._control is None
                try:
                    socket.send_fds(self._control or self._start(), [message], fds)
                except OSError as error:
                    self._end()
                    if is_new:
                        self._give_up(error)
                else:
                    return True
            return False

    def _start(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-S", tls_process.__file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def _give_up(self, reason: object) -> None:
        if not self._is_off:
            _log.warning("tls_process_failed", reason=str(reason))
        self._is_off = True
        self._end()


class TlsElsewhere:
    """What urllib3 takes for an SSLContext, of one connection."""

    check_hostname = True
    """Otherwise urllib3 would ask for the certificate; a host is checked with it, or nothing is."""

    def __init__(self, process: TlsProcess) -> None:
        self._process = process
        self.verify_mode = ssl.CERT_REQUIRED
        self._authorities: tuple[Any, ...] = ()

    def load_verify_locations(self, *authorities: Any) -> None:
        self._authorities = authorities

    def set_alpn_protocols(self, _protocols: Any) -> None:
        """HTTP/1.1 is all that our GETs speak."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_hostname: str) -> ssl.SSLObject:
        """Speak TLS here: inside that of a proxy."""
        return self._wanted(server_hostname).context().wrap_bio(incoming, outgoing, server_hostname=server_hostname)

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str) -> socket.socket:
        """As TlsProcess.connect, or as an SSLContext does."""
        wanted = self._wanted(server_hostname)
        opened = self._process.connect(sock, wanted)
        return wanted.context().wrap_socket(sock, server_hostname=server_hostname) if opened is None else opened

    def _wanted(self, host: str) -> Wanted:
        return Wanted(host, self.verify_mode != ssl.CERT_NONE, *self._authorities)
