"""Raw Fetches that read the tier from somewhere to somewhere: what comes next is learnt from each answer's batches."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.support.bare_fetch import FETCH_VERSION, BareClient, Transfer, fetch_request
from benchmarks.support.stage import Address
from protocol.fetch.response import decode_response
from protocol.record_batches import iterate_batches
from protocol.wire.errors import ErrorCode

MAX_WAIT_MS = 500
"""Kafka's default of `fetch.max.wait.ms`."""

_SEEK_MAX_WAIT_MS = 5_000
_STALL_S = 30.0


class TierReadError(Exception):
    """An error code, or nothing for half a minute."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of one partition, [start, end) in offsets."""

    partition: int
    start: int
    end: int


def read_partitions(address: Address, topic: str, ends: Mapping[int, int]) -> Transfer:
    """Every partition from offset 0 to its end over one connection; clocked from the first Fetch, bytes of batches.

    Raises:
        TierReadError: see there.
    """
    with BareClient(address) as client:
        topic_id = client.topic_id(topic)
        started_s = time.perf_counter()
        read_bytes = _read(client, topic_id, dict.fromkeys(ends, 0), ends)
        return Transfer(read_bytes, time.perf_counter() - started_s)


def read_streams(address: Address, topic: str, runs: Sequence[Run]) -> Transfer:
    """Each run over a connection of its own, all at once."""
    together = threading.Barrier(len(runs) + 1)

    def read(run: Run) -> int:
        with BareClient(address) as client:
            topic_id = client.topic_id(topic)
            together.wait(_STALL_S)
            return _read(client, topic_id, {run.partition: run.start}, {run.partition: run.end})

    with ThreadPoolExecutor(len(runs)) as threads:
        futures = [threads.submit(read, run) for run in runs]
        together.wait(_STALL_S)
        started_s = time.perf_counter()
        read_bytes = sum(future.result() for future in futures)
        return Transfer(read_bytes, time.perf_counter() - started_s)


class Seeker:
    """Single Fetches at chosen offsets over one connection, which is ready before the first is timed."""

    def __init__(self, client: BareClient, topic: str) -> None:
        self._client = client
        self._topic_id = client.topic_id(topic)

    def seek(self, partition: int, offset: int) -> tuple[float, float]:
        """Seconds until the answer that holds this offset began, and until it was here in whole.

        Raises:
            TierReadError: it does not hold it.
        """
        frame = fetch_request(self._topic_id, {partition: offset}, max_wait_ms=_SEEK_MAX_WAIT_MS)
        started_s = time.perf_counter()
        answer = self._client.ask(frame)
        elapsed_s = time.perf_counter() - started_s
        offsets = {partition: offset}
        _advance(answer, offsets)
        if offsets[partition] == offset:
            raise TierReadError(f"partition {partition}: nothing at offset {offset} in {elapsed_s:.1f} s")
        return self._client.answered_s - started_s, elapsed_s


def _read(client: BareClient, topic_id: bytes, offsets: dict[int, int], ends: Mapping[int, int]) -> int:
    read_bytes = 0
    heard_s = time.perf_counter()
    while offsets:
        answer = client.ask(fetch_request(topic_id, offsets, max_wait_ms=MAX_WAIT_MS))
        got = _advance(answer, offsets)
        if got:
            heard_s, read_bytes = time.perf_counter(), read_bytes + got
        elif time.perf_counter() - heard_s > _STALL_S:
            raise TierReadError(f"nothing for {_STALL_S:g} s at {offsets}")
        offsets = {partition: offset for partition, offset in offsets.items() if offset < ends[partition]}
    return read_bytes


def _advance(answer: memoryview, offsets: dict[int, int]) -> int:
    """Move each partition's offset behind the answer's last whole batch; the bytes of those batches.

    A partition that was answered with the head of a batch only, with nothing, or with "come again", stays where it is.
    """
    got = 0
    for partition in decode_response(answer, FETCH_VERSION).partitions:
        if partition.error_code == ErrorCode.REPLICA_NOT_AVAILABLE:
            continue  # as consumers take it; Tidegate counts how often
        if partition.error_code:
            raise TierReadError(f"partition {partition.partition}: error code {partition.error_code}")
        for _, header in iterate_batches(partition.records):
            offsets[partition.partition] = header.last_offset + 1
            got += header.size_bytes
    return got
