"""What one Fetch costs in function calls, C's among them: the same on every machine, which a time is not.

Counted is what the handling of one request calls, of ours and of the libraries; the broker and the objects behind it
are stand-ins that call next to nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from proxy.connection.request_handlers import Relay
from proxy.fetch.reads import READS_AT_ONCE_MAX
from storage.model import TopicIdPartition
from storage.reading.reader import TierRecords
from storage.steps import Steps
from tests.support.fake_wire import BATCH_BYTES, FakeBrokerLog, tier_batch
from tests.support.tier_world import LEADER_EPOCH, ScriptedReader, TierWorld, ask, client_frame, fetch_of
from tests.support.virtual_time import for_each_run

pytestmark = pytest.mark.autojump

FEW, MANY = 10, 300


READ_CALLS_MAX = 230
"""For each partition of a Fetch that is read from the tier, from the request's decoding to the answer's encoding,
beside the reading itself: 100 calls are some 10 µs, and all connections share one core."""

PROBED_READ_CALLS_MAX = 300
"""The same with a probe that is sent and answered."""


class Calls:
    """`count` so far."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


@contextmanager
def counted() -> Iterator[Calls]:
    """The calls of this thread meanwhile."""
    calls = Calls()
    before = sys.getprofile()
    sys.setprofile(calls.note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


class InstantReader(ScriptedReader):
    """Has everything at hand."""

    def read(self, partition: TopicIdPartition, offset: int, **wishes: Any) -> Steps[TierRecords]:
        yield from ()
        return TierRecords([memoryview(tier_batch(partition.partition, offset))], BATCH_BYTES)


class RepeatingBroker(FakeBrokerLog):
    """Answers as it did the first time: only the correlation id is another."""

    said: bytes | None = None

    async def answer(self, frame: bytes) -> bytes:
        if self.said is None:
            self.said = await super().answer(frame)
        return self.said[:4] + frame[8:12] + self.said[8:]


# --- what is relayed ---


# --- what is read from the tier ---


async def calls_of_reads(nursery: trio.Nursery, partitions: int, *, is_vouched_for: bool) -> int:
    """Count the calls of a Fetch of so many partitions in the tier, on a connection that has read them;
    `is_vouched_for`: its last probe still counts. Otherwise the reads begin beside the probe, and end before it."""
    broker = RepeatingBroker()
    world = TierWorld(nursery, broker=broker, open_reader=InstantReader)
    world.settings.authority_age_s_max = 60.0 if is_vouched_for else 0.0
    asked = [ask(world.add_partition("orders", number), 17) for number in range(partitions)]
    client = world.client()
    for _ in range(2):
        assert len((await client.fetch(asked, session_epoch=-1)).partitions) == partitions
        client.service.on_answered()
    frame = memoryview(bytearray(client_frame(fetch_of(asked, session_epoch=-1))))
    with counted() as calls:
        answer = await client.service.handle(frame, client.wire)
        client.service.on_answered()
    assert not isinstance(answer, Relay)
    assert sum(map(len, answer)) > partitions * BATCH_BYTES
    return calls.count


class Turns(trio.abc.Instrument):
    """Tasks that were made, and steps of any task."""

    def __init__(self) -> None:
        self.tasks = self.steps = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.tasks += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1


@for_each_run(
    "partitions, last_fetched_epoch, owns_tier",
    [(FEW, -1, False), (FEW, LEADER_EPOCH, False), (FEW, LEADER_EPOCH, True), (2 * READS_AT_ONCE_MAX, -1, False)],
)
async def test_what_is_at_hand_is_answered_in_one_pass(
    nursery: trio.Nursery, partitions: int, last_fetched_epoch: int, owns_tier: bool
) -> None:
    """One checkpoint for each further READS_AT_ONCE_MAX partitions, for others; the connection has one behind each
    answer. Failed before: it took four tasks and nine turns of the loop; and later still one and three for Java's
    consumer, which names the epoch that it has read last, and a task for each partition beyond READS_AT_ONCE_MAX."""
    world = TierWorld(nursery, broker=RepeatingBroker(), open_reader=InstantReader, owns_tier=owns_tier)
    world.settings.authority_age_s_max = 60.0
    log_start_offset = 1000 if owns_tier else 0
    asked = [
        ask(
            world.add_partition("orders", n, log_start_offset=log_start_offset),
            17,
            last_fetched_epoch=last_fetched_epoch,
        )
        for n in range(partitions)
    ]
    client = world.client()
    await client.fetch(asked, session_epoch=-1)
    client.service.on_answered()
    await trio.testing.wait_all_tasks_blocked()
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    await client.fetch(asked, session_epoch=-1)
    trio.lowlevel.remove_instrument(turns)
    assert (turns.tasks, turns.steps) == (0, (partitions - 1) // READS_AT_ONCE_MAX)


@for_each_run("is_vouched_for, calls_max", [(False, PROBED_READ_CALLS_MAX), (True, READ_CALLS_MAX)])
async def test_a_tier_read_costs_few_other_calls(nursery: trio.Nursery, is_vouched_for: bool, calls_max: int) -> None:
    """Below READS_AT_ONCE_MAX and beyond: a read that has to wait for its turn costs no more."""
    few, some, many = FEW, READS_AT_ONCE_MAX, 3 * READS_AT_ONCE_MAX
    calls = {
        partitions: await calls_of_reads(nursery, partitions, is_vouched_for=is_vouched_for)
        for partitions in (few, some, many)
    }
    assert 0 < (calls[some] - calls[few]) / (some - few) < calls_max
    assert 0 < (calls[many] - calls[some]) / (many - some) < calls_max
