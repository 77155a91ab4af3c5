"""What S3 says went wrong, as errors of ours: the table of storage.object_store.object_store, and nothing of the SDK.

The error's code decides where its HTTP status would mislead (an expired token is a 400, an archived object a 403);
the status decides for all other codes, since S3-compatible stores invent their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from storage.errors import (
    CorruptObjectError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StorageConfigError,
    ThrottledError,
)

RETRY_AFTER_S_MAX = 300.0
"""No store's wish keeps us away for longer."""

REGION_KEY = "storage.s3.region"
BUCKET_KEY = "storage.s3.bucket.name"

_NOT_FOUND = frozenset({"NoSuchKey", "NoSuchVersion", "NotFound"})
_DENIED = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "RequestExpired",
        # The clock of this machine is wrong: no attempt helps before somebody sets it.
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnrecognizedClientException",
    }
)
_RETRIABLE = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeoutException",
        "TemporaryRedirect",
    }
)
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",  # MinIO's
        "SlowDownWrite",  # MinIO's
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
"""S3's, its imitators', and what botocore takes for throttling (`ThrottledRetryableChecker`)."""
_CORRUPT = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
_WRONG_REGION = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})
_OTHER = frozenset({"InvalidObjectState"})
"""An archived object: the status says 403, but no credentials help."""

_STATUSES: Mapping[int, type[RemoteStorageError]] = {
    401: RemoteAccessDeniedError,
    403: RemoteAccessDeniedError,
    404: RemoteResourceNotFoundError,
    416: InvalidRangeError,
    429: ThrottledError,
    503: ThrottledError,
} | dict.fromkeys((408, 500, 502, 504), RetriableRemoteStorageError)
_CODES: Mapping[str, type[RemoteStorageError]] = (
    dict.fromkeys(_NOT_FOUND, RemoteResourceNotFoundError)
    | dict.fromkeys(_DENIED, RemoteAccessDeniedError)
    | dict.fromkeys(_RETRIABLE, RetriableRemoteStorageError)
    | dict.fromkeys(_THROTTLED, ThrottledError)
    | dict.fromkeys(_CORRUPT, CorruptObjectError)
    | dict.fromkeys(_OTHER, RemoteStorageError)
    | {"InvalidRange": InvalidRangeError, "NoSuchBucket": RemoteStoreNotFoundError}
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error. `status` is HTTP's, 0 where there is none (one key of many); headers in lower case.

    The store's own text is left out: some stores repeat in it what they were sent.
    """

    code: str
    status: int
    headers: Mapping[str, str]

    def error(self, what: str, *, prefix: str) -> RemoteStorageError:
        """Our error for it; `what` says what was asked for, `prefix` is that of the broker's keys."""
        answer = f"{self.code} (HTTP {self.status})" if self.status else self.code
        if self.code in _WRONG_REGION or self.status in (301, 308):
            region = self.headers.get("x-amz-bucket-region", "")
            there = f" (the store names {region})" if re.fullmatch(r"[a-z0-9-]{1,40}", region) else ""
            message = f"{what}: {answer}: the bucket is elsewhere{there}; check {prefix}{REGION_KEY} and the endpoint"
            return StorageConfigError(message)
        if self.code == "InvalidBucketName":
            return StorageConfigError(f"{what}: {answer}: check {prefix}{BUCKET_KEY}")
        kind = _CODES.get(self.code) or _STATUSES.get(self.status, RemoteStorageError)
        if issubclass(kind, RetriableRemoteStorageError):
            return kind(f"{what}: {answer}", retry_after_s=retry_after_s(self.headers))
        return kind(f"{what}: {answer}")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the store asked to be left alone (RFC 9110 §10.2.3), at most RETRY_AFTER_S_MAX; None if it did not."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return min(float(text), RETRY_AFTER_S_MAX)
    try:
        # A date counts from the answer's own, so that no clock of ours comes into it.
        seconds = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)
