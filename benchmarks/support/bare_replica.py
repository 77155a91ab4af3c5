"""The work that no read replica is spared: receive what the store sends, sum it up, send it to a client. Nothing else:
no Kafka, no batches, no cache, no plan.

    replica = BareReplica("http://127.0.0.1:7070", Kept.NOWHERE)
    replica.get("key", 0, 8_388_608)  # bytes that were received and sent on

What it costs beside a store's SDK, which only receives, is what a row of cost.py has left for everything that makes a
replica of it. TLS is received as Tidegate does, which is cheaper than Python's ssl.
"""

import enum
import mmap
import multiprocessing
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import IO
from urllib.parse import urlsplit

from crc32c import crc32c

from benchmarks.support.shaped_store import BUCKET, s3_client
from storage.object_store.http.tls import Records

_BUFFER_BYTES = 1024 * 1024
_HEAD_BYTES_MAX = 64 * 1024
_HEAD_END = b"\r\n\r\n"


class Kept(enum.StrEnum):
    """Where a range stays. MEMORY: in pages that were never touched, as in a process that has just started. DISK: in a
    file, which is read in its place from the second time on. NOWHERE: each thread uses one buffer again."""

    MEMORY = "bare-memory"
    DISK = "bare-disk"
    NOWHERE = "bare"


class BareReplica:
    """Each thread gets ranges over a connection of its own; the client is a process that discards."""

    def __init__(self, url: str, kept: Kept) -> None:
        self._url, self._kept = url, kept
        self._client, self._sends = _connect_to_sink(), threading.Lock()
        self._signed = _signer(url)
        self._own = threading.local()
        self._pages: list[mmap.mmap] = []
        self._files: dict[tuple[str, int, int], IO[bytes]] = {}

    def get(self, key: str, start: int, end: int) -> int:
        """Send a range of a key to the client; return its bytes."""
        if not hasattr(self._own, "store"):
            self._own.store, self._own.buffer = _Store(self._url), _memory()
        file = self._files.get((key, start, end))
        if file is not None:
            views = self._read(file, end - start)
        elif self._kept is Kept.DISK:
            views = self._written(key, start, end)
        else:
            views = self._received(key, start, end)
        sent_bytes = 0
        for view in views:
            crc32c(view)
            with self._sends:
                self._client.sendall(view)
            sent_bytes += len(view)
        return sent_bytes

    def _received(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        store: _Store = self._own.store
        store.send(_request(self._signed(key), start, end))
        first = store.body_begun()
        for view in self._buffers(end - start):
            view[: len(first)] = first
            store.fill(view[len(first) :])
            yield view
            first = b""

    def _written(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        # Without a name it is gone with the process, however that ends.
        file = tempfile.TemporaryFile()  # noqa: SIM115 - read until then
        for view in self._received(key, start, end):
            os.write(file.fileno(), view)
            yield view
        self._files[key, start, end] = file

    def _read(self, file: IO[bytes], size_bytes: int) -> Iterator[memoryview]:
        position = 0
        for view in self._buffers(size_bytes):
            position += os.preadv(file.fileno(), [view], position)
            yield view

    def _buffers(self, size_bytes: int) -> Iterator[memoryview]:
        for left in range(size_bytes, 0, -_BUFFER_BYTES):
            if self._kept is Kept.MEMORY:
                self._own.buffer = _memory()
                self._pages.append(self._own.buffer)
            yield memoryview(self._own.buffer)[: min(left, _BUFFER_BYTES)]


class _Store:
    """A connection, plain or with TLS."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((str(parts.hostname), parts.port))
        self._records: Records | None = None
        if parts.scheme == "https":
            trusting = ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"])
            self._socket = opened = trusting.wrap_socket(self._socket, server_hostname=parts.hostname)
            self._records = Records.of(opened)

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def body_begun(self) -> bytes:
        """Receive the answer's head; return what came of the body with it."""
        received, some = b"", memoryview(bytearray(_HEAD_BYTES_MAX))
        while _HEAD_END not in received:
            if not (size := self._receive(some, whole=False)):
                raise EOFError(f"the connection ended in an answer's head: {received!r}")
            received += some[:size]
        head, _, first = received.partition(_HEAD_END)
        if b" 206 " not in head.partition(b"\r\n")[0]:
            raise OSError(f"the store says {received!r}")
        return first

    def fill(self, view: memoryview) -> None:
        while view:
            if not (size := self._receive(view, whole=True)):
                raise EOFError(f"a body ended {len(view)} bytes before this buffer's end")
            view = view[size:]

    def _receive(self, view: memoryview, *, whole: bool) -> int:
        if self._records is not None:
            return self._records.receive(view, whole=whole)
        return self._socket.recv_into(view, 0, socket.MSG_WAITALL if whole else 0)


def _memory() -> mmap.mmap:
    return mmap.mmap(-1, _BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _signer(url: str) -> Callable[[str], str]:
    """Return a key's signed URL; each is signed once."""
    client, known = s3_client(url), dict[str, str]()

    def signed(key: str) -> str:
        if key not in known:
            known[key] = client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
        return known[key]

    return signed


def _request(url: str, start: int, end: int) -> bytes:
    parts = urlsplit(url)
    head = f"GET {parts.path}?{parts.query} HTTP/1.1", f"Host: {parts.netloc}", f"Range: bytes={start}-{end - 1}"
    return "\r\n".join((*head, "", "")).encode()


def _connect_to_sink() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Forked before there are threads; its processor time is its own.
        multiprocessing.get_context("fork").Process(target=_discard, args=(listener,), daemon=True).start()
        return socket.create_connection(listener.getsockname())


def _discard(listener: socket.socket) -> None:
    client, _ = listener.accept()
    view = memoryview(bytearray(4 * _BUFFER_BYTES))
    while client.recv_into(view):
        pass
