"""Blocks that are on their way from disk to memory: who waits for which. They are read in runs, ahead of need as well.

Rule 1. A block is on its way once, however many want it. It lands where it is kept before those who wait for it wake.
Rule 2. One that is not there after all, or bad, is no error of a reader's: a waiter gets it from the store. What
        nobody waits for is left to its next reader.
Rule 3. At the application's end all waiters are woken.
Rule 4. Batches are checked in the thread that reads, as those of a GET are: a reader that had to have that done would
        need a thread for each of its answers.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from storage.cache.blocks import BlockKey, SegmentBlocks
from storage.cache.disk import DiskBlockKey
from storage.cache.disk_level import DiskLevel
from storage.cache.segment_entries import Flight
from storage.log.arriving_batches import ArrivalWalk
from storage.log.block import Block


@dataclass(slots=True, eq=False)
class _Reading:
    """A block on its way; `flight` None: nobody waits for it."""

    size_bytes: int
    flight: Flight[Block] | None = None


class DiskReads:
    """The blocks on their way. Owned by the trio thread.

    Args:
        land: keeps a block; the flag says whether somebody waits for it.
        otherwise: what a block comes from that the disk does not give.
        walk_from: what checks the batches of the blocks from that number on.
    """

    def __init__(
        self,
        disk: DiskLevel,
        *,
        land: Callable[[BlockKey, Block, bool], None],
        otherwise: Callable[[SegmentBlocks, int], Flight[Block]],
        walk_from: Callable[[SegmentBlocks, int], ArrivalWalk],
    ) -> None:
        self._disk = disk
        self._land = land
        self._otherwise = otherwise
        self._walk_from = walk_from
        self._readings: dict[BlockKey, _Reading] = {}
        self.undemanded_bytes = 0
        """Bytes of blocks that nobody waits for."""

    def is_under_way(self, key: BlockKey) -> bool:
        """Return whether the block is being read."""
        return key in self._readings

    def read(self, source: SegmentBlocks, disk_keys: Sequence[DiskBlockKey], reader: Hashable) -> None:
        """Read these blocks, none of which is on its way, in this order."""

        def deliver(disk_key: DiskBlockKey, block: Block | None) -> None:
            key = source.key(disk_key.number)
            flight = self._take(key)
            if block is not None:
                if not run.is_forgotten:
                    self._land(key, block, flight is not None)
                if flight is not None:
                    flight.land(block)
            elif flight is not None:
                flight.follow(self._otherwise(source, key.number))

        def fail(disk_key: DiskBlockKey, error: Exception) -> None:
            flight = self._take(source.key(disk_key.number))
            if flight is not None:
                flight.fail(error)

        check = self._walk_from(source, disk_keys[0].number).feed
        run = self._disk.read_run(disk_keys, reader, deliver=deliver, fail=fail, check=check)
        for each in disk_keys:
            self._readings[source.key(each.number)] = _Reading(each.size_bytes)
            self.undemanded_bytes += each.size_bytes

    def wait_for(self, key: BlockKey) -> Flight[Block]:
        """Somebody waits for a block that is on its way."""
        reading = self._readings[key]
        if reading.flight is None:
            reading.flight = Flight()
            self.undemanded_bytes -= reading.size_bytes
        return reading.flight

    def _take(self, key: BlockKey) -> Flight[Block] | None:
        reading = self._readings.pop(key)
        if reading.flight is None:
            self.undemanded_bytes -= reading.size_bytes
        return reading.flight
