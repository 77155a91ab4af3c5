"""Batches inflated side by side into one buffer, as long as there is room.

The buffer is used again for the next group, so nothing may refer to it when `clear` is called. Its first pages are
the operating system's zeros until they are written: a group that stays small costs little.
"""

import numpy as np

from pipeline.decoding.inflation import Inflater
from pipeline.decoding.record_fields import Lanes
from pipeline.decoding.varint_lanes import PADDING_BYTES
from protocol.record_batches import COMPRESSION_MASK, HEADER_BYTES
from storage.log.log_walk import WalkedBatch


class BatchGroup:
    """At most `bytes_max` of inflated records, and `records_max` of them."""

    def __init__(self, bytes_max: int, records_max: int) -> None:
        self._bytes_max, self._records_max = bytes_max, records_max
        self.data = np.zeros(bytes_max + PADDING_BYTES, np.uint8)
        self._inflater = Inflater()
        self.batches: list[WalkedBatch] = []
        self._first: list[int] = []
        self._end: list[int] = []
        self._used_bytes = self._records = 0

    def add(self, batch: WalkedBatch) -> bool:
        """Whether there was room for a batch of v2, and its bytes could be inflated."""
        header = batch.header
        room = self.data[self._used_bytes : self._bytes_max]
        payload = batch.data[HEADER_BYTES:]
        # Hardly anything gets smaller by being inflated, and what does is tried again in a group of its own.
        if self._records + header.record_count > self._records_max or len(payload) >= len(room):
            return False
        size = self._inflater.inflate_into(header.attributes & COMPRESSION_MASK, payload, room)
        if size is None:
            return False
        if size or header.record_count:
            self.batches.append(batch)
            self._first.append(self._used_bytes)
            self._used_bytes += size
            self._end.append(self._used_bytes)
            self._records += header.record_count
        return True

    def lanes(self) -> Lanes:
        """The numbers of the batches, in order."""
        return Lanes.of([batch.header for batch in self.batches], self._first, self._end)

    def keep(self, places: list[int]) -> None:
        """Leave out all batches but these."""
        self.batches = [self.batches[place] for place in places]
        self._first = [self._first[place] for place in places]
        self._end = [self._end[place] for place in places]

    def clear(self) -> None:
        """Begin anew."""
        self.keep([])
        self._used_bytes = self._records = 0
