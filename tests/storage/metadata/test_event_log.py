"""What is particular to the in-process log; the rest is tests/contract/metadata_event_log.py."""

from collections.abc import Sequence

import pytest

from storage.errors import MetadataLogError
from storage.metadata.event_log import MetadataEvent
from tests.support.metadata_event_log import InProcessMetadataEventLog


@pytest.mark.parametrize("partition_count", [0, -1])
def test_a_log_has_partitions(partition_count: int) -> None:
    with pytest.raises(MetadataLogError, match="at least one"):
        InProcessMetadataEventLog(partition_count)


def test_records_carry_the_time_of_their_publishing() -> None:
    log = InProcessMetadataEventLog(1, clock_ms=lambda: 1_700_000_000_123)
    seen: list[MetadataEvent] = []
    log.subscribe({0: 0}, seen.extend)
    log.publish(0, b"x")

    assert seen == [MetadataEvent(0, 0, 1_700_000_000_123, None, b"x")]


def test_a_publish_returns_after_every_subscriber_has_the_record() -> None:
    log = InProcessMetadataEventLog(2)
    first: list[MetadataEvent] = []
    second: list[MetadataEvent] = []
    log.subscribe({0: 0, 1: 0}, first.extend)
    log.subscribe({1: 0}, second.extend)
    log.publish(1, b"x")

    assert [event.value for event in first] == [event.value for event in second] == [b"x"]


def test_a_receiver_that_publishes_gets_the_later_record_after_the_earlier() -> None:
    log = InProcessMetadataEventLog(1)
    order: list[str] = []

    def deliver(events: Sequence[MetadataEvent]) -> None:
        for event in events:
            order.append(f"begin {event.offset}")
            if event.offset == 0:
                log.publish(0, b"answer")
            order.append(f"end {event.offset}")

    log.subscribe({0: 0}, deliver)
    log.publish(0, b"question")

    assert order == ["begin 0", "end 0", "begin 1", "end 1"]


def test_a_receiver_that_adds_its_partition_again_reads_it_again() -> None:
    log = InProcessMetadataEventLog(1)
    offsets: list[int] = []

    def deliver(events: Sequence[MetadataEvent]) -> None:
        offsets.extend(event.offset for event in events)
        if len(offsets) == 2:
            subscription.remove(0)
            subscription.add(0, 0)

    subscription = log.subscribe({0: 0}, deliver)
    log.publish(0, b"a")
    log.publish(0, b"b")

    assert offsets == [0, 1, 0, 1]
