"""Metadata event logs of one process: one in memory, which several readers may share, and one whose deliveries a test
holds back, for "not read yet" without sleeping."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from storage.errors import MetadataLogError
from storage.metadata.event_log import DELIVERY_RECORDS_MAX, Close, Deliver, MetadataEventLog, Progress, call_receiver
from storage.metadata.reading import MetadataEvent, PartitionReading


class InProcessMetadataEventLog:
    """The log in memory. A publish returns after every subscription was handed the record."""

    def __init__(self, partition_count: int) -> None:
        self._events: list[list[MetadataEvent]] = [[] for _ in range(partition_count)]
        self._readers: list[_Reader] = []

    def partition_count(self) -> int:
        return len(self._events)

    def publish(self, partition: int, value: bytes) -> int:
        events = self._events[partition]
        events.append(MetadataEvent(partition, len(events), time.time_ns() // 1_000_000, None, value))
        for reader in [each for each in self._readers if each.reading.number == partition]:
            self._pump(reader)
        return len(events) - 1

    def subscribe(self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress) -> Close:
        if strangers := [number for number in start_offsets if not 0 <= number < len(self._events)]:
            raise MetadataLogError(f"metadata partition {strangers[0]} does not exist, there are {len(self._events)}")
        readers = [_Reader(PartitionReading(*each), deliver, progress) for each in start_offsets.items()]
        self._readers += readers
        for reader in readers:
            reader.reading.move_into(0, len(self._events[reader.reading.number]))
            call_receiver(progress, reader.reading)
            self._pump(reader)

        def close() -> None:
            self._readers = [reader for reader in self._readers if reader not in readers]

        return close

    def failure(self) -> str | None:
        return None

    def events_from(self, partition: int, offset: int) -> list[MetadataEvent]:
        """Up to DELIVERY_RECORDS_MAX records from offset on."""
        return self._events[partition][offset : offset + DELIVERY_RECORDS_MAX]

    def _pump(self, reader: "_Reader") -> None:
        while events := self.events_from(reader.reading.number, reader.reading.position):
            call_receiver(reader.deliver, reader.reading, events)
            reader.reading.advance(events[-1].offset + 1)
            call_receiver(reader.progress, reader.reading)


@dataclass(slots=True, eq=False)
class _Reader:
    reading: PartitionReading
    deliver: Deliver
    progress: Progress


class HeldBackEventLog:
    """Wraps a log. While held, what it delivers waits here in order; `release` hands it on."""

    def __init__(self, inner: InProcessMetadataEventLog) -> None:
        self.inner = inner
        self.failure_reason: str | None = None
        self._is_held = False
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._receivers: list[Deliver] = []

    def hold(self) -> None:
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        while self._waiting:
            self._waiting.pop(0)[1]()

    def release_except(self, held_partition: int) -> None:
        """Hand on what waits of all partitions but one, and go on holding."""
        waiting, self._waiting = self._waiting, []
        for partition, call in waiting:
            if partition == held_partition:
                self._waiting.append((partition, call))
            else:
                call()

    def deliver(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """Hand every subscriber a record with a key, or without a value, which no log here can be made to hold."""
        for deliver in self._receivers:
            deliver(PartitionReading(partition, 1, 0), [MetadataEvent(partition, 0, 0, key, value)])

    def partition_count(self) -> int:
        return self.inner.partition_count()

    def publish(self, partition: int, value: bytes) -> int:
        return self.inner.publish(partition, value)

    def subscribe(self, start_offsets: Mapping[int, int], deliver: Deliver, progress: Progress) -> Close:
        self._receivers.append(deliver)
        return self.inner.subscribe(start_offsets, *posted(self._do, deliver, progress))

    def failure(self) -> str | None:
        return self.failure_reason

    def _do(self, partition: int, call: Callable[[], None]) -> None:
        if self._is_held:
            self._waiting.append((partition, call))
        else:
            call()


def posted(
    post: Callable[[int, Callable[[], None]], None], deliver: Deliver, progress: Progress
) -> tuple[Deliver, Progress]:
    """Receivers whose calls `post` makes later, by partition, with the reading as it is now."""

    def deliver_later(reading: PartitionReading, events: Sequence[MetadataEvent]) -> None:
        now = replace(reading)
        post(now.number, lambda: deliver(now, events))

    def progress_later(reading: PartitionReading) -> None:
        now = replace(reading)
        post(now.number, lambda: progress(now))

    return deliver_later, progress_later


_: type[MetadataEventLog] = InProcessMetadataEventLog
