"""What S3 says went wrong, as errors of ours: the table of storage.object_store.object_store, and nothing of the SDK.

The error's code decides where its HTTP status would mislead (an expired token is a 400, an archived object a 403);
the status decides for all other codes, since S3-compatible stores invent their own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import (
    CorruptObjectError,
    DeletionRefusedError,
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
    StorageConfigError,
    ThrottledError,
)
from storage.object_store.refusals import (
    DELETE,
    DELETE_MANY,
    NO_SUCH_VERB,
    STATUS_ERRORS,
    refuses_deletion,
    retry_after_s,
)

REGION_KEY = "storage.s3.region"
BUCKET_KEY = "storage.s3.bucket.name"
ENDPOINT_KEY = "storage.s3.endpoint.url"
ACCESS_KEY_KEY = "storage.aws.access.key.id"

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
_LOCKED = frozenset({"FileImmutable", "InvalidRequest", "MethodNotAllowed", "NotImplemented"})
"""For a DELETE. AWS says AccessDenied of a locked object, MinIO and versitygw InvalidRequest, Alibaba FileImmutable."""

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
    "PUT in parts": "s3:PutObject",
    "ABORT of an upload": "s3:AbortMultipartUpload",
    "LIST of uploads": "s3:ListBucketMultipartUploads",
    DELETE: "s3:DeleteObject",
    DELETE_MANY: "s3:DeleteObject",
}
"""By the verb that a question's words end in."""

_WRONG_KEY = "check {prefix}" + ACCESS_KEY_KEY + " and its secret, or {prefix}storage.aws.credentials.file"
_EXPIRED = "the credentials have expired: give {prefix}storage.aws.session.token and its keys again"
_HINTS: Mapping[str, str] = (
    dict.fromkeys(_NOT_FOUND, "it was deleted, or lies elsewhere: check {prefix}key.prefix and {prefix}" + BUCKET_KEY)
    | dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "UnrecognizedClientException"), _WRONG_KEY)
    | dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"), _EXPIRED)
    | dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), "this machine's clock is wrong: set it (NTP)")
    | {"NoSuchBucket": "no such bucket; check {prefix}" + BUCKET_KEY}
)
"""What to look at, by code."""


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
        if self._refuses_deletion(what):
            kind = DeletionRefusedError
        if issubclass(kind, RetriableRemoteStorageError):
            return kind(f"{what}: {answer}", retry_after_s=retry_after_s(self.headers))
        hint = _HINTS.get(self.code, "").format(prefix=prefix)
        if self.code == "AccessDenied":
            right = _RIGHTS.get(what.rpartition(": ")[2])
            hint = "" if right is None else f"it takes {right}"
        elif kind is RemoteStoreNotFoundError:
            hint = _HINTS["NoSuchBucket"].format(prefix=prefix)
        elif kind is RemoteResourceNotFoundError:  # of a HEAD there is the status alone
            hint = _HINTS["NoSuchKey"].format(prefix=prefix)
        return kind(f"{what}: {answer}: {hint}" if hint else f"{what}: {answer}")

    def _refuses_deletion(self, what: str) -> bool:
        is_unknown = self.code not in _CODES
        return refuses_deletion(
            what,
            lacks_right=self.code == "AccessDenied" or (is_unknown and self.status == 403),
            is_impossible=self.code in _LOCKED or (is_unknown and self.status in NO_SUCH_VERB),
        )


def connection_hint(name: str, *, prefix: str) -> str:
    """Return what to look at when an error of that class name kept us from an answer; empty for none in particular."""
    if "Credential" in name or name in ("MetadataRetrievalError", "TokenRetrievalError", "SSOError", "LoginError"):
        return (
            f": no credentials were found; set {prefix}{ACCESS_KEY_KEY} and its secret, {prefix}storage.aws.credentials"
            ".file, or AWS' own variables and files"
        )
    if "SSL" in name:
        return (
            f": TLS failed; check http:// or https:// in {prefix}{ENDPOINT_KEY}, and AWS_CA_BUNDLE for an own authority"
        )
    if name in ("EndpointConnectionError", "ConnectionRefusedError", "ConnectTimeoutError", "NewConnectionError"):
        return f": nobody answers there; check {prefix}{ENDPOINT_KEY} or {prefix}{REGION_KEY}, and the network"
    if name in ("gaierror", "NameResolutionError"):
        return f": the host's name cannot be resolved; check {prefix}{ENDPOINT_KEY}"
    return ""
