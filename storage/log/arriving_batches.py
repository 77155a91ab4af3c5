"""Checking the batches of a GET as its blocks arrive, in the thread that receives them.

What passes is remembered in the blocks (`Block.verified`, `Block.straddler`) by the walk that readers use
(`storage.log.batch_walk`), so that a reader later goes over it without looking at it. Nothing here raises for bad
bytes and nothing decides about them: a batch that does not pass is left unverified, the walk ends there, and the
reader that comes by finds the fault, drops the blocks and reads them again (docs/protocol.md#l5).

The start is a hint, from the offset index, and may be wrong. A CRC covers neither base offset, length nor leader
epoch. So what a false start can find is a chain of bytes that are whole batches by their own account: within the
segment's bytes and offsets, ascending, each with the right CRC; as good as never, unless a record's value holds
batches. Such a run says no more than this: its bytes are as they were written, and its chain leads from its start to
its end. A reader comes to it only by its own chain from a position of its own, reads the header there, and checks the
order where it enters the run and where it leaves it. Any other bytes stay unverified.
"""

from storage.log.batch_walk import Frontier, SegmentWindow, verify_onward
from storage.log.block import Block
from storage.log.log_walk import CorruptLogError
from storage.model import RemoteLogSegmentMetadata


class ArrivalWalk:
    """The walk over one GET's blocks. Belongs to one thread at a time.

    Args:
        block_bytes: of the segment's blocks, see `BlockKey`.
        start_position: where a batch begins, at or behind the GET's first byte, as the index says; None: nothing is
            verified.
    """

    __slots__ = ("_block_bytes", "_frontier", "_window")

    def __init__(self, segment: RemoteLogSegmentMetadata, block_bytes: int, start_position: int | None) -> None:
        self._block_bytes = block_bytes
        # Blocks that hold the beginning of a batch that is not whole yet, at most.
        self._window = SegmentWindow(segment, block_bytes)
        self._frontier = None if start_position is None else Frontier(start_position, start_position)

    def feed(self, number: int, block: Block) -> None:
        """Check what is whole with this block, the next of the GET. Where one was left out, the walk ends.

        Args:
            number: the block's, see `BlockKey`.
        """
        frontier, window = self._frontier, self._window
        if frontier is None or frontier.position >= (number + 1) * self._block_bytes:
            return
        expected = frontier.position // self._block_bytes if window.is_empty else window.last_block + 1
        if number != expected:
            self._end()
            return
        window.add(number, [block])
        try:
            verify_onward(window, frontier, window.end)
        except CorruptLogError:
            # Not lost: the reader that comes here finds it, and decides.
            self._end()
        else:
            window.drop_before(frontier.position)

    def _end(self) -> None:
        self._frontier = None
        self._window = SegmentWindow(self._window.segment, self._block_bytes)
