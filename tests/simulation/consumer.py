"""A consumer of the storage side: what one connection's Fetches do to it, without the wire.

One exchange is as in `proxy.fetch.exchange`: all partitions are read side by side, each up to `max_bytes`, under one
deadline. The answer goes out when all reads have ended, `linger_s` after the first has records, or at the deadline;
what a read has by then is its answer. The client takes the answer at its own rate and works on it; then its blocks are
released, and the next exchange begins. There is one Fetch under way, and neither a probe nor an authority.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import trio

from storage.metadata.epoch_history import LeaderEpochLineage
from storage.model import TopicIdPartition
from storage.reading.reader import ReadTime, TierReader, TierRecords
from storage.steps import finish

MIB = 1024 * 1024

_BATCH_PREFIX = struct.Struct(">qi")
LINEAGE = LeaderEpochLineage(0, {0: (0, 2**62)})


class WrongBytesError(Exception):
    """An answer that is not what the log has there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProfile:
    """How a client fetches. `exchange_s` and `work_s_per_mib`: what an exchange costs beside the reads."""

    max_bytes: int = MIB
    wait_s: float = 0.5
    linger_s: float = 0.02
    exchange_s: float = 0.001
    work_s_per_mib: float = 0.00025
    takes_bytes_per_s: float = math.inf


@dataclass(slots=True, eq=False)
class Position:
    """How far one partition is read: from `start_offset` to `offset`, of the batches before `end_offset`."""

    partition: TopicIdPartition
    start_offset: int
    end_offset: int
    offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.offset = self.start_offset

    @property
    def is_done(self) -> bool:
        return self.offset >= self.end_offset


@dataclass(slots=True)
class Taken:
    """What a consumer got. `answers`: when each came, with its bytes."""

    answers: list[tuple[float, int]] = field(default_factory=list)
    whole_batch_bytes: int = 0


class Consumer:
    """One connection. `name` is its identity to the reader."""

    def __init__(self, reader: TierReader, name: str, positions: Sequence[Position], profile: ClientProfile) -> None:
        self.taken = Taken()
        self._reader = reader
        self._name = name
        self._positions = positions
        self._profile = profile

    async def run(self) -> None:
        """Read until all positions are done.

        Raises:
            WrongBytesError: an answer has other bytes than the log.
        """
        while not all(position.is_done for position in self._positions):
            await self._exchange()
        self._reader.forget_reader(self._name)

    async def _exchange(self) -> None:
        profile = self._profile
        answers = await self._reads([position for position in self._positions if not position.is_done])
        size_bytes = 0
        for position, records in answers.items():
            size_bytes += records.size_bytes
            self.taken.whole_batch_bytes += _advance(position, records)
        if size_bytes:
            self.taken.answers.append((trio.current_time(), size_bytes))
        work_s = profile.exchange_s + profile.work_s_per_mib * size_bytes / MIB
        await trio.sleep(work_s + size_bytes / profile.takes_bytes_per_s)
        for records in answers.values():
            records.release()

    async def _reads(self, positions: Sequence[Position]) -> dict[Position, TierRecords]:
        profile, answers = self._profile, dict[Position, TierRecords]()
        deadline_s = trio.current_time() + profile.wait_s
        times = {position: ReadTime(deadline_s) for position in positions}
        first, ended = trio.Event(), trio.Event()

        async def read(position: Position, time: ReadTime) -> None:
            with time.scope():
                answers[position] = await finish(
                    self._reader.read(
                        position.partition,
                        position.offset,
                        max_bytes=profile.max_bytes,
                        minimum_one_batch=True,
                        lineage=LINEAGE,
                        reader=self._name,
                        time=time,
                    )
                )
                first.set()
            del times[position]
            if not times:
                ended.set()
                first.set()

        async with trio.open_nursery() as nursery:
            for position, time in tuple(times.items()):
                nursery.start_soon(read, position, time)
            with trio.move_on_at(deadline_s):
                await first.wait()
                with trio.move_on_after(profile.linger_s):
                    await ended.wait()
            for time in tuple(times.values()):
                time.end()
        return answers


def _advance(position: Position, records: TierRecords) -> int:
    """Move the position behind the answer's whole batches; their bytes."""
    at = 0
    for base_offset, batch_bytes in _batches(records):
        if base_offset != position.offset:
            raise WrongBytesError(f"{position.partition}: offset {base_offset} where {position.offset} was due")
        position.offset += 1
        at += batch_bytes
    if not at:
        raise WrongBytesError(f"{position.partition}: no whole batch at {position.offset}")
    return at


def _batches(records: TierRecords) -> Iterator[tuple[int, int]]:
    """Base offset and size of every whole batch."""
    at, buffer_start, buffers = 0, 0, iter(records.buffers)
    buffer = next(buffers, memoryview(b""))
    while at + _BATCH_PREFIX.size <= records.size_bytes:
        while at >= buffer_start + len(buffer):
            buffer_start += len(buffer)
            buffer = next(buffers)
        prefix = bytes(buffer[at - buffer_start : at - buffer_start + _BATCH_PREFIX.size])
        if len(prefix) < _BATCH_PREFIX.size:
            # Batches are not as small as that: the rest lies in the next buffer.
            buffer_start += len(buffer)
            buffer = next(buffers)
            prefix += bytes(buffer[: _BATCH_PREFIX.size - len(prefix)])
        base_offset, length = _BATCH_PREFIX.unpack(prefix)
        size_bytes = _BATCH_PREFIX.size + length
        at += size_bytes
        if at <= records.size_bytes:
            yield base_offset, size_bytes
