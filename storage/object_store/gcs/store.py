"""An object store over Google Cloud Storage's JSON API.

Behaviour:
- Google's packages (the extra `gcs`) are imported and their client made at the first call, once; threads share it.
- GETs are sent by our own code over HTTP/1.1 connections of their own, with a token of the SDK's credentials, and their
  bytes go from the socket into the caller's buffer (storage.object_store.http.store). All else is the SDK's.
- `close` ends what other threads wait for in their connections.
- A put of what is smaller than a chunk is one upload; a larger one is a resumable upload, a chunk at a time, which is
  cancelled when its source raises and goes on where it was when a request failed.
- One attempt: the caller knows what is worth another. A token that is refused is renewed once. Only the requests of
  a put are sent again here (storage.object_store.uploads).
"""

import base64
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from crc32c import crc32c

from storage.errors import RemoteStorageError
from storage.object_store.clock import StoreClock
from storage.object_store.gcs.config import GcsSettings
from storage.object_store.gcs.upload import GcsUpload
from storage.object_store.http.get import OpenSockets
from storage.object_store.http.store import USER_AGENT, HttpStore, Made, RefusedAnswer
from storage.object_store.http.tokens import Token
from storage.object_store.object_store import ObjectHead
from storage.object_store.uploads import UploadRetries

CONTENT_TYPE = "application/octet-stream"
LIST_FIELDS = "items(name,size,updated),nextPageToken"


class GcsStore(HttpStore["_Made"]):
    """The five verbs over one bucket; see storage.object_store.object_store for their meaning."""

    delete_keys_max = 100
    """Cloud Storage, "Sending batch requests"."""

    def __init__(self, settings: GcsSettings, *, retries: UploadRetries | None = None) -> None:
        self.settings = settings
        super().__init__(
            "gs",
            urlsplit(settings.endpoint_url).netloc.lower(),
            settings.bucket,
            part_bytes=settings.chunk_bytes,
            read_timeout_s=settings.read_timeout_s,
            retries=retries,
        )

    def put_whole(self, key: str, data: bytes) -> None:
        """Objects: insert."""
        self._blob(key).upload_from_string(data, content_type=CONTENT_TYPE, **self._options())

    def part_upload(self, key: str, what: str) -> GcsUpload:
        """A resumable upload, in chunks."""
        url, bucket = self.settings.endpoint_url, self.settings.bucket
        return GcsUpload(self._request, url, bucket, key, what, lambda: self.errors(what), partial(self._holds, key))

    def holds(self, key: str, data: bytes) -> bool:
        """Objects: get, without its bytes."""
        return self._holds(key, len(data), crc32c(data))

    def delete(self, key: str) -> None:
        """Objects: delete."""
        self._blob(key).delete(**self._options())

    def delete_batch(self, keys: Sequence[str]) -> Sequence[RefusedAnswer | None]:
        """A batch of such. Its parts are answered in their order (Cloud Storage, "Sending batch requests")."""

        def ask() -> None:
            for key in keys:
                self.delete(key)

        return self.made().google.batch(ask)

    def pages(self, prefix: str) -> Iterator[Iterable[ObjectHead]]:
        """Objects: list."""
        client = self.made().google.client
        found = client.list_blobs(self.bucket, prefix=prefix, fields=LIST_FIELDS, **self._options())
        for page in found.pages:
            yield [ObjectHead(blob.name, blob.size, _modified_ms(blob)) for blob in page]

    def head(self, key: str) -> ObjectHead:
        """Objects: get, without its bytes."""
        with self.errors(self.what("HEAD", key)):
            blob = self._blob(key)
            blob.reload(**self._options())
            return ObjectHead(key, blob.size, _modified_ms(blob))

    def make(self) -> "_Made":
        return _Made(self.settings, self.clock)

    def translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        from storage.object_store.gcs.client import translated

        return translated(error, what, prefix=self.settings.prefix)

    def _holds(self, key: str, size_bytes: int, checksum: int) -> bool:
        with self.errors(self.what("HEAD", key)):
            blob = self._blob(key)
            blob.reload(**self._options())
        expected = base64.b64encode(checksum.to_bytes(4, "big")).decode()
        return bool(blob.size == size_bytes and blob.crc32c in (None, expected))

    def _request(self, method: str, url: str, **options: Any) -> Any:
        timeout = (self.settings.connect_timeout_s, self.settings.read_timeout_s)
        session: Any = self.made().google.session
        return session.request(method, url, timeout=timeout, **options)

    def _blob(self, key: str) -> Any:
        return self.made().google.bucket.blob(key, chunk_size=self.settings.chunk_bytes)

    def _options(self) -> dict[str, Any]:
        # None: no retries of the SDK's own.
        return {"timeout": (self.settings.connect_timeout_s, self.settings.read_timeout_s), "retry": None}


class _Made(Made):
    """What the first call makes: Google's client, and the connections of our own GETs."""

    def __init__(self, settings: GcsSettings, clock: StoreClock) -> None:
        from storage.object_store.gcs.client import GoogleClient

        self.google: GoogleClient = GoogleClient(settings, sockets := OpenSockets(), clock)
        parts = urlsplit(settings.endpoint_url)
        self._host = parts.netloc
        self._path = f"{parts.path}/download/storage/v1/b/{quote(settings.bucket, safe='')}/o/"
        super().__init__(
            sockets,
            self.google.session.socket_opener(settings.endpoint_url, sockets, settings.connect_timeout_s),
            connections_max=settings.connections_max,
            tokens=self.google.tokens,
        )

    def request(self, key: str, start: int, end: int, token: Token | None) -> bytes:
        lines = [
            f"GET {self._path}{quote(key, safe='')}?alt=media HTTP/1.1",
            f"host: {self._host}",
            f"range: bytes={start}-{end - 1}",
            # As the SDK does. For a client that does not accept it, Google decompresses what was put with that encoding
            # and serves no ranges of it (Cloud Storage, "Transcoding of gzip-compressed files").
            "accept-encoding: gzip",
            f"user-agent: {USER_AGENT}",
            *(() if token is None else (f"{name}: {value}" for name, value in self.google.headers(token).items())),
        ]
        return "\r\n".join((*lines, "", "")).encode("ascii")

    def close(self) -> None:
        self.google.close()
        super().close()


def _modified_ms(blob: Any) -> int:
    return int(blob.updated.timestamp() * 1000)
