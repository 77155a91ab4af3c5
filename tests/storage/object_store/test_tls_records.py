"""Bodies over TLS that OpenSSL receives by itself: bytes, ends and silence as Python's ssl has them."""

import itertools
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage.errors import RetriableRemoteStorageError, StalledTransferError
from storage.object_store.http import get, tls
from storage.object_store.http.tls import Records
from storage.object_store.registry import open_object_store
from tests.contract.object_store import fetched
from tests.support.certificates import server_certificate
from tests.support.http_stores import OPENERS
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp, Then, response, scripted_http
from tests.support.tampering import Harm, Middle, Tamper, tampering

LARGE = bytes(range(256)) * 16 * 1024
"""More than the records that are received at once."""


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "is_native", True)


@pytest.fixture
def https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHttp]:
    certificate, key = server_certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with scripted_http(context) as server:
        yield server


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[get.Connection]:
    """Every connection of our own GETs."""
    found: list[get.Connection] = []
    init = get.Connection.__init__

    def noting(self: get.Connection, *arguments: Any) -> None:
        found.append(self)
        init(self, *arguments)

    monkeypatch.setattr(get.Connection, "__init__", noting)
    return found


def s3(https: ScriptedHttp, timeout_s: float = 30.0) -> Any:
    return closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=timeout_s))


@pytest.fixture(params=[pytest.param("openssl", marks=pytest.mark.needs("shared-openssl")), "python"])
def receiver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who receives."""
    if request.param == "python":
        monkeypatch.setattr(tls, "library", lambda: None)
    return str(request.param)


@pytest.mark.needs("shared-openssl")
@pytest.mark.parametrize("kind", OPENERS)
def test_openssl_receives_the_bodies_of_every_store(
    kind: str, https: ScriptedHttp, opened: list[get.Connection]
) -> None:
    https.answer(ranged(LARGE))
    with closing(OPENERS[kind](https.endpoint_url, read_timeout_s=30.0)) as store:
        for _ in range(2):
            assert fetched(store, "a", 0, len(LARGE)) == LARGE
    assert [connection.records is not None for connection in opened] == [True]


@pytest.mark.needs("shared-openssl")
@pytest.mark.parametrize("is_native", [True, False])
def test_a_key_leaves_it_to_pythons_ssl(is_native: bool, https: ScriptedHttp, opened: list[get.Connection]) -> None:
    https.answer(ranged(LARGE))
    config = {
        "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.s3.S3Storage",
        "storage.s3.bucket.name": "tier",
        "storage.s3.region": "us-east-1",
        "storage.s3.path.style.access.enabled": "true",
        "storage.s3.endpoint.url": https.endpoint_url,
        "storage.aws.access.key.id": "a",
        "storage.aws.secret.access.key": "b",
    }
    with closing(open_object_store(config | ({} if is_native else {tls.NATIVE_KEY: "false"}))) as store:
        assert fetched(store, "a", 0, len(LARGE)) == LARGE
    assert [connection.records is not None for connection in opened] == [is_native]


@pytest.mark.parametrize("size_bytes", [1, 100, 4096, 4097, 16384, 70_000, 300_000])
def test_a_body_in_pieces_of_any_size(size_bytes: int, https: ScriptedHttp) -> None:
    wanted = LARGE[:300_000]
    https.answer(ranged(wanted))
    received = bytearray(len(wanted))
    sizes, at = itertools.cycle([7, size_bytes, 5000]), 0
    with s3(https) as store, closing(store.get("a", 0, len(wanted))) as stream:
        while at < len(wanted):
            end = min(at + next(sizes), len(wanted))
            stream.readinto(memoryview(received)[at:end])
            at = end
    assert received == wanted


@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize("then", ["close", "reset", "stall"])
def test_a_body_that_is_cut_or_stalls_is_an_error_to_be_tried_again(
    then: Then, is_fast: bool, https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fast:
        monkeypatch.setattr(tls, "library", lambda: None)
    whole = ranged(LARGE)
    https.answer(whole[: len(whole) // 2], then=then)
    https.answer(ranged(LARGE))
    with s3(https, 0.5) as store:
        with closing(store.get("a", 0, len(LARGE))) as stream, pytest.raises(RetriableRemoteStorageError) as found:
            stream.readinto(memoryview(bytearray(len(LARGE))))
        assert isinstance(found.value, StalledTransferError) == (then == "stall")
        assert fetched(store, "a", 0, len(LARGE)) == LARGE


@pytest.mark.parametrize("is_fast", [True, False])
def test_an_answer_that_does_not_begin_ends_with_its_time(
    is_fast: bool, https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fast:
        monkeypatch.setattr(tls, "library", lambda: None)
    https.answer(b"HTTP/1.1 206", then="stall")
    with s3(https, 0.2) as store, pytest.raises(StalledTransferError):
        store.get("a", 0, 1)


NO_END = "TLS: the connection ended without TLS's own end"
REASONS = {
    Harm.FLIP: "TLS: decryption failed or bad record mac",
    Harm.CUT: NO_END,
    Harm.END: NO_END,
    Harm.RESET: "ConnectionResetError",
}
PYTHONS = {
    Harm.FLIP: "TLS: record layer failure",  # OpenSSL's last word from 3.2 on, which is not its first
    Harm.RESET: NO_END,  # before Python 3.13
}


def is_told(harm: Harm, receiver: str, error: Exception) -> bool:
    return REASONS[harm] in str(error) or (receiver == "python" and PYTHONS.get(harm, NO_END) in str(error))


def behind(https: ScriptedHttp, harm: Harm, at: int) -> AbstractContextManager[Middle]:
    return tampering(int(https.endpoint_url.rpartition(":")[2]), Tamper(harm, at))


def through(middle: Middle, kind: str = "s3") -> Any:
    return closing(OPENERS[kind](f"https://127.0.0.1:{middle.port}", read_timeout_s=30.0))


@pytest.mark.parametrize("at", [1, 60])
@pytest.mark.parametrize("harm", Harm)
@pytest.mark.parametrize("kind", OPENERS)
def test_a_connection_that_breaks_in_a_body_says_how(
    kind: str, harm: Harm, at: int, receiver: str, https: ScriptedHttp
) -> None:
    """Failed before: with OpenSSL a record that does not verify, a reset and an end were all "the body ended after"."""
    https.answer(ranged(LARGE))
    with behind(https, harm, at) as middle, through(middle, kind) as store:
        with closing(store.get("a", 0, len(LARGE))) as stream, pytest.raises(RetriableRemoteStorageError) as found:
            stream.readinto(memoryview(bytearray(len(LARGE))))
        assert is_told(harm, receiver, found.value)
        assert "check" not in str(found.value)
        assert fetched(store, "a", 0, len(LARGE)) == LARGE
        assert middle.connections == 2


@pytest.mark.parametrize("harm", Harm)
@pytest.mark.parametrize("kind", OPENERS)
def test_a_connection_that_breaks_before_an_answer_says_how(
    kind: str, harm: Harm, receiver: str, https: ScriptedHttp
) -> None:
    https.answer(ranged(LARGE))
    with (
        behind(https, harm, 0) as middle,
        through(middle, kind) as store,
        pytest.raises(RetriableRemoteStorageError) as found,
    ):
        store.get("a", 0, len(LARGE))
    is_sdks = kind == "s3" and harm is Harm.RESET and "ConnectionClosedError" in str(found.value)
    assert is_sdks or is_told(harm, receiver, found.value)
    assert "check" not in str(found.value)


@pytest.mark.usefixtures("receiver")
def test_the_servers_alert_is_the_reason(https: ScriptedHttp, opened: list[get.Connection]) -> None:
    whole = ranged(LARGE)
    https.answer(whole[: len(whole) // 2])
    with s3(https) as store, closing(store.get("a", 0, len(LARGE))) as stream:
        stream.readinto(memoryview(bytearray(1000)))
        record = b"\x17\x03\x03\x00\x40" + bytes(64)
        socket.socket.sendall(opened[0].socket, record)  # which the server cannot verify
        with pytest.raises(RetriableRemoteStorageError, match=r"\(TLS: .*alert bad record mac\)"):
            stream.readinto(memoryview(bytearray(len(LARGE) - 1000)))


@pytest.mark.usefixtures("receiver")
def test_a_body_that_ends_as_tls_ends_was_cut_by_the_server(https: ScriptedHttp) -> None:
    whole = ranged(LARGE)
    https.answer(whole[:-100], then="end")
    words = "the body ended after 4194204 of 4194304 bytes"
    with s3(https) as store, closing(store.get("a", 0, len(LARGE))) as stream:
        with pytest.raises(RetriableRemoteStorageError, match=words) as found:
            stream.readinto(memoryview(bytearray(len(LARGE))))
        assert "TLS" not in str(found.value)


@pytest.mark.needs("shared-openssl")
def test_a_reason_is_that_of_its_connection_and_stays(https: ScriptedHttp) -> None:
    """OpenSSL's list of errors and the system's last error are the thread's. OpenSSL names a reason once."""
    https.answer(ranged(LARGE))
    found = []
    for harm in (Harm.RESET, Harm.END, Harm.FLIP, Harm.END, Harm.RESET):
        with behind(https, harm, 1) as middle, through(middle) as store:
            source = store.get("a", 0, len(LARGE)).source
            for _ in range(2):
                with pytest.raises(ConnectionError) as raised:
                    source.receive(memoryview(bytearray(len(LARGE))))
                found.append(type(raised.value.__cause__ or raised.value))
            source.give_up()
    of_each = [ConnectionResetError, ssl.SSLEOFError, ssl.SSLError, ssl.SSLEOFError, ConnectionResetError]
    assert found == [kind for kind in of_each for _ in range(2)]


def test_closing_the_store_wakes_who_waits_for_a_body(https: ScriptedHttp) -> None:
    whole = ranged(LARGE)
    https.answer(whole[: len(whole) // 2], then="stall")
    with s3(https, 30.0) as store:
        stream = store.get("a", 0, len(LARGE))
        stream.readinto(memoryview(bytearray(1000)))
        closer = threading.Thread(target=store.close)
        closer.start()
        with pytest.raises(RetriableRemoteStorageError):
            stream.readinto(memoryview(bytearray(len(LARGE) - 1000)))
        closer.join()


@pytest.mark.parametrize("is_fast", [True, False])
def test_bytes_that_nobody_asked_for_are_nobodys_answer(
    is_fast: bool, https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fast:
        monkeypatch.setattr(tls, "library", lambda: None)
    https.answer(ranged() + response(206, b"another's"))
    https.answer(ranged())
    with s3(https) as store:
        for _ in range(2):
            assert fetched(store, "a", 0, len(BODY)) == BODY
    assert https.connections == 2


def test_a_peer_that_has_closed_an_idle_connection_costs_no_get(https: ScriptedHttp) -> None:
    https.answer(ranged(), then="close")
    with s3(https) as store:
        for _ in range(3):
            assert fetched(store, "a", 0, len(BODY)) == BODY
    assert https.connections == 3


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_is_read_by_the_sdk(status: int, https: ScriptedHttp) -> None:
    https.answer(response(status))
    https.answer(ranged(LARGE))
    with s3(https) as store:
        with pytest.raises(Exception, match=str(status)):
            store.get("a", 0, 1)
        assert fetched(store, "a", 0, len(LARGE)) == LARGE


@pytest.mark.needs("shared-openssl")
def test_what_an_earlier_call_left_in_openssls_list_of_errors_is_no_end(https: ScriptedHttp) -> None:
    """The list is the thread's. Its last entry is what OpenSSL takes for the reason that nothing came."""
    whole = ranged(LARGE)
    https.answer(whole[: len(whole) // 2], then="stall")
    openssl = tls.library()
    assert openssl is not None
    with s3(https, 0.5) as store, closing(store.get("a", 0, len(LARGE))) as stream:
        openssl.BIO_new_file(b"/nowhere", b"r")
        with pytest.raises(StalledTransferError):
            stream.readinto(memoryview(bytearray(len(LARGE))))


@pytest.mark.needs("shared-openssl")
def test_another_layout_or_none_is_left_to_pythons_ssl(https: ScriptedHttp, opened: list[get.Connection]) -> None:
    https.answer(ranged(LARGE))
    with s3(https) as store:
        assert fetched(store, "a", 0, len(LARGE)) == LARGE
        connection = opened[0].socket
        assert isinstance(connection, ssl.SSLSocket)
        assert Records.of(connection) is not None
        kept = connection._sslobj  # type: ignore[attr-defined]  # as in Records
        connection._sslobj = Stranger(kept.context)  # type: ignore[attr-defined]  # as above
        assert Records.of(connection) is None
        connection._sslobj = None  # type: ignore[attr-defined]  # closed
        assert Records.of(connection) is None
        connection._sslobj = kept  # type: ignore[attr-defined]  # as above


def test_openssls_object_is_where_it_is_looked_for() -> None:
    """Also in a Python whose OpenSSL is built in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    opened: Any = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a")
    openssl: Any = SimpleNamespace(SSL_get_fd=lambda _: -1)
    assert tls._inside(openssl, opened._sslobj, -1)
    assert tls._inside(openssl, Stranger(context), -1) is None


class Stranger:
    """An SSLSocket's inner object whose parts lie elsewhere."""

    __slots__ = ("a", "b", "c", "context")

    def __init__(self, context: ssl.SSLContext) -> None:
        self.a, self.b, self.c, self.context = object(), object(), object(), context
