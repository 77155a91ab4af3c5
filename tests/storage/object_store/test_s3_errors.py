"""S3's codes and statuses, as errors of ours."""

import pytest

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StorageConfigError,
    ThrottledError,
)
from storage.object_store.s3_errors import RETRY_AFTER_S_MAX, Refusal, retry_after_s


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("InvalidObjectState", 403, RemoteStorageError),
        ("InternalError", 503, RetriableRemoteStorageError),
        ("BadDigest", 400, CorruptObjectError),
        ("TemporaryRedirect", 307, RetriableRemoteStorageError),
        ("IllegalLocationConstraintException", 400, StorageConfigError),
        ("InvalidBucketName", 400, StorageConfigError),
    ],
)
def test_the_code_goes_before_the_status(code: str, status: int, error: type[Exception]) -> None:
    assert type(Refusal(code, status, {}).error("what", prefix="p.")) is error


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, RemoteAccessDeniedError),
        (404, RemoteResourceNotFoundError),
        (408, RetriableRemoteStorageError),
        (503, ThrottledError),
        (504, RetriableRemoteStorageError),
        (405, RemoteStorageError),
        (0, RemoteStorageError),
    ],
)
def test_the_status_decides_for_codes_of_a_stores_own(status: int, error: type[Exception]) -> None:
    assert type(Refusal("Unheard", status, {}).error("what", prefix="")) is error


@pytest.mark.parametrize("code", ["SlowDown", "InternalError"])
def test_what_may_pass_says_when_to_ask_again(code: str) -> None:
    error = Refusal(code, 503, {"retry-after": "7"}).error("what", prefix="")
    assert isinstance(error, RetriableRemoteStorageError)
    assert error.retry_after_s == 7


def test_a_configuration_error_names_the_users_key() -> None:
    assert "p.storage.s3.region" in str(Refusal("PermanentRedirect", 301, {}).error("what", prefix="p."))
    assert "p.storage.s3.bucket.name" in str(Refusal("InvalidBucketName", 400, {}).error("what", prefix="p."))


@pytest.mark.parametrize(("region", "is_named"), [("eu-north-1", True), ("evil\nline", False), ("", False)])
def test_the_right_region_is_named_if_it_may_be_one(region: str, is_named: bool) -> None:
    error = Refusal("PermanentRedirect", 301, {"x-amz-bucket-region": region}).error("what", prefix="")
    assert ("the store names" in str(error)) is is_named
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("headers", "expected_s"),
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
