"""Pieces of the metadata log: how far a partition was read, the gate that records pass, backing off, and
which partition of the log is whose. The rest is test_topic_log.py."""

import pytest
import trio
import trio.testing

from storage.backoff import Backoff
from storage.errors import MetadataOffsetOutOfRange
from storage.metadata.event_log import metadata_partition
from storage.metadata.reading import MetadataEvent, PartitionReading
from storage.metadata.topic_log import DeliveryGate
from storage.model import uuid_from_text
from tests.support.for_each import for_each

pytestmark = pytest.mark.autojump


def events(*offsets: int) -> list[MetadataEvent]:
    return [MetadataEvent(4, offset, 0, None, b"") for offset in offsets]


def test_it_begins_at_the_logs_start_if_that_is_higher() -> None:
    reading = PartitionReading(4)
    reading.move_into(log_start_offset=7, high_watermark=9)

    assert (reading.position, reading.end_offset, reading.is_caught_up) == (7, 9, False)


def test_a_partition_is_caught_up_when_it_was_read_to_the_end_that_it_had_first() -> None:
    reading = PartitionReading(4)
    seen = [reading.is_caught_up]
    reading.move_into(0, 2)
    seen.append(reading.is_caught_up)
    reading.advance(2)
    seen.append(reading.is_caught_up)
    reading.move_into(0, 50)

    assert seen == [False, False, True]
    assert (reading.position, reading.end_offset, reading.is_caught_up) == (2, 2, True)


def test_an_empty_partition_is_read_at_once() -> None:
    reading = PartitionReading(4)
    reading.move_into(0, 0)

    assert reading.is_caught_up


def test_offsets_without_records_are_stepped_over_and_never_back() -> None:
    reading = PartitionReading(4)
    reading.move_into(0, 10)

    assert [reading.advance(offset) for offset in (4, 10, 10, 4, -1)] == [True, True, False, False, False]
    assert reading.position == 10


def test_what_was_read_comes_no_second_time() -> None:
    assert PartitionReading(4, 3).unread(events(1, 2, 3, 4)) == events(3, 4)


def test_a_log_that_ends_before_the_position_is_not_read() -> None:
    reading = PartitionReading(4, 10)
    with pytest.raises(MetadataOffsetOutOfRange, match="read up to 10, but the log ends at 5"):
        reading.move_into(0, 5)
    assert (reading.position, reading.end_offset) == (10, None)


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
