"""What is particular to S3: errors, parts, what boto3 gets. The rest is the contract's."""

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StorageConfigError,
    ThrottledError,
)
from storage.object_store.local_file import LocalFile
from storage.object_store.object_store import ObjectHead
from storage.object_store.refusals import RETRY_AFTER_S_MAX, retry_after_s
from storage.object_store.s3.config import (
    AnonymousCredentials,
    ChecksumMode,
    S3Settings,
    StaticCredentials,
    credentials_file,
)
from storage.object_store.s3.errors import Refusal
from storage.object_store.s3.store import S3Store
from storage.object_store.uploads import UploadRetries
from tests.contract.object_store import fetched
from tests.support.for_each import for_each
from tests.support.s3_server import S3Server
from tests.support.s3_stores import BODY, OpenS3, ranged
from tests.support.scripted_http import ScriptedHttp, response, s3_error

PART_BYTES = 5 * 1024 * 1024


@pytest.fixture
def scripted(open_store: OpenS3) -> S3Store:
    return open_store()


@for_each(
    "status, error", [(404, RemoteResourceNotFoundError), (403, RemoteAccessDeniedError), (400, RemoteStorageError)]
)
def test_a_head_has_only_its_status(http: ScriptedHttp, scripted: S3Store, status: int, error: type[Exception]) -> None:
    http.forget()
    http.answer(response(status))
    with pytest.raises(error, match=str(status)):
        scripted.head("a")


def test_a_redirect_names_the_keys_to_look_at(http: ScriptedHttp, scripted: S3Store) -> None:
    http.answer(s3_error(301, "PermanentRedirect", {"x-amz-bucket-region": "eu-north-1"}))
    with pytest.raises(StorageConfigError, match=r"eu-north-1.*rsm\.config\.storage\.s3\.region"):
        scripted.get("a", 0, 10)


def test_a_store_without_ranges_is_read_from_the_start_only(http: ScriptedHttp, scripted: S3Store) -> None:
    http.answer(response(200, BODY))
    assert fetched(scripted, "a", 0, 100) == BODY[:100]
    assert fetched(scripted, "a", 0, 2 * len(BODY)) == BODY
    with pytest.raises(RemoteStorageError, match="without a range"):
        scripted.get("a", 1, 100)


def test_an_encoded_object_comes_as_it_is_stored(http: ScriptedHttp, scripted: S3Store) -> None:
    data = gzip.compress(BODY)
    http.answer(ranged(data, total=len(data), Content_Encoding="gzip"))
    assert fetched(scripted, "a", 0, 10_000) == data


def test_bytes_are_summed_up_where_that_is_demanded(http: ScriptedHttp, open_store: OpenS3) -> None:
    http.answer(ranged(x_amz_checksum_crc32="AAAAAA=="))
    assert fetched(open_store(), "a", 0, len(BODY)) == BODY
    summed = open_store(response_checksums=ChecksumMode.WHEN_SUPPORTED).get("a", 0, len(BODY))
    view = memoryview(bytearray(len(BODY)))
    summed.readinto(view[:-1])
    with pytest.raises(CorruptObjectError, match="FlexibleChecksumError"):
        summed.readinto(view[-1:])


CREATED = b"<InitiateMultipartUploadResult><UploadId>up-1</UploadId></InitiateMultipartUploadResult>"


IN_PARTS = ["POST", "PUT", "PUT", "PUT", "POST"]


@for_each(
    "kind, size_bytes, verbs",
    [
        *((kind, size_bytes, ["PUT"]) for kind in ("bytes", "file") for size_bytes in (0, 99, 250)),
        *((kind, 251, IN_PARTS) for kind in ("bytes", "file")),
        # Made while it is sent: a part can be sent again, the beginning cannot.
        *(("pieces", size_bytes, ["PUT"]) for size_bytes in (0, 99)),
        ("pieces", 250, IN_PARTS),
    ],
)
def test_what_is_there_whole_and_small_enough_is_put_at_once(
    http: ScriptedHttp, open_store: OpenS3, tmp_path: Path, kind: str, size_bytes: int, verbs: list[str]
) -> None:
    http.forget()
    content = BODY[:size_bytes]
    (tmp_path / "a").write_bytes(content)
    if len(verbs) > 1:
        http.answer(response(200, CREATED))
        for _ in verbs[1:-1]:
            http.answer(response(200, headers={"ETag": '"1"'}))
        http.answer(response(200, b"<CompleteMultipartUploadResult/>"))
    else:
        http.answer(response(200))
    sources: dict[str, Any] = {
        "bytes": content,
        "file": LocalFile(tmp_path / "a"),
        "pieces": (content[at : at + 30] for at in range(0, size_bytes, 30)),
    }
    open_store(part_bytes=100, single_put_bytes_max=250).put("a", sources[kind])
    assert [line.split()[0] for line in http.requests] == verbs


def test_a_local_file_is_put_at_once_up_to_a_limit_of_its_own(
    s3_endpoint: S3Server, open_store: OpenS3, tmp_path: Path
) -> None:
    store = open_store(s3_endpoint, s3_endpoint.make_bucket(), part_bytes=PART_BYTES, single_put_bytes_max=8_000_000)
    for size_bytes in (PART_BYTES, 2 * PART_BYTES + 1):
        content = (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]
        (tmp_path / "a").write_bytes(content)
        store.put("a", LocalFile(tmp_path / "a"))
        assert fetched(store, "a", 0, len(content) + 1) == content


def test_a_failed_part_gives_the_upload_up(http: ScriptedHttp, open_store: OpenS3) -> None:
    http.answer(response(200, CREATED))
    http.answer(response(200, headers={"ETag": '"1"'}))
    for _ in range(2):
        http.answer(s3_error(503, "SlowDown"))
    http.answer(response(204))
    retries = UploadRetries(2, wait=lambda _: None)
    with pytest.raises(RetriableRemoteStorageError, match="PUT in parts"):
        open_store(part_bytes=100, storage_class="STANDARD_IA", retries=retries).put("a", bytes(250))
    assert [line.split()[0] for line in http.requests] == ["POST", "PUT", "PUT", "PUT", "DELETE"]
    assert http.requests[2] == http.requests[3]
    assert "uploadId=up-1" in http.requests[-1]
    assert "x-amz-storage-class: STANDARD_IA" in http.heads[0]


def test_a_store_that_lets_nobody_give_uploads_up_says_which_rule_does_once(
    http: ScriptedHttp, open_store: OpenS3
) -> None:
    """The right was said to be needed for every put in parts."""
    store = open_store(part_bytes=100)
    for is_first in (True, False):
        http.forget()
        for answer in (response(200, CREATED), s3_error(400, "EntityTooSmall"), s3_error(403, "AccessDenied")):
            http.answer(answer)
        with capture_logs() as logs, pytest.raises(RemoteStorageError, match="EntityTooSmall") as caught:
            store.put("a", bytes(250))
        assert [line.split()[0] for line in http.requests] == ["POST", "PUT", "DELETE"]
        assert "it takes s3:AbortMultipartUpload" in caught.value.__notes__[0]
        told = [entry["hint"] for entry in logs if entry["event"] == "upload_left_open"]
        assert ["AbortIncompleteMultipartUpload" in hint for hint in told] == ([True] if is_first else [])


@for_each("as_file", [False, True])
def test_a_put_is_tried_again_whole(http: ScriptedHttp, open_store: OpenS3, tmp_path: Path, as_file: bool) -> None:
    """Also from its beginning when it is a file, of which the first attempt has read some."""
    http.forget()
    (tmp_path / "a").write_bytes(BODY)
    http.answer(s3_error(503, "SlowDown", {"Retry-After": "2"}))
    http.answer(response(200))
    waits: list[float] = []
    retries = UploadRetries(2, wait=waits.append)
    open_store(retries=retries).put("a", LocalFile(tmp_path / "a") if as_file else BODY)
    assert [line.split()[0] for line in http.requests] == ["PUT", "PUT"]
    assert http.bodies[-1].endswith(BODY)
    assert waits == [2.0]


def test_a_delete_reports_what_was_refused_and_deletes_the_others(http: ScriptedHttp, scripted: S3Store) -> None:
    errors = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code></Error>"
        for key, code in (("k1", "NoSuchKey"), ("k2", "AccessDenied"), ("k3", "InternalError"))
    )
    http.answer(response(200, f"<DeleteResult>{errors}</DeleteResult>".encode()))
    http.answer(s3_error(503, "SlowDown"))
    http.answer(response(200, b"<DeleteResult></DeleteResult>"))
    with pytest.raises(
        RemoteAccessDeniedError, match=r"1002 of 2500 objects were not deleted, the first: .*k2.*Denied"
    ) as caught:
        scripted.delete_many([f"k{number}" for number in range(2500)])
    assert len(http.requests) == 3
    undeleted = caught.value.undeleted
    assert set(undeleted) == {"k2", "k3", *(f"k{number}" for number in range(1000, 2000))}
    assert "InternalError" in undeleted["k3"]
    assert "SlowDown" in undeleted["k1999"]
    assert len(caught.value.__notes__) == 2


@for_each(
    "status, code", [(501, "NotImplemented"), (400, "NotImplemented"), (400, "MissingContentMD5"), (405, "Whatever")]
)
def test_a_store_that_deletes_one_at_a_time_is_asked_so_from_then_on(
    http: ScriptedHttp, open_store: OpenS3, status: int, code: str
) -> None:
    """Google's and Alibaba's answers to DeleteObjects: every deletion failed, and with it every copy."""
    http.forget()
    for answer in (s3_error(status, code), response(204), s3_error(404, "NoSuchKey"), response(204)):
        http.answer(answer)
    store = open_store()
    store.delete_many(["a", "b", "c"])
    store.delete_many(["d", "e"])
    assert http.requests == ["POST /tier?delete HTTP/1.1", *(f"DELETE /tier/{key} HTTP/1.1" for key in "abcde")]


@for_each("status, code", [(403, "AccessDenied"), (403, "SignatureDoesNotMatch"), (503, "SlowDown")])
def test_what_is_no_word_on_batches_asks_for_no_single_deletes(
    http: ScriptedHttp, scripted: S3Store, status: int, code: str
) -> None:
    http.forget()
    http.answer(s3_error(status, code))
    for number in range(2):
        with pytest.raises(RemoteStorageError, match="2 of 2 objects were not deleted"):
            scripted.delete_many(["a", "b"])
        assert http.requests == ["POST /tier?delete HTTP/1.1"] * (number + 1)


def test_single_deletes_end_where_the_store_is_too_busy(http: ScriptedHttp, scripted: S3Store) -> None:
    for answer in (s3_error(501, "NotImplemented"), response(204), s3_error(503, "SlowDown")):
        http.answer(answer)
    with pytest.raises(ThrottledError) as caught:
        scripted.delete_many(["a", "b", "c"])
    assert list(caught.value.undeleted) == ["b", "c"]
    assert len(http.requests) == 3


def test_older_stores_get_the_checksum_that_they_know(http: ScriptedHttp, open_store: OpenS3) -> None:
    http.answer(response(200, b"<DeleteResult></DeleteResult>"))
    open_store(legacy_md5=True).delete_many(["a", "b"])
    open_store().delete_many(["a", "b"])
    assert ["Content-MD5: " in head for head in http.heads] == [True, False]


def test_a_list_goes_page_by_page(http: ScriptedHttp, scripted: S3Store) -> None:
    def page(key: str, more: str) -> bytes:
        entry = (
            f"<Contents><Key>{key}</Key><Size>5</Size><LastModified>2026-01-02T03:04:05.678Z</LastModified></Contents>"
        )
        return response(200, f"<ListBucketResult>{more}{entry}</ListBucketResult>".encode())

    http.answer(
        page(
            "a%2Fb+c",
            "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
            "<NextContinuationToken>t/1</NextContinuationToken>",
        )
    )
    http.answer(page("b", "<IsTruncated>false</IsTruncated>"))
    found = scripted.list("pre")
    assert next(found) == ObjectHead("a/b c", 5, 1767323045678)
    assert len(http.requests) == 1
    assert list(found) == [ObjectHead("b", 5, 1767323045678)]
    assert ["continuation-token=t%2F1" in line for line in http.requests] == [False, True]


def test_a_list_that_continues_at_itself_ends(http: ScriptedHttp, scripted: S3Store) -> None:
    page = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    http.answer(response(200, f"{page}</ListBucketResult>".encode()))
    with pytest.raises(RemoteStorageError, match="continues at itself"):
        list(scripted.list("a"))


def test_nobody_signs_for_an_open_bucket(http: ScriptedHttp, open_store: OpenS3) -> None:
    http.answer(ranged())
    fetched(open_store(credentials=AnonymousCredentials()), "a", 0, len(BODY))
    fetched(open_store(credentials=StaticCredentials("id", "secret", "a-token")), "a", 0, len(BODY))
    anonymous, signed = http.heads
    assert "Authorization" not in anonymous
    assert "Credential=id/" in signed
    assert "a-token" in signed


def test_a_rotated_key_is_used_from_the_next_request(http: ScriptedHttp, open_store: OpenS3, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    store = open_store(credentials=credentials_file(file, "the.key"))
    http.answer(ranged())
    with pytest.raises(StorageConfigError, match=r"the\.key: .* cannot be read"):
        store.head("a")
    for name in ("first", "second-one"):
        file.write_text(f"aws_access_key_id={name}\naws_secret_access_key=secret\n")
        fetched(store, "a", 0, len(BODY))
    file.unlink()
    fetched(store, "a", 0, len(BODY))
    users = [head.partition("Credential=")[2].partition("/")[0] for head in http.heads]
    assert users == ["first", "second-one", "second-one"]


def test_without_credentials_anywhere_access_is_denied(open_store: OpenS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(RemoteAccessDeniedError, match="NoCredentialsError"):
        open_store(credentials=None).get("a", 0, 1)


def test_identity_is_endpoint_and_bucket() -> None:
    identities = {
        S3Store(S3Settings(bucket=bucket, region=region, endpoint_url=endpoint_url)).identity
        for bucket in ("a", "b")
        for region, endpoint_url in (("eu-west-1", None), ("eu-west-1", "http://x:1"), (None, "http://X:1"))
    }
    assert identities == {"s3:s3.eu-west-1/a", "s3:s3.eu-west-1/b", "s3:http://x:1/a", "s3:http://x:1/b"}


def test_boto3_is_not_imported_before_the_first_call() -> None:
    program = (
        "import sys; from storage.object_store.registry import open_object_store;"
        "open_object_store({'storage.backend.class': 'io.aiven.kafka.tieredstorage.storage.s3.S3Storage',"
        " 'storage.s3.bucket.name': 'b', 'storage.s3.region': 'r'}).close();"
        "sys.exit('botocore' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- codes and statuses as errors of ours ---


@for_each(
    "code, status, error",
    [
        ("InvalidObjectState", 403, RemoteStorageError),
        ("InternalError", 503, RetriableRemoteStorageError),
        ("BadDigest", 400, CorruptObjectError),
        ("TemporaryRedirect", 307, RetriableRemoteStorageError),
        ("IllegalLocationConstraintException", 400, StorageConfigError),
        ("InvalidBucketName", 400, StorageConfigError),
        # Codes of a store's own: the status decides.
        ("Unheard", 401, RemoteAccessDeniedError),
        ("Unheard", 404, RemoteResourceNotFoundError),
        ("Unheard", 408, RetriableRemoteStorageError),
        ("Unheard", 429, ThrottledError),
        ("Unheard", 503, RetriableRemoteStorageError),
        ("Unheard", 504, RetriableRemoteStorageError),
        ("Unheard", 405, RemoteStorageError),
        ("Unheard", 0, RemoteStorageError),
    ],
)
def test_the_code_goes_before_the_status(code: str, status: int, error: type[Exception]) -> None:
    found = Refusal(code, status, {"retry-after": "7"}).error("what", prefix="p.")
    assert type(found) is error
    assert getattr(found, "retry_after_s", 7) == 7, "what may pass says when to ask again"


@for_each("region, is_named", [("eu-north-1", True), ("evil\nline", False), ("", False)])
def test_the_right_region_is_named_if_it_may_be_one(region: str, is_named: bool) -> None:
    error = Refusal("PermanentRedirect", 301, {"x-amz-bucket-region": region}).error("what", prefix="")
    assert ("the store names" in str(error)) is is_named
    assert "\n" not in str(error)


@for_each(
    "headers, expected_s",
    [
        ({}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": " 12 "}, 12.0),
        ({"retry-after": "999999999"}, RETRY_AFTER_S_MAX),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2099 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, RETRY_AFTER_S_MAX),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "soon", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_has_a_limit(headers: dict[str, str], expected_s: float | None) -> None:
    assert retry_after_s(headers) == expected_s
