"""What is particular to Google Cloud Storage: tokens, key files, rights. The rest is test_stores.py's."""

import functools
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from storage.errors import (
    RemoteAccessDeniedError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
from storage.object_store.gcs.config import JsonCredentials
from storage.object_store.object_store import ask_store
from tests.contract.object_store import fetched
from tests.support.for_each import for_each
from tests.support.http_stores import OpenScripted, gcs_error
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp, response

TOKEN = "scripted-token"


@pytest.fixture
def scripted(open_scripted: OpenScripted) -> OpenScripted:
    return functools.partial(open_scripted, "gcs")


@pytest.fixture
def key_json(http: ScriptedHttp) -> str:
    """A service account whose token server is the scripted one."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    account = {"type": "service_account", "client_email": "reader@tests", "private_key": pem.decode()}
    return json.dumps(account | {"token_uri": f"{http.endpoint_url}/token"})


def token_answer(token: str) -> bytes:
    body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"})
    return response(200, body.encode(), {"Content-Type": "application/json"})


def test_a_bucket_that_is_not_there_is_told_from_an_object(http: ScriptedHttp, scripted: OpenScripted) -> None:
    words = "The specified bucket does not exist."
    for answer in (response(404, words.encode(), {"Content-Type": "text/html"}), gcs_error(404, "notFound", words)):
        http.answer(answer)
    store = scripted()
    for call in (lambda: ask_store(store, ""), lambda: store.get("a", 0, 1), lambda: store.delete_many(["a"])):
        with pytest.raises(RemoteStoreNotFoundError, match=r"rsm\.config\.storage\.gcs\.bucket\.name"):
            call()


def test_who_asks_without_a_name_is_told_the_right_too(http: ScriptedHttp, scripted: OpenScripted) -> None:
    """Google answers 401, not 403, to those whom it does not know."""
    words = "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."
    http.answer(gcs_error(401, "required", words))
    with pytest.raises(RemoteAccessDeniedError, match=r"required \(HTTP 401\): the account needs storage\.objects"):
        scripted().get("a", 0, 1)
    assert len(http.requests) == 1


def test_a_token_is_asked_for_once_and_sent_with_each_get(
    http: ScriptedHttp, scripted: OpenScripted, key_json: str
) -> None:
    http.answer(token_answer(TOKEN))
    http.answer(ranged())
    store = scripted(credentials=JsonCredentials("key", text=key_json))
    for _ in range(2):
        assert fetched(store, "a b/ü", 0, len(BODY)) == BODY
    assert [line.split(" ")[1] for line in http.requests] == [
        "/token",
        *["/download/storage/v1/b/tier/o/a%20b%2F%C3%BC?alt=media"] * 2,
    ]
    assert all(f"authorization: Bearer {TOKEN}" in head for head in http.heads[1:])
    assert http.connections == 2, "one for tokens, one for GETs"


def test_a_token_that_is_refused_is_renewed_once(http: ScriptedHttp, scripted: OpenScripted, key_json: str) -> None:
    for answer in (token_answer("old"), gcs_error(401, "authError"), token_answer("new"), ranged()):
        http.answer(answer)
    store = scripted(credentials=JsonCredentials("key", text=key_json))
    assert fetched(store, "a", 0, len(BODY)) == BODY
    assert "Bearer new" in http.heads[-1]


@for_each("answer", [response(400, b'{"error": "invalid_grant"}'), response(401)])
def test_who_gets_no_token_is_denied_by_name_of_the_keys(
    http: ScriptedHttp, scripted: OpenScripted, key_json: str, answer: bytes
) -> None:
    http.forget()
    http.answer(answer)
    with pytest.raises(RemoteAccessDeniedError, match=r"no token: RefreshError; check rsm\.config\.storage\.gcs"):
        scripted(credentials=JsonCredentials("key", text=key_json)).get("a", 0, 1)


def test_a_token_server_that_is_busy_is_worth_another_attempt(
    http: ScriptedHttp, scripted: OpenScripted, key_json: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    http.answer(response(503, b'{"error": "temporarily_unavailable"}'))
    with pytest.raises(RetriableRemoteStorageError, match=r"asking for a token: RefreshError"):
        scripted(credentials=JsonCredentials("key", text=key_json)).get("a", 0, 1)


def test_a_key_file_is_read_and_a_wrong_one_named(
    http: ScriptedHttp, scripted: OpenScripted, key_json: str, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    store = scripted(credentials=JsonCredentials("the.key", path=path))
    with pytest.raises(StorageConfigError, match=r"^the\.key: .*key\.json cannot be read: No such file"):
        store.get("a", 0, 1)
    for content in ("[1]", "{", key_json[:-1]):
        path.write_text(content)
        with pytest.raises(StorageConfigError, match=r"^the\.key: .*key\.json is not a JSON object"):
            store.get("a", 0, 1)
    path.write_text('{"type": "service_account", "private_key": "do-not-show-this"}')
    with pytest.raises(StorageConfigError, match=r"^the\.key: .*key\.json holds no credentials") as caught:
        store.get("a", 0, 1)
    assert "do-not-show-this" not in str(caught.value)
    path.write_text(key_json)
    http.answer(token_answer(TOKEN))
    http.answer(ranged())
    assert fetched(store, "a", 0, len(BODY)) == BODY


def test_a_key_file_that_was_replaced_gives_the_next_token(
    http: ScriptedHttp, scripted: OpenScripted, key_json: str, tmp_path: Path
) -> None:
    """Until a restart Tidegate asked with the old key, which its owner had deleted."""
    path = tmp_path / "key.json"
    path.write_text(key_json)
    answers = (token_answer("old"), ranged(), gcs_error(401, "authError"), token_answer("new"), ranged())
    for answer in answers:
        http.answer(answer)
    store = scripted(credentials=JsonCredentials("the.key", path=path))
    assert fetched(store, "a", 0, len(BODY)) == BODY
    path.write_text(json.dumps(json.loads(key_json) | {"token_uri": f"{http.endpoint_url}/of-the-new-key"}))
    assert fetched(store, "a", 0, len(BODY)) == BODY
    assert http.requests[3] == "POST /of-the-new-key HTTP/1.1"
    assert "Bearer new" in http.heads[-1]


def test_a_token_is_taken_as_it_is_and_a_file_with_one_is_read_again(
    http: ScriptedHttp, scripted: OpenScripted, tmp_path: Path
) -> None:
    """Failed before: credentials of this kind were refused."""
    for answer in (ranged(), ranged(), gcs_error(401, "authError"), ranged()):
        http.answer(answer)
    inline = scripted(credentials=JsonCredentials("key", text=json.dumps({"access_token": "inline"})))
    assert fetched(inline, "a", 0, len(BODY)) == BODY
    path = tmp_path / "token.json"
    path.write_text(json.dumps({"access_token": "old"}))
    store = scripted(credentials=JsonCredentials("the.key", path=path))
    assert fetched(store, "a", 0, len(BODY)) == BODY
    path.write_text(json.dumps({"access_token": "newer"}))
    assert fetched(store, "a", 0, len(BODY)) == BODY
    sent = [head.partition("Bearer ")[2].split()[0] for head in http.heads]
    assert sent == ["inline", "old", "old", "newer"]


@pytest.fixture
def nobody_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's chain finds neither gcloud's files nor a machine of Google's."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.usefixtures("nobody_at_home")
def test_googles_own_chain_finds_what_the_environment_names(
    http: ScriptedHttp, scripted: OpenScripted, key_json: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key.json"
    path.write_text(key_json)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for answer in (token_answer(TOKEN), ranged()):
        http.answer(answer)
    assert fetched(scripted(credentials=None), "a", 0, len(BODY)) == BODY
    assert f"authorization: Bearer {TOKEN}" in http.heads[1]


@pytest.mark.usefixtures("nobody_at_home")
def test_a_chain_that_ends_without_credentials_names_the_keys(http: ScriptedHttp, scripted: OpenScripted) -> None:
    with pytest.raises(RemoteAccessDeniedError, match=r"DefaultCredentialsError; check rsm\.config\.storage\.gcs"):
        scripted(credentials=None).get("a", 0, 1)
    assert not http.requests


def test_what_was_put_with_an_encoding_is_served_as_it_lies_there(http: ScriptedHttp, scripted: OpenScripted) -> None:
    """Google decompresses it for clients that accept no gzip, and then serves no ranges."""
    http.answer(ranged())
    fetched(scripted(), "a", 0, len(BODY))
    assert "\r\naccept-encoding: gzip\r\n" in http.heads[0] + "\r\n"
