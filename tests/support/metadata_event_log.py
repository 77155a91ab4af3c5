"""A metadata event log whose deliveries a test holds back: for "not read yet" without sleeping."""

import threading
from collections.abc import Callable, Mapping, Sequence

from storage.metadata.event_log import (
    Deliver,
    InProcessMetadataEventLog,
    MetadataEvent,
    MetadataEventLog,
    Progress,
    Subscription,
)


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

    def high_watermarks(self) -> Mapping[int, int]:
        return self.inner.high_watermarks()

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
