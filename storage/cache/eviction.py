"""Which block goes when room is needed; shared by memory and disk. Pure: no clock, no lock, the owner serialises.

After S3-FIFO (Yang et al., SOSP 2023), with two changes for blocks that consumers read through in sequence.

Rule 1. A key enters a probationary queue. At that queue's head it leaves for good, unless it was reused: then it
        moves to the main queue. So a backfill, which uses each block once, passes through probation alone.
Rule 2. A key at the main queue's head goes round again once for each reuse since, at most USES_MAX times.
Rule 3. Reuse is use by another reader than the last. A sequential consumer uses a block several times in a row, as its
        Fetches are not aligned with blocks; that says nothing about whether anyone will want the block again.
Rule 4. Of an evicted key its hash is remembered (a ghost), at most as many as there are keys. One that comes back for
        another reader goes straight to the main queue: the other consumer is that far behind.
Rule 5. Probation is given a tenth of the bytes, or all that the main queue does not use. A ghost that comes back for
        its own last reader was taken away while it was being read: there are more readers than probation holds, so it
        is given one such block more, up to half of all. A ghost of the main queue that comes back takes that back.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

USES_MAX = 3
"""What the paper found enough: two bits. More would let what was once popular stay for too long."""

_PROBATION_DIVISOR = 10
_PROBATION_DIVISOR_MIN = 2
"""Half is left to the main queue however many backfills there are."""

K = TypeVar("K", bound=Hashable)


class ScanResistantPolicy(Generic[K]):
    """Keys with their sizes, in the order in which they should go. Every method is O(1), amortised.

    A `reader` is anything hashable that tells one sequence of reads from another; only its hash is kept, so that one
    that has gone is not held. None says that the reader is unknown: such a touch always is reuse.
    `now_s` is a time of the owner's that does not run backwards; without one, `idle_since` has no meaning.
    """

    def __init__(self) -> None:
        self._by_last_use: OrderedDict[K, _Entry] = OrderedDict()
        self._probation: OrderedDict[K, _Entry] = OrderedDict()
        self._main: OrderedDict[K, _Entry] = OrderedDict()
        self._ghosts: OrderedDict[int, _Ghost] = OrderedDict()
        self._size_bytes = 0
        self._probation_bytes = 0
        self._probation_bytes_wanted = 0

    def __len__(self) -> int:
        return len(self._by_last_use)

    def __contains__(self, key: K) -> bool:
        return key in self._by_last_use

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def insert(self, key: K, size_bytes: int, reader: Hashable = None, now_s: float = 0.0) -> None:
        """Take in a key that is not here. Whoever `reader` is has used it once by this; None: nobody has yet."""
        assert key not in self._by_last_use, "an owner removes a key before it inserts it anew"
        assert size_bytes >= 0, "a size is no less than nothing"
        reader_hash = _hash_of(reader)
        entry = _Entry(size_bytes, reader_hash, now_s)
        is_reused = self._returned(key, size_bytes, reader_hash)
        self._by_last_use[key] = entry
        self._size_bytes += size_bytes
        if is_reused:
            self._main[key] = entry
        else:
            self._probation[key] = entry
            self._probation_bytes += size_bytes

    def touch(self, key: K, reader: Hashable = None, now_s: float = 0.0) -> None:
        """Say that the key was used.

        Raises:
            KeyError: it is not here.
        """
        entry = self._by_last_use[key]
        self._by_last_use.move_to_end(key)
        entry.used_at_s = now_s
        reader_hash = _hash_of(reader)
        if _is_reuse(entry.reader_hash, reader_hash):
            entry.uses = min(entry.uses + 1, USES_MAX)
        if reader_hash is not None:
            entry.reader_hash = reader_hash

    def remove(self, key: K) -> None:
        """Forget a key, if it is here, and leave no ghost: it is gone for another reason than want of room."""
        entry = self._by_last_use.pop(key, None)
        if entry is None:
            return
        self._size_bytes -= entry.size_bytes
        if self._probation.pop(key, None) is not None:
            self._probation_bytes -= entry.size_bytes
        else:
            del self._main[key]

    def evict(self) -> K:
        """Take out the key that should go next.

        Raises:
            KeyError: there is none.
        """
        # Ends because every turn but the last uses up a use that some touch has paid for.
        while True:
            from_main = bool(self._main) and self._probation_bytes <= self._probation_bytes_limit()
            key, entry = (self._main if from_main else self._probation).popitem(last=False)
            if not from_main:
                self._probation_bytes -= entry.size_bytes
            if entry.uses == 0:
                break
            entry.uses = entry.uses - 1 if from_main else 0
            self._main[key] = entry
        del self._by_last_use[key]
        self._size_bytes -= entry.size_bytes
        self._remember(key, _Ghost(entry.reader_hash, from_main))
        return key

    def idle_since(self, before_s: float) -> list[K]:
        """Keys whose last use was before this time, longest idle first. They stay until removed."""
        idle = []
        for key, entry in self._by_last_use.items():
            if entry.used_at_s >= before_s:
                break
            idle.append(key)
        return idle

    def _probation_bytes_limit(self) -> int:
        least = self._size_bytes // _PROBATION_DIVISOR
        return max(least, min(self._probation_bytes_wanted, self._size_bytes // _PROBATION_DIVISOR_MIN))

    def _returned(self, key: K, size_bytes: int, reader_hash: int | None) -> bool:
        """Whether the key was evicted a short while ago and belongs in the main queue (rules 4 and 5)."""
        ghost = self._ghosts.pop(hash(key), None)
        if ghost is None:
            return False
        if ghost.is_of_main:
            self._probation_bytes_wanted = self._probation_bytes_limit() - size_bytes
            return True
        if _is_reuse(ghost.reader_hash, reader_hash):
            return True
        self._probation_bytes_wanted = self._probation_bytes_limit() + size_bytes
        return False

    def _remember(self, key: K, ghost: "_Ghost") -> None:
        self._ghosts[hash(key)] = ghost
        while len(self._ghosts) > max(len(self), 1):
            self._ghosts.popitem(last=False)


class _Entry:
    """A key that is here. `uses`: reuses not yet spent on staying."""

    __slots__ = ("reader_hash", "size_bytes", "used_at_s", "uses")

    def __init__(self, size_bytes: int, reader_hash: int | None, used_at_s: float) -> None:
        self.size_bytes = size_bytes
        self.reader_hash = reader_hash
        self.used_at_s = used_at_s
        self.uses = 0


class _Ghost(NamedTuple):
    """A key that was evicted: its last known reader, and whether it had made it to the main queue."""

    reader_hash: int | None
    is_of_main: bool


def _hash_of(reader: Hashable) -> int | None:
    return None if reader is None else hash(reader)


def _is_reuse(last_reader_hash: int | None, reader_hash: int | None) -> bool:
    # The first known reader of a key that came in for nobody in particular may well be the one it was fetched for.
    return reader_hash is None or (last_reader_hash is not None and last_reader_hash != reader_hash)
