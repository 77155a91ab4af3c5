"""Blocks that answers hold until they are sent, within `expert.tier.inflight.bytes.max` (docs/protocol.md#blocks).

An answer is views into blocks, so a slow client keeps whole blocks alive, also after the cache has dropped them. A
block is charged once, however many answers hold it. Room for a read's blocks is reserved before they are asked for: a
reader that waits here holds nothing yet.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

from storage.cache.byte_budget import ByteBudget
from storage.log.block import Block


class AnswerBlocks:
    """The account. Owned by the trio thread."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self._holders: defaultdict[int, int] = defaultdict(int)

    def room(self, owner: Hashable = None) -> "Room":
        """Nothing yet; see Room.

        Args:
            owner: for whom: owners take turns when there is no room.
        """
        return Room(self, owner)

    def hold(self, blocks: Sequence[Block]) -> int:
        """One more answer holds the blocks; the bytes to charge for them."""
        charged_bytes = 0
        for block in blocks:
            self._holders[block.serial] += 1
            if self._holders[block.serial] == 1:
                charged_bytes += len(block.data)
        return charged_bytes

    def let_go(self, blocks: Sequence[Block]) -> int:
        """One answer less; the bytes that are free again."""
        freed_bytes = 0
        for block in blocks:
            self._holders[block.serial] -= 1
            if not self._holders[block.serial]:
                del self._holders[block.serial]
                freed_bytes += len(block.data)
        return freed_bytes


class Room:
    """What one read has reserved, and then what its answer holds. `release` gives back all of it."""

    __slots__ = ("_account", "_budget", "_owner", "_reserved_bytes", "blocks", "is_waiting")

    def __init__(self, account: AnswerBlocks, owner: Hashable) -> None:
        self.is_waiting = False
        self._account = account
        self._budget = account.budget
        self._owner = owner
        self._reserved_bytes = 0
        self.blocks: Sequence[Block] = ()
        """Those that the answer holds."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that the answer holds, whether or not others hold them too."""
        return sum(len(block.data) for block in self.blocks)

    async def reserve(self, size_bytes: int) -> None:
        """Wait until so many bytes in all are reserved; less than before changes nothing."""
        size_bytes = self._budget.charged(size_bytes)
        if self.try_reserve(size_bytes):
            return
        # Nobody waits for room while holding some: two such readers would wait for each other.
        self._give_back_reserved()
        self.is_waiting = True
        try:
            await self._budget.acquire(size_bytes, self._owner)
        finally:
            self.is_waiting = False
        self._reserved_bytes = size_bytes

    def try_reserve(self, size_bytes: int) -> bool:
        """Reserve so many bytes in all, if there is room at once; otherwise nothing changes."""
        more_bytes = size_bytes - self._reserved_bytes
        if more_bytes > 0:
            if not self._budget.try_acquire(more_bytes):
                return False
            self._reserved_bytes = size_bytes
        return True

    def keep(self, blocks: Sequence[Block]) -> None:
        """The answer holds these blocks, which lie inside what was reserved; the rest is given back."""
        self.blocks = blocks
        # What another answer holds too is in its account already.
        self._reserved_bytes -= self._account.hold(blocks)
        self._give_back_reserved()

    def release(self) -> None:
        """The answer is sent, or was not made. Idempotent."""
        blocks, self.blocks = self.blocks, ()
        self._reserved_bytes += self._account.let_go(blocks)
        self._give_back_reserved()

    def _give_back_reserved(self) -> None:
        reserved_bytes, self._reserved_bytes = self._reserved_bytes, 0
        if reserved_bytes:
            self._budget.release(reserved_bytes)
