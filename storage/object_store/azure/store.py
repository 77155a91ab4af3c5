"""An object store over Azure's blobs.

Behaviour:
- Azure's packages (the extra `azure`) are imported and their client made at the first call, once; threads share it.
- GETs are signed and sent by our own code over HTTP/1.1 connections of their own, and their bytes go from the socket
  into the caller's buffer (storage.object_store.http.store). All else is the SDK's.
- `close` ends what other threads wait for in their connections.
- A put of what is smaller than a block is one upload; a larger one is staged in blocks, one after the other, and
  committed as a whole. Blocks whose source raised are never seen; Azure drops them after a week.
- One attempt: the caller knows what is worth another. Only the requests of a put are sent again here
  (storage.object_store.uploads).
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

from storage.errors import RemoteStorageError
from storage.object_store.azure.config import AzureSettings
from storage.object_store.azure.sign import GetRequests
from storage.object_store.clock import StoreClock
from storage.object_store.http.get import OpenSockets
from storage.object_store.http.store import HttpStore, Made, RefusedAnswer
from storage.object_store.http.tokens import Token
from storage.object_store.object_store import ObjectHead
from storage.object_store.uploads import Part, UploadRetries


class AzureStore(HttpStore["_Made"]):
    """The five verbs over one container; see storage.object_store.object_store for their meaning."""

    delete_keys_max = 256
    """The Blob service's REST API, "Blob Batch"."""

    def __init__(self, settings: AzureSettings, *, retries: UploadRetries | None = None) -> None:
        self.settings = settings
        endpoint = urlsplit(settings.endpoint_url)
        super().__init__(
            "azure",
            endpoint.netloc.lower() + endpoint.path,
            settings.container,
            part_bytes=settings.block_bytes,
            read_timeout_s=settings.read_timeout_s,
            retries=retries,
        )

    def put_whole(self, key: str, data: bytes) -> None:
        """Put Blob."""
        self._blob(key).upload_blob(data, length=len(data), overwrite=True)

    def part_upload(self, key: str, what: str) -> "AzureUpload":
        """Blocks and their list."""
        return AzureUpload(self._blob(key), lambda: self.errors(what))

    def holds(self, key: str, data: bytes) -> bool:
        """Get Blob Properties."""
        with self.errors(self.what("HEAD", key)):
            found = self._blob(key).get_blob_properties()
        sums = None if found.content_settings.content_md5 is None else bytes(found.content_settings.content_md5)
        return bool(found.size == len(data) and sums in (None, hashlib.md5(data, usedforsecurity=False).digest()))

    def delete(self, key: str) -> None:
        """Delete Blob."""
        self._blob(key).delete_blob()

    def delete_batch(self, keys: Sequence[str]) -> Sequence[RefusedAnswer | None]:
        """Blob Batch of the container."""
        return self.made().azure.delete_blobs(keys)

    def pages(self, prefix: str) -> Iterator[Iterable[ObjectHead]]:
        """List Blobs."""
        for page in self.made().azure.container.list_blobs(name_starts_with=prefix).by_page():
            yield [_head(blob.name, blob) for blob in page]

    def head(self, key: str) -> ObjectHead:
        """Get Blob Properties."""
        with self.errors(self.what("HEAD", key)):
            return _head(key, self._blob(key).get_blob_properties())

    def make(self) -> "_Made":
        return _Made(self.settings, self.clock)

    def translated(self, error: Exception, what: str) -> RemoteStorageError | None:
        from storage.object_store.azure.client import translated

        return translated(error, what, prefix=self.settings.prefix)

    def _blob(self, key: str) -> Any:
        return self.made().azure.container.get_blob_client(key)


class AzureUpload:
    """A PartUpload in blocks (Azure Storage, "Put Block" and "Put Block List").

    `blob`: the SDK's client of it; `errors`: translates its errors.

    Blocks are nobody's until their list is put, and sending a block again replaces it.
    """

    def __init__(self, blob: Any, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._blob = blob
        self._errors = errors
        self._names: dict[int, str] = {}
        self._sizes_bytes: dict[int, int] = {}

    def begin(self) -> None:
        """Nothing: Azure knows no upload before its first block."""

    def part(self, number: int, data: Part) -> None:
        """Put Block. All names of one blob must have the same length."""
        name = base64.b64encode(f"{number:08}".encode()).decode()
        with self._errors():
            self._blob.stage_block(name, bytes(data), length=len(data))
        self._names[number] = name
        self._sizes_bytes[number] = len(data)

    def finish(self) -> None:
        """Put Block List."""
        with self._errors():
            self._blob.commit_block_list(list(self._names.values()))

    def is_done(self) -> bool:
        """Get Blob Properties. Azure has no checksum of what was put in blocks."""
        with self._errors():
            return bool(self._blob.get_blob_properties().size == sum(self._sizes_bytes.values()))

    def abort(self) -> None:
        """Nothing: no request drops blocks that were never committed; Azure does after a week."""


class _Made(Made):
    """What the first call makes: Azure's client, and the connections of our own GETs."""

    def __init__(self, settings: AzureSettings, clock: StoreClock) -> None:
        from storage.object_store.azure.client import AzureClient

        self.azure: AzureClient = AzureClient(settings, sockets := OpenSockets(), clock)
        self._requests = GetRequests(settings.endpoint_url, settings.container, settings.credentials)
        super().__init__(
            sockets,
            self.azure.session.socket_opener(settings.endpoint_url, sockets, settings.connect_timeout_s),
            connections_max=settings.connections_max,
            tokens=self.azure.tokens,
        )

    def request(self, key: str, start: int, end: int, token: Token | None) -> bytes:
        return self._requests.request(key, f"bytes={start}-{end - 1}", time.time(), token)

    def close(self) -> None:
        self.azure.close()
        super().close()


def _head(key: str, found: Any) -> ObjectHead:
    return ObjectHead(key, found.size, int(found.last_modified.timestamp() * 1000))
