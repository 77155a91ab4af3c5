"""The bytes of a catalog snapshot: numbers, byte strings and arrays, one after another, in bounded memory.

- Everything is little-endian. A byte string or an array is its length (8 bytes, in bytes or items) and its content.
- The writer copies a piece at a time, so that nothing it writes is pinned: the catalog may grow meanwhile (which
  `keep_on` then notices). It keeps a CRC-32C of all that was written.
- The reader looks at every length before it makes room for it: nothing is larger than what is left of the file.

Also the errors that say why a snapshot is not used. Synchronous; one thread at a time.
"""

import struct
import sys
from array import array
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

from crc32c import crc32c

from storage.errors import RemoteStorageError

PIECE_BYTES = 256 * 1024
"""What is copied, checked and written in one go: 0.1 ms of the interpreter's lock."""

IntTypecode = Literal["b", "i", "q"]

_LENGTH = struct.Struct("<Q")
_IS_BIG_ENDIAN = sys.byteorder == "big"


class SnapshotError(RemoteStorageError):
    """A snapshot that is there and must not be used; the message is a sentence for an operator."""


class UnreadableSnapshotError(SnapshotError):
    """Cut short, damaged, no snapshot at all, or of a format newer than this version's."""


class OlderSnapshotError(SnapshotError):
    """The snapshot has a format that this version no longer reads."""


class ForeignSnapshotError(SnapshotError):
    """The snapshot is from another cluster, metadata topic, partition count or catalog limit."""


class SnapshotOutOfRangeError(SnapshotError):
    """It goes on at an offset that the metadata topic's log does not hold."""


class SnapshotWriter:
    """Writes through `file`.

    Args:
        keep_on: called before each piece; what it raises ends the writing.
    """

    def __init__(self, file: BinaryIO, keep_on: Callable[[], None]) -> None:
        self.size_bytes = 0
        self._file = file
        self._keep_on = keep_on
        self._pending = bytearray()
        self._checksum = 0

    def put_numbers(self, packing: struct.Struct, *numbers: int | bytes) -> None:
        """Numbers and byte strings of a known layout."""
        self._put(packing.pack(*numbers))

    def put_bytes(self, content: bytes | bytearray) -> None:
        """A byte string of any length."""
        self._put(_LENGTH.pack(len(content)))
        for start in range(0, len(content), PIECE_BYTES):
            self._put(content[start : start + PIECE_BYTES])

    def put_array(self, values: "array[int]") -> None:
        """An array; the reader must know its typecode."""
        self._put(_LENGTH.pack(len(values)))
        step = PIECE_BYTES // values.itemsize
        for start in range(0, len(values), step):
            piece = values[start : start + step]
            if _IS_BIG_ENDIAN:
                piece.byteswap()
            self._put(piece.tobytes())

    def finish(self) -> int:
        """Write what is left and the CRC-32C of everything before it; the file's size."""
        self._flush()
        self._pending += struct.pack("<I", self._checksum)
        self._flush()
        self._file.flush()
        return self.size_bytes

    def _put(self, piece: bytes | bytearray) -> None:
        self._pending += piece
        if len(self._pending) >= PIECE_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._keep_on()
        self._checksum = crc32c(bytes(self._pending), self._checksum)
        self._file.write(self._pending)
        self.size_bytes += len(self._pending)
        self._pending = bytearray()


class SnapshotReader:
    """Reads `left_bytes` bytes of `file`, from where it stands.

    Every method raises UnreadableSnapshotError for lengths beyond that.
    """

    def __init__(self, file: BinaryIO, left_bytes: int) -> None:
        self._file = file
        self._left_bytes = left_bytes

    def take_numbers(self, packing: struct.Struct) -> tuple[Any, ...]:
        """Return what `put_numbers` put with this layout."""
        return packing.unpack(self._take(packing.size))

    def take_bytes(self) -> bytes:
        """Return what `put_bytes` put."""
        return self._take(self._length(1))

    def take_buffer(self) -> bytearray:
        """Return what `put_bytes` put, to be changed."""
        content = bytearray(self._length(1))
        self._fill(memoryview(content))
        return content

    def take_array(self, typecode: IntTypecode) -> "array[int]":
        """Return what `put_array` put, exactly as large as it must be."""
        values = array(typecode)
        length = self._length(values.itemsize)
        if length * values.itemsize <= PIECE_BYTES:
            values.frombytes(self._take(length * values.itemsize))
        else:
            values = array(typecode, [0]) * length
            with memoryview(values) as items, items.cast("B") as content:
                self._fill(content)
        if _IS_BIG_ENDIAN:
            values.byteswap()
        return values

    def finish(self) -> None:
        """Everything must have been read."""
        if self._left_bytes:
            raise UnreadableSnapshotError(f"{self._left_bytes} bytes too many")

    def _length(self, item_bytes: int) -> int:
        length = int(self.take_numbers(_LENGTH)[0])
        if length * item_bytes > self._left_bytes:
            raise UnreadableSnapshotError(
                f"{length} items of {item_bytes} bytes, but {self._left_bytes} bytes are left"
            )
        return length

    def _take(self, size_bytes: int) -> bytes:
        if size_bytes > self._left_bytes:
            raise UnreadableSnapshotError(f"cut short: {size_bytes} bytes expected, {self._left_bytes} are left")
        content = self._file.read(size_bytes)
        self._count(len(content), size_bytes)
        return content

    def _fill(self, content: memoryview) -> None:
        self._count(self._file.readinto(content), len(content))  # type: ignore[attr-defined]  # typeshed: BinaryIO

    def _count(self, read_bytes: int, expected_bytes: int) -> None:
        if read_bytes != expected_bytes:
            raise UnreadableSnapshotError(f"cut short: {expected_bytes} bytes expected, {read_bytes} read")
        self._left_bytes -= read_bytes


def checksum_of(file: BinaryIO, size_bytes: int) -> int:
    """The CRC-32C of the next size_bytes bytes; fewer, if the file ends before."""
    checksum = 0
    while size_bytes > 0 and (piece := file.read(min(size_bytes, PIECE_BYTES))):
        checksum = crc32c(piece, checksum)
        size_bytes -= len(piece)
    return checksum
