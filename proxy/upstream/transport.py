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
Connections are kept alive by TCP on both sides, so that a machine that is gone is noticed. TCP_USER_TIMEOUT is set
nowhere: Linux ends a live peer by it whose window stays closed, which is what a consumer that pauses looks like.
TLS goes through trio.SSLStream. A peer that ends without TLS close_notify is taken as ended: Kafka's frames carry
their length, so a cut stream shows itself one layer up.
"""

import os
import select
import socket as stdlib_socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio
from cryptography import x509

from protocol.client.errors import TransportError, UpstreamConnectionError, connect_reason, require_address

Bytes = bytes | bytearray | memoryview

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
"""Buffers in one writev; POSIX promises 16, Linux and macOS have 1024."""

FAIR_BYTES = 1024 * 1024
"""So much may pass between two yields: half a millisecond, in which no other connection is served."""

FAIR_CALL_BYTES = 16 * 1024
"""What a call counts at least towards FAIR_BYTES, however little it moved."""

TLS_BYTES_MAX = 32 * 1024
"""So much is encrypted for one send, and received at once, over TLS. OpenSSL's buffers stay as large as they have been
once: with 256 KiB a thousand clients that have read a lot keep 250 MiB, and sending costs a third less. What is sent is
copied first, a twentieth of the cost of its encryption: while it waits it needs nobody's views."""

LINGER_S = 1.0
"""How long `aclose` waits for a peer to take what was sent: closing with bytes unread resets the connection, and
what still lies in the send buffer is lost."""

LINGER_BYTES_MAX = 1024 * 1024
"""How much of what such a peer still sends is dropped before it is reset after all."""

LINGER_READ_BYTES = 4096

TLS_CLOSE_TIMEOUT_S = 1.0
"""How long `aclose` tries to send close_notify to a peer that does not read."""

KEEPALIVE_IDLE_S = 60
KEEPALIVE_INTERVAL_S = 15
KEEPALIVE_PROBES = 4
"""A silent peer is asked after a minute, and given up a minute later; NAT and firewalls forget connections after some
minutes (AWS: 350 s), so this keeps them in mind too."""


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

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        """Send the first bytes of what the buffers hold one after the other, at most IOV_MAX of them. Where it waits
        for the peer it has taken a copy, and keeps none of the buffers.

        Returns:
            How many bytes were sent; 0 if there are none, or none can be sent before `wait_writable`.
        """
        ...

    async def wait_writable(self) -> None:
        """Return once the peer takes bytes, or the stream is broken."""
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
        UpstreamConnectionError: nobody listens, the name is none or does not resolve, or the handshake failed.
    """
    require_address(host, port)
    try:
        stream = await trio.open_tcp_stream(host, port)
    except OSError as error:
        raise UpstreamConnectionError(f"cannot connect to {host}:{port}: {connect_reason(error)}") from error
    if tls is None:
        return plain_transport(stream.socket)
    secure: trio.SSLStream[_TlsSocket] = trio.SSLStream(
        _TlsSocket(stream), tls, server_hostname=server_hostname or host, https_compatible=True
    )
    try:
        await secure.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
        await trio.aclose_forcefully(secure)
        reason = error.__cause__ or error
        raise UpstreamConnectionError(
            f"TLS handshake with {host}:{port} failed: {reason}; {_tls_hint(reason)}"
        ) from error
    except BaseException:
        await trio.aclose_forcefully(secure)
        raise
    return TlsTransport(secure)


def _tls_hint(reason: BaseException) -> str:
    text = str(reason)
    if "ame mismatch" in text or "IP address mismatch" in text:
        return (
            "the certificate is for another name: use one of its names, or upstream.ssl.endpoint.identification."
            "algorithm=none"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "check upstream.ssl.ca.location, and the certificate's dates against this machine's clock"
    if "ALERT" in text and "WRONG_VERSION" not in text:
        return "the listener may want a certificate of ours (upstream.ssl.certificate.location)"
    return "it may be a listener without TLS: check upstream.security.protocol and the port"


def plain_transport(sock: trio.socket.SocketType, peer_name: str | None = None) -> Transport:
    """The transport of a connected trio socket, which it owns from now on.

    Args:
        peer_name: for messages; None: the socket's peer.
    """
    return PlainTransport(sock, peer_name)


async def tls_server_transport(
    sock: trio.socket.SocketType, context: ssl.SSLContext, peer_name: str | None = None
) -> "TlsTransport":
    """Do the server's side of a TLS handshake on an accepted socket. The caller sets the time limit.

    The socket is closed when the handshake fails or is cancelled.

    Args:
        peer_name: for messages; None: the socket's peer.

    Raises:
        TransportError: the handshake failed.
    """
    name = peer_name or peer_name_of(sock)
    stream: trio.SSLStream[_TlsSocket] = trio.SSLStream(
        _TlsSocket(trio.SocketStream(sock)), context, server_side=True, https_compatible=True
    )
    try:
        await stream.do_handshake()
    except (trio.BrokenResourceError, ssl.SSLError, OSError) as error:
        await trio.aclose_forcefully(stream)
        raise TransportError(f"TLS handshake with {name} failed: {error.__cause__ or error}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return TlsTransport(stream, name)


class PlainTransport:
    """A transport over a trio socket."""

    __slots__ = ("_peer_name", "_sending", "_since_yield_bytes", "socket")

    def __init__(self, sock: trio.socket.SocketType, peer_name: str | None = None) -> None:
        self.socket = sock
        self._since_yield_bytes = 0
        self._sending = False
        self._peer_name = peer_name or peer_name_of(sock)
        _keep_alive(sock)
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
                if self._since_yield_bytes >= FAIR_BYTES:
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
        self._require_one_sender()
        self._sending = True
        left = memoryview(data)
        try:
            while len(left):
                if self._since_yield_bytes >= FAIR_BYTES:
                    await self._be_fair()
                try:
                    left = left[self._counted(os.write(self._descriptor(), left)) :]
                except BlockingIOError:
                    await self._wait(trio.lowlevel.wait_writable)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error
        finally:
            self._sending = False

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        if self._since_yield_bytes >= FAIR_BYTES:
            await self._be_fair()
        self._require_one_sender()
        try:
            return self._counted(os.writev(self._descriptor(), buffers))
        except BlockingIOError:
            return 0
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error

    async def wait_writable(self) -> None:
        try:
            self._descriptor()
            await self._wait(trio.lowlevel.wait_writable)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error

    async def aclose(self) -> None:
        try:
            with trio.move_on_after(LINGER_S):
                self.socket.shutdown(stdlib_socket.SHUT_WR)
                dropped_bytes = 0
                while dropped_bytes < LINGER_BYTES_MAX and (data := await self.socket.recv(LINGER_READ_BYTES)):
                    dropped_bytes += len(data)
        except (OSError, trio.ClosedResourceError, trio.BusyResourceError):
            # The peer is gone already, or it was closed before.
            await trio.lowlevel.checkpoint()
        finally:
            self.socket.close()

    def abort(self) -> None:
        self.socket.close()

    def _require_one_sender(self) -> None:
        if self._sending:
            raise trio.BusyResourceError(f"another task is sending to {self._peer_name}")

    def _descriptor(self) -> int:
        descriptor = self.socket.fileno()
        if descriptor < 0:
            raise trio.ClosedResourceError
        return descriptor

    async def _wait(self, ready: Callable[[trio.socket.SocketType], Awaitable[None]]) -> None:
        await ready(self.socket)
        self._since_yield_bytes = 0

    async def _be_fair(self) -> None:
        self._since_yield_bytes = 0
        await trio.lowlevel.checkpoint()

    def _counted(self, moved_bytes: int) -> int:
        self._since_yield_bytes += max(moved_bytes, FAIR_CALL_BYTES)
        return moved_bytes

    def _broken(self, error: BaseException) -> TransportError:
        reason = "closed by us" if isinstance(error, trio.ClosedResourceError) else str(error)
        return TransportError(f"connection with {self._peer_name} broke: {reason}")


class _TlsSocket(trio.abc.Stream):
    """A SocketStream that gives no more than TLS_BYTES_MAX at once."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = stream.socket
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(min(max_bytes or TLS_BYTES_MAX, TLS_BYTES_MAX))

    async def send_all(self, data: Bytes) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class TlsTransport:
    """A transport over trio.SSLStream; the handshake is done."""

    __slots__ = ("_peer_name", "stream")

    def __init__(self, stream: "trio.SSLStream[_TlsSocket]", peer_name: str | None = None) -> None:
        self.stream = stream
        self._peer_name = peer_name or peer_name_of(stream.transport_stream.socket)
        _keep_alive(stream.transport_stream.socket)

    @property
    def peer_name(self) -> str:
        return self._peer_name

    @property
    def server_name(self) -> str | None:
        """The server's name in the handshake. On the server's side None, unless its context hears of it."""
        name: str | None = self.stream.server_hostname
        return name

    @property
    def peer_subject(self) -> str | None:
        """The subject of the peer's certificate (RFC 4514), which the handshake has verified if the context says so;
        None: it has shown none, or one whose subject cannot be read."""
        der: bytes | None = self.stream.getpeercert(binary_form=True)
        try:
            return None if der is None else x509.load_der_x509_certificate(der).subject.rfc4514_string()
        except ValueError:
            return None

    async def receive_into(self, view: memoryview) -> int:
        assert len(view) > 0, "an empty view would look like the end of the stream"
        return await self.receive_late(len(view), lambda: view)

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        try:
            data = await self.stream.receive_some(size_max)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError) as error:
            raise self._broken(error) from error
        if data:
            space()[: len(data)] = data
        return len(data)

    async def send_all(self, data: Bytes) -> None:
        left = memoryview(data)
        while len(left):
            if not self._is_writable():
                await self.wait_writable()
            await self._send(left[:TLS_BYTES_MAX])
            left = left[TLS_BYTES_MAX:]

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        if not self._is_writable():
            return 0  # nothing is encrypted for a peer that takes nothing
        data = joined(buffers, TLS_BYTES_MAX)
        del buffers
        await self._send(data)
        return len(data)

    async def _send(self, data: Bytes) -> None:
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, OSError) as error:
            raise self._broken(error) from error

    def _is_writable(self) -> bool:
        """Return whether the socket has room for a good part of what it holds at most, or is broken."""
        descriptor = self.stream.transport_stream.socket.fileno()
        if descriptor < 0:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(0))

    async def wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self.stream.transport_stream.socket)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error

    async def aclose(self) -> None:
        with trio.move_on_after(TLS_CLOSE_TIMEOUT_S):
            try:
                await self.stream.aclose()
            except (trio.BrokenResourceError, ssl.SSLError, OSError):
                # the peer is gone already, so nobody misses the farewell; aclose has closed the socket
                self.abort()

    def abort(self) -> None:
        self.stream.transport_stream.socket.close()

    def _broken(self, error: BaseException) -> TransportError:
        reason = "closed by us" if isinstance(error, trio.ClosedResourceError) else str(error.__cause__ or error)
        return TransportError(f"TLS connection with {self._peer_name} broke: {reason}")


def joined(buffers: Sequence[Bytes], bytes_max: int) -> bytes:
    """A copy of the first bytes of what the buffers hold one after the other."""
    parts: list[memoryview] = []
    room_bytes = bytes_max
    for buffer in buffers:
        part = memoryview(buffer)[:room_bytes]
        parts.append(part)
        room_bytes -= len(part)
        if not room_bytes:
            break
    return b"".join(parts)


def peer_name_of(sock: trio.socket.SocketType) -> str:
    """`host:port` of a socket's peer; a peer that has gone already, or a nameless one, gives a stand-in."""
    try:
        name = sock.getpeername()
    except OSError:
        return "a peer that left"
    if isinstance(name, tuple) and len(name) >= 2:
        return address_name(name[0], name[1])
    return "a local peer"


def address_name(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _keep_alive(sock: trio.socket.SocketType) -> None:
    if sock.family not in (stdlib_socket.AF_INET, stdlib_socket.AF_INET6):
        return
    sock.setsockopt(stdlib_socket.SOL_SOCKET, stdlib_socket.SO_KEEPALIVE, 1)
    # macOS names the first one otherwise; where one is missing, the system's own value holds (Linux: two hours).
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), KEEPALIVE_IDLE_S),
        (("TCP_KEEPINTVL",), KEEPALIVE_INTERVAL_S),
        (("TCP_KEEPCNT",), KEEPALIVE_PROBES),
    ):
        option = next((getattr(stdlib_socket, name) for name in names if hasattr(stdlib_socket, name)), None)
        if option is not None:
            sock.setsockopt(stdlib_socket.IPPROTO_TCP, option, value)
