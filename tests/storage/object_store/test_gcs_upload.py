"""Resumable uploads to Cloud Storage that do not go as they should."""

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from storage.errors import RemoteAccessDeniedError, RemoteStorageError, RetriableRemoteStorageError
from storage.object_store.gcs.config import CHUNK_BYTES_UNIT, AnonymousCredentials, GcsSettings
from storage.object_store.gcs.store import GcsStore
from storage.object_store.uploads import UploadRetries
from tests.support.scripted_http import ScriptedHttp, response

CONTENT = bytes(range(256)) * (2 * CHUNK_BYTES_UNIT // 256) + b"end"
ONE, TWO, END = CHUNK_BYTES_UNIT, 2 * CHUNK_BYTES_UNIT, 2 * CHUNK_BYTES_UNIT + 3
TROUBLE = response(503)


@pytest.fixture
def store(http: ScriptedHttp) -> Iterator[GcsStore]:
    settings = GcsSettings(
        bucket="tier", endpoint_url=http.endpoint_url, credentials=AnonymousCredentials(), chunk_bytes=CHUNK_BYTES_UNIT
    )
    with closing(GcsStore(settings, retries=UploadRetries(3, wait=lambda _: None))) as opened:
        yield opened


def stored(end: int) -> bytes:
    """An answer that says how much there is."""
    return response(308, headers={"Range": f"bytes=0-{end - 1}"} if end else {})


def ranges(http: ScriptedHttp) -> list[str]:
    """Return what the PUTs said of themselves."""
    found = [re.search(r"(?i)content-range: (.*)\r\n", f"{head}\r\n") for head in http.heads if head.startswith("PUT")]
    return [matched[1] for matched in found if matched is not None]


def put(http: ScriptedHttp, store: GcsStore, *answers: bytes) -> None:
    http.answer(response(200, headers={"Location": f"{http.endpoint_url}/session"}))
    for answer in answers:
        http.answer(answer)
    store.put("a b/c", CONTENT)


def test_chunks_go_one_after_another_and_the_last_says_how_large_it_all_is(http: ScriptedHttp, store: GcsStore) -> None:
    put(http, store, stored(ONE), stored(TWO), response(200))
    assert http.requests[0] == "POST /upload/storage/v1/b/tier/o?uploadType=resumable&name=a%20b%2Fc HTTP/1.1"
    assert ranges(http) == [f"bytes 0-{ONE - 1}/*", f"bytes {ONE}-{TWO - 1}/*", f"bytes {TWO}-{END - 1}/{END}"]
    assert b"".join(http.bodies[1:]) == CONTENT


def test_after_trouble_it_goes_on_behind_what_is_there(http: ScriptedHttp, store: GcsStore) -> None:
    half = ONE // 2
    put(http, store, TROUBLE, stored(half), stored(ONE), stored(TWO), response(200))
    assert ranges(http)[:3] == [f"bytes 0-{ONE - 1}/*", "bytes */*", f"bytes {half}-{ONE - 1}/*"]
    assert http.bodies[3] == CONTENT[half:ONE]


def test_a_chunk_whose_answer_was_lost_is_not_sent_again(http: ScriptedHttp, store: GcsStore) -> None:
    put(http, store, stored(ONE), TROUBLE, stored(TWO), response(200))
    assert ranges(http)[1:] == [f"bytes {ONE}-{TWO - 1}/*", "bytes */*", f"bytes {TWO}-{END - 1}/{END}"]


def test_a_last_answer_that_was_lost_is_asked_for(http: ScriptedHttp, store: GcsStore) -> None:
    put(http, store, stored(ONE), stored(TWO), TROUBLE, response(200))
    assert ranges(http)[-1] == "bytes */*"


def test_a_store_that_takes_half_a_chunk_gets_the_rest(http: ScriptedHttp, store: GcsStore) -> None:
    put(http, store, stored(ONE - 5), stored(ONE), stored(TWO), response(200))
    assert ranges(http)[1] == f"bytes {ONE - 5}-{ONE - 1}/*"


def test_an_upload_that_fails_for_good_is_cancelled(http: ScriptedHttp, store: GcsStore) -> None:
    with pytest.raises(RemoteAccessDeniedError, match=r"PUT"):
        put(http, store, stored(ONE), response(403), response(499))
    assert http.requests[-1] == "DELETE /session HTTP/1.1"


def test_a_store_that_forgot_what_it_had_is_told_of(http: ScriptedHttp, store: GcsStore) -> None:
    with pytest.raises(RemoteStorageError, match="0 bytes are said to be stored, and 262144 were"):
        put(http, store, stored(ONE), TROUBLE, stored(0), response(499))


def test_a_store_that_takes_nothing_is_not_asked_for_ever(http: ScriptedHttp, store: GcsStore) -> None:
    with pytest.raises(RetriableRemoteStorageError, match=r"a b/c .*: PUT: nothing of bytes 0 to .* was stored"):
        put(http, store, *[stored(0)] * 5, response(499))
