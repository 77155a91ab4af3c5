"""What Azure says went wrong, as errors of ours: the table of storage.object_store.object_store; nothing of the SDK.

The code of the answer decides where its status would mislead (the Blob service's REST API, "Blob service error codes");
the status decides for the others. An error for a missing right names the role and the SAS permission that have it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import (
    CorruptObjectError,
    DeletionRefusedError,
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

_CODES: Mapping[str, type[RemoteStorageError]] = {
    "AccountIsDisabled": RemoteAccessDeniedError,
    "ContainerBeingDeleted": RemoteStoreNotFoundError,
    "ContainerNotFound": RemoteStoreNotFoundError,
    "Md5Mismatch": CorruptObjectError,
    "OperationTimedOut": RetriableRemoteStorageError,
    # Archived: no credentials help, and nothing is there to read until it is rehydrated.
    "BlobArchived": RemoteStorageError,
    "ServerBusy": ThrottledError,
}
_RIGHTS: Mapping[str, str] = {
    "GET": "the role Storage Blob Data Reader, or a SAS with r (read)",
    "HEAD": "the role Storage Blob Data Reader, or a SAS with r (read)",
    "LIST": "the role Storage Blob Data Reader, or a SAS of the container with l (list)",
    "PUT": "the role Storage Blob Data Contributor, or a SAS with w (write)",
    **dict.fromkeys((DELETE, DELETE_MANY), "the role Storage Blob Data Contributor, or a SAS with d (delete)"),
}
_LOCKED = frozenset({"BlobImmutableDueToLegalHold", "BlobImmutableDueToPolicy", "LeaseIdMissing", "SnapshotsPresent"})
_NO_RIGHT_HELPS = frozenset({"AccountIsDisabled", "AuthenticationFailed"})
_LACKS_RIGHT = frozenset(
    {
        "AuthorizationPermissionMismatch",
        "AuthorizationResourceTypeMismatch",
        "AuthorizationServiceMismatch",
        "InsufficientAccountPermissions",
    }
)
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,60})</Code>")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error; header names in lower case. Its own text is left out: it repeats what was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def error(self, what: str, *, prefix: str) -> RemoteStorageError:
        """Our error for it. `what` says what was asked for and ends in the verb; `prefix` is that of the keys."""
        code = self._code()
        message = f"{what}: {code} (HTTP {self.status})"
        if code == "InvalidResourceName" or (code == "InvalidUri" and self.status == 400):
            return StorageConfigError(f"{message}; check {prefix}storage.azure.container.name")
        kind = _CODES.get(code) or STATUS_ERRORS.get(self.status, RemoteStorageError)
        if refuses_deletion(
            what,
            lacks_right=self.status == 403 and code not in _NO_RIGHT_HELPS,
            is_impossible=code in _LOCKED or self.status in NO_SUCH_VERB,
        ):
            kind = DeletionRefusedError
        if issubclass(kind, RetriableRemoteStorageError):
            return kind(message, retry_after_s=retry_after_s(self.headers))
        if kind is RemoteStoreNotFoundError:
            return kind(f"{message}: no such container; check {prefix}storage.azure.container.name")
        if kind is RemoteResourceNotFoundError:
            lies = f"check {prefix}key.prefix and {prefix}storage.azure.container.name"
            return kind(f"{message}: it was deleted, or lies elsewhere: {lies}")
        verb = what.rpartition(": ")[2]
        if code in _LACKS_RIGHT and verb in _RIGHTS:
            return kind(f"{message}: it takes {_RIGHTS[verb]}")
        if code == "AuthenticationFailed":
            return kind(f"{message}: a wrong key, a SAS that has expired, or this machine's clock is wrong")
        if code == "AuthorizationFailure":
            return kind(f"{message}: the account's firewall or network rules, or a right that the credentials lack")
        return kind(message)

    def _code(self) -> str:
        named = self.headers.get("x-ms-error-code", "")
        if re.fullmatch(r"[A-Za-z0-9]{1,60}", named):
            return named
        found = _CODE.search(self.body)
        return found[1].decode() if found else "an error"
