"""Fetch exchanges of one kind, over and over: over many partitions, some in the tier, in a session or without one."""

import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.support.bare_fetch import FETCH_VERSION, BareClient, fetch_frame
from benchmarks.support.stage import Address
from protocol.fetch.messages import NO_SESSION_ID, SESSIONLESS_EPOCH, FetchPartition, FetchResponse
from protocol.fetch.requests import decode_request
from protocol.fetch.response import decode_response
from protocol.wire.request_headers import decode_request_header

PARTITION_BYTES_MAX = 16 * 1024
"""Times 1,000 it stays below the broker's `fetch.max.bytes`, so every partition has its share."""

SESSION_EPOCH_LAST = 2**31 - 1
WARM_UP_EXCHANGES = 5
FULL_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """One partition and where it is read."""

    topic_id: bytes
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What some seconds of one kind of exchange came to; bytes are those of one answer, errors those of its
    partitions."""

    count: int
    seconds: float
    p50_us: float
    answer_bytes: int
    errors: int


def exchange_for(
    address: Address,
    wanted: Sequence[Wanted],
    seconds: float,
    *,
    incremental: bool,
    count_min: int = 1,
    cpu_s: Callable[[], float] = lambda: 0.0,
) -> tuple[Exchanges, float]:
    """Exchanges for so long, and so many at least, on one connection, and what `cpu_s` grew by meanwhile.

    `incremental`: a session is opened before, and each exchange names nothing. Otherwise each is full, without one.
    """
    with BareClient(address) as client:
        frames = _Frames(client, wanted, incremental=incremental)
        answer = client.ask(frames.next())
        for _ in range(WARM_UP_EXCHANGES):
            answer = client.ask(frames.next())
        times_s: list[float] = []
        clock = time.perf_counter
        cpu_before_s, started_s = cpu_s(), clock()
        while (began_s := clock()) - started_s < seconds or len(times_s) < count_min:
            answer = client.ask(frames.next())
            times_s.append(clock() - began_s)
        elapsed_s, spent_s = clock() - started_s, cpu_s() - cpu_before_s
        response = decode_response(answer, FETCH_VERSION)
        _require_good(response)
    errors = sum(1 for partition in response.partitions if partition.error_code)
    p50_us = statistics.median(times_s) * 1e6
    return Exchanges(len(times_s), elapsed_s, p50_us, len(answer), errors), spent_s


class _Frames:
    """The frames to send; those of a session differ by their epoch, which is patched."""

    def __init__(self, client: BareClient, wanted: Sequence[Wanted], *, incremental: bool) -> None:
        self._incremental = incremental
        if not incremental:
            self._frame = bytearray(_frame(wanted, NO_SESSION_ID, SESSIONLESS_EPOCH))
            return
        response = decode_response(client.ask(_frame(wanted, NO_SESSION_ID, FULL_EPOCH)), FETCH_VERSION)
        _require_good(response)
        if response.session_id == NO_SESSION_ID:
            raise ValueError("no Fetch session was given")
        self._frame = bytearray(_frame((), response.session_id, 1))
        view = memoryview(self._frame)
        position = decode_request(view, decode_request_header(view)).session_epoch_position
        assert position is not None
        self._position, self._epoch = position, 0

    def next(self) -> bytes:
        if self._incremental:
            self._epoch = self._epoch % SESSION_EPOCH_LAST + 1
            struct.pack_into(">i", self._frame, self._position, self._epoch)
        return bytes(self._frame)


def _frame(wanted: Sequence[Wanted], session_id: int, session_epoch: int) -> bytes:
    partitions = [
        FetchPartition(None, each.topic_id, each.partition, -1, each.offset, -1, -1, PARTITION_BYTES_MAX)
        for each in wanted
    ]
    return fetch_frame(partitions, max_wait_ms=0, session_id=session_id, session_epoch=session_epoch)


def _require_good(response: FetchResponse) -> None:
    if response.error_code:
        raise ValueError(f"error code {response.error_code} for the whole Fetch")
