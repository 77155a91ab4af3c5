"""Pieces of the metadata log: one partition's reader, the gate that records pass, backing off, and
which partition of the log is whose. The rest is tests/contract/metadata_event_log.py."""

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from storage.backoff import Backoff
from storage.metadata.event_log import MetadataEvent, metadata_partition
from storage.metadata.record_batches import PartitionReader
from storage.metadata.topic_log import DeliveryGate
from storage.model import uuid_from_text
from tests.support.for_each import for_each

pytestmark = pytest.mark.autojump


class Seen:
    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.progress: list[tuple[int, int, int]] = []

    def reader(self, start_offset: int = 0) -> PartitionReader:
        return PartitionReader(4, start_offset, self.deliver, lambda *entry: self.progress.append(entry))

    def deliver(self, events: Sequence[MetadataEvent]) -> None:
        self.offsets.extend(event.offset for event in events)


def events(*offsets: int) -> list[MetadataEvent]:
    return [MetadataEvent(4, offset, 0, None, b"") for offset in offsets]


def test_it_begins_at_the_logs_start_if_that_is_higher() -> None:
    seen = Seen()
    reader = seen.reader(start_offset=-5)
    reader.assign(log_start_offset=7, high_watermark=9)

    assert reader.position == 7
    assert seen.progress == [(4, 7, 9)]


def test_the_end_offset_of_the_first_assignment_stays() -> None:
    seen = Seen()
    reader = seen.reader()
    reader.assign(0, 2)
    reader.hand_over(events(0, 1))
    reader.assign(0, 50)

    assert seen.progress == [(4, 0, 2), (4, 2, 2), (4, 2, 2)]


def test_offsets_without_records_are_stepped_over_and_never_back() -> None:
    seen = Seen()
    reader = seen.reader()
    reader.assign(0, 10)
    reader.hand_over(events(0, 3))
    reader.advance(10)
    reader.advance(4)
    reader.advance(-1)

    assert reader.position == 10
    assert seen.progress[-1] == (4, 10, 10)


def test_a_stopped_reader_hands_nothing_over() -> None:
    seen = Seen()
    reader = seen.reader()
    reader.assign(0, 2)
    reader.stop()
    reader.hand_over(events(0, 1))
    reader.advance(9)

    assert seen.offsets == []
    assert seen.progress == [(4, 0, 2)]


async def test_nobody_passes_while_it_is_held() -> None:
    gate = DeliveryGate()
    passed: list[float] = []

    async def pass_through() -> None:
        await gate.passed()
        passed.append(trio.current_time() - began_s)

    began_s = trio.current_time()
    await pass_through()
    async with trio.open_nursery() as nursery, gate.held():
        nursery.start_soon(pass_through)
        await trio.sleep(1)
        async with gate.held():
            nursery.start_soon(pass_through)
            await trio.sleep(1)
        await trio.sleep(1)
        assert passed == [0]
    await pass_through()
    assert passed == [0, 3, 3, 3]


@for_each("partition_count, expected", [(50, 41), (5, 1), (3, 1)])
def test_the_sample_of_the_specification(partition_count: int, expected: int) -> None:
    assert metadata_partition(uuid_from_text("dFZlbnRvLTEyMy1hYmNkZQ"), 3, partition_count) == expected


def test_a_partition_seen_on_a_live_broker() -> None:
    assert metadata_partition(uuid_from_text("99Ua091BQDeyDAqtDCo4bQ"), 0, 5) == 1


def test_the_delay_doubles_up_to_its_maximum_and_starts_again_after_a_reset() -> None:
    backoff = Backoff(first_s=0.1, max_s=1.0, jitter=0.0)

    delays_s = [backoff.next_delay_s() for _ in range(6)]
    backoff.reset()

    assert delays_s == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff.next_delay_s() == 0.1
