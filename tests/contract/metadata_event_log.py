"""What every MetadataEventLog does: subclass MetadataEventLogContract and give it a running `event_log` of three
empty partitions. The suite is the seam's meaning in code (storage/metadata/event_log.py)."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from storage.errors import MetadataLogError
from storage.metadata.event_log import DELIVERY_RECORDS_MAX, MetadataEvent, MetadataEventLog
from tests.support.for_each import for_each

TIMEOUT_S = 100.0
"""For what another thread will do soon, on however busy a machine; nothing waits for it to pass."""


class Recorder:
    """A subscriber that remembers, and that can be waited for."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.events: list[MetadataEvent] = []
        self.slices: list[int] = []
        self.progress: list[tuple[int, int, int]] = []

    def deliver(self, events: Sequence[MetadataEvent]) -> None:
        with self._condition:
            self.events.extend(events)
            self.slices.append(len(events))
            self._condition.notify_all()

    def advance(self, partition: int, position: int, end_offset: int) -> None:
        with self._condition:
            delivered = [event.offset for event in self.events if event.partition == partition]
            assert not delivered or delivered[-1] < position, "progress must follow delivery"
            self.progress.append((partition, position, end_offset))
            self._condition.notify_all()

    def offsets(self, partition: int = 0) -> list[int]:
        return [event.offset for event in self.events if event.partition == partition]

    def wait_for_offset(self, offset: int, partition: int = 0) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: offset in self.offsets(partition), TIMEOUT_S)

    def wait_for_position(self, position: int, partition: int = 0) -> None:
        with self._condition:
            assert self._condition.wait_for(
                lambda: any(entry[:2] == (partition, position) for entry in self.progress), TIMEOUT_S
            )


Log = MetadataEventLog


class MetadataEventLogContract:
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder()

    def test_offsets_count_from_zero_in_each_partition(self, event_log: Log) -> None:
        assert event_log.partition_count() == 3
        assert [event_log.publish(0, b"a"), event_log.publish(0, b"b"), event_log.publish(2, b"c")] == [0, 1, 0]

    def test_a_subscriber_reads_from_its_offset_and_follows_the_tail(self, event_log: Log, recorder: Recorder) -> None:
        for value in (b"a", b"b", b"c"):
            event_log.publish(0, value)
        event_log.publish(1, b"not asked for")

        event_log.subscribe({0: 1}, recorder.deliver)
        event_log.publish(0, b"d")
        recorder.wait_for_offset(3)

        found = [(event.partition, event.offset, event.value) for event in recorder.events]
        assert found == [(0, 1, b"b"), (0, 2, b"c"), (0, 3, b"d")]
        assert all(event.key is None and event.timestamp_ms >= 0 for event in recorder.events)

    def test_an_empty_partition_is_known_to_be_read_at_once(self, event_log: Log, recorder: Recorder) -> None:
        event_log.subscribe({0: 0, 1: 0}, recorder.deliver, recorder.advance)

        recorder.wait_for_position(0, partition=0)
        recorder.wait_for_position(0, partition=1)
        assert sorted(recorder.progress) == [(0, 0, 0), (1, 0, 0)]
        assert recorder.events == []

    def test_the_end_offset_is_the_one_at_assignment(self, event_log: Log, recorder: Recorder) -> None:
        for _ in range(3):
            event_log.publish(0, b"before")
        event_log.subscribe({0: 0}, recorder.deliver, recorder.advance)
        recorder.wait_for_position(3)
        event_log.publish(0, b"after")
        recorder.wait_for_position(4)

        positions = [position for _, position, _ in recorder.progress]
        assert positions == sorted(positions)
        assert {end_offset for _, _, end_offset in recorder.progress} == {3}

    def test_a_long_log_comes_in_slices(self, event_log: Log, recorder: Recorder) -> None:
        count = 2 * DELIVERY_RECORDS_MAX + 10
        for number in range(count):
            event_log.publish(0, b"%d" % number)
        event_log.subscribe({0: 0}, recorder.deliver)
        recorder.wait_for_offset(count - 1)

        assert recorder.offsets() == list(range(count))
        assert max(recorder.slices) <= DELIVERY_RECORDS_MAX

    def test_adding_and_removing_under_load_never_repeats_or_skips(self, event_log: Log, recorder: Recorder) -> None:
        subscription = event_log.subscribe({}, recorder.deliver)
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(lambda: [event_log.publish(0, b"x") for _ in range(300)])
            for _ in range(30):
                recorder.events.clear()
                subscription.add(0, 0)
                subscription.remove(0)
                seen = recorder.offsets()
                assert seen == list(range(len(seen)))
            publishing.result()
        recorder.events.clear()
        subscription.add(0, 0)
        recorder.wait_for_offset(299)
        assert recorder.offsets() == list(range(300))

    def test_a_receiver_may_remove_what_it_is_being_handed(self, event_log: Log) -> None:
        received: list[int] = []
        done = threading.Event()

        def deliver(events: Sequence[MetadataEvent]) -> None:
            received.extend(event.offset for event in events)
            subscription.remove(0)
            done.set()

        subscription = event_log.subscribe({}, deliver)
        for _ in range(DELIVERY_RECORDS_MAX + 1):
            event_log.publish(0, b"x")
        subscription.add(0, 0)
        assert done.wait(TIMEOUT_S)
        event_log.publish(0, b"y")

        assert len(received) <= DELIVERY_RECORDS_MAX
        assert subscription.assigned() == frozenset()

    def test_a_receiver_that_fails_is_logged_and_reading_goes_on(self, event_log: Log, recorder: Recorder) -> None:
        def deliver(events: Sequence[MetadataEvent]) -> None:
            recorder.deliver(events)
            raise KeyError("broken")

        with capture_logs() as logs:
            event_log.subscribe({0: 0}, deliver, recorder.advance)
            event_log.publish(0, b"a")
            recorder.wait_for_position(1)
            event_log.publish(0, b"b")
            recorder.wait_for_position(2)

        assert recorder.offsets() == [0, 1]
        assert [entry["error"] for entry in logs if "error" in entry] == ["KeyError('broken')"] * 2

    def test_a_closed_subscription_gives_and_takes_nothing(self, event_log: Log, recorder: Recorder) -> None:
        other = Recorder()
        subscription = event_log.subscribe({0: 0}, recorder.deliver)
        event_log.subscribe({0: 0}, other.deliver)
        subscription.close()
        subscription.close()
        event_log.publish(0, b"a")
        other.wait_for_offset(0)

        assert recorder.events == []
        assert subscription.assigned() == frozenset()
        with pytest.raises(MetadataLogError, match="closed"):
            subscription.add(0, 0)

    def test_an_assigned_partition_cannot_be_added(self, event_log: Log, recorder: Recorder) -> None:
        subscription = event_log.subscribe({0: 0}, recorder.deliver)
        with pytest.raises(MetadataLogError, match="assigned already"):
            subscription.add(0, 0)

    @for_each("partition", [-1, 3])
    def test_a_partition_that_does_not_exist(self, event_log: Log, recorder: Recorder, partition: int) -> None:
        subscription = event_log.subscribe({}, recorder.deliver)
        with pytest.raises(MetadataLogError, match="does not exist"):
            event_log.publish(partition, b"x")
        with pytest.raises(MetadataLogError, match="does not exist"):
            event_log.subscribe({partition: 0}, recorder.deliver)
        with pytest.raises(MetadataLogError, match="does not exist"):
            subscription.add(partition, 0)

    def test_threads_that_publish_get_offsets_of_their_own(self, event_log: Log, recorder: Recorder) -> None:
        event_log.subscribe({0: 0}, recorder.deliver)
        with ThreadPoolExecutor(8) as pool:
            values = [b"%d" % number for number in range(200)]
            offsets = list(pool.map(lambda value: event_log.publish(0, value), values))
        recorder.wait_for_offset(199)

        assert sorted(offsets) == recorder.offsets() == list(range(200))
        published = dict(zip(offsets, values, strict=True))
        assert {event.offset: event.value for event in recorder.events} == published
