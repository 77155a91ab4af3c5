"""What the link gives to those who know what they want: a store's SDK with many threads, in a process of its own; and
the bare replica in its place.

    with SdkProcess("s3", url) as sdk:
        read = sdk.read([("key", 67_108_864)])

Its own process, so that its processor time is that of the SDK and nothing else. Process, threads and connections are
ready before the clock starts. The child reads a line of JSON for each read and answers with one; it ends with its
input.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

from benchmarks.support.bare_fetch import Transfer
from benchmarks.support.bare_replica import BareReplica, Kept
from benchmarks.support.shaped_store import BUCKET, s3_client
from tests.support.azurite import ACCOUNT, KEY

THREADS = 16
RANGE_BYTES = 8 * 1024 * 1024
"""More ranges keep more threads busy to the end."""

Objects = Sequence[tuple[str, int]]
"""Keys and sizes in bytes."""

Get = Callable[[str, int, int], int]
"""Receives a key from the one offset to the other; returns how many bytes that was."""


class SdkProcess:
    """The child; ends with the block."""

    def __init__(self, kind: str, endpoint_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.bare_store", kind, endpoint_url],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, objects: Objects) -> tuple[Transfer, float]:
        """All of the objects, THREADS ranges at once, each thrown away; bytes are those stored. And processor seconds.

        Raises:
            RuntimeError: the child has ended; it has said why on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(objects) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the SDK's process has ended: {self._process.wait()}")
        read_bytes, seconds, processor_s = json.loads(answer)
        return Transfer(read_bytes, seconds), processor_s


def serve(kind: str, endpoint_url: str) -> None:
    """The child: one answer for each line, [bytes, seconds, processor seconds]."""
    get = _GETTERS[kind](endpoint_url)
    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            objects = json.loads(line)
            ranges = _ranges(objects)
            # Each thread's first GET: a connection that was closed meanwhile is opened before the clock starts.
            list(threads.map(lambda _, key=objects[0][0]: _got(get, key, 0, 1), range(THREADS)))
            processor_s, started_s = time.process_time(), time.perf_counter()
            read_bytes = sum(threads.map(lambda each: _got(get, *each), ranges))
            seconds = time.perf_counter() - started_s
            print(json.dumps([read_bytes, seconds, time.process_time() - processor_s]), flush=True)


def _ranges(objects: Objects) -> list[tuple[str, int, int]]:
    return [
        (key, start, min(start + RANGE_BYTES, size)) for key, size in objects for start in range(0, size, RANGE_BYTES)
    ]


def _got(get: Get, key: str, start: int, end: int) -> int:
    if (size := get(key, start, end)) != end - start:
        raise EOFError(f"{key}: {size} bytes in place of {end - start}")
    return size


def _s3(url: str) -> Get:
    client = s3_client(url, connections_max=THREADS)

    def get(key: str, start: int, end: int) -> int:
        answer = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{end - 1}")
        return len(answer["Body"].read())

    return get


def _gcs(url: str) -> Get:
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client

    nobody: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]  # Google's own types are partial
    session: Any = AuthorizedSession(nobody)  # type: ignore[no-untyped-call]  # as above
    _keep_connections(session)
    client: Any = Client(project="none", credentials=nobody, client_options={"api_endpoint": url}, _http=session)
    bucket = client.bucket(BUCKET)
    # Nothing is summed up, as boto3 sums up no range either.
    return lambda key, start, end: len(
        bucket.blob(key).download_as_bytes(start=start, end=end - 1, raw_download=True, checksum=None)
    )


def _azure(url: str) -> Get:
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import ContainerClient
    from requests import Session

    session = Session()
    _keep_connections(session)
    client = ContainerClient(
        f"{url}/{ACCOUNT}",
        BUCKET,
        credential={"account_name": ACCOUNT, "account_key": KEY},
        transport=RequestsTransport(session=session, session_owner=False),
    )
    return lambda key, start, end: len(client.download_blob(key, offset=start, length=end - start).readall())


def _keep_connections(session: Any) -> None:
    """Keep the connections of both SDKs' sessions, which keep ten by themselves: other threads would open one for each
    GET."""
    from requests.adapters import HTTPAdapter

    session.mount("http://", HTTPAdapter(pool_maxsize=THREADS))


def _bare(url: str, kept: Kept) -> Get:
    return BareReplica(url, kept).get


_GETTERS: Mapping[str, Callable[[str], Get]] = {
    "s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
    **{kept: partial(_bare, kept=kept) for kept in Kept},
}


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
