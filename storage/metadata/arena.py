"""Short byte strings of many lengths in one bytearray.

A string takes its length rounded up to 16. Freed room is kept by size and given to the next string of that size, so
nothing is ever moved: the metadata of one cluster has few different lengths, and a compaction of a large catalog
would stall the loop. The arena does not shrink; its size is bounded by the most that was ever held of each size.
"""

from array import array

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


def _room(length_bytes: int) -> int:
    return (length_bytes + _STEP_BYTES - 1) // _STEP_BYTES * _STEP_BYTES
