"""What the slow link gives to those who know what they want: boto3 with many threads; and what it gives to a reader
that asks for one chunk at a time, a model of the plugin's requests.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from benchmarks.support.bare_fetch import Transfer
from benchmarks.support.shaped_store import BUCKET, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

THREADS = 16
RANGE_BYTES = 8 * 1024 * 1024
"""The least of the 8-16 MiB that Tidegate's planner asks for: more ranges keep more threads busy to the end."""

Objects = Sequence[tuple[str, int]]
"""Keys and sizes in bytes."""


def read_with_threads(endpoint_url: str, objects: Objects) -> Transfer:
    """All of the objects, THREADS ranges at once, each thrown away; the bytes are the stored ones."""
    client = s3_client(endpoint_url, connections_max=THREADS)
    ranges = _ranges(objects, RANGE_BYTES)
    with ThreadPoolExecutor(THREADS) as threads:
        # Threads and connections are there before the clock starts.
        list(threads.map(lambda _: _get(client, objects[0][0], 0, 1), range(THREADS)))
        started_s = time.perf_counter()
        read_bytes = sum(threads.map(lambda each: _get(client, *each), ranges))
        elapsed_s = time.perf_counter() - started_s
    client.close()
    return Transfer(read_bytes, elapsed_s)


def read_chunk_by_chunk(
    endpoint_url: str, partitions: Sequence[Objects], chunk_bytes: int, *, chunks_max: int
) -> Transfer:
    """Each partition's chunks one after another, a GET each, the partitions side by side; the bytes are those stored.

    Every chunk is asked for once, as the plugin does with a chunk cache and without prefetching.

    Args:
        chunk_bytes: as stored, on average.
        chunks_max: of each partition.
    """
    client = s3_client(endpoint_url, connections_max=len(partitions))

    def read(objects: Objects) -> int:
        return sum(_get(client, *each) for each in _ranges(objects, chunk_bytes)[:chunks_max])

    with ThreadPoolExecutor(len(partitions)) as threads:
        list(threads.map(lambda objects: _get(client, objects[0][0], 0, 1), partitions))
        started_s = time.perf_counter()
        read_bytes = sum(threads.map(read, partitions))
        elapsed_s = time.perf_counter() - started_s
    client.close()
    return Transfer(read_bytes, elapsed_s)


def _ranges(objects: Objects, range_bytes: int) -> list[tuple[str, int, int]]:
    return [
        (key, start, min(start + range_bytes, size)) for key, size in objects for start in range(0, size, range_bytes)
    ]


def _get(client: "S3Client", key: str, start: int, end: int) -> int:
    body = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{end - 1}")["Body"].read()
    if len(body) != end - start:
        raise EOFError(f"{key}: {len(body)} bytes in place of {end - start}")
    return len(body)
