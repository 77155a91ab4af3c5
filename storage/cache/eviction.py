"""Which block goes when room is needed; shared by memory and disk. Pure: no clock, no lock, the owner serialises.

After S3-FIFO (Yang et al., SOSP 2023), with three changes for blocks that consumers read through in sequence.

Rule 1. What is kept and what goes is decided by extents: neighbouring blocks of one segment, about 16 MiB of them. So
        what stays are long runs. A range that is cached in crumbs would cost more GETs than one that is not cached.
Rule 2. An extent enters a probationary queue. At that queue's head it leaves for good, unless it was reused: then it
        moves to the main queue. So a backfill, which uses each extent once, passes through probation alone.
Rule 3. An extent at the main queue's head goes round again once for each reuse since, at most USES_MAX times.
Rule 4. A use is a reader's entry into an extent, however many of its blocks it then uses. It is reuse if another reader
        entered before. A sequential consumer uses every block several times in a row, as its Fetches are not aligned
        with blocks; that says nothing about whether anyone will want them again.
Rule 5. The hash of an evicted extent is remembered (a ghost), for as many bytes as there are here. One that comes back
        for another reader goes straight to the main queue: the other consumer is that far behind.
Rule 6. Probation is given a tenth of the bytes, or all that the main queue does not use. A ghost that comes back for
        its own last reader was taken away while it was being read: there are more readers than probation holds, so it
        is given room for that too, up to half of all. A ghost of the main queue that comes back takes that back.
Rule 7. No more goes than is needed: the extent whose turn it is gives up its blocks one by one, the oldest first, and
        no other extent gives any up before it is empty. A block of it that is used meanwhile stays, in a new extent.
Rule 8. If its last reader is still in an extent, the newest block stays when the others go, as if it had come only
        now: the reader's next Fetch begins there. So there may be as many readers as probation has blocks.
Rule 9. An extent that a reader is on its way to goes last in its queue, and a block of the one that is going stays: a
        scan of more than fits would otherwise drop, block by block, just what it is about to read.
"""

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from storage.bounded_map import BoundedMap

EXTENT_BYTES = 16 * 1024 * 1024
"""About one large GET: a hole of this size in what is cached costs no more GETs than the same bytes in a cold range."""

EXTENTS_MIN = 16
"""A cache smaller than so many extents has smaller ones, down to a block, so that there is a choice of what goes."""

USES_MAX = 3
"""What the paper found enough: two bits. More would let what was once popular stay for too long."""

_PROBATION_DIVISOR = 10
_PROBATION_DIVISOR_MIN = 2
"""Half is left to the main queue however many backfills there are."""

_READERS_MAX = 1024
"""The places of this many readers are known. One that is forgotten enters its extent once more."""

K = TypeVar("K", bound=Hashable)


def extent_blocks(block_bytes: int, cache_bytes_max: int) -> int:
    """Return how many neighbouring blocks of this size make an extent in a cache of that size."""
    return max(1, min(EXTENT_BYTES, cache_bytes_max // EXTENTS_MIN) // max(1, block_bytes))


class ScanResistantPolicy(Generic[K]):
    """Blocks with their sizes, in the order in which they should go. Every method is O(1), amortised.

    A `reader` is anything hashable that tells one sequence of reads from another; only its hash is kept, so that one
    that has gone is not held. None says that the reader is unknown: such a touch always is reuse.
    `now_s` is a time of the owner's that does not run backwards; without one, `idle_since` has no meaning.
    """

    def __init__(self) -> None:
        self.blocks: OrderedDict[K, _Block[K]] = OrderedDict()
        """By last use."""
        self.extents: dict[Hashable, _Extent[K]] = {}
        """Those in the two queues."""
        self.probation: OrderedDict[Hashable, _Extent[K]] = OrderedDict()
        self.main: OrderedDict[Hashable, _Extent[K]] = OrderedDict()
        self.going: _Extent[K] | None = None
        """The extent that gives up its blocks; in neither queue."""
        self._entered: BoundedMap[int, _Extent[K]] = BoundedMap(_READERS_MAX)
        """By a reader's hash: the extent that it entered last."""
        self.ghosts: OrderedDict[int, _Ghost] = OrderedDict()
        self.ghost_bytes = 0
        self.size_bytes = 0
        self.probation_bytes = 0
        self._probation_bytes_wanted = 0

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.blocks)

    def __contains__(self, key: K) -> bool:
        return key in self.blocks

    def insert(
        self, key: K, size_bytes: int, reader: Hashable = None, now_s: float = 0.0, *, extent: Hashable = None
    ) -> None:
        """Take in a block that is not here. `reader` has used it once by this; None: nobody has yet.

        `extent` is the same for all blocks of an extent; None: the block is one by itself.
        """
        assert key not in self.blocks, "an owner removes a block before it inserts it again"
        assert size_bytes >= 0, "a size is no less than nothing"
        name = key if extent is None else extent
        reader_hash = _hash_of(reader)
        holder = self.extents.get(name)
        if holder is None:
            holder = self._begin(name, reader_hash, is_main=self._returned(name, reader_hash))
        if reader_hash is not None:
            self._enter(holder, reader_hash)
        block = self.blocks[key] = _Block(holder, size_bytes, now_s)
        self.size_bytes += size_bytes
        self._join(key, block)

    def touch(self, key: K, reader: Hashable = None, now_s: float = 0.0) -> None:
        """Say that the block was used.

        Raises:
            KeyError: it is not here.
        """
        block = self.blocks[key]
        if block.extent is self.going:
            self._take(key)
            self.insert(key, block.size_bytes, reader, now_s, extent=block.extent.name)
            return
        self.blocks.move_to_end(key)
        block.used_at_s = now_s
        if reader is None:
            block.extent.uses = min(block.extent.uses + 1, USES_MAX)
        else:
            self._enter(block.extent, hash(reader))

    def expect(self, key: K) -> None:
        """Say that a reader is on its way to the block (rule 9).

        Raises:
            KeyError: it is not here.
        """
        extent = self.blocks[key].extent
        if extent is self.going:
            self._keep(extent, key)
        else:
            (self.main if extent.is_main else self.probation).move_to_end(extent.name)

    def remove(self, key: K) -> None:
        """Forget a block, if it is here, and leave no ghost: it is gone for another reason than want of room."""
        if key in self.blocks:
            self._take(key)

    def evict(self) -> K:
        """Take out the block that should go next.

        Raises:
            KeyError: there is none.
        """
        if self.going is None or not self.going.keys:
            self.going = self._next_to_go()
        key = next(iter(self.going.keys))
        self._take(key)
        return key

    def idle_since(self, before_s: float) -> list[K]:
        """Blocks whose last use was before this time, longest idle first. They stay until removed."""
        return list(itertools.takewhile(lambda key: self.blocks[key].used_at_s < before_s, self.blocks))

    def _begin(self, name: Hashable, reader_hash: int | None, *, is_main: bool) -> "_Extent[K]":
        extent: _Extent[K] = _Extent(name, reader_hash, is_main=is_main)
        self.extents[name] = (self.main if extent.is_main else self.probation)[name] = extent
        return extent

    def _enter(self, extent: "_Extent[K]", reader_hash: int) -> None:
        if self._entered.get(reader_hash) is extent:
            return
        self._entered[reader_hash] = extent
        if _is_reuse(extent.reader_hash, reader_hash):
            extent.uses = min(extent.uses + 1, USES_MAX)
        extent.reader_hash = reader_hash

    def _next_to_go(self) -> "_Extent[K]":
        # Ends because every turn but the last uses up a use that some touch has paid for.
        while True:
            from_main = bool(self.main) and self.probation_bytes <= self._probation_bytes_limit()
            name, extent = (self.main if from_main else self.probation).popitem(last=False)
            if not from_main:
                self.probation_bytes -= extent.size_bytes
            if extent.uses == 0:
                break
            extent.uses = extent.uses - 1 if from_main else 0
            extent.is_main = True
            self.main[name] = extent
        del self.extents[name]
        if len(extent.keys) > 1 and self._is_being_read(extent):
            self._keep(extent, next(reversed(extent.keys)))
        else:
            self._remember(extent, is_of_main=from_main)
        return extent

    def _is_being_read(self, extent: "_Extent[K]") -> bool:
        return extent.reader_hash is not None and self._entered.get(extent.reader_hash) is extent

    def _keep(self, going: "_Extent[K]", key: K) -> None:
        """Let one of its blocks stay, as if it had come only now."""
        block = self.blocks[key]
        del going.keys[key]
        going.size_bytes -= block.size_bytes
        kept = self.extents.get(going.name)
        block.extent = self._begin(going.name, going.reader_hash, is_main=False) if kept is None else kept
        self._join(key, block)

    def _join(self, key: K, block: "_Block[K]") -> None:
        extent = block.extent
        extent.keys[key] = None
        extent.size_bytes += block.size_bytes
        if not extent.is_main:
            self.probation_bytes += block.size_bytes

    def _take(self, key: K) -> None:
        block = self.blocks.pop(key)
        extent = block.extent
        self.size_bytes -= block.size_bytes
        del extent.keys[key]
        extent.size_bytes -= block.size_bytes
        if extent is self.going:
            return
        if not extent.is_main:
            self.probation_bytes -= block.size_bytes
        if not extent.keys:
            del self.extents[extent.name]
            del (self.main if extent.is_main else self.probation)[extent.name]

    def _probation_bytes_limit(self) -> int:
        least = self.size_bytes // _PROBATION_DIVISOR
        return max(least, min(self._probation_bytes_wanted, self.size_bytes // _PROBATION_DIVISOR_MIN))

    def _returned(self, name: Hashable, reader_hash: int | None) -> bool:
        """Return whether the extent was evicted a short while ago and belongs in the main queue (rules 5 and 6)."""
        ghost = self._forget_ghost(hash(name))
        if ghost is None:
            return False
        if ghost.is_of_main:
            self._probation_bytes_wanted = self._probation_bytes_limit() - ghost.size_bytes
            return True
        if _is_reuse(ghost.reader_hash, reader_hash):
            return True
        self._probation_bytes_wanted = self._probation_bytes_limit() + ghost.size_bytes
        return False

    def _remember(self, extent: "_Extent[K]", *, is_of_main: bool) -> None:
        self._forget_ghost(hash(extent.name))
        self.ghosts[hash(extent.name)] = _Ghost(extent.reader_hash, is_of_main, extent.size_bytes)
        self.ghost_bytes += extent.size_bytes
        while self.ghost_bytes > max(self.size_bytes, extent.size_bytes) or len(self.ghosts) > len(self):
            self._forget_ghost(next(iter(self.ghosts)))

    def _forget_ghost(self, name_hash: int) -> "_Ghost | None":
        ghost = self.ghosts.pop(name_hash, None)
        if ghost is not None:
            self.ghost_bytes -= ghost.size_bytes
        return ghost


class _Extent(Generic[K]):
    """Neighbouring blocks that are here. `uses`: reuses not yet spent on staying.

    `keys`: in the order in which they came. `reader_hash`: of the reader that entered it last.
    """

    __slots__ = ("is_main", "keys", "name", "reader_hash", "size_bytes", "uses")

    def __init__(self, name: Hashable, reader_hash: int | None, *, is_main: bool) -> None:
        self.name = name
        self.reader_hash = reader_hash
        self.is_main = is_main
        self.keys: dict[K, None] = {}
        self.size_bytes = 0
        self.uses = 0


class _Block(Generic[K]):
    """A block that is here."""

    __slots__ = ("extent", "size_bytes", "used_at_s")

    def __init__(self, extent: _Extent[K], size_bytes: int, used_at_s: float) -> None:
        self.extent = extent
        self.size_bytes = size_bytes
        self.used_at_s = used_at_s


class _Ghost(NamedTuple):
    """An extent that was evicted: its last known reader, whether it had made it to the main queue, and its size."""

    reader_hash: int | None
    is_of_main: bool
    size_bytes: int


def _hash_of(reader: Hashable) -> int | None:
    return None if reader is None else hash(reader)


def _is_reuse(last_reader_hash: int | None, reader_hash: int | None) -> bool:
    # The first known reader of a key that came in for nobody in particular may well be the one it was fetched for.
    return reader_hash is None or (last_reader_hash is not None and last_reader_hash != reader_hash)
