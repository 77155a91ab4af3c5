"""Blocks in memory, within a byte budget.

Rule 1. `size_bytes` never exceeds `bytes_max` after `put` returned: room is made before the block goes in.
Rule 2. Least recently used goes first. A block that a response still holds lives on by its reference until
        sent; it only leaves this table.
Rule 3. A block's bytes never change. Quarantine drops the block; the fresh one is another object, with another
        serial.
"""

import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from storage.model import Uuid


class BlockKey(NamedTuple):
    """A block of a segment's log: bytes [number * block_bytes, (number + 1) * block_bytes)."""

    segment_id: Uuid
    number: int


class VerifiedRun(NamedTuple):
    """Whole batches that have passed their CRC: from byte `start` to byte `end` of the segment, and the last offset.

    `serials` are those of the blocks that they were seen in.
    """

    start: int
    end: int
    last_offset: int
    serials: tuple[int, ...]


NOTHING_VERIFIED = VerifiedRun(0, 0, -1, ())


@dataclass(slots=True, eq=False)
class Block:
    """One block's plaintext, and how far its batches are known to be whole.

    `verified` are batches that lie in this block. `straddler` is the one that begins here and ends in a later block,
    which may have been evicted and fetched anew since: then its serial is another, and the batch unverified again.
    """

    data: memoryview
    verified: VerifiedRun = NOTHING_VERIFIED
    straddler: VerifiedRun = NOTHING_VERIFIED
    serial: int = field(default_factory=itertools.count().__next__)


class MemoryBlocks:
    """The table. Not thread-safe: the trio thread owns it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.evictions = 0
        self._blocks: OrderedDict[BlockKey, Block] = OrderedDict()
        self._numbers_of: dict[Uuid, set[int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: BlockKey) -> Block | None:
        """The block, now the most recently used."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: BlockKey, block: Block) -> None:
        """Keep a block; one larger than the whole budget is not kept."""
        self.drop(key)
        size = len(block.data)
        if size > self.bytes_max:
            return
        while self.size_bytes + size > self.bytes_max:
            self.drop(next(iter(self._blocks)))
            self.evictions += 1
        self._blocks[key] = block
        self._numbers_of.setdefault(key.segment_id, set()).add(key.number)
        self.size_bytes += size

    def drop(self, key: BlockKey) -> None:
        """Forget a block, if it is there."""
        block = self._blocks.pop(key, None)
        if block is None:
            return
        self.size_bytes -= len(block.data)
        numbers = self._numbers_of[key.segment_id]
        numbers.discard(key.number)
        if not numbers:
            del self._numbers_of[key.segment_id]

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget all blocks of a segment, at once when it is deleted."""
        for number in tuple(self._numbers_of.get(segment_id, ())):
            self.drop(BlockKey(segment_id, number))
