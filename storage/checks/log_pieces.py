"""A segment's log, piece by piece, for one pass from its start to its end. One thread.

GETs are of about RANGE_BYTES. A piece is one chunk of the format, so that one that cannot be decoded costs no other; of
formats without chunks, and of chunks above PIECE_BYTES_MAX, it is PIECE_BYTES. No more than one piece is kept.
"""

from storage.errors import CorruptObjectError, RemoteStorageError
from storage.object_store.retries import PATIENT_ATTEMPTS_MAX, Wait, call_with_retries, wait_in_thread
from storage.remote_storage_manager import OpenedSegment, SegmentStream

RANGE_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
PIECE_BYTES_MAX = 4 * 1024 * 1024


class UnreadablePieceError(Exception):
    """A piece cannot be read, for good. `position`: where it begins. `resume_position`: what follows it."""

    def __init__(self, message: str, position: int, resume_position: int) -> None:
        super().__init__(message)
        self.position = position
        self.resume_position = resume_position


class LogPieces:
    """`size_bytes`: of the log. Close it."""

    def __init__(self, opened: OpenedSegment, size_bytes: int, wait: Wait = wait_in_thread) -> None:
        self.size_bytes = size_bytes
        self._opened = opened
        self._wait = wait
        chunk_bytes = opened.chunk_bytes
        self._chunk_bytes = chunk_bytes
        self._piece_bytes = chunk_bytes if 1 < chunk_bytes <= PIECE_BYTES_MAX else PIECE_BYTES
        self._range_bytes = max(1, RANGE_BYTES // self._piece_bytes) * self._piece_bytes
        self._stream: SegmentStream | None = None
        self._stream_position = 0
        self._stream_end = 0
        self._piece = memoryview(b"")
        self._piece_position = 0

    def at(self, position: int) -> memoryview:
        """The bytes from `position`, which is inside the log, to the end of their piece.

        Raises:
            UnreadablePieceError: they are corrupt, or the object ends before them.
            RemoteStorageError: as the store answers.
        """
        if not self._piece_position <= position < self._piece_position + len(self._piece):
            self._load(position - position % self._piece_bytes)
        return self._piece[position - self._piece_position :]

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _load(self, start: int) -> None:
        end = min(start + self._piece_bytes, self.size_bytes)
        self._piece = memoryview(b"")
        try:
            read = call_with_retries(
                lambda: self._read(start, end), None, self._wait, attempts_max=PATIENT_ATTEMPTS_MAX
            )
            self._piece = memoryview(read)
        except CorruptObjectError as error:
            self.close()
            # A piece may be a part of a chunk that is larger than pieces are.
            resume_position = max(end, start - start % self._chunk_bytes + self._chunk_bytes)
            raise UnreadablePieceError(str(error), start, resume_position) from error
        self._piece_position = start

    def _read(self, start: int, end: int) -> bytes | bytearray:
        try:
            if self._stream is None or self._stream_position != start or self._stream_end < end:
                self.close()
                range_end = min(start - start % self._range_bytes + self._range_bytes, self.size_bytes)
                self._stream = self._opened.open_stream(start, range_end)
                self._stream_position, self._stream_end = start, range_end
            data = self._stream.read(end - start)
        except RemoteStorageError:
            self.close()
            raise
        self._stream_position = end
        return data
