"""boto3's client for one bucket: how it is made, and what its errors mean. The one file that imports boto3."""

import base64
import functools
import hashlib
import http.client
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
    StorageConfigError,
)
from storage.object_store.clock import StoreClock
from storage.object_store.config_keys import SocksProxy
from storage.object_store.credentials_file import CredentialsFile
from storage.object_store.http.get import OpenSockets, noting
from storage.object_store.refusals import cause_words
from storage.object_store.s3.config import AnonymousCredentials, S3Settings, StaticCredentials
from storage.object_store.s3.errors import REGION_KEY, Refusal, connection_hint

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client

SIGNING_REGION_DEFAULT = "us-east-1"
"""Signed for where there is an endpoint and no region: what stores that know no regions expect."""


def make_client(settings: S3Settings, sockets: OpenSockets, clock: StoreClock) -> "S3Client":
    """A client whose connections are noted in `sockets`, and which tells `clock` what time its answers say: the import
    takes 0.5 s, the first client 0.1 s."""
    import boto3
    import botocore
    from botocore.config import Config
    from botocore.session import get_session

    credentials = settings.credentials
    config = Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        max_pool_connections=settings.connections_max,
        retries={"mode": "standard", "total_max_attempts": settings.attempts_max},
        request_checksum_calculation=settings.request_checksums.value,
        response_checksum_validation=settings.response_checksums.value,
        tcp_keepalive=True,
    )
    if settings.path_style is not None:
        config = config.merge(Config(s3={"addressing_style": "path" if settings.path_style else "virtual"}))
    if settings.proxy is not None:
        # None of the environment's.
        config = config.merge(Config(proxies={}))
    if isinstance(credentials, AnonymousCredentials):
        config = config.merge(Config(signature_version=botocore.UNSIGNED))
    session = get_session()
    session.register_component("data_loader", _api_models(session.get_config_variable("data_path")))
    if isinstance(credentials, CredentialsFile):
        _use_credentials_file(session, credentials)
    static = credentials if isinstance(credentials, StaticCredentials) else None
    client = boto3.session.Session(botocore_session=session).client(
        "s3",
        region_name=settings.region or SIGNING_REGION_DEFAULT,
        endpoint_url=settings.endpoint_url,
        # None is the SDK's choice (AWS_CA_BUNDLE); only False is ours.
        verify=None if settings.certificate_check else False,
        aws_access_key_id=None if static is None else static.access_key_id,
        aws_secret_access_key=None if static is None else static.secret_access_key,
        aws_session_token=None if static is None else static.session_token,
        config=config,
    )
    # Or a store that answers with 301 and names no region sends botocore from HeadBucket to HeadBucket without end.
    client.meta.events.register("before-call.s3.HeadBucket", _do_not_redirect)
    if settings.legacy_md5:
        client.meta.events.register("before-sign.s3.DeleteObjects", _add_content_md5)

    def hear(response_dict: Mapping[str, Any] | None, **_: Any) -> None:
        clock.heard((response_dict or {}).get("headers", {}).get("date"))

    client.meta.events.register("response-received.s3", hear)
    # botocore has no setting for either.
    session = client._endpoint.http_session  # type: ignore[attr-defined]  # botocore's own
    if settings.proxy is not None:
        _go_through(settings.proxy, session)
    pools = session._pool_classes_by_scheme
    pools.update(noting(pools, sockets))
    return client


def _go_through(proxy: SocksProxy, session: Any) -> None:
    """Make botocore's session open its connections through SOCKS, which it does not accept as a proxy."""
    from botocore.awsrequest import AWSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.contrib.socks import SOCKSConnection, SOCKSHTTPSConnection, SOCKSProxyManager

    # botocore's half of its connections knows what `Expect: 100-continue` means.
    class Plain(AWSConnection, SOCKSConnection):  # type: ignore[misc]  # as botocore's own over urllib3's
        pass

    class Tls(AWSConnection, SOCKSHTTPSConnection):  # type: ignore[misc]  # as above
        pass

    manager: Any = SOCKSProxyManager(proxy.url, **session._get_pool_manager_kwargs())
    manager.pool_classes_by_scheme = session._pool_classes_by_scheme = {
        "http": type("SocksPool", (HTTPConnectionPool,), {"ConnectionCls": Plain}),
        "https": type("SocksTlsPool", (HTTPSConnectionPool,), {"ConnectionCls": Tls}),
    }
    session._manager = manager


@functools.cache
def _api_models(path: str | None) -> Any:
    """Return what botocore reads the API's description with: 0.1 s for the first client, nothing for the others."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _use_credentials_file(session: "Session", source: CredentialsFile[StaticCredentials]) -> None:
    from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials

    class FileCredentials(Credentials):
        """Asked once a request, so that a rotated key is used at once."""

        def get_frozen_credentials(self) -> ReadOnlyCredentials:
            found = source.content()
            return ReadOnlyCredentials(found.access_key_id, found.secret_access_key, found.session_token)

    class FileProvider(CredentialProvider):
        METHOD = "tidegate-credentials-file"

        def load(self) -> Credentials:
            found = source.content()
            return FileCredentials(found.access_key_id, found.secret_access_key, found.session_token)

    session.get_component("credential_provider").providers.insert(0, FileProvider())


def _do_not_redirect(context: Any, **_: Any) -> None:
    context.setdefault("s3_redirect", {})["redirected"] = True


def _add_content_md5(request: Any, **_: Any) -> None:
    """For stores older than S3's newer checksums, which demand this one of DeleteObjects and know no other."""
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def translated(error: Exception, what: str, *, prefix: str) -> RemoteStorageError | None:
    """Our error for one of the SDK, of HTTP or of a socket; None for an error of another kind. `what`: what was asked
    for; `prefix`: that of the broker's keys."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    if isinstance(error, exceptions.ClientError):
        return _refusal(error).error(what, prefix=prefix)
    # Only its name: the text of some repeats what was sent.
    name = type(error).__name__
    words = cause_words(error)
    hint = connection_hint(name, prefix=prefix) if not words or "SSL" in name else ""
    message = f"{what}: {name}{words}{hint}"
    if isinstance(error, exceptions.ReadTimeoutError | ReadTimeoutError | TimeoutError):
        return StalledTransferError(message)
    if isinstance(
        error,
        exceptions.HTTPClientError
        | exceptions.ConnectionError
        | exceptions.IncompleteReadError
        | HTTPError
        | http.client.HTTPException
        | OSError,
    ):
        return RetriableRemoteStorageError(message)
    if isinstance(error, exceptions.FlexibleChecksumError | exceptions.ChecksumError):
        return CorruptObjectError(message)
    if isinstance(
        error,
        exceptions.NoCredentialsError
        | exceptions.PartialCredentialsError
        | exceptions.CredentialRetrievalError
        | exceptions.MetadataRetrievalError
        | exceptions.TokenRetrievalError
        | exceptions.SSOError
        | exceptions.LoginError,
    ):
        return RemoteAccessDeniedError(message)
    if isinstance(
        error,
        exceptions.NoRegionError
        | exceptions.InvalidRegionError
        | exceptions.EndpointProviderError
        | exceptions.ProfileNotFound
        | exceptions.ConfigParseError,
    ):
        return StorageConfigError(f"{message}; check {prefix}{REGION_KEY} and AWS' own files")
    return RemoteStorageError(message) if isinstance(error, exceptions.BotoCoreError) else None


def _refusal(error: Any) -> Refusal:
    """From a ClientError, whose parts are as the store sent them, or absent."""
    answer = error.response.get("ResponseMetadata", {})
    headers = {str(name).lower(): str(value) for name, value in answer.get("HTTPHeaders", {}).items()}
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = answer.get("HTTPStatusCode", 0)
    return Refusal(code if re.fullmatch(r"[\w.-]{1,60}", code) else "an error", status, headers)
