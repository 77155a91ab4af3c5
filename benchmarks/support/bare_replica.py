"""The work that no read replica is spared: receive what the store sends, sum it up, send it to a client. Nothing else:
no Kafka, no batches, no cache, no plan.

    get = bare_replica("http://127.0.0.1:7070", is_fresh=False)
    get("key", 0, 8_388_608)  # bytes that were received and sent on

What it costs beside a store's SDK, which only receives, is what a row of cost.py has left for everything that makes a
replica of it. With `is_fresh` it keeps what it received in memory that was never touched, as a process does that has
just started; without, each thread uses one buffer again.
"""

import mmap
import multiprocessing
import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from crc32c import crc32c

from benchmarks.support.shaped_store import BUCKET, s3_client

_BUFFER_BYTES = 1024 * 1024
_HEAD_BYTES_MAX = 64 * 1024
_HEAD_END = b"\r\n\r\n"


def bare_replica(url: str, *, is_fresh: bool) -> Callable[[str, int, int], int]:
    """Gets a range of a key over the thread's own connection, without TLS; the client is a process that discards."""
    host, port = str(urlsplit(url).hostname), urlsplit(url).port
    client = _connect_to_sink()
    sends, own = threading.Lock(), threading.local()
    kept: list[mmap.mmap] = []
    signed = _signer(url)

    def get(key: str, start: int, end: int) -> int:
        if not hasattr(own, "store"):
            own.store, own.buffer = socket.create_connection((host, port)), _memory()
        own.store.sendall(_request(signed(key), start, end))
        first = _body_begun(own.store)
        left = end - start
        while left:
            if is_fresh:
                own.buffer = _memory()
                kept.append(own.buffer)
            view = memoryview(own.buffer)[: min(left, _BUFFER_BYTES)]
            view[: (filled := len(first))] = first
            while filled < len(view):
                if not (size := own.store.recv_into(view[filled:], 0, socket.MSG_WAITALL)):
                    raise EOFError(f"{key}: the body ended {left - filled} bytes too early")
                filled += size
            crc32c(view)
            with sends:
                client.sendall(view)
            first, left = b"", left - len(view)
        return end - start

    return get


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


def _body_begun(store: socket.socket) -> bytes:
    """Receive the answer's head; return what came of the body with it."""
    received = b""
    while _HEAD_END not in received:
        received += store.recv(_HEAD_BYTES_MAX)
    head, _, first = received.partition(_HEAD_END)
    if b" 206 " not in head.partition(b"\r\n")[0]:
        raise OSError(f"the store says {received!r}")
    return first


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
