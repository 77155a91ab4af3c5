"""GETs past boto3: errors are as boto3 has them, and which GETs stay boto3's. The rest of what the store does with them
is in test_stores.py and test_s3_body.py."""

import cProfile
import pstats
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from storage.errors import RemoteStorageError, ThrottledError
from storage.object_store.s3.config import AnonymousCredentials, ChecksumMode
from storage.object_store.s3.signed_get import SigningKeys
from storage.object_store.s3.store import S3Store
from tests.contract.object_store import fetched
from tests.support.certificates import server_certificate
from tests.support.for_each import for_each
from tests.support.s3_server import S3Server
from tests.support.s3_stores import BODY, OpenS3, ranged
from tests.support.scripted_http import ScriptedHttp, Then, response, s3_error, scripted_http
from tests.support.waiting import wait_until

PART_BYTES = 5 * 1024 * 1024
CALLS_MAX = 200
"""Calls of Python and C functions in a GET of one piece: 133 on Python 3.11, and up to 188 on 3.14, whose library
makes more. boto3 makes 4,200, in 1.6 to 2.1 ms."""

THROUGH_SDK = {"response_checksums": ChecksumMode.WHEN_SUPPORTED}


def is_fast(store: S3Store) -> bool:
    return store.made().fast_gets.learn() is not None


@pytest.fixture
def store(open_store: OpenS3) -> S3Store:
    return open_store()


class SdkGets:
    """Counts GetObjects that boto3 was asked for, prepared ones included."""

    def __init__(self, store: S3Store) -> None:
        self._gets: Any = store.made().fast_gets
        self._client = self._gets.boto3_client
        self.count = 0
        self._gets.boto3_client = self

    def get_object(self, **given: Any) -> Any:
        self.count += 1
        return self._client.get_object(**given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


# --- what boto3 is asked ---


def test_boto3_is_asked_once_how_gets_are_sent(store: S3Store, http: ScriptedHttp) -> None:
    http.answer(ranged())
    sdk_gets = SdkGets(store)
    for _ in range(5):
        assert fetched(store, "a/b c", 0, len(BODY)) == BODY
    assert sdk_gets.count == 1
    assert http.requests == ["GET /tier/a/b%20c HTTP/1.1"] * 5


def test_a_get_costs_few_calls(store: S3Store, http: ScriptedHttp) -> None:
    http.answer(ranged())
    fetched(store, "a", 0, len(BODY))
    with cProfile.Profile() as profile:
        fetched(store, "a", 0, len(BODY))
    assert pstats.Stats(profile).total_calls <= CALLS_MAX  # type: ignore[attr-defined]  # typeshed leaves it out


@for_each("changes", [{}, {"path_style": False}, {"credentials": AnonymousCredentials()}])
def test_a_request_says_what_boto3_says(
    http: ScriptedHttp, open_store: OpenS3, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    http.forget()
    if "path_style" in changes:
        # A bucket's name goes before a host's name, not before an address.
        port = http.endpoint_url.rpartition(":")[2]
        changes = {**changes, "endpoint_url": f"http://store.example:{port}"}
        address = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: address)
    http.answer(ranged())
    store = open_store(**changes)
    fetched(store, "a key", 0, len(BODY))
    with patch.object(store.made().fast_gets, "begin", lambda *_: None):
        fetched(store, "a key", 0, len(BODY))
    ours, theirs = (
        {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
            if name.lower() not in ("authorization", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request")
        }
        for head in http.heads
    )
    assert is_fast(store)
    assert ours == theirs
    assert http.requests[0] == http.requests[1]


@for_each("reason", ["checksums", "a proxy", "a header", "another signature"])
def test_gets_that_are_not_of_the_known_kind_are_boto3s(
    http: ScriptedHttp, open_store: OpenS3, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def change(request: Any, **_: Any) -> None:
        if reason == "a header":
            request.headers["x-amz-request-payer"] = "requester"
        if reason == "another signature":
            request.headers["Authorization"] = "AWS4-ECDSA-P256-SHA256 Credential=id/20260101/s3/aws4_request, more"

    http.forget()
    http.answer(ranged())
    is_proxied = reason == "a proxy"
    with monkeypatch.context() as patched:
        for name in ("HTTP_PROXY", "http_proxy") if is_proxied else ():
            patched.setenv(name, http.endpoint_url)
        for name in ("NO_PROXY", "no_proxy"):
            patched.delenv(name, raising=False)
        server = S3Server("http://store.example") if is_proxied else None
        store = open_store(server, **(THROUGH_SDK if reason == "checksums" else {}))
        event = "before-sign" if reason == "a header" else "before-send"
        store.boto3_client().meta.events.register_first(f"{event}.s3.GetObject", change)
        assert fetched(store, "a", 0, len(BODY)) == BODY
    assert not is_fast(store)
    assert http.requests == [f"GET {'http://store.example' * is_proxied}/tier/a HTTP/1.1"]


@for_each("keys", [SigningKeys("id\n", "secret"), None])
def test_unsendable_credentials_are_boto3s(store: S3Store, http: ScriptedHttp, keys: SigningKeys | None) -> None:
    http.forget()
    http.answer(ranged())
    fetched(store, "a", 0, len(BODY))
    with patch.object(store.made().fast_gets, "signing_keys", lambda: keys):
        assert fetched(store, "a", 0, len(BODY)) == BODY
    assert "Credential=test-access-key/" in http.heads[1]


# --- answers that boto3 judges ---


def test_an_answer_in_chunks_is_read_and_the_next_gets_are_boto3s(store: S3Store, http: ScriptedHttp) -> None:
    head = f"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-{len(BODY) - 1}/*\r\n\r\n".encode()
    http.answer(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
    sdk_gets = SdkGets(store)
    for _ in range(3):
        assert fetched(store, "a", 0, len(BODY)) == BODY
    # Asked how; given the first answer; the two others by itself.
    assert sdk_gets.count == 4
    assert len(http.requests) == 3


def test_how_gets_are_sent_is_learnt_again_when_boto3_found_another_way(
    http: ScriptedHttp, open_store: OpenS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    http.answer(s3_error(503, "SlowDown"))
    http.answer(ranged())
    store = open_store(attempts_max=2)
    sdk_gets = SdkGets(store)
    for _ in range(3):
        assert fetched(store, "a", 0, len(BODY)) == BODY
    assert sdk_gets.count == 3, "asked how, given the 503, asked again"
    assert is_fast(store)
    assert len(http.requests) == 4


def test_an_error_keeps_its_connection_and_the_way(store: S3Store, http: ScriptedHttp) -> None:
    http.answer(s3_error(503, "SlowDown", {"Retry-After": "7"}))
    sdk_gets = SdkGets(store)
    for _ in range(3):
        with pytest.raises(ThrottledError):
            store.get("a", 0, 10)
    assert (http.connections, len(http.requests), sdk_gets.count) == (1, 3, 4)


def outcome(store: S3Store) -> tuple[type[Exception], str] | bytes:
    try:
        return fetched(store, "a", 0, len(BODY))
    except RemoteStorageError as error:
        return type(error), str(error)


LONG = "x" * 70_000


@for_each(
    "answer, then",
    [
        (b"", "close"),
        (b"", "reset"),
        (b"", "stall"),
        (b"nonsense\r\n\r\n", "close"),
        (b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n", "keep"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + ranged(), "keep"),
        (b"HTTP/1.0 206 P\r\n" + ranged().partition(b"\r\n")[2], "close"),
        (ranged().replace(b"Content-Length", b"X-Other"), "close"),
        (response(200, BODY), "keep"),
        (response(204), "keep"),
        (response(304), "keep"),
        (response(416), "keep"),
        (s3_error(404, "NoSuchKey"), "keep"),
        (s3_error(404, LONG), "keep"),
        (s3_error(403, "RequestTimeTooSkewed"), "keep"),
        (s3_error(503, "SlowDown", {"Retry-After": "7"}), "keep"),
        (s3_error(503, "SlowDown")[:-10], "close"),
        (s3_error(503, "SlowDown")[:-10], "stall"),
        (s3_error(503, LONG)[:-10], "stall"),
        (s3_error(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-north-1"}), "keep"),
    ],
)
def test_every_answer_has_the_outcome_that_it_has_through_boto3(open_store: OpenS3, answer: bytes, then: Then) -> None:
    outcomes = []
    patience = {"read_timeout_s": 0.3} if then == "stall" else {}
    for changes in ({}, THROUGH_SDK):
        with scripted_http() as http:
            http.answer(answer, then=then)
            store = open_store(http, **patience, **changes)
            found = outcome(store)
            # Who gave the answer up may have been faster than the server's thread.
            wait_until(partial(len, http.requests), "the request")
            store.close()
        outcomes.append(
            (
                found if isinstance(found, bytes) else (found[0], found[1].replace(http.endpoint_url, "")),
                len(http.requests),
            )
        )
    assert outcomes[0] == outcomes[1]


def test_no_connection_has_the_outcome_that_it_has_through_boto3(open_store: OpenS3, tmp_path: Path) -> None:
    """Nobody listens; a certificate that nobody vouches for."""
    certificate, key = server_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with scripted_http() as gone:
        pass
    assert outcome(open_store(gone)) == outcome(open_store(gone, **THROUGH_SDK))
    outcomes = []
    for changes in ({}, THROUGH_SDK, {"certificate_check": False}):
        with scripted_http(tls) as http:
            http.answer(ranged())
            found = outcome(open_store(http, **changes))
            outcomes.append(found if isinstance(found, bytes) else (found[0], found[1].replace(http.endpoint_url, "")))
    assert outcomes[0] == outcomes[1]
    assert outcomes[2] == BODY
