"""What an HTTP status means where a store's own code for the error says nothing else, when to ask again, and why there
was no answer."""

import re
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from storage.errors import (
    InvalidRangeError,
    RemoteAccessDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)

_CAUSES_MAX = 10
_PYTHONS_OWN = re.compile(r"^\[[^\]]*\] | \(_ssl\.c:\d+\)$")
"""What Python's ssl puts around OpenSSL's words."""

RETRY_AFTER_S_MAX = 300.0
"""No store's wish keeps us away for longer."""

NO_SUCH_VERB = frozenset({405, 501})

STATUS_ERRORS: Mapping[int, type[RemoteStorageError]] = {
    401: RemoteAccessDeniedError,
    403: RemoteAccessDeniedError,
    404: RemoteResourceNotFoundError,
    416: InvalidRangeError,
    429: ThrottledError,
} | dict.fromkeys((408, 500, 502, 503, 504), RetriableRemoteStorageError)
"""A 503 alone is an outage as well as a plea for fewer requests: where it is the latter, the code says so."""


DELETE = "DELETE"
"""The verb that a question's words end in, where one object is to be deleted."""
DELETE_MANY = "DELETE of several"


def refuses_deletion(what: str, *, lacks_right: bool, is_impossible: bool) -> bool:
    """Return whether a refusal is DeletionRefusedError. What is impossible for several objects at once says nothing of
    one."""
    verb = what.rpartition(": ")[2]
    return (lacks_right and verb in (DELETE, DELETE_MANY)) or (is_impossible and verb == DELETE)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return how long the store asked to be left alone (RFC 9110 §10.2.3), at most RETRY_AFTER_S_MAX; None if it did
    not."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return min(float(text), RETRY_AFTER_S_MAX)
    try:
        # A date counts from the answer's own, so that no clock of ours comes into it.
        seconds = (parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)


def cause_words(error: BaseException) -> str:
    """Return why TLS failed, or what a SOCKS proxy said, where an error came of that; empty otherwise. Neither
    OpenSSL's words nor PySocks' hold a secret."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            break
        if type(found).__module__ == "socks":
            return f" (through the proxy of storage.proxy.host: {type(found).__name__}: {str(found)[:100]})"
        if isinstance(found, ssl.SSLEOFError):
            return " (TLS: the connection ended without TLS's own end)"
        if isinstance(found, ssl.SSLError):
            return f" (TLS: {_PYTHONS_OWN.sub('', found.strerror or str(found))[:200]})"
        # Azure's errors are raised far from where they came from, and keep that themselves.
        found = found.__cause__ or found.__context__ or getattr(found, "inner_exception", None)
    return ""
