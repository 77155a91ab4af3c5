"""What S3 says went wrong, as errors of ours: the table of storage.object_store.object_store, and nothing of the SDK.

The error's code decides where its HTTP status would mislead (an expired token is a 400, an archived object a 403);
the status decides for all other codes, since S3-compatible stores invent their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
from storage.object_store.refusals import STATUS_ERRORS, retry_after_s

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
        "ServiceUnavailable",
        "TemporaryRedirect",
    }
)
_THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
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

_CODES: Mapping[str, type[RemoteStorageError]] = (
    dict.fromkeys(_NOT_FOUND, RemoteResourceNotFoundError)
    | dict.fromkeys(_DENIED, RemoteAccessDeniedError)
    | dict.fromkeys(_RETRIABLE, RetriableRemoteStorageError)
    | dict.fromkeys(_THROTTLED, ThrottledError)
    | dict.fromkeys(_CORRUPT, CorruptObjectError)
    | dict.fromkeys(_OTHER, RemoteStorageError)
    | {"InvalidRange": InvalidRangeError, "NoSuchBucket": RemoteStoreNotFoundError}
)


_RIGHTS: Mapping[str, str] = {
    "GET": "s3:GetObject, and s3:ListBucket, without which an absent object looks forbidden",
    "HEAD": "s3:GetObject",
    "LIST": "s3:ListBucket",
    "PUT": "s3:PutObject",
    "PUT in parts": "s3:PutObject, and s3:AbortMultipartUpload",
    "DELETE": "s3:DeleteObject",
}
"""By the verb that a question's words end in."""


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
        kind = _CODES.get(self.code) or STATUS_ERRORS.get(self.status, RemoteStorageError)
        if issubclass(kind, RetriableRemoteStorageError):
            return kind(f"{what}: {answer}", retry_after_s=retry_after_s(self.headers))
        if kind is RemoteStoreNotFoundError:
            return kind(f"{what}: {answer}: no such bucket; check {prefix}{BUCKET_KEY}")
        right = _RIGHTS.get(what.rpartition(": ")[2]) if self.code == "AccessDenied" else None
        return kind(f"{what}: {answer}" if right is None else f"{what}: {answer}: it takes {right}")
