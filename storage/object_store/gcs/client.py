"""Google's client for one bucket, its credentials, and what its errors mean. No other file imports Google's packages.

Import it on first use: that takes most of a second.
"""

import functools
import json
import math
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import google.auth
import requests
from google.api_core import exceptions as api_errors
from google.auth import exceptions as auth_errors
from google.auth.credentials import AnonymousCredentials, Credentials, with_scopes_if_required
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StorageConfigError,
)
from storage.object_store.clock import StoreClock
from storage.object_store.config_keys import READ_TIMEOUT_S
from storage.object_store.credentials_file import CredentialsFile
from storage.object_store.gcs import config as gcs_config
from storage.object_store.gcs.config import NOT_JSON, GcsSettings, JsonCredentials, is_json_object
from storage.object_store.gcs.errors import Refusal
from storage.object_store.http.get import OpenSockets
from storage.object_store.http.session import StoreSession
from storage.object_store.http.store import RefusedAnswer, translated_transport
from storage.object_store.http.tokens import Token, Tokens

GIVEN_TOKEN_S = 300.0
"""A file with a token is read again after a quarter of this: `Tokens` renews so long before the end."""

SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class _AuthorizedSession(StoreSession, AuthorizedSession):
    """The SDK's session over our connections."""


class _TokenRequest(Request):
    """A question for a token, for which Google's own would wait two minutes: all GETs wait with it."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return super().__call__(*args, **{"timeout": READ_TIMEOUT_S, **options})


class GoogleClient:
    """What is made with the first question: credentials, their session, and the SDK's client over it. Thread-safe."""

    def __init__(self, settings: GcsSettings, sockets: OpenSockets, clock: StoreClock) -> None:
        tokens = StoreSession()
        tokens.reach(settings.endpoint_url, sockets, connections_max=1, proxy=settings.proxy)
        self._token_request = _TokenRequest(tokens)
        self._credentials: Any = _credentials(settings, self._token_request)
        is_anonymous = isinstance(self._credentials, AnonymousCredentials)
        self.tokens = None if is_anonymous else Tokens(self._new_token)
        self.session = _AuthorizedSession(self._credentials, auth_request=self._token_request)
        self.session.reach(
            settings.endpoint_url, sockets, connections_max=settings.connections_max, proxy=settings.proxy, clock=clock
        )
        client = Client(
            project="none",  # only what is asked of projects needs one
            credentials=self._credentials,
            _http=self.session,
            client_options={"api_endpoint": settings.endpoint_url},
        )
        self.bucket: Any = client.bucket(settings.bucket)
        # Or it asks for the bucket's metadata by itself, for traces that nobody has turned on.
        client._bucket_metadata_cache = None
        self.client: Any = client
        self._tokens = tokens

    def headers(self, token: Token) -> dict[str, str]:
        """The headers that say who asks, and who pays."""
        found: dict[str, str] = {}
        self._credentials.apply(found, token=token.text)
        return found

    def batch(self, ask: Callable[[], None]) -> list[RefusedAnswer | None]:
        """Return what the SDK is asked for in `ask`, as one request: the answer to each question; None: a success.

        Raises:
            ValueError: what came is no answer to a batch. Other errors are those of the request as a whole.
        """
        # The SDK keeps a stack of batches for each thread.
        with self.client.batch(raise_exception=False) as batch:
            ask()
        return [None if answer.ok else _refused(answer) for answer in batch._responses]

    def _new_token(self) -> Token:
        self._credentials.refresh(self._token_request)
        expiry = self._credentials.expiry
        ends_s = math.inf if expiry is None else expiry.replace(tzinfo=UTC).timestamp()
        return Token(str(self._credentials.token), ends_s)

    def close(self) -> None:
        """Close idle connections."""
        self.session.close()
        self._tokens.close()


class _GivenToken(Credentials):
    """A token that somebody else renews. In a file it is read again before the time that is named here."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self.token = token

    def refresh(self, request: Any) -> None:
        del request
        self.expiry = datetime.fromtimestamp(time.time() + GIVEN_TOKEN_S, UTC).replace(tzinfo=None)


class _FileCredentials(Credentials):
    """Those of a file, which is read again for each new token, so that a rotated key is used at once."""

    def __init__(self, file: CredentialsFile[Any]) -> None:
        super().__init__()
        self._file = file
        self._quota_project_id = file.content().quota_project_id

    def refresh(self, request: Any) -> None:
        found = self._file.content()
        found.refresh(request)
        self.token, self.expiry, self._quota_project_id = found.token, found.expiry, found.quota_project_id


def _credentials(settings: GcsSettings, request: Request) -> Any:
    given = settings.credentials
    if given is None:
        found, _ = google.auth.default(scopes=(SCOPE,), request=request)
        return found
    if not isinstance(given, JsonCredentials):
        return AnonymousCredentials()
    if given.path is not None:
        return _FileCredentials(CredentialsFile(given.path, given.key, functools.partial(_parsed, request=request)))
    try:
        return _parsed((given.text or "").encode(), request)
    except StorageConfigError as error:
        raise StorageConfigError(f"{given.key} {error}") from None


def _parsed(data: bytes, request: Request) -> Any:
    """Credentials of Google's JSON; StorageConfigError completes the sentence that begins with where it stands."""
    if not is_json_object(data):
        raise StorageConfigError(NOT_JSON)
    document = json.loads(data)
    if isinstance(token := document.get("access_token"), str) and "type" not in document:
        return _GivenToken(token)
    try:
        with warnings.catch_warnings():
            # It warns those who take credentials from strangers. These are the operator's own.
            warnings.simplefilter("ignore", DeprecationWarning)
            found, _ = google.auth.load_credentials_from_dict(document, scopes=(SCOPE,), request=request)
    except (auth_errors.DefaultCredentialsError, ValueError) as error:
        # Without its text, which may quote a key.
        raise StorageConfigError(f"holds no credentials that Google's client takes: {type(error).__name__}") from None
    return with_scopes_if_required(found, (SCOPE,))


def _refused(response: requests.Response) -> RefusedAnswer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return RefusedAnswer(response.status_code, headers, response.content)


def translated(error: Exception, what: str, *, prefix: str) -> RemoteStorageError | None:
    """Our error for one of Google's packages, of HTTP or of a socket; None for an error of another kind."""
    if isinstance(error, RefusedAnswer):
        return Refusal(error.status, error.headers, error.body).error(what, prefix=prefix)
    if isinstance(error, InvalidResponse | api_errors.GoogleAPICallError):
        response: Any = error.response
        if isinstance(response, requests.Response):
            return translated(_refused(response), what, prefix=prefix)
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
        if error.retryable:
            return RetriableRemoteStorageError(f"{what}: asking for a token: {type(error).__name__}")
        keys = f"{prefix}{gcs_config.CREDENTIALS_PATH_KEY}, .json and .default"
        return RemoteAccessDeniedError(f"{what}: no token: {type(error).__name__}; check {keys}")
    return translated_transport(error, what)
