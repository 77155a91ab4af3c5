"""What is on disk and what that costs. No I/O: the owner deletes and writes files between two calls.

Rule 1. Blocks here + room held + leftovers never exceed `bytes_max` by a write, and what is on disk never exceeds
        that sum: a file that goes counts until it is deleted, a file that comes from before it is begun.
Rule 2. A key is in one state: absent, here, or busy (its file is being written or deleted). Nobody begins with a busy
        key, so that no delete hits a file that has just been rewritten.
Rule 3. A file that could not be deleted is a leftover: counted, and the first to go when room is needed next.
Rule 4. A block that nobody has used for `retention_s` is not here any more, even if its file has yet to go.
Rule 5. Which block goes for another is the policy's to say (`eviction`): what stays are runs of neighbouring blocks.
"""

import math
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

from storage.cache.block_file import FILE_COST_BYTES_MIN, DiskBlockKey
from storage.cache.eviction import ScanResistantPolicy, extent_blocks
from storage.model import Uuid


@dataclass(frozen=True, slots=True)
class Doomed:
    """A file to be deleted: a block's, or a leftover."""

    file: DiskBlockKey | Path
    cost_bytes: int


@dataclass(slots=True)
class Room:
    """What is held while files are deleted, and then written. `cost_bytes` is for the block to come, 0 if none.

    `evictions`: how many of the doomed are blocks that had to make room.
    """

    doomed: list[Doomed]
    key: DiskBlockKey | None = None
    cost_bytes: int = 0
    held_bytes: int = 0
    evictions: int = 0


@dataclass(slots=True, eq=False)
class DiskEntry:
    """A block that is here, for as long as this very file of it is. `stamped_at_s`: the file's time."""

    cost_bytes: int
    used_at_s: float
    stamped_at_s: float


class DiskIndex:
    """Thread-safe; no call takes long."""

    def __init__(self, bytes_max: int, retention_s: float | None) -> None:
        self.bytes_max = bytes_max
        self._retention_s = math.inf if retention_s is None else retention_s
        self._lock = threading.Lock()
        self._held_bytes = 0
        self._is_wanted: dict[DiskBlockKey, bool] = {}
        """Busy keys; False: dropped meanwhile, so the file that is being written is not to stay."""
        self.clear()

    @property
    def size_bytes(self) -> int:
        """Return what the disk is charged with now."""
        with self._lock:
            return self._policy.size_bytes + self._held_bytes + sum(self._leftovers.values())

    def holds(self, key: DiskBlockKey, now_s: float) -> bool:
        with self._lock:
            return self._here(key, now_s) is not None

    def find(self, segment_id: Uuid, number: int, now_s: float) -> DiskBlockKey | None:
        """The key of the block of that number, whatever its size."""
        with self._lock:
            keys = self._keys_of.get(segment_id, ())
            return next((key for key in keys if key.number == number and self._here(key, now_s)), None)

    def use(self, key: DiskBlockKey, reader: Hashable | None, now_s: float) -> DiskEntry | None:
        """Note that the block is read now; None if it is not here."""
        with self._lock:
            entry = self._here(key, now_s)
            if entry is not None:
                entry.used_at_s = now_s
                self._policy.touch(key, reader, now_s)
            return entry

    def reserve(self, key: DiskBlockKey, cost_bytes: int, now_s: float) -> Room | None:
        """Room for a block; None if the key is busy or here, or other writes hold what it would need.

        What is doomed for it must be deleted before the block is written; `settle` it then.
        """
        with self._lock:
            is_too_much = self._held_bytes + cost_bytes > self.bytes_max
            if is_too_much or key in self._is_wanted or self._here(key, now_s):
                return None
            if key in self.entries:
                self._leftovers[key] = self._remove(key)
            room = self._make_room(cost_bytes)
            room.key = key
            self._is_wanted[key] = True
            return room

    def shrink(self) -> Room:
        """Return what must go for the budget to hold: it may have been larger when the files were written."""
        with self._lock:
            return self._make_room(0)

    def settle(self, room: Room, undeleted: list[Doomed]) -> None:
        """The doomed are deleted. If some are not, the block cannot be written, and nothing is held for it any more."""
        with self._lock:
            for doomed in room.doomed:
                if isinstance(doomed.file, DiskBlockKey) and doomed.file != room.key:
                    del self._is_wanted[doomed.file]
            for doomed in undeleted:
                self._leftovers[doomed.file] = doomed.cost_bytes
            self._held_bytes -= room.held_bytes
            room.held_bytes = 0 if undeleted else room.cost_bytes
            self._held_bytes += room.held_bytes
            if undeleted:
                self._end(room)

    def publish(self, room: Room, key: DiskBlockKey, reader: Hashable | None, now_s: float) -> Room | None:
        """The block is on disk. If it was dropped meanwhile: what is to be deleted and settled again."""
        with self._lock:
            self._held_bytes -= room.held_bytes
            if self._is_wanted.pop(key):
                self._insert(key, room.cost_bytes, reader, now_s)
                return None
            return self._doom([Doomed(key, room.cost_bytes)])

    def release(self, room: Room, leftover: Path | None) -> None:
        """The block could not be written; `leftover` is what could not be deleted of it."""
        with self._lock:
            self._held_bytes -= room.held_bytes
            if leftover is not None:
                self._leftovers[leftover] = room.cost_bytes
            self._end(room)

    def take(self, keys: Iterable[DiskBlockKey]) -> Room:
        """Forget blocks: those that are here are to be deleted and settled, those being written will not stay."""
        with self._lock:
            return self._take(keys)

    def take_read(self, key: DiskBlockKey, entry: DiskEntry) -> Room:
        """Forget a block that could not be read, unless it was dropped, or even rewritten, while it was read."""
        with self._lock:
            return self._take([key] if self.entries.get(key) is entry else [])

    def take_segment(self, segment_id: Uuid) -> Room:
        with self._lock:
            writing = [key for key in self._is_wanted if key.segment_id == segment_id]
            return self._take([*self._keys_of.get(segment_id, ()), *writing])

    def has_segment(self, segment_id: Uuid) -> bool:
        """Return whether any block of the segment is here or busy."""
        with self._lock:
            return segment_id in self._keys_of or any(key.segment_id == segment_id for key in self._is_wanted)

    def take_idle(self, now_s: float) -> Room:
        """Forget the blocks that nobody has used for `retention_s`."""
        with self._lock:
            return self._take(self._policy.idle_since(now_s - self._retention_s))

    def segments(self) -> list[Uuid]:
        with self._lock:
            return list(self._keys_of)

    def is_idle(self, used_at_s: float, now_s: float) -> bool:
        """Return whether a block that was last used then has been left for too long."""
        return now_s - used_at_s > self._retention_s

    def add_listed(self, key: DiskBlockKey, cost_bytes: int, used_at_s: float) -> None:
        """A block that was found on disk, longest unused first."""
        with self._lock:
            if key not in self.entries and key not in self._is_wanted:
                self._insert(key, cost_bytes, None, used_at_s)

    def clear(self) -> None:
        """The folder is gone, or about to be listed again. What is being written goes on and is still held for."""
        with self._lock:
            self._policy: ScanResistantPolicy[DiskBlockKey] = ScanResistantPolicy()
            self.entries: dict[DiskBlockKey, DiskEntry] = {}
            self._keys_of: dict[Uuid, set[DiskBlockKey]] = {}
            self._leftovers: dict[DiskBlockKey | Path, int] = {}

    def _here(self, key: DiskBlockKey, now_s: float) -> DiskEntry | None:
        entry = self.entries.get(key)
        return None if entry is None or self.is_idle(entry.used_at_s, now_s) else entry

    def _make_room(self, cost_bytes: int) -> Room:
        leftovers = [Doomed(file, cost) for file, cost in self._leftovers.items()]
        self._leftovers = {}
        evicted = []
        while self._policy and self._policy.size_bytes + self._held_bytes + cost_bytes > self.bytes_max:
            key = self._policy.evict()
            evicted.append(Doomed(key, self._remove(key)))
        room = self._doom(leftovers + evicted, cost_bytes)
        room.evictions = len(evicted)
        return room

    def _take(self, keys: Iterable[DiskBlockKey]) -> Room:
        doomed = []
        for key in keys:
            if key in self._is_wanted:
                self._is_wanted[key] = False
            elif key in self.entries:
                doomed.append(Doomed(key, self._remove(key)))
        return self._doom(doomed)

    def _doom(self, doomed: list[Doomed], cost_bytes: int = 0) -> Room:
        for each in doomed:
            if isinstance(each.file, DiskBlockKey):
                self._is_wanted[each.file] = False
        # Whichever is more: what goes still is there, and what comes will be. Nobody else is given the difference.
        held_bytes = max(cost_bytes, sum(each.cost_bytes for each in doomed))
        self._held_bytes += held_bytes
        return Room(doomed, cost_bytes=cost_bytes, held_bytes=held_bytes)

    def _insert(self, key: DiskBlockKey, cost_bytes: int, reader: Hashable | None, now_s: float) -> None:
        blocks = extent_blocks(max(key.block_bytes, FILE_COST_BYTES_MIN), self.bytes_max)
        extent = (key.segment_id, key.block_bytes, key.number // blocks)
        self._policy.insert(key, cost_bytes, reader, now_s, extent=extent)
        self.entries[key] = DiskEntry(cost_bytes, now_s, now_s)
        self._keys_of.setdefault(key.segment_id, set()).add(key)

    def _remove(self, key: DiskBlockKey) -> int:
        self._policy.remove(key)
        keys = self._keys_of[key.segment_id]
        keys.discard(key)
        if not keys:
            del self._keys_of[key.segment_id]
        return self.entries.pop(key).cost_bytes

    def _end(self, room: Room) -> None:
        if room.key is not None:
            del self._is_wanted[room.key]
