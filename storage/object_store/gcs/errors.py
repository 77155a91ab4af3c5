"""What GCS says went wrong, as errors of ours: the table of storage.object_store.object_store, and nothing of Google's.

The status decides, but for a 403 or 503 that asks for fewer requests; a message shows the reason in the answer's JSON
(Cloud Storage's JSON API, "HTTP status and error codes"), and the right that the caller lacks, in Google's own words.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from storage.errors import (
    DeletionRefusedError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStoreNotFoundError,
    RetriableRemoteStorageError,
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

_THROTTLED = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "dailyLimitExceeded", "quotaExceeded"})
_NO_BUCKET = re.compile(r"bucket does not exist", re.IGNORECASE)
_RIGHT = re.compile(r"storage\.[a-z]+\.[a-zA-Z]+")
_RIGHT_OF_VERB: Mapping[str, str] = {
    "GET": "storage.objects.get, and storage.objects.list, without which an absent object looks forbidden",
    "HEAD": "storage.objects.get",
    "LIST": "storage.objects.list",
    "PUT": "storage.objects.create, and storage.objects.delete to replace an object",
    DELETE: "storage.objects.delete",
    DELETE_MANY: "storage.objects.delete",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error; header names in lower case. Its own text is left out, which may repeat what was sent,
    but for the name of a right."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def error(self, what: str, *, prefix: str) -> RemoteStorageError:
        """Our error for it. `what` says what was asked for and ends in the verb; `prefix` is that of the keys."""
        reason, text = self._words()
        message = f"{what}: {reason} (HTTP {self.status})"
        kind = STATUS_ERRORS.get(self.status, RemoteStorageError)
        if self.status in (403, 503) and reason in _THROTTLED:
            kind = ThrottledError
        lacks_right = kind is RemoteAccessDeniedError and self.status == 403
        if refuses_deletion(what, lacks_right=lacks_right, is_impossible=self.status in NO_SUCH_VERB):
            kind = DeletionRefusedError
        verb = what.rpartition(": ")[2]
        # No listing is absent but for its bucket, whatever the words of a store like it.
        if self.status == 404 and (verb == "LIST" or _NO_BUCKET.search(text)):
            return RemoteStoreNotFoundError(f"{message}: no such bucket; check {prefix}storage.gcs.bucket.name")
        if issubclass(kind, RetriableRemoteStorageError):
            return kind(message, retry_after_s=retry_after_s(self.headers))
        if kind is RemoteResourceNotFoundError:
            lies = f"check {prefix}key.prefix and {prefix}storage.gcs.bucket.name"
            return kind(f"{message}: it was deleted, or lies elsewhere: {lies}")
        named = _RIGHT.search(text)
        # A message for a 401 names no right: Google does not know who asks.
        if issubclass(kind, RemoteAccessDeniedError) and (self.status == 403 or named):
            right = _RIGHT_OF_VERB.get(verb) or (named[0] if named else "")
            if named and not right.startswith(named[0]):
                right = named[0]
            return kind(f"{message}: the account needs {right}" if right else message)
        return kind(message)

    def _words(self) -> tuple[str, str]:
        """Return the reason, and all text, of which nothing else is shown."""
        text = self.body.decode("utf-8", "replace")
        try:
            reason = json.loads(text)["error"]["errors"][0]["reason"]
        except (ValueError, TypeError, KeyError, IndexError):
            reason = None
        is_word = isinstance(reason, str) and re.fullmatch(r"[\w.-]{1,60}", reason)
        return reason if is_word else "an error", text
