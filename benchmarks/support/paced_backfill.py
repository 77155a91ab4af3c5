"""Backfills that last for a given time: bare Fetches in processes of their own, at a given rate or flat out.

A backfill reads one partition at its leader, and begins again at its end. At a given rate it sleeps whenever it is
ahead, so that two ways to the same data are compared under the same load. `produce` is the other way round.
"""

import multiprocessing
import multiprocessing.synchronize
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Final

from benchmarks.support.bare_fetch import FETCH_VERSION, BareClient, Transfer, fetch_request
from benchmarks.support.stage import Address
from benchmarks.support.tier_fetch import MAX_WAIT_MS, TierReadError
from protocol.fetch.response import decode_response
from protocol.record_batches import iterate_batches
from protocol.wire.identifiers import ApiKey
from protocol.wire.primitives import write_string

_STALL_S: Final = 20.0
_START_S: Final = 60.0
_TURNS_S: Final = 0.1
"""1 MiB at 10 MB/s."""
_PRODUCE_VERSION: Final = 7
_PRODUCE_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one backfill reads: [0, end) of a partition."""

    topic: str
    partition: int
    end: int


@dataclass(frozen=True, slots=True)
class Pace:
    """`megabytes_per_s` 0: as fast as it goes. `is_once`: it ends with the stretch, if not before. `is_gated`: all
    begin together once all are connected."""

    megabytes_per_s: float
    seconds: float
    is_once: bool = False
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class Backfill(Transfer):
    """One that has ended. `offset` is what comes next, `port` the client's own, `exchange_s` each request's time."""

    offset: int
    port: int
    exchange_s: Sequence[float]


Work = Callable[[Address, Stretch, int, Pace, float], Backfill]
"""What a process does: at this address, with this stretch, from an offset on, so fast, after a delay in seconds."""


class BackfillProcesses:
    """One process for each stretch, kept for the whole benchmark.

    What comes next at an address goes on where the last backfills there ended: else they would find in caches, run
    after run, what the last one left there.
    """

    def __init__(
        self, pool: ProcessPoolExecutor, stretches: Sequence[Stretch], gate: "multiprocessing.synchronize.Barrier"
    ) -> None:
        self._pool = pool
        self._gate = gate
        self._stretches = stretches
        self._offsets: dict[Address, list[int]] = {}

    def start(
        self,
        address: Address,
        pace: Pace,
        *,
        work: Work | None = None,
        stretches: Sequence[Stretch] | None = None,
        connected: Callable[[], None] | None = None,
    ) -> Callable[[], list[Backfill]]:
        """Begin all of them; what waits for their end.

        Args:
            work: anything else than `backfill`.
            stretches: as many others, all of them from their beginning.
            connected: called when all are connected, and before any begins; with a pace that is gated.

        Raises (from what waits):
            TierReadError: an error code, or nothing for `_STALL_S`.
        """
        offsets = [0] * len(self._stretches)
        if stretches is None:
            offsets = self._offsets.get(address, offsets)
        # In turns: at a given rate they would else ask all at once, over and over.
        turns_s = _TURNS_S / len(self._stretches)
        running = [
            self._pool.submit(work or backfill, address, stretch, offset, pace, number * turns_s)
            for number, (stretch, offset) in enumerate(zip(stretches or self._stretches, offsets, strict=True))
        ]
        if pace.is_gated:
            try:
                self._gate.wait(_START_S)
                if connected is not None:
                    connected()
                self._gate.wait(_START_S)
            except BrokenBarrierError:
                for each in running:
                    each.result(0)  # a process that did not come says why
                raise

        def finish() -> list[Backfill]:
            ended = [each.result(pace.seconds + _START_S) for each in running]
            if stretches is None:
                self._offsets[address] = [each.offset for each in ended]
            return ended

        return finish


@contextmanager
def backfill_processes(stretches: Sequence[Stretch]) -> Iterator[BackfillProcesses]:
    """Started, with what they import."""
    # Not forked: this process has threads of librdkafka's.
    context = multiprocessing.get_context("spawn")
    together, gate = context.Barrier(len(stretches)), context.Barrier(len(stretches) + 1)
    with ProcessPoolExecutor(
        len(stretches), mp_context=context, initializer=_meet, initargs=(together, gate, _START_S)
    ) as pool:
        for future in [pool.submit(time.sleep, 0) for _ in stretches]:
            future.result(_START_S)
        yield BackfillProcesses(pool, stretches, gate)


def backfill(address: Address, stretch: Stretch, offset: int, pace: Pace, delay_s: float = 0.0) -> Backfill:
    """Read for so long, from `delay_s` and from an offset on, at the leader that `address` tells; bytes of batches.

    Raises:
        TierReadError: see there.
    """
    read_bytes, elapsed_s, heard_s = 0, 0.0, 0.0
    exchange_s: list[float] = []
    with _at_leader(address, stretch) as client:
        topic_id = client.topic_id(stretch.topic)
        _wait_turn(pace, delay_s)
        started_s = time.perf_counter()
        while elapsed_s < pace.seconds:
            frame = fetch_request(topic_id, {stretch.partition: offset}, max_wait_ms=MAX_WAIT_MS)
            asked_s = time.perf_counter()
            answer = client.ask(frame)
            exchange_s.append(time.perf_counter() - asked_s)
            got, offset = _behind(answer, offset)
            elapsed_s = time.perf_counter() - started_s
            if got:
                read_bytes, heard_s = read_bytes + got, elapsed_s
            elif elapsed_s - heard_s > _STALL_S:
                raise TierReadError(f"nothing for {_STALL_S:g} s at offset {offset}")
            if offset >= stretch.end:
                if pace.is_once:
                    break
                offset = 0
            if pace.megabytes_per_s:
                ahead_s = read_bytes / 1e6 / pace.megabytes_per_s - elapsed_s
                time.sleep(max(0.0, min(ahead_s, pace.seconds - elapsed_s)))
                elapsed_s = time.perf_counter() - started_s
        return Backfill(read_bytes, elapsed_s, offset, client.port, exchange_s)


def produce(
    batch: bytes, address: Address, stretch: Stretch, offset: int, pace: Pace, delay_s: float = 0.0
) -> Backfill:
    """Produce one batch over and over, acks=1, one request at a time; the bytes are those of the batch.

    Raises:
        ValueError: it was not taken.
    """
    frame = produce_request(stretch.topic, stretch.partition, batch)
    # Behind length, correlation id, count of topics, the topic's name, count of partitions and the partition.
    error_at = 4 + 4 + 4 + len(write_string(stretch.topic, flexible=False)) + 4 + 4
    taken_bytes, elapsed_s = 0, 0.0
    exchange_s: list[float] = []
    with _at_leader(address, stretch) as client:
        client.topic_id(stretch.topic)  # who has answered has accepted: the parent sees whose connection it is
        _wait_turn(pace, delay_s)
        started_s = time.perf_counter()
        while elapsed_s < pace.seconds:
            asked_s = time.perf_counter()
            answer = client.ask(frame)
            exchange_s.append(time.perf_counter() - asked_s)
            (error_code,) = struct.unpack_from(">h", answer, error_at)
            if error_code:
                raise ValueError(f"{stretch.topic}-{stretch.partition}: error code {error_code}")
            taken_bytes += len(batch)
            elapsed_s = time.perf_counter() - started_s
        return Backfill(taken_bytes, elapsed_s, offset, client.port, exchange_s)


def produce_request(topic: str, partition: int, batch: bytes) -> bytes:
    """A Produce of one batch with acks=1, as a whole frame."""
    header = struct.pack(">hhih", ApiKey.PRODUCE, _PRODUCE_VERSION, 0, -1)
    settings = struct.pack(">hhi", -1, 1, _PRODUCE_TIMEOUT_MS)  # no transaction
    where = struct.pack(">i", 1) + write_string(topic, flexible=False) + struct.pack(">iii", 1, partition, len(batch))
    body = header + settings + where + batch
    return struct.pack(">i", len(body)) + body


def first_batch(address: Address, stretch: Stretch) -> bytes:
    """Return what the partition begins with; it can be produced as it is."""
    with _at_leader(address, stretch) as client:
        frame = fetch_request(client.topic_id(stretch.topic), {stretch.partition: 0}, max_wait_ms=MAX_WAIT_MS)
        (partition,) = decode_response(client.ask(frame), FETCH_VERSION).partitions
        _, header = next(iterate_batches(partition.records))
        return b"".join(partition.records)[: header.size_bytes]


@contextmanager
def _at_leader(address: Address, stretch: Stretch) -> Iterator[BareClient]:
    with BareClient(address) as client:
        leader = client.leader(stretch.topic, stretch.partition)
    with BareClient(leader) as client:
        yield client


def _behind(answer: memoryview, offset: int) -> tuple[int, int]:
    """Bytes of the answer's whole batches, and the offset behind the last."""
    got = 0
    for partition in decode_response(answer, FETCH_VERSION).partitions:
        if partition.error_code:
            raise TierReadError(f"partition {partition.partition}: error code {partition.error_code}")
        for _, header in iterate_batches(partition.records):
            got, offset = got + header.size_bytes, header.last_offset + 1
    return got, offset


_gates: list["multiprocessing.synchronize.Barrier"] = []
"""In a process of the pool: the one that all of them and their parent share."""


def _wait_turn(pace: Pace, delay_s: float) -> None:
    if pace.is_gated:
        for _ in range(2):  # all are connected; the parent has looked
            _gates[0].wait(_START_S)
    time.sleep(delay_s)


def _meet(
    together: "multiprocessing.synchronize.Barrier", gate: "multiprocessing.synchronize.Barrier", timeout_s: float
) -> None:
    _gates.append(gate)
    # A pool starts a process only when none is idle: so none is, until all are there.
    together.wait(timeout_s)
