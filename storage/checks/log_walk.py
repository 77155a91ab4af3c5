"""Walking a segment's log from batch to batch, with every CRC, and on past what is corrupt.

Memory: one piece of the log (storage/checks/log_pieces.py) whatever the batches' sizes: a CRC needs no whole batch.

Rules:
1. A CRC covers neither a batch's base offset nor its length. A batch with a wrong CRC is passed over by its length; if
   no batch that fits follows there, the length itself is in doubt, and that is no second fault.
2. Where a length is in doubt, or bytes are no batch, or cannot be read, the walk goes on at the next position that the
   offset index names and that a fitting batch begins at. What lies between is told of as skipped.
3. FAULTS_MAX faults end a walk.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from zlib import crc32

from crc32c import crc32c

from protocol.record_batches import CRC_START, HEADER_BYTES, BatchHeader, CorruptBatchError, read_header
from storage.checks.log_pieces import LogPieces, UnreadablePieceError
from storage.model import RemoteLogSegmentMetadata

FAULTS_MAX = 1000

_LEGACY_CRC_START = 16
_MARKER_HEAD_BYTES = 64
"""Of a control batch's only record: five numbers of a few bytes each and a key of four bytes come first."""


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """A batch whose header makes sense. `is_abort`: of a transaction marker, else None."""

    position: int
    header: BatchHeader
    is_valid: bool
    is_abort: bool | None = None

    @property
    def end_position(self) -> int:
        return self.position + self.header.size_bytes


@dataclass(frozen=True, slots=True)
class SkippedBytes:
    """Bytes from `position` on that are no batch, up to `end_position`, where the next event begins.

    `fault`: what is wrong there; None when the fault before tells it. `is_format`: it is the object's, not the batch's.
    """

    position: int
    end_position: int
    fault: str | None
    is_format: bool = False


class LogWalk:
    """One walk over one segment.

    Args:
        resume_positions: where batches begin, as far as the offset index is to be believed; ascending.
    """

    def __init__(
        self, pieces: LogPieces, segment: RemoteLogSegmentMetadata, resume_positions: Sequence[int] = ()
    ) -> None:
        self._pieces = pieces
        self._segment = segment
        self._resume_positions = resume_positions
        self._size_bytes = pieces.size_bytes

    def events(self) -> Iterator[WalkedBatch | SkippedBytes]:
        """Every batch in order, and what could not be walked.

        Raises:
            RemoteStorageError: the store's trouble did not pass.
        """
        position, faults, doubted = 0, 0, False
        with closing(self._pieces):
            while position < self._size_bytes and faults < FAULTS_MAX:
                found = self._batch_at(position)
                if doubted and not (isinstance(found, WalkedBatch) and self._fits(found)):
                    found = SkippedBytes(position, position, None)
                if isinstance(found, SkippedBytes):
                    faults += found.fault is not None
                    end = self._resume_after(max(found.position, found.end_position - 1))
                    yield SkippedBytes(found.position, end, found.fault, found.is_format)
                    position, doubted = end, False
                    continue
                faults += not found.is_valid
                doubted = not found.is_valid
                yield found
                position = found.end_position

    def _batch_at(self, position: int) -> WalkedBatch | SkippedBytes:
        try:
            head = self._bytes_at(position, HEADER_BYTES)
            try:
                header = read_header(head, 0)
            except CorruptBatchError as error:
                return SkippedBytes(position, position + 1, str(error).replace("at 0", f"at {position}"))
            if position + header.size_bytes > self._size_bytes:
                return SkippedBytes(
                    position, position + 1, f"its {header.size_bytes} bytes reach beyond the log's {self._size_bytes}"
                )
            is_valid, body = self._checked(position, header, head)
        except UnreadablePieceError as error:
            return SkippedBytes(position, error.resume_position, str(error), is_format=True)
        return WalkedBatch(position, header, is_valid, _is_abort(header, body) if is_valid else None)

    def _bytes_at(self, position: int, size_bytes: int) -> bytes:
        """Up to so many bytes; fewer at the log's end."""
        joined = bytearray()
        end = min(position + size_bytes, self._size_bytes)
        while position + len(joined) < end:
            at = position + len(joined)
            joined += self._pieces.at(at)[: end - at]
        return bytes(joined)

    def _checked(self, position: int, header: BatchHeader, head: bytes) -> tuple[bool, bytes]:
        """Whether the CRC is right, and the first bytes after a v2 header."""
        end = position + header.size_bytes
        is_legacy = header.magic < 2
        head = head[: header.size_bytes]
        checksum = crc32(head[_LEGACY_CRC_START:]) if is_legacy else crc32c(head[CRC_START:])
        position += len(head)
        body = b""
        while position < end:
            piece = self._pieces.at(position)[: end - position]
            if len(body) < _MARKER_HEAD_BYTES:
                body += bytes(piece[: _MARKER_HEAD_BYTES - len(body)])
            checksum = crc32(piece, checksum) if is_legacy else crc32c(piece, checksum)
            position += len(piece)
        return checksum == header.crc, body

    def _fits(self, batch: WalkedBatch) -> bool:
        """Whether this can be a batch of the segment: its CRC says so, or its offsets are possible ones."""
        header = batch.header
        return batch.is_valid or (
            header.magic == 2
            and self._segment.start_offset <= header.base_offset <= header.last_offset <= self._segment.end_offset
        )

    def _resume_after(self, position: int) -> int:
        """The next position to go on at; the log's end if there is none."""
        number = bisect_right(self._resume_positions, position)
        while number < len(self._resume_positions):
            candidate = self._resume_positions[number]
            if candidate >= self._size_bytes:
                break
            found = self._batch_at(candidate)
            if isinstance(found, WalkedBatch) and self._fits(found):
                return candidate
            if isinstance(found, SkippedBytes) and found.is_format:
                # Unreadable in its own right: a fault of its own, told of when the walk comes there.
                return candidate
            number += 1
        return self._size_bytes


def _is_abort(header: BatchHeader, body: bytes) -> bool | None:
    """Of a control batch whether it is an ABORT marker, None for any other batch (KIP-98: key is version, type)."""
    if not (header.is_control and header.is_transactional):
        return None
    position = 0
    for skipped in (0, 1, 0, 0):  # length, attributes and timestamp delta, offset delta, key length
        position += skipped
        while position < len(body) and body[position] & 0x80:
            position += 1
        position += 1
    kind = int.from_bytes(body[position + 2 : position + 4], "big") if position + 4 <= len(body) else -1
    return None if kind not in (0, 1) else kind == 0
