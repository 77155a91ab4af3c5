"""Google's client for one bucket, its credentials, and what its errors mean. No other file imports Google's packages.

Import it on first use: that takes most of a second.
"""

import json
import threading
import warnings
from typing import Any

import google.auth
import requests
from google.api_core import exceptions as api_errors
from google.auth import exceptions as auth_errors
from google.auth.credentials import AnonymousCredentials, with_scopes_if_required
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from storage.errors import CorruptObjectError, RemoteAccessDeniedError, RemoteStorageError, StorageConfigError
from storage.limited_files import UnreadableFileError, read_limited
from storage.object_store import gcs_config
from storage.object_store.gcs_config import NOT_JSON, GcsSettings, JsonCredentials, is_json_object
from storage.object_store.gcs_errors import Refusal
from storage.object_store.http_get import OpenSockets
from storage.object_store.http_session import StoreSession
from storage.object_store.http_store import READ_TIMEOUT_S, RefusedAnswer, translated_transport

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
CREDENTIALS_BYTES_MAX = 64 * 1024


class _AuthorizedSession(StoreSession, AuthorizedSession):
    """The SDK's session over our connections."""


class _TokenRequest(Request):
    """A question for a token, for which Google's own would wait two minutes: all GETs wait with it."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return super().__call__(*args, **{"timeout": READ_TIMEOUT_S, **options})


class GoogleClient:
    """What is made with the first question: credentials, their session, and the SDK's client over it. Thread-safe."""

    def __init__(self, settings: GcsSettings, sockets: OpenSockets) -> None:
        tokens = StoreSession()
        tokens.reach(sockets, connections_max=1, proxy=settings.proxy)
        self._token_request = _TokenRequest(tokens)
        self._credentials: Any = _credentials(settings, self._token_request)
        self._lock = threading.Lock()
        self.session = _AuthorizedSession(self._credentials, auth_request=self._token_request)
        self.session.reach(sockets, connections_max=settings.connections_max, proxy=settings.proxy)
        client = Client(
            project="none",  # only what is asked of projects needs one
            credentials=self._credentials,
            _http=self.session,
            client_options={"api_endpoint": settings.endpoint_url},
        )
        self.bucket: Any = client.bucket(settings.bucket)
        self.client: Any = client
        self._tokens = tokens

    def headers(self, url: str, *, anew: bool = False) -> dict[str, str]:
        """The headers that say who asks. `anew`: the token that was sent last is not good any more."""
        found: dict[str, str] = {}
        if isinstance(self._credentials, AnonymousCredentials):
            return found
        with self._lock:
            if anew:
                self._credentials.refresh(self._token_request)
            self._credentials.before_request(self._token_request, "GET", url, found)
        return found

    def close(self) -> None:
        """Close idle connections."""
        self.session.close()
        self._tokens.close()


def _credentials(settings: GcsSettings, request: Request) -> Any:
    given = settings.credentials
    if given is None:
        found, _ = google.auth.default(scopes=(SCOPE,), request=request)
        return found
    if not isinstance(given, JsonCredentials):
        return AnonymousCredentials()
    text = given.text if given.path is None else _content(given)
    if not text or not is_json_object(text):
        raise StorageConfigError(f"{given.key}{'' if given.path is None else f': {given.path}'} {NOT_JSON}")
    try:
        with warnings.catch_warnings():
            # It warns those who take credentials from strangers. These are the operator's own.
            warnings.simplefilter("ignore", DeprecationWarning)
            found, _ = google.auth.load_credentials_from_dict(json.loads(text), scopes=(SCOPE,), request=request)
    except (auth_errors.GoogleAuthError, ValueError) as error:
        # Without its text, which may quote a key.
        message = f"{given.key} holds no credentials that Google's client takes: {type(error).__name__}"
        raise StorageConfigError(message) from None
    return with_scopes_if_required(found, (SCOPE,))


def _content(given: JsonCredentials) -> bytes:
    path = given.path
    if path is None:
        raise AssertionError("the caller has looked")
    try:
        return read_limited(path, CREDENTIALS_BYTES_MAX)
    except (OSError, UnreadableFileError) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise StorageConfigError(f"{given.key}: {path} {reason}") from error


def translated(error: Exception, what: str, *, prefix: str) -> RemoteStorageError | None:
    """Our error for one of Google's packages, of HTTP or of a socket; None for an error of another kind."""
    if isinstance(error, RefusedAnswer):
        return Refusal(error.status, error.headers, error.body).error(what, prefix=prefix)
    if isinstance(error, InvalidResponse | api_errors.GoogleAPICallError):
        response: Any = error.response
        if isinstance(response, requests.Response):
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Refusal(response.status_code, headers, response.content).error(what, prefix=prefix)
        return RemoteStorageError(f"{what}: {type(error).__name__}")
    if isinstance(error, DataCorruption):
        return CorruptObjectError(f"{what}: {type(error).__name__}")
    if isinstance(error, auth_errors.GoogleAuthError):
        # Whether Google's token server is away or says no; what the cause is, a later attempt shows.
        cause = error.args[0] if error.args else None
        if isinstance(error, auth_errors.TransportError) and isinstance(cause, Exception):
            found = translated_transport(cause, f"{what}: asking for a token")
            if found is not None:
                return found
        keys = f"{prefix}{gcs_config.CREDENTIALS_PATH_KEY}, .json and .default"
        return RemoteAccessDeniedError(f"{what}: no token: {type(error).__name__}; check {keys}")
    return translated_transport(error, what)
