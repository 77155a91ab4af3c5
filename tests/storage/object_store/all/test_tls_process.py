"""TLS that another process speaks: what a GET brings and what it fails with are as if its own thread did."""

import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage.errors import RetriableRemoteStorageError
from storage.object_store.http import tls_process
from storage.object_store.http.tls import TlsProcess
from storage.object_store.http.tls_process import Wanted
from tests.contract.object_store import fetched
from tests.support.certificates import server_certificate
from tests.support.http_stores import OPENERS
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp, scripted_http
from tests.support.tunnel_proxy import tunnel_proxy

NAME = "store.test"

LARGE = bytes(range(256)) * 128 * 1024
"""More than sockets hold, and than the process may."""


@pytest.fixture(autouse=True)
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    path = server_certificate(tmp_path, NAME)[0]
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))
    return path


@pytest.fixture
def https(certificate: Path) -> Iterator[ScriptedHttp]:
    with scripted_http(server_context(certificate)) as server:
        server.answer(ranged())
        yield server


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("server.key"))
    return context


@pytest.fixture
def process() -> Iterator[TlsProcess]:
    with closing(TlsProcess()) as found:
        yield found


def process_of(store: Any) -> TlsProcess:
    found = store.made().sockets.tls
    assert isinstance(found, TlsProcess)
    return found


@pytest.mark.parametrize("kind", OPENERS)
def test_one_process_speaks_tls_for_all_gets(kind: str, https: ScriptedHttp) -> None:
    with closing(OPENERS[kind](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        for _ in range(3):
            assert fetched(store, "a", 0, len(BODY)) == BODY
        process = process_of(store)
        assert process.pid is not None
    assert https.connections == 1
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize("kind", OPENERS)
def test_what_a_certificate_is_refused_for_is_said_as_ever(
    kind: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE")
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    words = []
    for is_warm in (False, True):
        with (
            scripted_http(server_context(certificate)) as https,
            closing(OPENERS[kind](https.endpoint_url, read_timeout_s=5.0)) as store,
        ):
            if is_warm:
                store.warm_up()
            with pytest.raises(RetriableRemoteStorageError, match="SSL") as refused:
                store.get("a", 0, 1)
            words.append(str(refused.value).replace(https.endpoint_url.removeprefix("https://"), "there"))
            assert not https.requests
    assert words[0] == words[1]


def test_what_a_server_says_first_is_not_taken_for_the_processs_word(process: TlsProcess) -> None:
    """Failed before, by words that are no JSON: a server may answer 408 before it was asked."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(tls_process.DONE + b"HTTP/1.1 408 Request Timeout")
        process.hear(ours)
        assert ours.recv(1000) == b"HTTP/1.1 408 Request Timeout"


@pytest.mark.parametrize("kind", OPENERS)
def test_a_tunnel_to_the_store_is_made_first(kind: str, https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    port = https.endpoint_url.rpartition(":")[2]
    with tunnel_proxy({NAME: "127.0.0.1"}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with closing(OPENERS[kind](f"https://{NAME}:{port}", read_timeout_s=5.0)) as store:
            store.warm_up()
            assert fetched(store, "a", 0, len(BODY)) == BODY
        assert proxy.asked == [f"{NAME}:{port}"]


def test_where_the_process_dies_its_gets_fail_and_the_next_go_on(https: ScriptedHttp) -> None:
    https.forget()
    https.answer(ranged(LARGE))
    with closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        stream = store.get("a", 0, len(LARGE))
        process = process_of(store)
        before = process.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        with pytest.raises(RetriableRemoteStorageError):
            stream.readinto(memoryview(bytearray(len(LARGE))))
        assert fetched(store, "a", 0, len(LARGE)) == LARGE
        assert process.pid != before


def test_without_a_process_tls_is_spoken_here(https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        assert fetched(store, "a", 0, len(BODY)) == BODY
        assert process_of(store).pid is None


def test_a_process_that_never_works_is_tried_once(
    https: ScriptedHttp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(tls_process, "__file__", str(broken))
    with closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        with pytest.raises(RetriableRemoteStorageError):
            store.get("a", 0, 1)
        assert fetched(store, "a", 0, len(BODY)) == BODY


def test_a_renewed_authority_is_believed(process: TlsProcess, tmp_path: Path, certificate: Path) -> None:
    believed, others = tmp_path / "believed.pem", tmp_path / "others"
    others.mkdir()
    context = server_context(certificate)

    def connect() -> None:
        with scripted_http(context) as https:
            tcp = socket.create_connection(("127.0.0.1", int(https.endpoint_url.rpartition(":")[2])), 5)
            opened = process.connect(tcp, Wanted(NAME, ca_file=str(believed)))
            assert opened is not None
            opened.close()

    believed.write_bytes(server_certificate(others, NAME)[0].read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        connect()
    believed.write_bytes(certificate.read_bytes())
    connect()


def test_a_silent_server_costs_no_more_than_the_connections_limit(process: TlsProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        process.connect(socket.create_connection(server.getsockname(), 0.1), Wanted("a"))


def test_a_reader_that_stands_still_stops_its_peer_and_no_other(https: ScriptedHttp) -> None:
    https.forget()
    https.answer(ranged(LARGE))
    with closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        standing = store.get("a", 0, len(LARGE))
        assert fetched(store, "a", 0, len(LARGE)) == LARGE
        kib = next(
            line for line in Path(f"/proc/{process_of(store).pid}/status").read_text().splitlines() if "HWM" in line
        )
        assert int(kib.split()[1]) * 1024 < len(LARGE)
        received = bytearray(len(LARGE))
        standing.readinto(memoryview(received))
        assert received == LARGE
        standing.close()


def test_a_peer_that_has_closed_an_idle_connection_costs_no_get(https: ScriptedHttp) -> None:
    https.forget()
    https.answer(ranged(), then="close")
    with closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        for _ in range(3):
            assert fetched(store, "a", 0, len(BODY)) == BODY
    assert https.connections == 3


def test_signals_for_the_whole_group_leave_it_to_its_owner(https: ScriptedHttp) -> None:
    with closing(OPENERS["s3"](https.endpoint_url, read_timeout_s=5.0)) as store:
        store.warm_up()
        assert fetched(store, "a", 0, len(BODY)) == BODY
        process = process_of(store)
        before = process.pid
        assert before is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(before, number)
        assert fetched(store, "a", 0, len(BODY)) == BODY
        assert process.pid == before
    assert https.connections == 1
