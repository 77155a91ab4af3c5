"""Scanning a segment: a window that moves over its log drives a walk (`storage.log.log_walk`) over a stream.

Synchronous, in bounded memory. GETs are of whole chunks and tried again where that may help. A window works in one of
two ways:
- One GET of `range_bytes` at a time, read piece by piece by the reader's own thread. Few GETs, one piece in memory.
- With `GetsAhead`, each piece is a GET of its own, and threads fetch the next ones while the reader works: two at
  first, and one more whenever the reader had to wait, so that a fast link or a reader that works long costs no memory.
  What was fetched and not yet read counts as well. The first piece after a jump is small, since all wait for it. Who
  reads one segment after the other has them share their GETs: the next one's begin as soon as the last's leave room.

Bytes that cannot be had (a chunk that does not decode, a truncated object) fail the reader, or are a hole
(`has_holes`): the reader gets an error, and may go on behind it.
"""

import functools
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple, TypeAlias, TypeVar

from storage.errors import CorruptObjectError, TruncatedObjectError
from storage.log.log_walk import Found, Steps, UnreadableBytesError, Wanted
from storage.model import RemoteLogSegmentMetadata
from storage.object_store.retries import ATTEMPTS_MAX, Wait, call_with_retries
from storage.remote_storage_manager import OpenedSegment, SegmentStream

HOLE_BYTES = 64 * 1024
"""Where a format has no chunks, so much is given up at once."""

FIRST_PIECE_BYTES = 1024 * 1024
"""First piece of a window that reads ahead, or one chunk."""

GETS_AHEAD = 2
"""So many at first."""

HOLES_MAX = 16
"""After so many in a row the rest is taken to be one: a truncated object would cost a few GETs for each."""

_GAP_BYTES_MAX = 1024 * 1024
"""Bytes that nobody wants are read in parts of this size, where the GET under way has what is behind them."""

R = TypeVar("R")

_Piece: TypeAlias = bytes | bytearray | UnreadableBytesError

OnGet = Callable[[int], None]
"""Told of every GET that is sent: its size in the store, in bytes."""


class GetsAhead:
    """The GETs that one reader has under way or ready, with their threads. Its windows use them one after the other.
    Thread-safe but for `close`.

    Args:
        gets_max: under way or ready, beside the one that the reader waits for.
        bytes_max: what these may hold together; one is begun whatever it holds.
    """

    def __init__(self, gets_max: int, bytes_max: int) -> None:
        self.closing = threading.Event()
        self._gets_max, self._bytes_max = gets_max, bytes_max
        self._wanted = min(GETS_AHEAD, gets_max)
        self._lock = threading.Lock()
        self._gets = self._bytes = 0
        self._executor = ThreadPoolExecutor(gets_max + 1, "segment-scan")

    def run(self, call: Callable[[], R]) -> Future[R]:
        """Call it in a thread."""
        return self._executor.submit(call)

    def has_room(self, begun_soon: int = 0) -> bool:
        """For one more, beside so many that are not yet counted."""
        with self._lock:
            return self._gets + begun_soon < self._wanted

    def add(self, size_bytes: int, *, is_due: bool = False) -> bool:
        """Begin one that holds so much, if there is room; also if not where `is_due`: the reader wants it now."""
        with self._lock:
            has_room = self._gets < self._wanted and self._bytes + size_bytes <= self._bytes_max
            if self._gets and not has_room and not is_due:
                return False
            self._gets += 1
            self._bytes += size_bytes
            return True

    def remove(self, size_bytes: int) -> None:
        """The reader has it, or nobody wants it any more."""
        with self._lock:
            self._gets -= 1
            self._bytes -= size_bytes

    def on_wait(self) -> None:
        """The reader has to wait: so many were too few."""
        self._wanted = min(self._wanted + 1, self._gets_max)

    def close(self) -> None:
        """Returns when the threads have ended. Idempotent."""
        self.closing.set()
        self._executor.shutdown(wait=True, cancel_futures=True)


class LogWindow:
    """The log of a segment. Belongs to one thread; `close` ends what it has under way.

    Args:
        start: where reading probably begins.
        end: what is fetched ahead ends here, save for the rest of a chunk; beyond it only what is asked for.
        piece_bytes: of one piece, at most.
        range_bytes: of one GET, about; whole chunks, at least one. 0: up to `end`. Not with `gets`, where a GET is a
            piece.
        gets: those that fetch while the reader works; None: the reader fetches itself.
        decoding_bytes: what one of them holds beside its piece.
        on_all_begun: called when everything up to `end` is under way, each time that the reader takes a piece.
        has_holes: bytes that cannot be had raise UnreadableBytesError, and only they do; otherwise the store's
            CorruptObjectError, whatever it concerns of the piece.
        wait: before a GET is tried again; None: until the window or `gets` is closed.
    """

    def __init__(
        self,
        opened: OpenedSegment,
        segment: RemoteLogSegmentMetadata,
        end: int,
        *,
        start: int = 0,
        piece_bytes: int,
        range_bytes: int = 0,
        gets: GetsAhead | None = None,
        decoding_bytes: int = 0,
        on_all_begun: Callable[[], None] | None = None,
        has_holes: bool = False,
        attempts_max: int = ATTEMPTS_MAX,
        wait: Wait | None = None,
        on_get: OnGet | None = None,
    ) -> None:
        self._segment = segment
        self._fetch_end = end
        self._chunk_bytes = opened.chunk_bytes
        self._piece_bytes = piece_bytes if gets is None else self._whole_chunks(piece_bytes)
        self._has_holes = has_holes
        self._closing = threading.Event() if gets is None else gets.closing
        self._attempts_max, self._wait = attempts_max, wait or self._closing.wait
        self._new_get = functools.partial(_Get, opened, segment.segment_size_bytes, on_get or (lambda size_bytes: None))
        self._get = self._new_get(self._whole_chunks(range_bytes) if range_bytes else 0)
        # The reader's side.
        self._parts: deque[memoryview] = deque()  # contiguous, from _start on
        self._start = self._end = start
        self._hole: UnreadableBytesError | None = None
        self._holes = 0
        # Pieces ahead, in order; what lies between two of them is fetched when it is wanted.
        self._gets, self._held_bytes, self._on_all_begun = gets, self._piece_bytes + decoding_bytes, on_all_begun
        self._ahead: deque[_Ahead] = deque()

    def drive(self, steps: Steps[R]) -> Generator[Found, None, R]:
        """Yield what a walk finds; send it the bytes that it wants.

        Raises:
            RemoteStorageError: as the store answers, and what the walk raises.
        """
        try:
            step = next(steps)
            while True:
                if isinstance(step, Wanted):
                    step = self._send(steps, step)
                else:
                    yield step
                    del step  # or two lists of batches would be held
                    step = next(steps)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def answer(self, steps: Steps[R]) -> R:
        """The answer of a walk that finds nothing else. Raises as `drive`."""
        try:
            found = next(self.drive(steps))
        except StopIteration as stop:
            result: R = stop.value
            return result
        raise AssertionError(f"it has found {found}")

    def view(self, position: int, size_bytes: int) -> memoryview:
        """The bytes from `position` on, at least `size_bytes`, which must lie inside the segment.

        To go back costs a GET. The view stays valid as long as it is referenced. Bytes are copied only where they
        straddle two pieces.

        Raises:
            RemoteStorageError: as the store answers.
            UnreadableBytesError: see `has_holes`.
        """
        if self._hole is not None and self._hole.start <= position < self._hole.end:
            raise self._hole
        self._move_to(position)
        while not self._parts:
            self._pull(position + size_bytes)
        if len(self._parts[0]) < size_bytes:
            self._join(position + size_bytes)
        return self._parts[0]

    def fetch_ahead(self) -> bool:
        """Begin as many GETs as there is room for, from `start` on at first; whether everything is begun."""
        return self._fetch_from(self._end)

    def close(self) -> None:
        """End the GET under way, and forget those ahead, whose threads end with `gets`. Idempotent."""
        if self._gets is None:
            self._closing.set()
        self._let_go(self._segment.segment_size_bytes)
        self._parts.clear()
        self._get.close()

    def _send(self, steps: Steps[R], wanted: Wanted) -> Wanted | Found:
        if wanted.can_wait and wanted.position + wanted.size_bytes > self._end:
            return steps.send(None)
        try:
            data = self.view(wanted.position, wanted.size_bytes)
        except UnreadableBytesError as error:
            return steps.throw(error)
        return steps.send(data)

    def _move_to(self, position: int) -> None:
        """Let go of what lies before `position`."""
        if not self._start <= position <= self._end:
            self._parts.clear()
            self._let_go(position if position > self._end else self._segment.segment_size_bytes)
            self._start = self._end = position
        while self._parts and self._start + len(self._parts[0]) <= position:
            self._start += len(self._parts.popleft())
        if self._parts:
            self._parts[0] = self._parts[0][position - self._start :]
        self._start = position

    def _join(self, end: int) -> None:
        """Make the first part reach to `end`. Each piece is let go of as soon as it is copied."""
        joined = bytearray(end - self._start)
        filled_bytes = 0
        while filled_bytes < len(joined):
            if not self._parts:
                self._pull(end)
            part = self._parts.popleft()
            taken = part[: len(joined) - filled_bytes]
            joined[filled_bytes : filled_bytes + len(taken)] = taken
            filled_bytes += len(taken)
            if len(taken) < len(part):
                self._parts.appendleft(part[len(taken) :])
        self._parts.appendleft(memoryview(joined).toreadonly())

    def _pull(self, wanted_end: int) -> None:
        """Take the next piece."""
        piece = self._fetch(self._end, self._piece_end(wanted_end)) if self._gets is None else self._take(wanted_end)
        if isinstance(piece, UnreadableBytesError):
            self._on_hole(piece)
            raise piece
        self._holes = 0
        self._parts.append(memoryview(piece).toreadonly())
        self._end += len(piece)

    def _on_hole(self, hole: UnreadableBytesError) -> None:
        self._holes += 1
        if self._holes >= HOLES_MAX:
            hole.end = self._segment.segment_size_bytes
        self._parts.clear()
        self._start = self._end = hole.end
        self._hole = hole
        self._let_go(hole.end)

    # --- pieces ahead ---

    def _take(self, wanted_end: int) -> _Piece:
        """The piece at `_end`, as soon as it is there; those behind it are under way by then."""
        assert self._gets is not None, "it reads ahead"
        if not self._ahead or self._ahead[0].start != self._end:
            self._gets.add(self._held_bytes, is_due=True)
            self._begin_at_end(wanted_end)
        first = self._ahead.popleft()
        self._gets.remove(self._held_bytes)
        if self._fetch_from(first.end) and self._on_all_begun is not None:
            self._on_all_begun()
        if not first.piece.done():
            self._gets.on_wait()
        return first.piece.result()

    def _begin_at_end(self, wanted_end: int) -> None:
        """Fetch the piece at `_end`: after a jump, or what a hole has left of a piece."""
        size_bytes = min(self._piece_bytes, self._whole_chunks(FIRST_PIECE_BYTES))
        self._ahead.appendleft(self._begun(self._end, size_bytes, max(wanted_end, self._fetch_end)))

    def _fetch_from(self, start: int) -> bool:
        """Begin what there is room for behind the pieces ahead, or from there on; whether everything is begun."""
        assert self._gets is not None, "it reads ahead"
        start = self._ahead[-1].end if self._ahead else start
        while start < self._fetch_end:
            if not self._gets.add(self._held_bytes):
                return False
            self._ahead.append(self._begun(start, self._piece_bytes, self._fetch_end))
            start = self._ahead[-1].end
        return True

    def _begun(self, start: int, size_bytes: int, wanted_end: int) -> "_Ahead":
        """A piece of whole chunks but for its start, in the hands of a thread."""
        assert self._gets is not None, "it reads ahead"
        ends = [start - start % self._chunk_bytes + size_bytes, self._chunk_end(wanted_end)]
        if self._ahead and start < self._ahead[0].start:
            ends.append(self._ahead[0].start)
        return _Ahead(start, min(ends), self._gets.run(functools.partial(self._fetch, start, min(ends))))

    def _let_go(self, position: int) -> None:
        """Forget pieces that begin before it. Nobody asked for these bytes, so that what went wrong with them does not
        matter."""
        while self._ahead and self._ahead[0].start < position:
            assert self._gets is not None, "it reads ahead"
            self._gets.remove(self._held_bytes)
            self._ahead.popleft().piece.cancel()

    # --- one piece; in the reader's thread, or in one that fetches ahead ---

    def _fetch(self, start: int, end: int) -> _Piece:
        """The bytes from `start` on, at most to `end`; at least one. What is corrupt is narrowed down to a hole: a
        chunk, of which no part can be decoded, or HOLE_BYTES."""
        try:
            return self._retried(start, end, self._fetch_end)
        except CorruptObjectError as error:
            if not self._has_holes:
                raise
            end, hole_end = self._narrowed(start, end, error)
        try:
            return self._retried(start, end, end)
        except CorruptObjectError as error:
            hole = UnreadableBytesError(str(error), start, hole_end)
            hole.__cause__ = error
            return hole

    def _narrowed(self, start: int, end: int, error: CorruptObjectError) -> tuple[int, int]:
        """Return what to try instead, and where the hole ends if that fails as well."""
        if self._chunk_bytes > 1:
            chunk_end = self._chunk_end(start + 1)
            return min(end, chunk_end), chunk_end
        if isinstance(error, TruncatedObjectError) and error.object_end is not None:
            # A plain log's position is the same in the object. The least that can be asked for tells of the end again.
            return min(end, max(start + 1, error.object_end)), self._segment.segment_size_bytes
        return min(end, start + HOLE_BYTES), min(end, start + HOLE_BYTES)

    def _retried(self, start: int, end: int, wanted_end: int) -> bytes | bytearray:
        return call_with_retries(
            lambda: self._read(start, end, wanted_end), self._segment, self._wait, attempts_max=self._attempts_max
        )

    def _read(self, start: int, end: int, wanted_end: int) -> bytes | bytearray:
        """Read from the GET under way, or by a GET of its own."""
        if self._gets is None:
            return self._get.read(start, end, wanted_end)
        with closing(self._new_get(0)) as get:
            return get.read(start, end, end)

    def _piece_end(self, wanted_end: int) -> int:
        return min(self._end + self._piece_bytes, max(wanted_end, self._fetch_end))

    def _chunk_end(self, position: int) -> int:
        return min(self._whole_chunks(position, up=True), self._segment.segment_size_bytes)

    def _whole_chunks(self, size_bytes: int, *, up: bool = False) -> int:
        """About so many bytes of whole chunks, at least one."""
        chunks = -(-size_bytes // self._chunk_bytes) if up else size_bytes // self._chunk_bytes
        return max(1, chunks) * self._chunk_bytes


class _Ahead(NamedTuple):
    """Bytes [start, end) that a thread fetches; it may give fewer."""

    start: int
    end: int
    piece: Future[_Piece]


class _Get:
    """The GET under way, which is read piece by piece. Belongs to one thread at a time.

    Args:
        range_bytes: a GET is about so large, where so much is wanted; 0: as large as is wanted.
    """

    def __init__(self, opened: OpenedSegment, size_bytes: int, on_get: OnGet, range_bytes: int) -> None:
        self._opened, self._size_bytes, self._on_get = opened, size_bytes, on_get
        self._range_bytes = range_bytes
        self._stream: SegmentStream | None = None
        self._position = self._end = 0

    def read(self, start: int, end: int, wanted_end: int) -> bytes | bytearray:
        """Bytes from `start` on, at most to `end`. `wanted_end`: what is wanted next ends here."""
        stream = self._stream_at(start, max(end, wanted_end))
        size_bytes = min(end, self._end) - start
        try:
            while (gap_bytes := start - self._position) > 0:
                self._position += len(stream.read(min(gap_bytes, _GAP_BYTES_MAX)))
            data = stream.read(size_bytes)
        except BaseException:
            self.close()
            raise
        self._position = start + size_bytes
        if self._position == self._end:
            self.close()
        return data

    def close(self) -> None:
        """End the GET. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _stream_at(self, start: int, wanted_end: int) -> SegmentStream:
        """The GET under way, if it has or will have the byte at `start`; else a new one."""
        if self._stream is None or not self._position <= start < self._end:
            self.close()
            chunk_bytes = self._opened.chunk_bytes
            end = min(-(-wanted_end // chunk_bytes) * chunk_bytes, self._size_bytes)
            if self._range_bytes:
                end = min(end, start - start % chunk_bytes + self._range_bytes)
            self._on_get(self._opened.stored_bytes(start, end))
            self._stream, self._position, self._end = self._opened.open_stream(start, end), start, end
        return self._stream
