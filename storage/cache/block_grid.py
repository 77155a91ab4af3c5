"""How a segment's log is cut into blocks (design §8). Pure.

A block is a run of whole format chunks that covers at least `cache.block.bytes`; formats without chunks have that grid
itself. A chunk larger than BLOCK_BYTES_MAX is cut into blocks of its own: they are filled together, since one GET
decodes them all. Either way blocks of one segment are equally long, save the last, so that position and number are
one division apart.
"""

from dataclasses import dataclass

from storage.cache.memory import BlockKey
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment

BLOCK_BYTES_MAX = 16 * 1024 * 1024
"""Larger chunks are cut; so large is `cache.block.bytes` at most."""


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """The blocks of one segment: `block_bytes` each, of `size_bytes` in all.

    `unit_blocks`: blocks n * unit_blocks to (n + 1) * unit_blocks − 1 are filled together.
    """

    block_bytes: int
    size_bytes: int
    unit_blocks: int = 1

    @property
    def count(self) -> int:
        return -(-self.size_bytes // self.block_bytes)

    def start(self, number: int) -> int:
        """Where the block begins."""
        return number * self.block_bytes

    def end(self, number: int) -> int:
        """Where it ends, exclusive."""
        return min((number + 1) * self.block_bytes, self.size_bytes)

    def number_at(self, position: int) -> int:
        """The block that holds the byte at `position`."""
        return position // self.block_bytes

    def unit(self, number: int) -> range:
        """The blocks that are filled together with this one, itself among them."""
        first = number - number % self.unit_blocks
        return range(first, min(first + self.unit_blocks, self.count))


def block_grid(chunk_bytes: int, size_bytes: int, block_bytes: int) -> BlockGrid:
    """The grid of a segment of `size_bytes`, in chunks of `chunk_bytes` (1: no chunks), for `cache.block.bytes`."""
    if chunk_bytes <= BLOCK_BYTES_MAX:
        return BlockGrid(chunk_bytes * max(1, -(-block_bytes // chunk_bytes)), size_bytes)
    # The fewest equal parts; a chunk size without such a divisor (a prime, say) stays whole.
    fewest = -(-chunk_bytes // BLOCK_BYTES_MAX)
    parts = next((parts for parts in range(fewest, 64 * fewest) if chunk_bytes % parts == 0), None)
    if parts is None:
        return BlockGrid(chunk_bytes, size_bytes)
    return BlockGrid(chunk_bytes // parts, size_bytes, unit_blocks=parts)


@dataclass(frozen=True, slots=True)
class SegmentBlocks:
    """A segment as the cache sees it: how to read it, and where its blocks are."""

    segment: RemoteLogSegmentMetadata
    opened: OpenedSegment
    grid: BlockGrid

    def key(self, number: int) -> BlockKey:
        """The cache's key of a block."""
        return BlockKey(self.segment.segment_id.id, number)

    def size_bytes(self, number: int) -> int:
        """A block's plaintext."""
        return self.grid.end(number) - self.grid.start(number)

    def positions(self, numbers: range) -> tuple[int, int]:
        """Where a run of blocks begins, and ends, exclusive."""
        return self.grid.start(numbers.start), self.grid.end(numbers.stop - 1)

    def stored_bytes(self, numbers: range) -> int:
        """What a GET of a run of blocks transfers."""
        return self.opened.stored_bytes(*self.positions(numbers))

    def reservation_bytes(self, numbers: range) -> int:
        """What a GET of a run of blocks holds at most: the blocks, and what decoding a chunk holds beside them if the
        format has to: the chunk as it is stored, decrypted but not decompressed, and its plaintext, if that is not the
        very block.

        Nothing says whether chunks are encrypted, compressed or both, so it is counted as both.
        """
        start, end = self.positions(numbers)
        stored_bytes, chunk_bytes = self.opened.stored_bytes, self.opened.chunk_bytes
        if stored_bytes(start, end) == end - start:
            return end - start
        # The buffer for stored chunks grows to the largest of the GET.
        firsts = range(start - start % chunk_bytes, end, chunk_bytes)
        largest_bytes = max(stored_bytes(first, min(first + chunk_bytes, self.grid.size_bytes)) for first in firsts)
        return end - start + 2 * largest_bytes + (0 if self.grid.block_bytes == chunk_bytes else chunk_bytes)
