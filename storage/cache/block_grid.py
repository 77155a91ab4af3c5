"""How a segment's log is cut into blocks (design §8). Pure.

A block is a run of whole format chunks that covers at least `cache.block.bytes`; formats without chunks have that grid
itself. A chunk larger than BLOCK_BYTES_MAX is cut into blocks of its own: they are filled together, since one GET
decodes them all. Either way blocks of one segment are equally long, save the last, so that position and number are
one division apart.
"""

from dataclasses import dataclass

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
