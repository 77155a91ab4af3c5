"""What the slow link gives to those who know what they want: boto3 with many threads, in a process of its own.

    with Boto3Process(url) as boto3:
        read = boto3.read([("key", 67_108_864)])

Its own process, so that its processor time is that of boto3 and nothing else. Process, threads and connections are
ready before the clock starts. The child reads a line of JSON for each read and answers with one; it ends with its
input.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.support.bare_fetch import Transfer
from benchmarks.support.shaped_store import BUCKET, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

THREADS = 16
RANGE_BYTES = 8 * 1024 * 1024
"""More ranges keep more threads busy to the end."""

Objects = Sequence[tuple[str, int]]
"""Keys and sizes in bytes."""


class Boto3Process:
    """The child; ends with the block."""

    def __init__(self, endpoint_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.support.bare_store", endpoint_url],
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
            raise RuntimeError(f"boto3's process has ended: {self._process.wait()}")
        read_bytes, seconds, processor_s = json.loads(answer)
        return Transfer(read_bytes, seconds), processor_s


def serve(endpoint_url: str) -> None:
    """The child: one answer for each line, [bytes, seconds, processor seconds]."""
    client = s3_client(endpoint_url, connections_max=THREADS)
    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin:
            objects = json.loads(line)
            ranges = _ranges(objects)
            # Each thread's first GET: a connection that was closed meanwhile is opened before the clock starts.
            list(threads.map(lambda _, key=objects[0][0]: _get(client, key, 0, 1), range(THREADS)))
            processor_s, started_s = time.process_time(), time.perf_counter()
            read_bytes = sum(threads.map(lambda each: _get(client, *each), ranges))
            seconds = time.perf_counter() - started_s
            print(json.dumps([read_bytes, seconds, time.process_time() - processor_s]), flush=True)


def _ranges(objects: Objects) -> list[tuple[str, int, int]]:
    return [
        (key, start, min(start + RANGE_BYTES, size)) for key, size in objects for start in range(0, size, RANGE_BYTES)
    ]


def _get(client: "S3Client", key: str, start: int, end: int) -> int:
    body = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{end - 1}")["Body"].read()
    if len(body) != end - start:
        raise EOFError(f"{key}: {len(body)} bytes in place of {end - start}")
    return len(body)


if __name__ == "__main__":
    serve(sys.argv[1])
