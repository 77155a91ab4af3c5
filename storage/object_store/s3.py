"""An object store over the S3 API: the one file that knows boto3.

Behaviour:
- boto3 is imported and its client made at the first call (0.5 s and 0.1 s), once; threads share the client, whose
  pool keeps as many connections open as threads have used at once.
- `close` ends what other threads wait for in their connections, be it an answer, a body, or room to send.
- A GET's bytes go from the socket into the caller's buffer (storage.object_store.s3_body).
- A put of bytes or of a local file up to `single_put_bytes_max`, and of less than one part, is one PutObject; a larger
  one is an upload in parts, one after the other, at most two of them in memory.
- One attempt: whoever calls knows what is worth another, and resumes a body where it broke.
- A bucket in another region of AWS is found by botocore itself; where it cannot be, the error names the region's key.
"""

import base64
import functools
import hashlib
import http.client
import itertools
import re
import socket
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from storage.errors import (
    CorruptObjectError,
    RemoteAccessDeniedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StalledTransferError,
    StorageConfigError,
)
from storage.object_store.local_file import LocalFile
from storage.object_store.object_store import ObjectHead
from storage.object_store.parts import parts
from storage.object_store.s3_body import S3ObjectStream, body_size_bytes
from storage.object_store.s3_config import S3Settings
from storage.object_store.s3_credentials import AnonymousCredentials, CredentialsFile, StaticCredentials
from storage.object_store.s3_errors import REGION_KEY, Refusal

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

DELETE_KEYS_MAX = 1000
"""Of one DeleteObjects, by its API reference."""

SIGNING_REGION_DEFAULT = "us-east-1"
"""Signed for where there is an endpoint and no region: what stores that know no regions expect."""


class S3Store:
    """The five verbs over one bucket; see storage.object_store.object_store for their meaning."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._where = settings.endpoint_url or f"s3.{settings.region}"
        self._client_made: S3Client | None = None
        self._sockets = OpenSockets()
        self._lock = threading.Lock()
        self._single_put_bytes_max = settings.single_put_bytes_max or settings.part_bytes

    @property
    def identity(self) -> str:
        return f"s3:{self._where.lower()}/{self._settings.bucket}"

    def get(self, key: str, start: int, end: int) -> S3ObjectStream:
        """GetObject with a Range header."""
        if start < 0 or end <= start:
            raise ValueError(f"[{start}, {end}) is not a range")
        what = self._what("GET", key)
        with self._errors(what):
            answer = self._client().get_object(Bucket=self._settings.bucket, Key=key, Range=f"bytes={start}-{end - 1}")
        try:
            size_bytes = body_size_bytes(answer, start, end, what)
        except BaseException:
            answer["Body"].close()
            raise
        return S3ObjectStream(
            answer["Body"],
            size_bytes,
            is_summed=_is_summed(answer["Body"]),
            what=what,
            translate=lambda error: self._translated(error, what),
        )

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """PutObject, or an upload in parts when the source is larger than one."""
        if isinstance(source, bytes) and len(source) <= self._single_put_bytes_max:
            self._put_object(key, source)
            return
        if isinstance(source, LocalFile) and source.size_bytes() <= self._single_put_bytes_max:
            with source.open() as file:
                self._put_object(key, file)
            return
        found = parts(source, self._settings.part_bytes)
        first = next(found)
        if len(first) < self._settings.part_bytes:
            self._put_object(key, first)
        else:
            self._upload(key, itertools.chain((first,), found))

    def delete_many(self, keys: Sequence[str]) -> None:
        """DeleteObjects, a thousand keys at a time."""
        failures: list[RemoteStorageError] = []
        for at in range(0, len(keys), DELETE_KEYS_MAX):
            batch = keys[at : at + DELETE_KEYS_MAX]
            try:
                failures += self._delete_batch(batch)
            except RemoteStorageError as error:
                failures += [error] * len(batch)
        if failures:
            message = f"{len(failures)} of {len(keys)} objects were not deleted, the first: {failures[0]}"
            raise _with_message(failures[0], message) from failures[0]

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        """ListObjectsV2, page by page."""
        what = self._what("LIST", prefix)
        token: dict[str, Any] = {}
        while True:
            with self._errors(what):
                client = self._client()
                page = client.list_objects_v2(Bucket=self._settings.bucket, Prefix=prefix, **token)
            for found in page.get("Contents", ()):
                yield ObjectHead(found["Key"], found["Size"], int(found["LastModified"].timestamp() * 1000))
            if not page.get("IsTruncated"):
                return
            if page["NextContinuationToken"] == token.get("ContinuationToken"):
                raise RemoteStorageError(f"{what}: a page that continues at itself")
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def head(self, key: str) -> ObjectHead:
        """HeadObject."""
        with self._errors(self._what("HEAD", key)):
            answer = self._client().head_object(Bucket=self._settings.bucket, Key=key)
        return ObjectHead(key, answer["ContentLength"], int(answer["LastModified"].timestamp() * 1000))

    def warm_up(self) -> None:
        """Import the SDK and make its client: most of a second."""
        self._client()

    def close(self) -> None:
        """Close the connections that no stream uses, and end what waits in the others."""
        with self._lock:
            client, self._client_made = self._client_made, None
            sockets, self._sockets = self._sockets, OpenSockets()
        if client is not None:
            client.close()
        sockets.shut_down()

    def _put_object(self, key: str, data: bytes | bytearray | BinaryIO) -> None:
        body = cast(bytes, data)  # botocore takes all of them
        with self._errors(self._what("PUT", key)):
            self._client().put_object(Bucket=self._settings.bucket, Key=key, Body=body, **self._storage_class())

    def _upload(self, key: str, found: Iterable[bytes | bytearray]) -> None:
        client, bucket = self._client(), self._settings.bucket
        what = self._what("PUT in parts", key)
        with self._errors(what):
            upload_id = client.create_multipart_upload(Bucket=bucket, Key=key, **self._storage_class())["UploadId"]
        try:
            done: list[CompletedPartTypeDef] = []
            for number, part in enumerate(found, 1):
                with self._errors(what):
                    answer = client.upload_part(
                        Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=cast(bytes, part)
                    )
                done.append(_completed_part(number, answer))
            with self._errors(what):
                client.complete_multipart_upload(
                    Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": done}
                )
        except BaseException as error:
            try:
                with self._errors(what):
                    client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
            except RemoteStorageError as abort_error:
                # What went wrong first matters more; the bucket's lifecycle rule has to remove the parts.
                error.add_note(f"the upload is left open: {abort_error}")
            raise

    def _storage_class(self) -> dict[str, Any]:
        name = self._settings.storage_class
        return {} if name is None else {"StorageClass": name}

    def _delete_batch(self, keys: Sequence[str]) -> Sequence[RemoteStorageError]:
        with self._errors(self._what("DELETE", keys[0])):
            answer = self._client().delete_objects(
                Bucket=self._settings.bucket,
                Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True},
            )
        return [
            Refusal(failed.get("Code", ""), 0, {}).error(
                self._what("DELETE", failed.get("Key", "?")), prefix=self._settings.prefix
            )
            for failed in answer.get("Errors", ())
            if failed.get("Code") not in ("NoSuchKey", "404")
        ]

    def _client(self) -> "S3Client":
        client = self._client_made
        if client is None:
            with self._lock, self._errors(f"{self._where}: making the S3 client"):
                client = self._client_made
                if client is None:
                    client = self._client_made = _make_client(self._settings, self._sockets)
        return client

    def _what(self, verb: str, key: str) -> str:
        return f"s3://{self._settings.bucket}/{key} at {self._where}: {verb}"

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            translated = self._translated(error, what)
            if translated is None:
                raise
            raise translated from error

    def _translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        from botocore import exceptions
        from urllib3.exceptions import HTTPError, ReadTimeoutError

        if isinstance(error, exceptions.ClientError):
            return _refusal(error).error(what, prefix=self._settings.prefix)
        # Only its name: the text of some repeats what was sent.
        message = f"{what}: {type(error).__name__}"
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
            return StorageConfigError(f"{message}; check {self._settings.prefix}{REGION_KEY} and AWS' own files")
        return RemoteStorageError(message) if isinstance(error, exceptions.BotoCoreError) else None


class OpenSockets:
    """The open connections. A thread that waits in one can be woken only by shutting it down. Thread-safe."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_shut_down = False
        self._lock = threading.Lock()

    def add(self, opened: socket.socket) -> None:
        """A connection was opened; one that comes too late is shut down at once."""
        with self._lock:
            self._open.add(opened)
            if self._is_shut_down:
                _shut_down(opened)

    def shut_down(self) -> None:
        """Wake whoever waits."""
        with self._lock:
            self._is_shut_down = True
            for opened in self._open:
                _shut_down(opened)


def _shut_down(opened: socket.socket) -> None:
    with suppress(OSError):  # the other side may have closed it before
        # Not the method of a socket that decrypts: that takes its state away from the thread which reads.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


_CHECKSUMS = ("ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256")


def _make_client(settings: S3Settings, sockets: OpenSockets) -> "S3Client":
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
    _note_sockets(client, sockets)
    return client


def _note_sockets(client: Any, sockets: OpenSockets) -> None:
    """Have the client's pools tell of each connection that they open. botocore has no setting for it."""
    pools = client._endpoint.http_session._pool_classes_by_scheme

    def noting(pool: Any) -> Any:
        class Connection(pool.ConnectionCls):  # type: ignore[misc]  # botocore's, over urllib3's: one for each scheme
            def connect(self) -> None:
                super().connect()
                sockets.add(self.sock)

        return type(pool.__name__, (pool,), {"ConnectionCls": Connection})

    for scheme in tuple(pools):
        pools[scheme] = noting(pools[scheme])


@functools.cache
def _api_models(path: str | None) -> Any:
    """What botocore reads the API's description with: 0.1 s for the first client, nothing for the others."""
    from botocore.loaders import create_loader

    return create_loader(path)


def _use_credentials_file(session: "Session", source: CredentialsFile) -> None:
    from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials

    class FileCredentials(Credentials):
        """Asked once a request, so that a rotated key is used at once."""

        def get_frozen_credentials(self) -> ReadOnlyCredentials:
            found = source.credentials()
            return ReadOnlyCredentials(found.access_key_id, found.secret_access_key, found.session_token)

    class FileProvider(CredentialProvider):
        METHOD = "tidegate-credentials-file"

        def load(self) -> Credentials:
            found = source.credentials()
            return FileCredentials(found.access_key_id, found.secret_access_key, found.session_token)

    session.get_component("credential_provider").providers.insert(0, FileProvider())


def _do_not_redirect(context: Any, **_: Any) -> None:
    context.setdefault("s3_redirect", {})["redirected"] = True


def _add_content_md5(request: Any, **_: Any) -> None:
    """For stores older than S3's newer checksums, which demand this one of DeleteObjects and know no other."""
    digest = hashlib.md5(request.body, usedforsecurity=False).digest()
    request.headers["Content-MD5"] = base64.b64encode(digest).decode()


def _refusal(error: Any) -> Refusal:
    """From a ClientError, whose parts are as the store sent them, or absent."""
    answer = error.response.get("ResponseMetadata", {})
    headers = {str(name).lower(): str(value) for name, value in answer.get("HTTPHeaders", {}).items()}
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = answer.get("HTTPStatusCode", 0)
    return Refusal(code if re.fullmatch(r"[\w.-]{1,60}", code) else "an error", status, headers)


def _is_summed(body: Any) -> bool:
    from botocore.response import StreamingBody

    return type(body) is not StreamingBody


def _completed_part(number: int, answer: Mapping[str, Any]) -> "CompletedPartTypeDef":
    part: CompletedPartTypeDef = {"PartNumber": number, "ETag": answer["ETag"]}
    sums = {name: answer[name] for name in _CHECKSUMS if answer.get(name)}
    return {**part, **sums}  # type: ignore[typeddict-item]  # the names are CompletedPart's


def _with_message(error: RemoteStorageError, message: str) -> RemoteStorageError:
    if isinstance(error, RetriableRemoteStorageError):
        return type(error)(message, retry_after_s=error.retry_after_s)
    return type(error)(message)
