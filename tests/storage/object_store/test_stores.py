"""What S3, GCS and Azure have in common, over scripted answers: which answer is which error and who lacks which right,
bodies that break or are not what was asked for, silence, and closing. What is particular to one is in its own file."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product

import pytest

from storage.errors import (
    CorruptObjectError,
    DeletionRefusedError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StalledTransferError,
    StorageConfigError,
    ThrottledError,
)
from storage.object_store import bodies
from storage.object_store.object_store import ObjectStore
from tests.contract.object_store import fetched
from tests.support.azurite import KEY
from tests.support.cases import case
from tests.support.http_stores import OpenScripted, azure_error, gcs_error
from tests.support.s3_server import CREDENTIALS
from tests.support.s3_stores import BODY, ranged
from tests.support.scripted_http import ScriptedHttp, Then, response, s3_error
from tests.support.waiting import wait_until

Call = Callable[[ObjectStore], object]
CALLS: dict[str, Call] = {
    "get": lambda store: store.get("a/key.log", 0, 10),
    "head": lambda store: store.head("a/key.log"),
    "list": lambda store: list(store.list("a/key")),
    "put": lambda store: store.put("a/key.log", b"x"),
    "delete": lambda store: store.delete_many(["a/key.log"]),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a store says that something is wrong, and what a message has then."""

    error: Callable[..., bytes]
    message: str
    errors: tuple[tuple[int, str, type[RemoteStorageError]], ...]
    calls: dict[int, tuple[str, ...]]
    """By status: those that may get it, where not all of get, head and list do."""
    denied: tuple[int, str]
    rights: dict[str, str]


S3 = Dialect(
    s3_error,
    r"s3://tier/a/key.* at http://127\.0\.0\.1.*{code}",
    (
        (404, "NoSuchKey", RemoteResourceNotFoundError),
        (404, "NoSuchBucket", RemoteStoreNotFoundError),
        (403, "AccessDenied", RemoteAccessDeniedError),
        (403, "SignatureDoesNotMatch", RemoteAccessDeniedError),
        (403, "RequestTimeTooSkewed", RemoteAccessDeniedError),
        (400, "ExpiredToken", RemoteAccessDeniedError),
        (416, "InvalidRange", InvalidRangeError),
        (400, "RequestTimeout", RetriableRemoteStorageError),
        (429, "Whatever", ThrottledError),
        (500, "InternalError", RetriableRemoteStorageError),
        (503, "SlowDown", ThrottledError),
        (503, "ServiceUnavailable", RetriableRemoteStorageError),
        (400, "ThrottlingException", ThrottledError),
        (400, "AuthorizationHeaderMalformed", StorageConfigError),
        (301, "PermanentRedirect", StorageConfigError),
        (501, "NotImplemented", RemoteStorageError),
    ),
    dict.fromkeys((301, 400, 403, 404, 416, 429, 500, 501, 503), ("get",)),
    (403, "AccessDenied"),
    {
        "get": "it takes s3:GetObject, and s3:ListBucket, without which",
        "list": "it takes s3:ListBucket",
        "put": "it takes s3:PutObject",
        "delete": "it takes s3:DeleteObject",
    },
)
GCS = Dialect(
    gcs_error,
    r"gs://tier/a/key.* at 127\.0\.0\.1.*: {code} \(HTTP",
    (
        (404, "notFound", RemoteResourceNotFoundError),
        (403, "forbidden", RemoteAccessDeniedError),
        (416, "requestedRangeNotSatisfiable", InvalidRangeError),
        (403, "userRateLimitExceeded", ThrottledError),
        (429, "rateLimitExceeded", ThrottledError),
        (503, "backendError", RetriableRemoteStorageError),
        (503, "rateLimitExceeded", ThrottledError),
        (500, "backendError", RetriableRemoteStorageError),
        (408, "requestTimeout", RetriableRemoteStorageError),
        (400, "invalid", RemoteStorageError),
        (307, "redirect", RemoteStorageError),
    ),
    # A listing has no range, is redirected by requests, and lacks nothing but its bucket.
    {416: ("get",), 307: ("get",), 404: ("get", "head")},
    (403, "forbidden"),
    {
        "get": r"the account needs storage\.objects\.get, and storage\.objects\.list, without which",
        "head": r"the account needs storage\.objects\.get",
        "list": r"the account needs storage\.objects\.list",
        "put": r"the account needs storage\.objects\.create, and storage\.objects\.delete",
        "delete": r"the account needs storage\.objects\.delete",
    },
)
AZURE = Dialect(
    azure_error,
    r"azure://tier/a/key.* at 127.*: {code} \(HTTP {status}",
    (
        (404, "BlobNotFound", RemoteResourceNotFoundError),
        (404, "ContainerNotFound", RemoteStoreNotFoundError),
        (403, "AuthorizationFailure", RemoteAccessDeniedError),
        (403, "AuthenticationFailed", RemoteAccessDeniedError),
        (416, "InvalidRange", InvalidRangeError),
        (503, "ServerBusy", ThrottledError),
        (503, "Unheard", RetriableRemoteStorageError),
        (500, "OperationTimedOut", RetriableRemoteStorageError),
        (500, "InternalError", RetriableRemoteStorageError),
        (409, "BlobArchived", RemoteStorageError),
        (400, "Md5Mismatch", CorruptObjectError),
        (400, "InvalidResourceName", StorageConfigError),
    ),
    dict.fromkeys((400, 403, 404, 409, 416, 500, 503), ("get", "list")),
    (403, "AuthorizationPermissionMismatch"),
    {
        "get": r"it takes the role Storage Blob Data Reader, or a SAS with r \(read",
        "list": r"it takes the role Storage Blob Data Reader, or a SAS of the container with l \(list",
        "put": r"it takes the role Storage Blob Data Contributor, or a SAS with w \(write",
        "delete": r"it takes the role Storage Blob Data Contributor, or a SAS with d \(delete",
    },
)
DIALECTS = {"s3": S3, "gcs": GCS, "azure": AZURE}


@pytest.fixture(params=DIALECTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dialect(kind: str) -> Dialect:
    return DIALECTS[kind]


@pytest.fixture
def scripted(kind: str, open_scripted: OpenScripted) -> OpenScripted:
    return functools.partial(open_scripted, kind)


def test_what_the_store_says_decides_the_error(http: ScriptedHttp, scripted: OpenScripted, dialect: Dialect) -> None:
    store = scripted()
    for status, code, error in dialect.errors:
        forms = [{"in_body": True}, {}] if dialect is AZURE else [{}]
        for form, call in product(forms, dialect.calls.get(status, ("get", "head", "list"))):
            http.forget()
            http.answer(dialect.error(status, code, **form))
            message = dialect.message.format(code=code, status=status)
            with case(status, code, form, call):
                with pytest.raises(RemoteStorageError, match=message) as caught:
                    CALLS[call](store)
                assert type(caught.value) is error
                assert KEY not in str(caught.value)
                assert CREDENTIALS.secret_access_key not in str(caught.value)
                if dialect is S3:
                    # After a redirect botocore asks once where the bucket is.
                    assert len(http.requests) == (2 if status == 301 else 1)


def test_who_is_denied_is_told_the_right(http: ScriptedHttp, scripted: OpenScripted, dialect: Dialect) -> None:
    store = scripted()
    http.answer(dialect.error(*dialect.denied))
    for call, right in dialect.rights.items():
        with case(call), pytest.raises(RemoteAccessDeniedError, match=right):
            CALLS[call](store)


REFUSED_DELETIONS = {
    "s3": [
        *((403, "AccessDenied"), (403, "OfTheirOwn"), (405, "MethodNotAllowed"), (501, "NotImplemented")),
        *((400, "InvalidRequest"), (409, "FileImmutable")),
    ],
    "gcs": [(403, "forbidden"), (403, "retentionPolicyNotMet"), (405, "methodNotAllowed")],
    "azure": [(403, "AuthorizationPermissionMismatch"), (409, "BlobImmutableDueToPolicy"), (409, "SnapshotsPresent")],
}
OTHER_FAILED_DELETIONS = {
    "s3": [(403, "SignatureDoesNotMatch"), (400, "ExpiredToken"), (503, "SlowDown"), (500, "InternalError")],
    "gcs": [(403, "userRateLimitExceeded"), (401, "required"), (503, "backendError")],
    "azure": [(403, "AuthenticationFailed"), (503, "ServerBusy")],
}


def test_a_store_that_does_not_let_us_delete_is_told_from_any_other_trouble(
    http: ScriptedHttp, scripted: OpenScripted, dialect: Dialect, kind: str
) -> None:
    """All were RemoteAccessDeniedError, which wrong credentials are too, or nothing in particular. What is refused of
    one object is refused of each."""
    store = scripted()
    answers = [(each, True) for each in REFUSED_DELETIONS[kind]]
    answers += [(each, False) for each in OTHER_FAILED_DELETIONS[kind]]
    for answer, is_refused in answers:
        for keys in (["a"], ["a", "b"]):
            http.forget()
            http.answer(dialect.error(*answer))
            with case(*answer, len(keys)):
                with pytest.raises(RemoteStorageError) as caught:
                    store.delete_many(keys)
                assert isinstance(caught.value, DeletionRefusedError) == is_refused
                assert list(caught.value.undeleted) == keys


def test_the_store_says_when_to_ask_again(http: ScriptedHttp, scripted: OpenScripted, kind: str) -> None:
    busy = {
        "s3": s3_error(503, "SlowDown", {"Retry-After": "7"}),
        "gcs": response(429, headers={"Retry-After": "7"}),
        "azure": azure_error(503, "ServerBusy", Retry_After="7"),
    }
    http.answer(busy[kind])
    http.answer(response(503))
    store = scripted()
    for expected_s in (7.0, None):
        with pytest.raises(RetriableRemoteStorageError) as caught:
            store.get("a", 0, 10)
        assert caught.value.retry_after_s == expected_s
        assert isinstance(caught.value, ThrottledError) == (expected_s is not None)


def test_a_body_that_is_cut_may_be_asked_for_again(http: ScriptedHttp, scripted: OpenScripted, kind: str) -> None:
    store, whole = scripted(), ranged()
    ends: tuple[Then, ...] = ("close", "reset")
    for then, sent_bytes in product(ends, (0, 1, 9_000)):
        http.answer(whole[: len(whole) - len(BODY) + sent_bytes], then=then)
        http.answer(whole)
        # A reset may overtake the head.
        told = f"ended after {sent_bytes} of {len(BODY)} bytes" if kind != "s3" and then == "close" else "://tier/a"
        with case(then, sent_bytes):
            with pytest.raises(RetriableRemoteStorageError, match=told):
                fetched(store, "a", 0, len(BODY))
            assert fetched(store, "a", 0, len(BODY)) == BODY
        http.forget()


def test_a_silent_body_is_given_up(http: ScriptedHttp, scripted: OpenScripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SILENCE_S_MAX", 0.3)
    http.answer(ranged()[:-100], then="stall")
    stream = scripted().get("a", 0, len(BODY))
    found = memoryview(bytearray(len(BODY)))
    stream.readinto(found[:-100])
    assert found[:-100] == BODY[:-100]
    with pytest.raises(StalledTransferError, match="://tier/a"):
        stream.readinto(found[-100:])
    with pytest.raises(ValueError, match="closed"):
        stream.readinto(found[-100:])


def test_silence_and_a_reset_are_told_apart(http: ScriptedHttp, scripted: OpenScripted, kind: str) -> None:
    # boto3's errors tell nothing apart.
    silence = RetriableRemoteStorageError if kind == "s3" else StalledTransferError
    for call in ("get", "list"):
        once = {"attempts_max": 1} if kind == "s3" else {}
        http.forget()
        http.answer(b"", then="stall")
        with pytest.raises(silence):
            CALLS[call](scripted(read_timeout_s=0.2, **once))
        http.forget()
        http.answer(b"", then="reset")
        with pytest.raises(RetriableRemoteStorageError) as caught:
            CALLS[call](scripted(**once))
        assert type(caught.value) is RetriableRemoteStorageError, call


def test_other_bytes_than_were_asked_for_are_refused(http: ScriptedHttp, scripted: OpenScripted) -> None:
    store = scripted()
    for answer, error in (
        (ranged(Content_Length=str(len(BODY) - 5)), RetriableRemoteStorageError),
        (ranged(Content_Length=str(len(BODY) + 5)), RetriableRemoteStorageError),
        (ranged(BODY[:-1], total=20_000), RetriableRemoteStorageError),
        (ranged(start=5), RemoteStorageError),
        (ranged(BODY[5:], start=5), RemoteStorageError),
        (ranged(BODY + b"x"), RemoteStorageError),
        (ranged(Content_Range="bytes */5"), RemoteStorageError),
    ):
        http.forget()
        http.answer(answer)
        with case(answer[:100]):
            with pytest.raises(RemoteStorageError, match=rf"asked for bytes \[0, {len(BODY)}\)") as caught:
                store.get("a", 0, len(BODY))
            assert type(caught.value) is error


def test_a_chunked_body_is_read_and_its_end_known(http: ScriptedHttp, scripted: OpenScripted) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:10], BODY[10:]))
    head = f"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-{len(BODY) - 1}/*\r\n\r\n".encode()
    http.answer(head + chunks + b"0\r\n\r\n")
    http.answer(head + chunks[:-100], then="close")
    store, found = scripted(), bytearray(len(BODY))
    stream = store.get("a", 0, len(BODY))
    stream.readinto(memoryview(found)[:7])
    stream.readinto(memoryview(found)[7:])
    stream.close()
    assert found == BODY
    with pytest.raises(RetriableRemoteStorageError):
        fetched(store, "a", 0, len(BODY))


def test_closing_wakes_whoever_waits(http: ScriptedHttp, scripted: OpenScripted) -> None:
    http.answer(b"", then="stall")
    for call in ("get", "list", "delete"):
        http.requests.clear()
        store = scripted(read_timeout_s=60.0)
        store.warm_up()
        with ThreadPoolExecutor(1) as threads, case(call):
            waiting = threads.submit(CALLS[call], store)
            wait_until(lambda: bool(http.requests), "the store was asked")
            store.close()
            # The server gives up after 30 s.
            assert isinstance(waiting.exception(timeout=20), RetriableRemoteStorageError)
