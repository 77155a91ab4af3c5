"""Azure's client for one container, its credentials, and what its errors mean. No other file imports Azure's packages.

Import it on first use: that takes half a second.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    IncompleteReadError,
    ServiceResponseTimeoutError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential
from azure.storage.blob import ContainerClient

from storage.errors import (
    RemoteAccessDeniedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
)
from storage.object_store.azure import config as azure_config
from storage.object_store.azure.config import AzureSettings, SasToken, SharedKey
from storage.object_store.azure.errors import Refusal
from storage.object_store.clock import StoreClock
from storage.object_store.http.get import OpenSockets
from storage.object_store.http.session import StoreSession
from storage.object_store.http.store import RefusedAnswer, translated_transport
from storage.object_store.http.tokens import Token, Tokens
from storage.object_store.refusals import cause_words

SCOPE = "https://storage.azure.com/.default"


class AzureClient:
    """What is made with the first question: credentials, and the SDK's client over our session. Thread-safe."""

    def __init__(self, settings: AzureSettings, sockets: OpenSockets, clock: StoreClock) -> None:
        self.session = StoreSession()
        self.session.reach(
            settings.endpoint_url, sockets, connections_max=settings.connections_max, proxy=settings.proxy, clock=clock
        )
        transport = RequestsTransport(
            session=self.session,
            session_owner=False,
            connection_timeout=settings.connect_timeout_s,
            read_timeout=settings.read_timeout_s,
        )
        given = settings.credentials
        credential: Any
        if isinstance(given, SharedKey):
            credential = AzureNamedKeyCredential(given.account, given.text)
        elif isinstance(given, SasToken):
            credential = AzureSasCredential(given.token)
        else:
            # Not its ten attempts over minutes: GETs wait for it.
            credential = DefaultAzureCredential(transport=transport, retry_total=0)
        self.tokens = None if given is not None else Tokens(lambda: _new_token(credential))
        self._folder = urlsplit(settings.endpoint_url).path.strip("/")
        self.container = ContainerClient(
            settings.endpoint_url,
            settings.container,
            credential=credential,
            transport=transport,
            retry_total=0,  # the caller knows what is worth another attempt
            max_block_size=settings.block_bytes,
            max_single_put_size=settings.block_bytes,
        )

    def delete_blobs(self, keys: Sequence[str]) -> list[RefusedAnswer | None]:
        """One request for all of them: the answer to each; None: deleted.

        Raises:
            ValueError: what came is no answer to a batch. Other errors are those of the request as a whole.
        """
        # The account where it is a folder of the endpoint, which the SDK looks for on this machine alone.
        answers = self.container.delete_blobs(*keys, raise_on_any_failure=False, url_prepend=self._folder)
        return [None if 200 <= answer.status_code < 300 else _refused(answer) for answer in answers]

    def close(self) -> None:
        """Close idle connections."""
        self.session.close()


def _new_token(credential: DefaultAzureCredential) -> Token:
    found = credential.get_token(SCOPE)
    return Token(found.token, float(found.expires_on))


def _refused(response: Any) -> RefusedAnswer:
    headers = {str(name).lower(): str(value) for name, value in response.headers.items()}
    body = b""
    with suppress(Exception):  # it may not have been read, and then never will be; the header has its code
        body = bytes(response.body())
    return RefusedAnswer(int(response.status_code), headers, body)


def translated(error: Exception, what: str, *, prefix: str) -> RemoteStorageError | None:
    """Our error for one of Azure's packages, of HTTP or of a socket; None for an error of another kind."""
    if isinstance(error, RefusedAnswer):
        return Refusal(error.status, error.headers, error.body).error(what, prefix=prefix)
    if isinstance(error, ClientAuthenticationError) and error.response is None:
        # From azure-identity: nobody gave us a token.
        keys = f"{prefix}{azure_config.ACCOUNT_KEY_KEY} and {prefix}{azure_config.SAS_TOKEN_KEY}"
        return RemoteAccessDeniedError(f"{what}: no token: {type(error).__name__}; check {keys}")
    if isinstance(error, HttpResponseError) and error.response is not None:
        return translated(_refused(error.response), what, prefix=prefix)
    # Only its name: the text of some repeats what was sent.
    message = f"{what}: {type(error).__name__}{cause_words(error)}"
    if isinstance(error, ServiceResponseTimeoutError):
        return StalledTransferError(message)
    if isinstance(error, IncompleteReadError) or (isinstance(error, AzureError) and error.inner_exception is not None):
        return RetriableRemoteStorageError(message)
    if isinstance(error, AzureError):
        return RemoteStorageError(message)
    return translated_transport(error, what)
