"""The consumer of the simulation: what an exchange waits for, and that it takes no wrong bytes."""

from collections.abc import Hashable, Sequence
from typing import cast

import pytest
import trio

from storage.metadata.partition_catalog import LeaderEpochLineage
from storage.model import TopicIdPartition
from storage.reader import ReadTime, TierReader, TierRecords
from tests.simulation.consumer import ClientProfile, Consumer, Position, WrongBytesError
from tests.support.segments import topic_partition
from tests.support.simulated_store import KIB, log_bytes
from tests.support.simulated_time import Simulation, simulate

BATCH_BYTES = 4 * KIB
ONE, OTHER = (topic_partition("orders", number) for number in range(2))
FREE = ClientProfile(exchange_s=0.0, work_s_per_mib=0.0, max_bytes=4 * BATCH_BYTES)


class FakeReader:
    """Gives max_bytes from any offset on after so many seconds, in buffers of an odd size, and a piece of the batch
    after them; a read that is ended early has nothing.

    Reads get faster by `gets_faster_s`, each. `skips`: the offset that is left out. `reads`: time, partition and offset
    of each.
    """

    def __init__(
        self, delays_s: dict[TopicIdPartition, float], *, skips: int | None = None, gets_faster_s: float = 0.0
    ) -> None:
        self.reads: list[tuple[float, int, int]] = []
        self.forgotten: list[Hashable] = []
        self._delays_s = delays_s
        self._skips = skips
        self._gets_faster_s = gets_faster_s

    async def read(
        self,
        partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        minimum_one_batch: bool,
        lineage: LeaderEpochLineage,
        reader: Hashable,
        time: ReadTime,
    ) -> TierRecords:
        self.reads.append((trio.current_time(), partition.partition, offset))
        delay_s = self._delays_s[partition]
        # What one read began, the next finds.
        self._delays_s[partition] = max(0.010, delay_s - self._gets_faster_s)
        await trio.sleep(delay_s)
        data = memoryview(log_bytes(BATCH_BYTES, offset + (offset == self._skips), 0, max_bytes + 100))
        buffers = [data[at : at + 4099] for at in range(0, len(data), 4099)]
        return TierRecords(buffers, len(data))

    def forget_reader(self, reader: Hashable) -> None:
        self.forgotten.append(reader)


def consume(
    reader: FakeReader, partitions: Sequence[TopicIdPartition], *, end_offset: int = 8, client: ClientProfile = FREE
) -> list[tuple[float, int]]:
    """The times and sizes of the answers."""
    positions = [Position(partition, 0, end_offset) for partition in partitions]
    consumer = Consumer(cast(TierReader, reader), "a consumer", positions, client)

    async def main(simulation: Simulation) -> None:
        await consumer.run()

    simulate(main)
    assert reader.forgotten == ["a consumer"]
    assert all(position.offset == end_offset for position in positions)
    return consumer.taken.answers


@pytest.mark.parametrize(("slow_s", "answered_s"), [(0.028, 0.028), (0.100, 0.030)])
def test_an_exchange_lingers_for_the_slower_ones_only_so_long(slow_s: float, answered_s: float) -> None:
    """Given a read of 10 ms beside a slower one, then the answer goes out when that has ended too, but no later than
    20 ms after the first; the next exchange reads again what was ended early."""
    reader = FakeReader({ONE: 0.010, OTHER: slow_s})
    (first_s, _), *_ = consume(reader, [ONE, OTHER])
    assert first_s == pytest.approx(answered_s)


def test_an_exchange_ends_at_its_deadline() -> None:
    """Given a read that takes longer than a Fetch may wait, then the next exchange begins it again."""
    slow = FakeReader({ONE: 0.6}, gets_faster_s=0.3)
    ((answered_s, size_bytes),) = consume(slow, [ONE], end_offset=4)
    assert (round(answered_s, 9), size_bytes) == (0.5 + 0.3, 4 * BATCH_BYTES + 100)
    assert [at_s for at_s, _, _ in slow.reads] == pytest.approx([0.0, 0.5])


def test_the_client_takes_its_time() -> None:
    """Given a client of 100 KB/s that works 1 ms an exchange, then the next exchange begins after both."""
    reader = FakeReader({ONE: 0.010})
    client = ClientProfile(exchange_s=0.001, work_s_per_mib=0.0, max_bytes=4 * BATCH_BYTES, takes_bytes_per_s=100_000)
    consume(reader, [ONE], client=client)
    answer_bytes = 4 * BATCH_BYTES + 100
    assert [at_s for at_s, _, _ in reader.reads] == pytest.approx([0.0, 0.010 + 0.001 + answer_bytes / 100_000])


def test_other_bytes_than_the_logs_are_told() -> None:
    reader = FakeReader({ONE: 0.010}, skips=4)
    with pytest.raises(ExceptionGroup) as caught:
        consume(reader, [ONE])
    assert caught.value.split(WrongBytesError)[1] is None
