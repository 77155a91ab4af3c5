"""An object store over Google Cloud Storage's JSON API.

Behaviour:
- Google's packages (the extra `gcs`) are imported and their client made at the first call, once; threads share it.
- GETs are sent by our own code over HTTP/1.1 connections of their own, with a token of the SDK's credentials, and their
  bytes go from the socket into the caller's buffer (storage.object_store.http_store). All else is the SDK's.
- `close` ends what other threads wait for in their connections.
- A put of what is smaller than a chunk is one upload; a larger one is a resumable upload, a chunk at a time, which is
  cancelled when its source raises.
- One attempt: whoever calls knows what is worth another. A token that is refused is renewed once.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, urlsplit

from storage.errors import RemoteResourceNotFoundError, RemoteStorageError, RemoteStoreNotFoundError
from storage.object_store.bodies import BodyStream
from storage.object_store.gcs_config import GcsSettings
from storage.object_store.http_get import ConnectionPool, OpenSockets
from storage.object_store.http_store import RefusedAnswer, body_of, check_range, delete_each, errors_of
from storage.object_store.object_store import LocalFile, ObjectHead, parts

CONTENT_TYPE = "application/octet-stream"
LIST_FIELDS = "items(name,size,updated),nextPageToken"


class GcsStore:
    """The five verbs over one bucket; see storage.object_store.object_store for their meaning."""

    def __init__(self, settings: GcsSettings) -> None:
        self.settings = settings
        self._where = urlsplit(settings.endpoint_url).netloc.lower()
        self._made_once: _Made | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        return f"gcs:{self._where}/{self.settings.bucket}"

    def get(self, key: str, start: int, end: int) -> BodyStream:
        """Objects: get with alt=media and a Range header."""
        check_range(start, end)
        what = self._what("GET", key)
        with self._errors(what):
            made = self._made()
            try:
                return self._get(made, key, start, end, what)
            except RefusedAnswer as refused:
                if refused.status != 401:
                    raise
            return self._get(made, key, start, end, what, anew=True)

    def put(self, key: str, source: bytes | Iterable[bytes]) -> None:
        """One upload, or a resumable one when the source is larger than a chunk."""
        chunk_bytes = self.settings.chunk_bytes
        what = self._what("PUT", key)
        if isinstance(source, bytes):
            self._upload_whole(key, source)
            return
        if isinstance(source, LocalFile):
            with source.open() as file, self._errors(what):
                self._blob(key).upload_from_file(
                    file, size=source.size_bytes(), content_type=CONTENT_TYPE, **self._options()
                )
            return
        found = parts(source, chunk_bytes)
        first = next(found)
        if len(first) < chunk_bytes:
            self._upload_whole(key, bytes(first))
            return
        with self._errors(what):
            writer = self._blob(key).open("wb", chunk_size=chunk_bytes, content_type=CONTENT_TYPE, **self._options())
        try:
            with self._errors(what):
                writer.write(first)
            for part in found:
                with self._errors(what):
                    writer.write(part)
            with self._errors(what):
                writer.close()
        except BaseException as error:
            try:
                with self._errors(what):
                    writer.terminate()
            except RemoteStorageError as cancel_error:
                # What went wrong first matters more; Google drops an upload that nobody continues after a week.
                error.add_note(f"the upload is left open: {cancel_error}")
            raise

    def delete_many(self, keys: Sequence[str]) -> None:
        """Objects: delete, for each key."""
        delete_each(keys, self._delete)

    def list(self, prefix: str) -> Iterator[ObjectHead]:
        """Objects: list, page by page."""
        what = self._what("LIST", prefix)
        with self._errors(what):
            client = self._made().google.client
            pages = iter(
                client.list_blobs(self.settings.bucket, prefix=prefix, fields=LIST_FIELDS, **self._options()).pages
            )
        while True:
            with self._errors(what):
                page = next(pages, None)
                if page is None:
                    return
                found = [ObjectHead(blob.name, blob.size, _modified_ms(blob)) for blob in page]
            yield from found

    def head(self, key: str) -> ObjectHead:
        """Objects: get, without its bytes."""
        with self._errors(self._what("HEAD", key)):
            blob = self._blob(key)
            blob.reload(**self._options())
            return ObjectHead(key, blob.size, _modified_ms(blob))

    def warm_up(self) -> None:
        """Import the SDK and make its client: most of a second."""
        with self._errors(f"{self._where}: making the client"):
            self._made()

    def close(self) -> None:
        """Close the connections that no stream uses, and end what waits in the others."""
        with self._lock:
            made, self._made_once = self._made_once, None
        if made is not None:
            made.close()

    def _get(self, made: "_Made", key: str, start: int, end: int, what: str, *, anew: bool = False) -> BodyStream:
        request = made.request(key, start, end, anew=anew)
        timeout_s = self.settings.read_timeout_s
        answer = made.pool.get(request, timeout_s)
        return body_of(answer, start, end, what=what, timeout_s=timeout_s, translate=self._translated)

    def _upload_whole(self, key: str, data: bytes) -> None:
        with self._errors(self._what("PUT", key)):
            self._blob(key).upload_from_string(data, content_type=CONTENT_TYPE, **self._options())

    def _delete(self, key: str) -> None:
        try:
            with self._errors(self._what("DELETE", key)):
                self._blob(key).delete(**self._options())
        except RemoteStoreNotFoundError:
            raise
        except RemoteResourceNotFoundError:
            return

    def _blob(self, key: str) -> Any:
        return self._made().google.bucket.blob(key, chunk_size=self.settings.chunk_bytes)

    def _options(self) -> dict[str, Any]:
        # None: no retries of the SDK's own.
        return {"timeout": (self.settings.connect_timeout_s, self.settings.read_timeout_s), "retry": None}

    def _made(self) -> "_Made":
        made = self._made_once
        if made is None:
            with self._lock:
                made = self._made_once
                if made is None:
                    made = self._made_once = _Made(self.settings)
        return made

    def _what(self, verb: str, key: str) -> str:
        return f"gs://{self.settings.bucket}/{key} at {self._where}: {verb}"

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return errors_of(what, self._translated)

    def _translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        from storage.object_store.gcs_client import translated

        return translated(error, what, prefix=self.settings.prefix)


class _Made:
    """What the first call makes: Google's client, and the connections of our own GETs."""

    def __init__(self, settings: GcsSettings) -> None:
        from storage.object_store.gcs_client import GoogleClient

        self._sockets = OpenSockets()
        self.google: GoogleClient = GoogleClient(settings, self._sockets)
        self._url = settings.endpoint_url
        parts = urlsplit(settings.endpoint_url)
        self._host = parts.netloc
        self._path = f"{parts.path}/download/storage/v1/b/{quote(settings.bucket, safe='')}/o/"
        self.pool = ConnectionPool(
            self.google.session.socket_opener(settings.endpoint_url, settings.connect_timeout_s),
            idle_max=settings.connections_max,
        )

    def request(self, key: str, start: int, end: int, *, anew: bool) -> bytes:
        """A GET of a range, whole."""
        path = f"{self._path}{quote(key, safe='')}?alt=media"
        # Without the encoding Google would decompress what was put with Content-Encoding: gzip, and serve no ranges.
        lines = [
            f"GET {path} HTTP/1.1",
            f"host: {self._host}",
            f"range: bytes={start}-{end - 1}",
            "accept-encoding: identity",
            *(f"{name}: {value}" for name, value in self.google.headers(f"{self._url}{path}", anew=anew).items()),
        ]
        return "\r\n".join((*lines, "", "")).encode("ascii")

    def close(self) -> None:
        self.pool.close()
        self.google.close()
        self._sockets.shut_down()


def _modified_ms(blob: Any) -> int:
    return int(blob.updated.timestamp() * 1000)
