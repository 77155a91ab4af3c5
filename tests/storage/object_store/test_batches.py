"""Deletes in batches by GCS and Azure, over scripted answers. S3's are in test_s3.py."""

import functools
import re
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
from azure.core.credentials import AccessToken

from storage.errors import (
    RemoteAccessDeniedError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    ThrottledError,
)
from storage.object_store.azure import client as azure_client
from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.http_stores import OPENERS, OpenScripted, azure_error, batch_answer, gcs_error
from tests.support.scripted_http import ScriptedHttp, response, scripted_http


class Words(NamedTuple):
    """How a store says it."""

    keys_max: int
    batch_status: int
    batch_request: str
    deleted: bytes
    absent: bytes
    denied: bytes
    busy: bytes
    no_bucket: bytes


WORDS = {
    "gcs": Words(
        keys_max=100,
        batch_status=200,
        batch_request="POST /batch/storage/v1 HTTP/1.1",
        deleted=response(204),
        absent=gcs_error(404, "notFound"),
        denied=gcs_error(403, "forbidden"),
        busy=gcs_error(429, "rateLimitExceeded"),
        no_bucket=gcs_error(404, "notFound", "The specified bucket does not exist."),
    ),
    "azure": Words(
        keys_max=256,
        batch_status=202,
        batch_request="POST /tier?restype=container&comp=batch HTTP/1.1",
        deleted=response(202),
        absent=azure_error(404, "BlobNotFound"),
        denied=azure_error(403, "AuthorizationPermissionMismatch"),
        busy=azure_error(503, "ServerBusy", Retry_After="7"),
        no_bucket=azure_error(404, "ContainerNotFound"),
    ),
}


@pytest.fixture(params=WORDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def words(kind: str) -> Words:
    return WORDS[kind]


@pytest.fixture
def scripted(kind: str, open_scripted: OpenScripted) -> OpenScripted:
    return functools.partial(open_scripted, kind)


def deletes(http: ScriptedHttp) -> list[int]:
    """Return how many objects each request names to be deleted."""
    return [len(re.findall(rb"^DELETE ", body, re.MULTILINE)) for body in http.bodies]


def test_a_batch_deletes_what_it_can_and_tells_of_each_that_is_left(
    http: ScriptedHttp, scripted: OpenScripted, words: Words
) -> None:
    keys = [f"k{number}" for number in range(2 * words.keys_max + 1)]
    told = [words.deleted] * words.keys_max
    told[1:4] = [words.absent, words.denied, words.busy]
    http.answer(batch_answer(words.batch_status, *told))
    http.answer(words.busy)
    http.answer(words.deleted)
    left = words.keys_max + 2
    message = rf"{left} of {len(keys)} objects were not deleted, the first: .*/k2 at .*: DELETE: .*403"
    with pytest.raises(RemoteAccessDeniedError, match=message) as caught:
        scripted().delete_many([*keys, "k0", "k1"])
    assert [line.split()[0] for line in http.requests] == ["POST", "POST", "DELETE"]
    assert http.requests[0] == words.batch_request
    assert deletes(http) == [words.keys_max, words.keys_max, 0]
    undeleted = caught.value.undeleted
    assert set(undeleted) == {"k2", "k3", *keys[words.keys_max : -1]}
    assert "/k3 at" in undeleted["k3"]
    assert len(caught.value.__notes__) == 2


def test_a_batch_that_the_store_is_too_busy_for_says_when_to_ask_again(
    http: ScriptedHttp, scripted: OpenScripted
) -> None:
    http.answer(response(429, headers={"Retry-After": "7"}))
    with pytest.raises(ThrottledError) as caught:
        scripted().delete_many(["a", "b"])
    assert caught.value.retry_after_s == 7
    assert len(http.requests) == 1


def test_where_all_was_deleted_or_absent_nothing_is_said(
    http: ScriptedHttp, scripted: OpenScripted, words: Words
) -> None:
    http.answer(batch_answer(words.batch_status, words.deleted, words.absent))
    scripted().delete_many(["a", "b"])
    assert deletes(http) == [2]


@for_each("as_part", [False, True])
def test_a_bucket_that_is_not_there_is_no_object_that_is_absent(
    http: ScriptedHttp, scripted: OpenScripted, words: Words, as_part: bool
) -> None:
    http.forget()
    refused = words.no_bucket
    http.answer(batch_answer(words.batch_status, refused, refused) if as_part else refused)
    with pytest.raises(RemoteStoreNotFoundError, match=r"^2 of 2 .*rsm\.config\.storage\.(gcs|azure)\.[a-z]+\.name"):
        scripted().delete_many(["a", "b"])


@for_each("answer", ["not found", "not implemented", "bad", "no parts", "one part", "no batch"])
def test_a_store_that_knows_no_batches_is_asked_for_each_object(
    http: ScriptedHttp, scripted: OpenScripted, words: Words, answer: str
) -> None:
    """fake-gcs-server answers Google's SDK with no parts, as that gives them no Content-ID."""
    http.forget()
    answers = {
        "not found": response(404),
        "not implemented": response(501),
        "bad": response(400),
        "no parts": batch_answer(words.batch_status),
        "one part": batch_answer(words.batch_status, words.denied),
        "no batch": response(words.batch_status, b"deleted, sort of", {"Content-Type": "text/plain"}),
    }
    http.answer(answers[answer])
    http.answer(words.deleted)
    http.answer(words.denied)
    store = scripted()
    with pytest.raises(RemoteAccessDeniedError, match=r"^1 of 2 .*/b at .*: DELETE: "):
        store.delete_many(["a", "b"])
    with pytest.raises(RemoteAccessDeniedError):
        store.delete_many(["c", "d"])
    assert [line.split()[0] for line in http.requests] == ["POST", *["DELETE"] * 4]


@for_each("then", ["stall", "reset"])
def test_a_batch_without_an_answer_is_worth_another(http: ScriptedHttp, scripted: OpenScripted, then: str) -> None:
    http.forget()
    http.answer(b"", then=then)  # type: ignore[arg-type]  # one of Then
    with pytest.raises(RetriableRemoteStorageError, match=r"^2 of 2 ") as caught:
        scripted(**({"read_timeout_s": 0.3} if then == "stall" else {})).delete_many(["a", "b"])
    assert isinstance(caught.value, StalledTransferError) == (then == "stall")


def test_each_part_of_a_batch_shows_azures_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure judges each by its own header, and its SDK sends no token without TLS."""

    class Chain:
        def get_token(self, *_scopes: str, **_options: object) -> AccessToken:
            return AccessToken("a-token", 2**33)

    certificate, key = server_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setattr(azure_client, "DefaultAzureCredential", lambda **_: Chain())
    words = WORDS["azure"]
    with scripted_http(tls) as https:
        https.answer(batch_answer(words.batch_status, words.deleted, words.deleted))
        store = OPENERS["azure"](https.endpoint_url, credentials=None)
        store.delete_many(["a", "b"])
        store.close()
        assert https.heads[0].count("Authorization: Bearer a-token") == 1
        assert https.bodies[0].count(b"Authorization: Bearer a-token") == 2
