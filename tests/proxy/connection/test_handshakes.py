"""How clients' TLS handshakes end, by real ones, and when that is reported."""

import contextlib
import socket
import ssl
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from metrics.meters import HandshakeOutcome, Meters
from metrics.registry import Registry
from protocol.client.errors import TransportError
from proxy.connection.handshakes import FAILED_MIN, WINDOW_S, Handshakes, outcome_of
from proxy.settings import ClientAuth, ServerTls
from proxy.upstream.transport import tls_server_transport
from tests.support.certificates import Made, make_certificate
from tests.support.waiting import HANG_S_MAX
from tidegate.live_settings import server_ssl_context

OURS = make_certificate("ours", ["localhost"])


def served(made: Made = OURS, *, authority: Made | None = None) -> ssl.SSLContext:
    client_ca = {} if authority is None else {"client_ca_certificates_pem": authority.pem}
    auth = ClientAuth.NONE if authority is None else ClientAuth.REQUIRED
    return server_ssl_context(
        ServerTls(certificate_chain_pem=made.pem, private_key_pem=made.key_pem, client_auth=auth, **client_ca)
    )


def client(trusted: Made | None = OURS) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if trusted is not None:
        context.load_verify_locations(cadata=trusted.pem.decode())
    return context


def with_certificate(folder: Path, made: Made) -> ssl.SSLContext:
    file = folder / "client.pem"
    file.write_bytes(made.pem + made.key_pem)
    context = client()
    context.load_cert_chain(file)
    return context


def old_client() -> ssl.SSLContext:
    context = client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def be_client(sock: socket.socket, said: ssl.SSLContext | bytes) -> None:
    """In a thread: trio's own client would keep the alert to itself."""
    sock.settimeout(HANG_S_MAX)
    with sock, contextlib.suppress(OSError):
        if isinstance(said, bytes):
            sock.sendall(said)
        else:
            with said.wrap_socket(sock, server_hostname="localhost") as secure:
                secure.recv(1)  # a server may judge only now


async def outcome(server: ssl.SSLContext, said: ssl.SSLContext | bytes) -> HandshakeOutcome:
    """Return what a server makes of a client with this context, or of one that sends these bytes and closes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    found = HandshakeOutcome.OK
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, be_client, theirs, said)
        try:
            transport = await tls_server_transport(trio.socket.from_stdlib_socket(ours), server, "a client")
        except TransportError as error:
            found = outcome_of(error)
        else:
            transport.abort()
    return found


async def test_a_handshake_that_fails_is_counted_by_its_reason(tmp_path: Path) -> None:
    """Failed before: no metric, and one line at level info for all of them."""
    stranger = make_certificate("stranger")
    expired = make_certificate("ours", ["localhost"], days=1)
    other_name = make_certificate("ours", ["other.test"])
    for server, said, expected in (
        (served(), client(), HandshakeOutcome.OK),
        (served(), client(trusted=stranger), HandshakeOutcome.UNTRUSTED),
        (served(expired), client(trusted=expired), HandshakeOutcome.REFUSED),
        (served(other_name), client(trusted=other_name), HandshakeOutcome.REFUSED),
        (served(authority=stranger), client(), HandshakeOutcome.CLIENT_CERTIFICATE),
        (served(authority=stranger), with_certificate(tmp_path, OURS), HandshakeOutcome.CLIENT_CERTIFICATE),
        (served(), b"GET / HTTP/1.1\r\n\r\n", HandshakeOutcome.NOT_TLS),
        (served(), b"\0\0\0\x14\0\x12\0\x03\0\0\0\x01\0\x0acafebabe00", HandshakeOutcome.NOT_TLS),
        (served(), b"", HandshakeOutcome.CLOSED),
        (served(), old_client(), HandshakeOutcome.PROTOCOL),
    ):
        found = await outcome(server, said)
        assert found is expected, (said, found)
    late = TransportError("no TLS handshake within 10 s")
    late.__cause__ = trio.TooSlowError()
    assert outcome_of(late) is HandshakeOutcome.TIMEOUT


async def test_it_is_told_while_most_of_the_last_minute_failed(mock_clock: MockClock) -> None:
    registry = Registry()
    handshakes = Handshakes(Meters(registry).relay)
    for _ in range(FAILED_MIN - 1):
        handshakes.note(HandshakeOutcome.UNTRUSTED)
        handshakes.note(HandshakeOutcome.CLOSED)
    assert handshakes.complaints() == []
    handshakes.note(HandshakeOutcome.REFUSED)
    (told,) = handshakes.complaints()
    assert told.startswith("clients do not trust the issuer of proxy.tls.certificate.file: most of the last minute")
    assert "(untrusted)" in told
    mock_clock.jump(WINDOW_S / 2)
    for _ in range(FAILED_MIN):
        handshakes.note(HandshakeOutcome.OK)
    assert handshakes.complaints() == []
    for _ in range(FAILED_MIN):
        handshakes.note(HandshakeOutcome.NOT_TLS)
    assert "clients do not speak TLS" in handshakes.complaints()[0]
    mock_clock.jump(WINDOW_S / 2)
    assert handshakes.complaints() == [], "as many of the last minute succeeded"
    mock_clock.jump(WINDOW_S)
    assert handshakes.complaints() == []
    assert registry.sample_value("tidegate_client_handshakes_total", {"outcome": "untrusted"}) == FAILED_MIN - 1
