"""An object store over the S3 API.

Behaviour:
- boto3 is imported and its client made at the first call (0.5 s and 0.1 s), once; threads share the client, whose
  pool keeps as many connections open as threads have used at once.
- `close` ends what other threads wait for in their connections, be it an answer, a body, or room to send.
- GETs are signed and sent by our own code where that is possible (storage.object_store.s3.fast_get), and their bytes
  go from the socket into the caller's buffer (storage.object_store.bodies). All else is boto3's.
- A put of bytes or of a local file up to `single_put_bytes_max`, and of less than one part, is one PutObject; a larger
  one is an upload in parts, one after the other, at most two of them in memory.
- One attempt: the caller knows what is worth another, and resumes a body where it broke. Only the requests of a put
  are sent again here (storage.object_store.uploads).
- A bucket in another region of AWS is found by botocore itself; where it cannot be, the error names the region's key.
"""

import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import structlog

from storage.errors import RemoteStorageError
from storage.object_store import bodies
from storage.object_store.bodies import AnswerBody, BodySource, BodyStream, body_size_bytes
from storage.object_store.clock import StoreClock
from storage.object_store.cloud_store import CloudStore
from storage.object_store.http.get import Answer, OpenSockets
from storage.object_store.local_file import PIECE_BYTES, LocalFile
from storage.object_store.multipart import parts
from storage.object_store.object_store import LIFECYCLE_HINT, ObjectHead, PendingUpload
from storage.object_store.refusals import DELETE, DELETE_MANY
from storage.object_store.s3.client import make_client, translated
from storage.object_store.s3.config import S3Settings
from storage.object_store.s3.errors import Refusal
from storage.object_store.s3.fast_get import FastGets
from storage.object_store.s3.upload import S3Upload, is_etag
from storage.object_store.uploads import UploadRetries, upload_parts
from storage.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    import socket

    from mypy_boto3_s3 import S3Client


_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SdkBody:
    """botocore's StreamingBody, which may sum the bytes up and compares at their end.

    Its time-out for a body is the one that it has for an answer to begin, which the connection gets back with its next
    request.
    """

    def __init__(self, body: Any) -> None:
        self._body = body
        self._raw: Any = getattr(body, "_raw_stream", None)
        response = getattr(self._raw, "_fp", None)
        self.socket: socket.socket | None = getattr(getattr(getattr(response, "fp", None), "raw", None), "_sock", None)
        self._timeout_s = None if self.socket is None else self.socket.gettimeout()
        silence_s = bodies.SILENCE_S_MAX
        self._set_timeout(silence_s if self._timeout_s is None else min(silence_s, self._timeout_s))

    def receive(self, view: memoryview) -> int:
        """As BodySource.receive."""
        count = 0
        while count < len(view):
            received = self._body.readinto(view[count:])
            if not received:
                break
            count += received
        return count

    def finish(self) -> None:
        """As BodySource.finish."""
        self._set_timeout(self._timeout_s)
        # A StreamingBody compares its sum when it finds the end: before the caller has the last byte.
        if self._body.readinto(bytearray(1)):
            # More than the range: the whole object of a store that knows none.
            self.give_up()

    def give_up(self) -> None:
        """As BodySource.give_up."""
        self._body.close()
        release = getattr(self._raw, "release_conn", None)
        if release is not None:
            # Back to the pool, closed: it opens again when it is used.
            release()

    def _set_timeout(self, timeout_s: float | None) -> None:
        # A store that keeps no connections open has closed this one with the body's last byte.
        if self.socket is not None and self.socket.fileno() >= 0:
            self.socket.settimeout(timeout_s)


class S3Store(CloudStore["_Made"]):
    """The five verbs over one bucket; see storage.object_store.object_store for their meaning."""

    delete_keys_max = 1000
    """Limit for one DeleteObjects, by its API reference."""

    def __init__(self, settings: S3Settings, *, retries: UploadRetries | None = None) -> None:
        self.settings = settings
        self._retries = UploadRetries() if retries is None else retries
        super().__init__("s3", (settings.endpoint_url or f"s3.{settings.region}").lower(), settings.bucket)
        self._has_told_left_open = False
        self._single_put_bytes_max = settings.single_put_bytes_max or settings.part_bytes

    def get(self, key: str, start: int, end: int) -> BodyStream:
        """GetObject with a Range header."""
        if start < 0 or end <= start:
            raise ValueError(f"[{start}, {end}) is not a range")
        what, byte_range = self.what("GET", key), f"bytes={start}-{end - 1}"
        with self.errors(what):
            fast_gets = self.made().fast_gets
            answer = fast_gets.begin(key, byte_range)
        if answer is None or answer.head is None or answer.head.status not in (200, 206):
            return self._get_through_sdk(fast_gets, answer, key, start, end, what)
        head = answer.head
        try:
            size_bytes = body_size_bytes(head.status, head.content_range, head.content_length, start, end, what)
        except BaseException:
            answer.give_up()
            raise
        return self._stream(AnswerBody(answer, self.settings.read_timeout_s), size_bytes, what)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """PutObject, or an upload in parts when the source is larger than one. What is made while it is sent goes in
        parts below the threshold too: only what is still there can be sent again."""
        if isinstance(source, bytes) and len(source) <= self._single_put_bytes_max:
            self._put_object(key, source)
            return
        if isinstance(source, LocalFile) and source.size_bytes() <= self._single_put_bytes_max:
            with source.open() as file:
                self._put_object(key, file)
            return
        found = parts(source, self.settings.part_bytes)
        first = next(found)
        if len(first) < self.settings.part_bytes:
            self._put_object(key, first)
        else:
            self._upload(key, itertools.chain((first,), found))

    def delete(self, key: str) -> None:
        """DeleteObject."""
        self.boto3_client().delete_object(Bucket=self.bucket, Key=key)

    def delete_several(self, keys: Sequence[str]) -> dict[str, RemoteStorageError]:
        """DeleteObjects."""
        with self.errors(self.what(DELETE_MANY, keys[0])):
            answer = self.boto3_client().delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
        return {
            failed.get("Key", "?"): Refusal(failed.get("Code", ""), 0, {}).error(
                self.what(DELETE, failed.get("Key", "?")), prefix=self.settings.prefix
            )
            for failed in answer.get("Errors", ())
            if failed.get("Code") not in ("NoSuchKey", "404")
        }

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        """ListObjectsV2, page by page."""
        what = self.what("LIST", prefix)
        token: dict[str, Any] = {}
        while True:
            with self.errors(what):
                client = self.boto3_client()
                page = client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **token)
            for found in page.get("Contents", ()):
                yield ObjectHead(found["Key"], found["Size"], int(found["LastModified"].timestamp() * 1000))
            if not page.get("IsTruncated"):
                return
            if page["NextContinuationToken"] == token.get("ContinuationToken"):
                raise RemoteStorageError(f"{what}: a page that continues at itself")
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def head(self, key: str) -> ObjectHead:
        """HeadObject."""
        with self.errors(self.what("HEAD", key)):
            answer = self.boto3_client().head_object(Bucket=self.bucket, Key=key)
        return ObjectHead(key, answer["ContentLength"], int(answer["LastModified"].timestamp() * 1000))

    def list_uploads(self, prefix: str) -> Iterator[PendingUpload]:
        """ListMultipartUploads, page by page."""
        what = self.what("LIST of uploads", prefix)
        after: dict[str, Any] = {}
        while True:
            with self.errors(what):
                page = self.boto3_client().list_multipart_uploads(Bucket=self.bucket, Prefix=prefix, **after)
            for found in page.get("Uploads", ()):
                if found["Key"].startswith(prefix):
                    yield PendingUpload(found["Key"], found["UploadId"], int(found["Initiated"].timestamp() * 1000))
            if not page.get("IsTruncated"):
                return
            marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
            if marks == after:
                raise RemoteStorageError(f"{what}: a page that continues at itself")
            after = marks

    def begin_upload(self, key: str) -> PendingUpload:
        """CreateMultipartUpload."""
        upload = self._upload_of(key)
        upload.begin()
        return PendingUpload(key, upload.upload_id, wall_clock_ms())

    def abort_upload(self, upload: PendingUpload) -> None:
        """AbortMultipartUpload."""
        self._upload_of(upload.key or "", upload.handle).abort()

    def _get_through_sdk(
        self, fast_gets: FastGets, answer: Answer | None, key: str, start: int, end: int, what: str
    ) -> BodyStream:
        with self.errors(what):
            found = fast_gets.get_object(key, f"bytes={start}-{end - 1}", answer)
        body = SdkBody(found["Body"])
        try:
            status = found["ResponseMetadata"]["HTTPStatusCode"]
            # Absent where the store says so, whatever the stubs say.
            content_length = cast("int | None", found.get("ContentLength"))
            content_range = cast("str | None", found.get("ContentRange"))
            size_bytes = body_size_bytes(status, content_range, content_length, start, end, what)
        except BaseException:
            body.give_up()
            raise
        return self._stream(body, size_bytes, what)

    def _stream(self, source: BodySource, size_bytes: int, what: str) -> BodyStream:
        return BodyStream(source, size_bytes, what=what, translate=lambda error: self.translated(error, what))

    def _put_object(self, key: str, data: bytes | bytearray | BinaryIO) -> None:
        body = cast(bytes, data)  # botocore takes all of them

        def put_object() -> None:
            if not isinstance(data, bytes | bytearray):
                data.seek(0)
            with self.errors(self.what("PUT", key)):
                self.boto3_client().put_object(Bucket=self.bucket, Key=key, Body=body, **self._storage_class())

        def is_done() -> bool:
            with self.errors(self.what("HEAD", key)):
                head = self.boto3_client().head_object(Bucket=self.bucket, Key=key)
            size_bytes, md5 = _size_and_md5(data)
            return head["ContentLength"] == size_bytes and is_etag(head["ETag"], md5)

        self._retries.settle(put_object, is_done)

    def _upload(self, key: str, found: Iterable[bytes | bytearray]) -> None:
        upload_parts(self._upload_of(key), found, self._retries)

    def _upload_of(self, key: str, upload_id: str = "") -> S3Upload:
        return S3Upload(
            self.boto3_client(),
            self.bucket,
            key,
            self._storage_class(),
            lambda verb: self.errors(self.what(verb, key)),
            upload_id=upload_id,
            tell_left_open=self._tell_left_open,
        )

    def _tell_left_open(self, error: RemoteStorageError) -> None:
        if not self._has_told_left_open:
            self._has_told_left_open = True
            _log.warning("upload_left_open", reason=str(error), hint=LIFECYCLE_HINT)

    def _storage_class(self) -> dict[str, Any]:
        name = self.settings.storage_class
        return {} if name is None else {"StorageClass": name}

    def boto3_client(self) -> "S3Client":
        """boto3's, which every question but a plain GET is asked by."""
        return self.made().client

    def make(self) -> "_Made":
        return _Made(self.settings, self.clock)

    def translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        return translated(error, what, prefix=self.settings.prefix)


def _size_and_md5(data: bytes | bytearray | BinaryIO) -> tuple[int, str]:
    source = io.BytesIO(data) if isinstance(data, bytes | bytearray) else data
    source.seek(0)
    md5 = hashlib.md5(usedforsecurity=False)
    while piece := source.read(PIECE_BYTES):
        md5.update(piece)
    return source.tell(), md5.hexdigest()


class _Made:
    """What the first call makes: boto3's client, and the shorter way for its GETs."""

    def __init__(self, settings: S3Settings, clock: StoreClock) -> None:
        self.sockets = OpenSockets()
        self.client = make_client(settings, self.sockets, clock)
        self.fast_gets = FastGets(
            self.client,
            self.sockets,
            settings.bucket,
            timeout_s=settings.read_timeout_s,
            idle_max=settings.connections_max,
        )

    def close(self) -> None:
        self.fast_gets.close()
        self.client.close()
        self.sockets.shut_down()
