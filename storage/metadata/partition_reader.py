"""How far one partition of the metadata topic has been read, and its hand-over to the subscriber. No I/O."""

import threading
from collections.abc import Sequence

from storage.metadata.event_log import Deliver, MetadataEvent, Progress, call_receiver


class PartitionReader:
    """One assignment of one partition. `_delivery` makes `stop` a barrier; re-entrant, so a receiver may stop it."""

    def __init__(self, partition: int, start_offset: int, deliver: Deliver, progress: Progress | None) -> None:
        self.partition = partition
        self.position = max(start_offset, 0)
        self._deliver = deliver
        self._progress = progress
        self._end_offset: int | None = None
        self._delivery = threading.RLock()
        self._stopped = False

    def assign(self, log_start_offset: int, high_watermark: int) -> None:
        """The log's range is known. The first end offset stays: readiness is measured against it."""
        with self._delivery:
            if self._end_offset is None:
                self._end_offset = high_watermark
            self.position = max(self.position, log_start_offset)
            self._report()

    def hand_over(self, records: Sequence[MetadataEvent]) -> None:
        """Deliver one slice and move behind it."""
        with self._delivery:
            if not self._stopped:
                call_receiver(self._deliver, records)
                self.position = records[-1].offset + 1
                self._report()

    def advance(self, next_offset: int) -> None:
        """Move over offsets that hold no records."""
        with self._delivery:
            if next_offset > self.position:
                self.position = next_offset
                self._report()

    def stop(self) -> None:
        """Deliver nothing more, once this returned."""
        with self._delivery:
            self._stopped = True

    def _report(self) -> None:
        if self._progress is not None and self._end_offset is not None and not self._stopped:
            call_receiver(self._progress, self.partition, self.position, self._end_offset)
