"""Bodies over our own connections and the SDK's: bytes, errors, time limits, and the connection afterwards."""

import random
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import RetriableRemoteStorageError, StalledTransferError
from storage.object_store import bodies
from storage.object_store.s3.config import ChecksumMode
from storage.object_store.s3.store import S3Store, SdkBody
from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.s3_stores import OpenS3, ranged
from tests.support.scripted_http import ScriptedHttp, scripted_http
from tests.support.waiting import wait_until

BODY = random.Random(7).randbytes(5 * 64 * 1024 + 17)
LARGE = 64 * 1024 + 1


@pytest.fixture(params=["http", "https"])
def any_http(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedHttp]:
    tls = None
    if request.param == "https":
        certificate, key = server_certificate(tmp_path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    with scripted_http(tls) as server:
        yield server


def read(store: S3Store, pieces: list[int]) -> bytes:
    """The whole body in pieces of these sizes, in turn."""
    stream = store.get("key", 0, len(BODY))
    got = bytearray()
    turn = 0
    while len(got) < len(BODY):
        piece = bytearray(min(pieces[turn % len(pieces)], len(BODY) - len(got)))
        stream.readinto(memoryview(piece))
        got += piece
        turn += 1
    stream.close()
    return bytes(got)


@for_each(
    "pieces", [[len(BODY)], [LARGE], [LARGE, 1], [1, LARGE], [100, LARGE, 9000], [len(BODY) - 1], [len(BODY) - LARGE]]
)
def test_any_pieces_give_body_and_connection_back(http: ScriptedHttp, open_store: OpenS3, pieces: list[int]) -> None:
    http.forget()
    store = open_store()
    for _ in range(3):
        http.answer(ranged(BODY))
        assert read(store, pieces) == BODY
    assert http.connections == 1


@for_each("sent_bytes", [0, 200, LARGE, len(BODY) - 1])
@for_each("then", ["stall", "close", "reset"])
def test_a_large_body_that_breaks_is_retriable(
    http: ScriptedHttp, open_store: OpenS3, monkeypatch: pytest.MonkeyPatch, then: str, sent_bytes: int
) -> None:
    http.forget()
    store = open_store(read_timeout_s=60.0)
    whole = ranged(BODY)
    http.answer(whole[: len(whole) - len(BODY) + sent_bytes], then=then)  # type: ignore[arg-type]  # one of Then
    http.answer(ranged(BODY))
    with monkeypatch.context() as patched:
        if then == "stall":
            patched.setattr(bodies, "SILENCE_S_MAX", 0.5)
        with pytest.raises(RetriableRemoteStorageError) as raised:
            read(store, [len(BODY)])
    assert isinstance(raised.value, StalledTransferError) == (then == "stall")
    assert read(store, [LARGE]) == BODY


# --- silence ---


@pytest.mark.parametrize("pieces", [[len(BODY)], [100]])
def test_silence_in_a_body_is_shorter_than_the_wait_for_an_answer(
    any_http: ScriptedHttp, open_store: OpenS3, monkeypatch: pytest.MonkeyPatch, pieces: list[int]
) -> None:
    monkeypatch.setattr(bodies, "SILENCE_S_MAX", 0.5)
    store = open_store(read_timeout_s=60.0)
    any_http.answer(ranged(BODY)[:-1], then="stall")
    with pytest.raises(StalledTransferError):
        read(store, pieces)


def test_a_connection_of_the_sdk_gets_its_own_time_out_back(any_http: ScriptedHttp, open_store: OpenS3) -> None:
    store = open_store(read_timeout_s=60.0, response_checksums=ChecksumMode.WHEN_SUPPORTED)
    any_http.answer(ranged(BODY))
    stream = store.get("key", 0, len(BODY))
    source = stream.source
    assert isinstance(source, SdkBody)
    assert source.socket is not None
    assert source.socket.gettimeout() == bodies.SILENCE_S_MAX
    stream.readinto(memoryview(bytearray(len(BODY))))
    assert source.socket.gettimeout() == 60.0


# --- many at once, and the end of all ---


def test_as_many_connections_are_kept_as_were_used_at_once(http: ScriptedHttp, open_store: OpenS3) -> None:
    """With 65 GETs at once one connection of them was opened again for each GET: the pool kept 64, whatever
    `tier.concurrent.gets.max` allowed."""
    store = open_store()
    http.answer(ranged(b"body"))
    for _ in range(2):
        streams = [store.get("key", 0, 4) for _ in range(70)]
        for stream in streams:
            stream.readinto(memoryview(bytearray(4)))
    assert http.connections == 70


@pytest.mark.parametrize(
    "sent", [b"", ranged(BODY)[:-1], ranged(BODY)[: 1000 - len(BODY)]], ids=["no answer", "most", "some"]
)
@pytest.mark.parametrize("piece_bytes", [len(BODY), 100])
def test_closing_the_store_ends_waits(
    any_http: ScriptedHttp, open_store: OpenS3, sent: bytes, piece_bytes: int
) -> None:
    """It was waited for as long as an answer is, and the process with it."""
    store = open_store(read_timeout_s=60.0)
    any_http.answer(sent, then="stall")
    errors: list[Exception] = []

    def get() -> None:
        try:
            read(store, [piece_bytes])
        except Exception as error:
            errors.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "SILENCE_S_MAX", 60.0)
        thread = threading.Thread(target=get)
        thread.start()
        wait_until(lambda: bool(any_http.requests), "the request")
        store.close()
        thread.join(20)
        assert not thread.is_alive(), "the server gives up after 30 s"
    (error,) = errors
    assert isinstance(error, RetriableRemoteStorageError)
