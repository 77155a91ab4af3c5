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
TLS is OpenSSL in memory over such a socket. trio.SSLStream would yield two or three times a record of 16 KiB, which
costs three times what encryption does. A peer that ends without TLS close_notify is taken as ended: Kafka's frames
carry their length, so a cut stream shows itself one layer up.
"""

import os
import socket as stdlib_socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, cast

import trio
from cryptography import x509

from protocol.client.errors import TransportError, UpstreamConnectionError, connect_reason, require_address
from proxy.upstream.pipe import Pipe
from proxy.upstream.send_room import HEAD_BYTES, SPLICE_HEADS_BYTES, SendRoom, on_refused

Bytes = bytes | bytearray | memoryview

IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024) if "SC_IOV_MAX" in os.sysconf_names else 16
"""Buffers in one writev; POSIX promises 16, Linux and macOS have 1024."""

FAIR_BYTES = 1024 * 1024
"""So much may pass between two yields: half a millisecond, in which no other connection is served."""

FAIR_CALL_BYTES = 16 * 1024
"""What a call counts towards FAIR_BYTES beside what it moved."""

TLS_FAIR_TIMES = 3
"""A byte of TLS counts so often more: it takes as much longer."""

TLS_BYTES_MAX = 32 * 1024
"""So much is encrypted for one send, and received at once, over TLS: OpenSSL's buffers stay as large as they have been
once, and with 256 KiB a thousand clients that have read a lot keep 250 MiB."""

_ciphertext, _first_record = memoryview(bytearray(TLS_BYTES_MAX)), memoryview(bytearray(TLS_BYTES_MAX))
"""For all TLS connections: nobody else runs while one is filled and emptied."""

LINGER_S = 1.0
"""How long `aclose` waits for a peer to take what was sent: closing with bytes unread resets the connection, and
what still lies in the send buffer is lost."""

LINGER_BYTES_MAX = 1024 * 1024
"""How much of what such a peer still sends is dropped before it is reset after all."""

LINGER_READ_BYTES = 4096

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

    @property
    def room(self) -> SendRoom:
        """Return how much the socket takes at once."""
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

    def owe_turn(self) -> None:
        """Something took long: the next call lets others run before it moves a byte."""
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
    secure = TlsTransport(stream.socket, tls, server_hostname=server_hostname or host)
    try:
        await secure.handshake()
    except TransportError as error:
        secure.abort()
        reason = error.__cause__ or error
        raise UpstreamConnectionError(
            f"TLS handshake with {host}:{port} failed: {reason}; {_tls_hint(reason)}"
        ) from error
    except BaseException:
        secure.abort()
        raise
    return secure


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
    secure = TlsTransport(sock, context, peer_name)
    try:
        await secure.handshake()
    except TransportError as error:
        secure.abort()
        raise TransportError(f"TLS handshake with {secure.peer_name} failed: {error.__cause__ or error}") from error
    except BaseException:
        secure.abort()
        raise
    return secure


class PlainTransport:
    """A transport over a trio socket."""

    __slots__ = ("_descriptor", "_peer_name", "_since_yield_bytes", "is_sending", "room", "socket")

    def __init__(self, sock: trio.socket.SocketType, peer_name: str | None = None) -> None:
        self.socket = sock
        self.room = SendRoom(sock)
        self._descriptor = sock.fileno()
        """The socket's; negative once that is closed: nothing is done by it then."""
        self._since_yield_bytes = 0
        self.is_sending = False
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
        while True:
            await self.be_fair()  # before the call: a cancellation after it would lose what was received
            if (size := self.receive_now(view)) is not None:
                return size
            await self.wait_readable()

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        while True:
            # Cheaper than trio's own order, which tries first and then waits: a silent stream has nothing yet.
            await self.wait_readable()
            if (size := self.receive_now(space()[:size_max])) is not None:
                return size

    async def send_all(self, data: Bytes) -> None:
        self.begin_to_send()
        left = memoryview(data)
        try:
            while len(left):
                await self.be_fair()
                if size := self.send_now((left,)):
                    left = left[size:]
                else:
                    await self.wait_writable()
        finally:
            self.is_sending = False

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        await self.be_fair()
        self.begin_to_send()
        self.is_sending = False
        return self.send_now(buffers)

    async def wait_readable(self) -> None:
        """Return once there are bytes to receive, or the stream has ended."""
        await self._wait(trio.lowlevel.wait_readable)

    async def wait_writable(self) -> None:
        await self._wait(trio.lowlevel.wait_writable)

    def receive_now(self, view: memoryview) -> int | None:
        """Receive what is there; None: nothing is."""
        try:
            return self.counted(os.readv(self._descriptor, (view,)))
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._broken(error) from error

    def send_now(self, buffers: Sequence[Bytes]) -> int:
        """Send what the socket takes."""
        try:
            size = os.writev(self._descriptor, buffers)
            self.room.sure_bytes -= size + HEAD_BYTES
            return self.counted(size)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    def fill(self, pipe: Pipe, size_max: int) -> int:
        """Receive what is there into the pipe; 0: nothing is, or the stream has ended."""
        try:
            return self.counted(pipe.fill(self._descriptor, size_max))
        except OSError as error:
            raise self._broken(error) from error

    def drain(self, pipe: Pipe, size: int) -> bytes:
        """Send what the pipe holds, all of `size` bytes; return what the socket does not take."""
        try:
            self.begin_to_send()
            self.is_sending = False
            rest = pipe.drain(self._descriptor, size)
        except trio.BusyResourceError:
            pipe.close()
            raise
        except OSError as error:
            raise self._broken(error) from error
        self.room.sure_bytes -= size + SPLICE_HEADS_BYTES
        if rest:
            on_refused()
        return rest

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
            self.abort()

    def abort(self) -> None:
        self._descriptor = -1
        self.socket.close()

    async def be_fair(self) -> None:
        """Let others run, if FAIR_BYTES have passed since they could."""
        if self._since_yield_bytes >= FAIR_BYTES:
            self._since_yield_bytes = 0
            await trio.lowlevel.checkpoint()

    def owe_turn(self) -> None:
        self._since_yield_bytes = FAIR_BYTES

    def begin_to_send(self) -> None:
        """No other task may send until `is_sending` is false again."""
        if self.is_sending:
            raise trio.BusyResourceError(f"another task is sending to {self._peer_name}")
        self.is_sending = True

    async def _wait(self, ready: Callable[[int], Awaitable[None]]) -> None:
        try:
            if self._descriptor < 0:
                raise trio.ClosedResourceError
            await ready(self._descriptor)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._broken(error) from error
        self._since_yield_bytes = 0

    def counted(self, moved_bytes: int, times: int = 1) -> int:
        """Count so much towards FAIR_BYTES."""
        self._since_yield_bytes += times * moved_bytes + FAIR_CALL_BYTES
        return moved_bytes

    def _broken(self, error: BaseException) -> TransportError:
        reason = "closed by us" if self._descriptor < 0 else str(error)
        return TransportError(f"connection with {self._peer_name} broke: {reason}")


class TlsTransport:
    """A transport over a plain one, encrypted by OpenSSL in memory; `handshake` comes first.

    Rule 1. A record goes to the socket in the order of its encryption: `_unsent` before what `_outgoing` holds.
    Rule 2. As many records as are at hand are decrypted at once; a yield costs as much as several of them.
    """

    __slots__ = ("_ended", "_incoming", "_outgoing", "_plain", "_tls", "_unsent")

    def __init__(
        self,
        sock: trio.socket.SocketType,
        context: ssl.SSLContext,
        peer_name: str | None = None,
        *,
        server_hostname: str | None = None,
    ) -> None:
        """
        Args:
            server_hostname: whom we connect to; None: we are the server.
        """
        self._plain = PlainTransport(sock, peer_name)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._unsent = b""
        self._ended = False

    @property
    def peer_name(self) -> str:
        return self._plain.peer_name

    @property
    def socket(self) -> trio.socket.SocketType:
        """Return what it goes through."""
        return self._plain.socket

    @property
    def room(self) -> SendRoom:
        """Return the socket's: what TLS adds is less than the heads that are taken off."""
        return self._plain.room

    @property
    def server_name(self) -> str | None:
        """The server's name in the handshake. On the server's side None, unless its context hears of it."""
        return self._tls.server_hostname

    @property
    def peer_subject(self) -> str | None:
        """The subject of the peer's certificate (RFC 4514), which the handshake has verified if the context says so;
        None: it has shown none, or one whose subject cannot be read."""
        der = self._tls.getpeercert(binary_form=True)
        try:
            return None if der is None else x509.load_der_x509_certificate(der).subject.rfc4514_string()
        except ValueError:
            return None

    async def handshake(self) -> None:
        """Do it.

        Raises:
            TransportError: it failed; the cause is OpenSSL's, if that refused it.
        """
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    return await self._flush()
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._plain.wait_readable()
                    self._feed_now()
        except ssl.SSLError as error:
            with suppress(TransportError):
                self._flush_now()  # the peer is to hear why
            raise self._broken(error) from error

    async def receive_into(self, view: memoryview) -> int:
        assert len(view) > 0, "an empty view would look like the end of the stream"
        while True:
            await self._plain.be_fair()
            if (size := self._decrypt(view)) is not None:
                return size
            await self._plain.wait_readable()

    async def receive_late(self, size_max: int, space: Callable[[], memoryview]) -> int:
        size = await self.receive_into(_first_record[:size_max])
        if size:
            space()[:size] = _first_record[:size]
        return size

    async def send_all(self, data: Bytes) -> None:
        self._plain.begin_to_send()
        left = memoryview(data)
        try:
            await self._flush()
            while len(left):
                await self._plain.be_fair()
                left = left[self._encrypt(left[:TLS_BYTES_MAX]) :]
                await self._flush()
        finally:
            self._plain.is_sending = False

    async def send_some(self, buffers: Sequence[Bytes]) -> int:
        data = joined(buffers, TLS_BYTES_MAX)
        del buffers
        await self.send_all(data)
        return len(data)

    async def wait_writable(self) -> None:
        await self._plain.wait_writable()

    def owe_turn(self) -> None:
        self._plain.owe_turn()

    async def aclose(self) -> None:
        with suppress(ssl.SSLError, ValueError, TransportError):
            try:
                self._tls.unwrap()
            finally:
                self._flush_now()  # close_notify, if the socket takes it
        await self._plain.aclose()

    def abort(self) -> None:
        self._plain.abort()

    def _decrypt(self, view: memoryview) -> int | None:
        """Decrypt what is at hand, as far as there is room; 0: the end; None: nothing is at hand."""
        size = 0
        try:
            while size < len(view) and not self._ended:
                try:
                    read_bytes = cast(int, self._tls.read(len(view) - size, view[size:]))  # bytes without a view
                    size += read_bytes
                    self._ended = not read_bytes
                except ssl.SSLWantReadError:
                    if not self._feed_now():
                        break
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except ssl.SSLError as error:
            raise self._broken(error) from error
        self._plain.counted(size, TLS_FAIR_TIMES)
        if self._outgoing.pending:
            self._flush_now()  # what TLS itself has to say
        return size if size or self._ended else None

    def _feed_now(self) -> bool:
        """Take what has come of the peer's bytes, or of their end; whether anything has."""
        size = self._plain.receive_now(_ciphertext)
        if size:
            self._incoming.write(_ciphertext[:size])
        elif size == 0:
            self._incoming.write_eof()
        return size is not None

    def _encrypt(self, piece: memoryview) -> int:
        try:
            size = 0
            while size < len(piece):
                size += self._tls.write(piece[size:])
        except ssl.SSLError as error:
            raise self._broken(error) from error
        return self._plain.counted(size, TLS_FAIR_TIMES)

    async def _flush(self) -> None:
        while not self._flush_now():
            await self._plain.wait_writable()

    def _flush_now(self) -> bool:
        """Send what is encrypted, as far as the socket takes it; whether that was all."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        if self._unsent:
            self._unsent = self._unsent[self._plain.send_now((self._unsent,)) :]
        return not self._unsent

    def _broken(self, error: BaseException) -> TransportError:
        return TransportError(f"TLS connection with {self.peer_name} broke: {error}")


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
