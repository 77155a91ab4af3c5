"""Byte streams to brokers and clients: one small interface over plain sockets and TLS.

Rules:
- One task receives and one task sends at a time; a second sender is refused (trio.BusyResourceError).
- A cancelled or failed send may have sent a part: the stream is torn then and only `abort` is left to do.
- Every failure of the stream is a TransportError; the end of the peer's bytes is 0 from `receive_into`.

Plain sockets receive straight into the caller's buffer and send from the caller's views by `writev`: no copy is made
here. trio's SocketStream would copy each receive into fresh bytes, hence it is not used for them; and trio's sockets
yield to other tasks at each call, which costs a relay more than its copying. Here a call that can be done at once
yields (and looks for a cancellation) only when FAIR_BYTES have passed since the last time.
A stream that may be silent for long receives by `receive_late`, which asks for a buffer only when bytes have come.
TLS goes through trio.SSLStream. A peer that ends without TLS close_notify is taken as ended: Kafka's frames carry
their length, so a cut stream shows itself one layer up.
"""

import os
import socket as stdlib_socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import trio

from proxy.upstream.errors import TransportError, UpstreamConnectionError

Bytes = bytes | bytearray | memoryview

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
"""Buffers in one writev; POSIX promises 16, Linux and macOS have 1024."""

FAIR_BYTES = 1024 * 1024
"""So much may pass between two yields: half a millisecond, in which no other connection is served."""

FAIR_CALL_BYTES = 16 * 1024
"""What a call counts at least towards FAIR_BYTES, however little it moved."""

TLS_JOIN_BYTES_MAX = 64 * 1024
"""Small buffers are joined up to this before TLS: a record holds 16 KiB, so more joining saves nothing."""

LINGER_S = 1.0
"""How long `aclose` waits for a peer to take what was sent: closing with bytes unread resets the connection, and
what still lies in the send buffer is lost."""

LINGER_BYTES_MAX = 1024 * 1024
"""How much of what such a peer still sends is dropped before it is reset after all."""

LINGER_READ_BYTES = 4096

TLS_CLOSE_TIMEOUT_S = 1.0
"""How long `aclose` tries to send close_notify to a peer that does not read."""


class Transport(Protocol):
    """A connected byte stream."""

    @property
    def peer_name(self) -> str:
        """`host:port` of the other side, for messages."""
        ...

    async def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte into `view` (not empty); 0 is the end of the stream."""
        ...

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        """Like `receive_into`, with a view that is asked for only when bytes or the end have come.

        Args:
            size_max: receive at most so many bytes.
            space: called at most once for each attempt to read; gives `size_max` bytes or more.
        """
        ...

    async def send_all(self, data: Bytes) -> None:
        """Send all of `data`."""
        ...

    async def send_vectored(self, buffers: Sequence[Bytes]) -> None:
        """Send all buffers in order, as one run of bytes."""
        ...

    async def aclose(self) -> None:
        """Close in good order; what was sent before still reaches the peer. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once, without TLS farewell; tasks waiting on the transport get a TransportError. Idempotent."""
        ...


async def open_transport(
    host: str, port: int, *, tls: ssl.SSLContext | None = None, server_hostname: str | None = None
) -> Transport:
    """Connect to host:port, with the TLS handshake done when `tls` is given. The caller sets the time limit.

    Args:
        server_hostname: the name for SNI and the certificate check; default is `host`.

    Raises:
        UpstreamConnectionError: nobody listens, the name does not resolve, or the handshake failed.
    """
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise UpstreamConnectionError(f"cannot connect to {host}:{port}: {error}") from error
    if tls is None:
        return plain_transport(stream.socket)
    secure: trio.SSLStream[trio.SocketStream] = trio.SSLStream(
        stream, tls, server_hostname=server_hostname or host, https_compatible=True
    )
    try:
        await secure.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
        await trio.aclose_forcefully(secure)
        reason = error.__cause__ or error
        raise UpstreamConnectionError(f"TLS handshake with {host}:{port} failed: {reason}") from error
    except BaseException:
        await trio.aclose_forcefully(secure)
        raise
    return TlsTransport(secure)


def plain_transport(sock: trio.socket.SocketType) -> Transport:
    """The transport of a connected trio socket, which it owns from now on."""
    return PlainTransport(sock)


async def tls_server_transport(sock: trio.socket.SocketType, context: ssl.SSLContext) -> "TlsTransport":
    """Do the server's side of a TLS handshake on an accepted socket. The caller sets the time limit.

    The socket is closed when the handshake fails or is cancelled.

    Raises:
        TransportError: the handshake failed.
    """
    name = peer_name_of(sock)
    stream: trio.SSLStream[trio.SocketStream] = trio.SSLStream(
        trio.SocketStream(sock), context, server_side=True, https_compatible=True
    )
    try:
        await stream.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
        await trio.aclose_forcefully(stream)
        raise TransportError(f"TLS handshake with {name} failed: {error.__cause__ or error}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return TlsTransport(stream)


class PlainTransport:
    """A transport over a trio socket."""

    __slots__ = ("_peer_name", "_sending", "_since_yield_bytes", "_socket")

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._since_yield_bytes = 0
        self._sending = False
        self._peer_name = peer_name_of(sock)
        if sock.family in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6):
            sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NODELAY, 1)
            if sys.platform == "linux":
                # trio.open_tcp_stream lowers this to 16 KiB; 0 is the system's own value again.
                sock.setsockopt(stdlib_socket.IPPROTO_TCP, stdlib_socket.TCP_NOTSENT_LOWAT, 0)

    @property
    def peer_name(self) -> str:
        return self._peer_name

    async def receive_into(self, view: memoryview) -> int:
        assert len(view) > 0, "an empty view would look like the end of the stream"
        try:
            while True:
                # Before the call: a cancellation after it would lose what was received.
                await self._be_fair()
                try:
                    return self._counted(os.readv(self._descriptor(), (view,)))
                except BlockingIOError:
                    await self._wait(trio.lowlevel.wait_readable)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        try:
            while True:
                # Cheaper than trio's own order, which tries first and then waits: a silent stream has nothing yet.
                self._descriptor()
                await self._wait(trio.lowlevel.wait_readable)
                try:
                    return os.readv(self._descriptor(), (space()[:size_max],))
                except BlockingIOError:
                    continue
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error

    async def send_all(self, data: Bytes) -> None:
        await self.send_vectored((data,))

    async def send_vectored(self, buffers: Sequence[Bytes]) -> None:
        if self._sending:
            raise trio.BusyResourceError(f"another task is sending to {self._peer_name}")
        self._sending = True
        try:
            await self._send(buffers)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error
        finally:
            self._sending = False

    async def aclose(self) -> None:
        try:
            with trio.move_on_after(LINGER_S):
                self._socket.shutdown(stdlib_socket.SHUT_WR)
                dropped_bytes = 0
                while dropped_bytes < LINGER_BYTES_MAX and (data := await self._socket.recv(LINGER_READ_BYTES)):
                    dropped_bytes += len(data)
        except (OSError, trio.ClosedResourceError, trio.BusyResourceError):
            # The peer is gone already, or it was closed before.
            await trio.lowlevel.checkpoint()
        finally:
            self._socket.close()

    def abort(self) -> None:
        self._socket.close()

    async def _send(self, buffers: Sequence[Bytes]) -> None:
        # memoryviews in units of bytes, so that a partial send is cut without a copy
        pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        first = 0
        while first < len(pending):
            await self._be_fair()
            window = pending[first : first + IOV_MAX]
            try:
                sent = self._counted(os.writev(self._descriptor(), window))
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)
                continue
            for view in window:
                if sent < len(view):
                    pending[first] = view[sent:]
                    break
                sent -= len(view)
                first += 1
        if not pending:
            await trio.lowlevel.checkpoint()

    def _descriptor(self) -> int:
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise trio.ClosedResourceError
        return descriptor

    async def _wait(self, ready: Callable[[trio.socket.SocketType], Awaitable[None]]) -> None:
        await ready(self._socket)
        self._since_yield_bytes = 0

    async def _be_fair(self) -> None:
        if self._since_yield_bytes >= FAIR_BYTES:
            self._since_yield_bytes = 0
            await trio.lowlevel.checkpoint()

    def _counted(self, moved_bytes: int) -> int:
        self._since_yield_bytes += max(moved_bytes, FAIR_CALL_BYTES)
        return moved_bytes

    def _broken(self, error: BaseException) -> TransportError:
        reason = "closed by us" if isinstance(error, trio.ClosedResourceError) else str(error)
        return TransportError(f"connection with {self._peer_name} broke: {reason}")


class TlsTransport:
    """A transport over trio.SSLStream; the handshake is done."""

    __slots__ = ("_peer_name", "_stream")

    def __init__(self, stream: "trio.SSLStream[trio.SocketStream]") -> None:
        self._stream = stream
        self._peer_name = peer_name_of(stream.transport_stream.socket)

    @property
    def peer_name(self) -> str:
        return self._peer_name

    @property
    def server_name(self) -> str | None:
        """The server's name in the handshake. On the server's side None, unless its context hears of it."""
        name: str | None = self._stream.server_hostname
        return name

    async def receive_into(self, view: memoryview) -> int:
        assert len(view) > 0, "an empty view would look like the end of the stream"
        return await self.receive_late(len(view), lambda: view)

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        try:
            data = await self._stream.receive_some(size_max)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError) as error:
            raise self._broken(error) from error
        if data:
            space()[: len(data)] = data
        return len(data)

    async def send_all(self, data: Bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError) as error:
            raise self._broken(error) from error

    async def send_vectored(self, buffers: Sequence[Bytes]) -> None:
        for data in joined(buffers, TLS_JOIN_BYTES_MAX):
            await self.send_all(data)

    async def aclose(self) -> None:
        with trio.move_on_after(TLS_CLOSE_TIMEOUT_S):
            try:
                await self._stream.aclose()
            except (trio.BrokenResourceError, ssl.SSLError, OSError):
                # the peer is gone already, so nobody misses the farewell; aclose has closed the socket
                self.abort()

    def abort(self) -> None:
        self._stream.transport_stream.socket.close()

    def _broken(self, error: BaseException) -> TransportError:
        reason = "closed by us" if isinstance(error, trio.ClosedResourceError) else str(error.__cause__ or error)
        return TransportError(f"TLS connection with {self._peer_name} broke: {reason}")


def joined(buffers: Sequence[Bytes], join_bytes_max: int) -> Iterator[Bytes]:
    """The same bytes with runs of small buffers joined; a buffer of join_bytes_max or more is passed as it is."""
    run: list[Bytes] = []
    run_bytes = 0
    for buffer in buffers:
        size = memoryview(buffer).nbytes
        if run and run_bytes + size > join_bytes_max:
            yield run[0] if len(run) == 1 else b"".join(run)
            run, run_bytes = [], 0
        if size:
            run.append(buffer)
            run_bytes += size
    if run:
        yield run[0] if len(run) == 1 else b"".join(run)


def peer_name_of(sock: trio.socket.SocketType) -> str:
    """`host:port` of a socket's peer; a peer that has gone already, or a nameless one, gives a stand-in."""
    try:
        name = sock.getpeername()
    except OSError:
        return "a peer that left"
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "a local peer"
