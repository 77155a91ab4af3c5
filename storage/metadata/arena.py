"""Short byte strings of many lengths in one bytearray.

A string takes its length rounded up to 16. Freed room is kept by size and given to the next string of that size, so
nothing is ever moved: the metadata of one cluster has few different lengths, and a compaction of a large catalog
would stall the loop. The arena does not shrink; its size is bounded by the most that was ever held of each size.
"""

import struct
import sys
from array import array
from typing import Self

from storage.metadata.snapshot_stream import SnapshotReader, SnapshotWriter, UnreadableSnapshotError

_COUNT = struct.Struct("<q")
_STEP_BYTES = 16


class Arena:
    """Not thread-safe; the catalog's lock guards it."""

    __slots__ = ("_content", "_free")

    def __init__(self) -> None:
        self._content = bytearray()
        self._free: dict[int, array[int]] = {}

    def put(self, blob: bytes) -> int:
        """Keep a string; its position."""
        size_bytes = _room(len(blob))
        free = self._free.get(size_bytes)
        if free:
            position = free.pop()
            self._content[position : position + len(blob)] = blob
        else:
            position = len(self._content)
            self._content += blob.ljust(size_bytes, b"\0")
        return position

    def get(self, position: int, length_bytes: int) -> bytes:
        """A copy of the first length_bytes of the string at position."""
        return bytes(self._content[position : position + length_bytes])

    def release(self, position: int, length_bytes: int) -> None:
        """Give back the room of a string of this length."""
        size_bytes = _room(length_bytes)
        if size_bytes:
            self._free.setdefault(size_bytes, array("q")).append(position)

    @property
    def size_bytes(self) -> int:
        """The end of the last string's room."""
        return len(self._content)

    @property
    def memory_bytes(self) -> int:
        return sys.getsizeof(self._content) + sum(map(sys.getsizeof, self._free.values()))

    def write_to(self, writer: SnapshotWriter) -> None:
        writer.put_bytes(self._content)
        writer.put_numbers(_COUNT, len(self._free))
        for size_bytes, positions in self._free.items():
            writer.put_numbers(_COUNT, size_bytes)
            writer.put_array(positions)

    @classmethod
    def read_from(cls, reader: SnapshotReader) -> Self:
        """What `write_to` wrote.

        Raises:
            UnreadableSnapshotError: lengths or free positions that no arena has.
        """
        arena = cls()
        arena._content = reader.take_buffer()
        for _ in range(reader.take_numbers(_COUNT)[0]):
            size_bytes = reader.take_numbers(_COUNT)[0]
            positions = arena._free[size_bytes] = reader.take_array("q")
            if size_bytes < 1 or (positions and (min(positions) < 0 or max(positions) + size_bytes > arena.size_bytes)):
                raise UnreadableSnapshotError("free room outside of the arena")
        return arena


def _room(length_bytes: int) -> int:
    return (length_bytes + _STEP_BYTES - 1) // _STEP_BYTES * _STEP_BYTES
