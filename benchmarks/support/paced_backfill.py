"""Backfills that last as long as they are told: bare Fetches in processes of their own, at a given rate or flat out.

A backfill reads one partition of the tier, and begins again at its end. At a given rate it sleeps
whenever it is ahead, so that two ways to the same data are compared under the same load.
"""

import multiprocessing
import multiprocessing.synchronize
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.support.bare_fetch import FETCH_VERSION, BareClient, Transfer, fetch_request
from benchmarks.support.stage import Address
from benchmarks.support.tier_fetch import MAX_WAIT_MS, TierReadError
from protocol.fetch.response import decode_response
from protocol.record_batches import iterate_batches

_STALL_S: Final = 20.0
_START_S: Final = 60.0
_TURNS_S: Final = 0.1
"""1 MiB at 10 MB/s."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one backfill reads: [0, end) of a partition."""

    topic: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class Pace:
    """`megabytes_per_s` 0: as fast as it goes."""

    megabytes_per_s: float
    seconds: float


class BackfillProcesses:
    """One process for each stretch, kept for the whole benchmark.

    What comes next at an address goes on where the last backfills there ended: else they would find in caches, run
    after run, what the last one left there.
    """

    def __init__(self, pool: ProcessPoolExecutor, stretches: Sequence[Stretch]) -> None:
        self._pool = pool
        self._stretches = stretches
        self._offsets: dict[Address, list[int]] = {}

    def start(self, address: Address, pace: Pace) -> Callable[[], list[Transfer]]:
        """Begin all of them; what waits for their end.

        Raises (from what waits):
            TierReadError: an error code, or nothing for `_STALL_S`.
        """
        offsets = self._offsets.get(address, [0] * len(self._stretches))
        # In turns: at a given rate they would else ask all at once, over and over.
        turns_s = _TURNS_S / len(self._stretches)
        running = [
            self._pool.submit(backfill, address, stretch, offset, pace, number * turns_s)
            for number, (stretch, offset) in enumerate(zip(self._stretches, offsets, strict=True))
        ]

        def finish() -> list[Transfer]:
            ended = [each.result(pace.seconds + _START_S) for each in running]
            self._offsets[address] = [offset for _, offset in ended]
            return [transfer for transfer, _ in ended]

        return finish


@contextmanager
def backfill_processes(stretches: Sequence[Stretch]) -> Iterator[BackfillProcesses]:
    """Started, with what they import."""
    # Not forked: this process has threads of librdkafka's.
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(len(stretches))
    with ProcessPoolExecutor(
        len(stretches), mp_context=context, initializer=_meet, initargs=(together, _START_S)
    ) as pool:
        for future in [pool.submit(time.sleep, 0) for _ in stretches]:
            future.result(_START_S)
        yield BackfillProcesses(pool, stretches)


def backfill(address: Address, stretch: Stretch, offset: int, pace: Pace, delay_s: float = 0.0) -> tuple[Transfer, int]:
    """Read for so long, from `delay_s` and from an offset on; bytes of batches, and the offset that comes next.

    Raises:
        TierReadError: see there.
    """
    read_bytes, elapsed_s, heard_s = 0, 0.0, 0.0
    with BareClient(address) as client:
        topic_id = client.topic_id(stretch.topic)
        time.sleep(delay_s)
        started_s = time.perf_counter()
        while elapsed_s < pace.seconds:
            frame = fetch_request(topic_id, {stretch.partition: offset}, max_wait_ms=MAX_WAIT_MS)
            got, offset = _behind(client.ask(frame), offset)
            elapsed_s = time.perf_counter() - started_s
            if got:
                read_bytes, heard_s = read_bytes + got, elapsed_s
            elif elapsed_s - heard_s > _STALL_S:
                raise TierReadError(f"nothing for {_STALL_S:g} s at offset {offset}")
            if offset >= stretch.end:
                offset = 0
            if pace.megabytes_per_s:
                ahead_s = read_bytes / 1e6 / pace.megabytes_per_s - elapsed_s
                time.sleep(max(0.0, min(ahead_s, pace.seconds - elapsed_s)))
                elapsed_s = time.perf_counter() - started_s
    return Transfer(read_bytes, elapsed_s), offset


def _behind(answer: memoryview, offset: int) -> tuple[int, int]:
    """Bytes of the answer's whole batches, and the offset behind the last."""
    got = 0
    for partition in decode_response(answer, FETCH_VERSION).partitions:
        if partition.error_code:
            raise TierReadError(f"partition {partition.partition}: error code {partition.error_code}")
        for _, base_offset, size_bytes, _, delta in iterate_batches(partition.records):
            got, offset = got + size_bytes, base_offset + delta + 1
    return got, offset


def _meet(together: "multiprocessing.synchronize.Barrier", timeout_s: float) -> None:
    # A pool starts a process only when none is idle: so none is, until all are there.
    together.wait(timeout_s)
