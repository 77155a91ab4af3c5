"""Bodies that are received by one system call for each large piece: the same bytes, errors and connections."""

import random
from collections.abc import Callable, Iterator

import pytest

from storage.errors import RetriableRemoteStorageError
from storage.object_store.s3 import S3Store
from storage.object_store.s3_body import RECEIVE_WHOLE_BYTES_MIN
from tests.support.s3_server import S3Server
from tests.support.scripted_http import ScriptedHttp, response, scripted_http

BODY = random.Random(7).randbytes(5 * RECEIVE_WHOLE_BYTES_MIN + 17)
LARGE = RECEIVE_WHOLE_BYTES_MIN + 1


@pytest.fixture
def http() -> Iterator[ScriptedHttp]:
    with scripted_http() as server:
        yield server


@pytest.fixture
def open_store(http: ScriptedHttp) -> Iterator[Callable[..., S3Store]]:
    stores = []

    def open_store(read_timeout_s: float = 5.0) -> S3Store:
        stores.append(S3Store(S3Server(http.endpoint_url).settings("tier", read_timeout_s=read_timeout_s)))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def ranged(body: bytes = BODY) -> bytes:
    return response(206, body, {"Content-Range": f"bytes 0-{len(body) - 1}/{len(body)}"})


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


@pytest.mark.parametrize(
    "pieces", [[len(BODY)], [LARGE], [LARGE, 1], [1, LARGE], [100, LARGE, 9000], [len(BODY) - 1], [len(BODY) - LARGE]]
)
def test_pieces_large_and_small_give_the_body_and_the_connection_back(
    http: ScriptedHttp, open_store: Callable[..., S3Store], pieces: list[int]
) -> None:
    store = open_store()
    for _ in range(3):
        http.answer(ranged())
        assert read(store, pieces) == BODY
    assert http.connections == 1


def test_a_connection_waits_as_usual_for_what_comes_after_a_large_body(
    http: ScriptedHttp, open_store: Callable[..., S3Store]
) -> None:
    store = open_store(read_timeout_s=0.2)
    http.answer(ranged())
    http.answer(b"", then="stall")
    assert read(store, [LARGE]) == BODY
    with pytest.raises(RetriableRemoteStorageError):
        store.get("key", 0, len(BODY))


@pytest.mark.parametrize("sent_bytes", [200, LARGE, len(BODY) - 1])
@pytest.mark.parametrize("then", ["stall", "close", "reset"])
def test_a_large_body_that_breaks_is_retriable(
    http: ScriptedHttp, open_store: Callable[..., S3Store], then: str, sent_bytes: int
) -> None:
    store = open_store(read_timeout_s=0.2)
    http.answer(ranged()[: len(ranged()) - len(BODY) + sent_bytes], then=then)  # type: ignore[arg-type]  # one of Then
    http.answer(ranged())
    with pytest.raises(RetriableRemoteStorageError):
        read(store, [len(BODY)])
    assert read(store, [LARGE]) == BODY
