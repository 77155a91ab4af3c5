"""Metadata event logs of one process: one in memory, which several managers may share, and one whose deliveries a
test holds back, for "not read yet" without sleeping."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from storage.errors import MetadataLogError
from storage.metadata.event_log import (
    DELIVERY_RECORDS_MAX,
    Deliver,
    MetadataEvent,
    MetadataEventLog,
    Progress,
    Subscription,
    call_receiver,
)


class InProcessMetadataEventLog:
    """The log in memory. A publish returns after every subscription was handed the record."""

    def __init__(self, partition_count: int) -> None:
        if partition_count < 1:
            raise MetadataLogError(f"a metadata log needs at least one partition, not {partition_count}")
        self._lock = threading.Lock()
        self._events: list[list[MetadataEvent]] = [[] for _ in range(partition_count)]
        self._subscriptions: list[_InProcessSubscription] = []

    def partition_count(self) -> int:
        return len(self._events)

    def publish(self, partition: int, value: bytes) -> int:
        self.check_partition(partition)
        with self._lock:
            events = self._events[partition]
            offset = len(events)
            events.append(MetadataEvent(partition, offset, time.time_ns() // 1_000_000, None, value))
            subscriptions = tuple(self._subscriptions)
        for subscription in subscriptions:
            subscription.pump(partition)
        return offset

    def subscribe(
        self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress | None = None
    ) -> Subscription:
        subscription = _InProcessSubscription(self, deliver, progress)
        for partition in start_offsets:
            self.check_partition(partition)
        with self._lock:
            self._subscriptions.append(subscription)
        for partition, start_offset in start_offsets.items():
            subscription.add(partition, start_offset)
        return subscription

    def problems(self) -> Mapping[int, str]:
        return {}

    def failure(self) -> str | None:
        return None

    def check_partition(self, partition: int) -> None:
        """Raises MetadataLogError for a partition that does not exist."""
        if not 0 <= partition < len(self._events):
            raise MetadataLogError(f"metadata partition {partition} does not exist, there are {len(self._events)}")

    def events_from(self, partition: int, offset: int) -> list[MetadataEvent]:
        """Up to DELIVERY_RECORDS_MAX records from offset on."""
        return self._events[partition][offset : offset + DELIVERY_RECORDS_MAX]

    def end_offset(self, partition: int) -> int:
        return len(self._events[partition])

    def discard(self, subscription: "_InProcessSubscription") -> None:
        """Forget a closed subscription."""
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)


@dataclass(slots=True, eq=False)
class _Assignment:
    """One `add`. Compared by identity: after a remove and an add it is another one, even at the same offset."""

    position: int
    end_offset: int


class _InProcessSubscription:
    """`_delivery` is held while a slice is handed over, which is what makes `remove` a barrier. It is re-entrant so
    that a receiver may remove the very partition it is being handed; `_pumping` keeps a receiver that publishes
    from being handed the later record inside the earlier one."""

    def __init__(self, log: InProcessMetadataEventLog, deliver: Deliver, progress: Progress | None) -> None:
        self._event_log = log
        self._deliver = deliver
        self._progress = progress
        self._delivery = threading.RLock()
        self._assignments: dict[int, _Assignment] = {}
        self._pumping: set[int] = set()
        self._closed = False

    def add(self, partition: int, start_offset: int) -> None:
        self._event_log.check_partition(partition)
        with self._delivery:
            if self._closed:
                raise MetadataLogError("the metadata subscription is closed")
            if partition in self._assignments:
                raise MetadataLogError(f"metadata partition {partition} is assigned already")
            assignment = _Assignment(max(start_offset, 0), self._event_log.end_offset(partition))
            self._assignments[partition] = assignment
            self._report(partition, assignment)
            self.pump(partition)

    def remove(self, partition: int) -> None:
        with self._delivery:
            self._assignments.pop(partition, None)

    def assigned(self) -> frozenset[int]:
        with self._delivery:
            return frozenset(self._assignments)

    def close(self) -> None:
        with self._delivery:
            self._closed = True
            self._assignments.clear()
        self._event_log.discard(self)

    def pump(self, partition: int) -> None:
        """Deliver what is new in a partition, in this thread."""
        with self._delivery:
            if partition in self._pumping:
                return
            self._pumping.add(partition)
            try:
                while (assignment := self._assignments.get(partition)) is not None:
                    events = self._event_log.events_from(partition, assignment.position)
                    if not events:
                        return
                    call_receiver(self._deliver, events)
                    if self._assignments.get(partition) is assignment:
                        assignment.position = events[-1].offset + 1
                        self._report(partition, assignment)
            finally:
                self._pumping.discard(partition)

    def _report(self, partition: int, assignment: _Assignment) -> None:
        if self._progress is not None:
            call_receiver(self._progress, partition, assignment.position, assignment.end_offset)


class HeldBackEventLog:
    """Wraps a log. While held, what it delivers waits here in order; `release` hands it on, in the caller's thread."""

    def __init__(self, inner: MetadataEventLog | None = None, *, is_held: bool = False) -> None:
        self.inner: MetadataEventLog = InProcessMetadataEventLog(5) if inner is None else inner
        self.failure_reason: str | None = None
        self._is_held = is_held
        self.something_waits = threading.Event()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._receivers: list[Deliver] = []
        self._lock = threading.RLock()

    def hold(self) -> None:
        with self._lock:
            self._is_held = True

    def release(self) -> None:
        with self._lock:
            self._is_held = False
            while self._waiting:
                self._waiting.pop(0)[1]()
            self.something_waits.clear()

    def release_except(self, held_partition: int) -> None:
        """Hand on what waits of all partitions but one, and go on holding."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for partition, call in waiting:
                if partition == held_partition:
                    self._waiting.append((partition, call))
                else:
                    call()

    def deliver(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Hand every subscriber a record with a key, or without a value, which no log here can be made to hold."""
        for deliver in self._receivers:
            deliver([MetadataEvent(partition, 0, 0, key, value)])

    def partition_count(self) -> int:
        return self.inner.partition_count()

    def publish(self, partition: int, value: bytes) -> int:
        return self.inner.publish(partition, value)

    def subscribe(
        self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress | None = None
    ) -> Subscription:
        def deliver_later(events: Sequence[MetadataEvent]) -> None:
            self._do(events[0].partition, lambda: deliver(events))

        def progress_later(partition: int, position: int, end_offset: int) -> None:
            if progress is not None:
                self._do(partition, lambda: progress(partition, position, end_offset))

        self._receivers.append(deliver)
        return self.inner.subscribe(start_offsets, deliver_later, progress_later)

    def problems(self) -> Mapping[int, str]:
        return self.inner.problems()

    def failure(self) -> str | None:
        return self.failure_reason

    def _do(self, partition: int, call: Callable[[], None]) -> None:
        with self._lock:
            if self._is_held:
                self._waiting.append((partition, call))
                self.something_waits.set()
            else:
                call()
