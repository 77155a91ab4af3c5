"""One ranged GET in one worker thread: opens the stream, reads block after block, hands each over, closes.

The thread's side of a GET. It never waits for the trio thread: what it has is posted in order, and what it holds is
bounded by what was reserved for the GET. The trio thread may give blocks away that the thread has not begun to read
(`give_away`, `stop`); that, and who may begin, is all that the two share, under one lock each.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from storage.cache.block_grid import BlockGrid
from storage.cache.memory import Block
from storage.errors import CorruptObjectError
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment


@dataclass(frozen=True, slots=True)
class FillSource:
    """A segment whose blocks are fetched."""

    segment: RemoteLogSegmentMetadata
    opened: OpenedSegment
    grid: BlockGrid

    def size_bytes(self, number: int) -> int:
        """A block's plaintext."""
        return self.grid.end(number) - self.grid.start(number)

    def positions(self, numbers: range) -> tuple[int, int]:
        """Where a run of blocks begins, and ends, exclusive."""
        return self.grid.start(numbers.start), self.grid.end(numbers.stop - 1)

    def stored_bytes(self, numbers: range) -> int:
        """What a GET of a run of blocks transfers."""
        return self.opened.stored_bytes(*self.positions(numbers))


class TransferListener(Protocol):
    """Who is told. `may_begin` is called in the worker thread, the others in the trio thread."""

    def may_begin(self, transfer: "Transfer") -> bool:
        """The store's answer begins; whether this transfer is to deliver it, or to end."""
        ...

    def on_begun(self, transfer: "Transfer") -> None:
        """The store's answer has begun, wanted or not."""
        ...

    def on_block(self, transfer: "Transfer", number: int, block: Block) -> None:
        """The next block."""
        ...


class Transfer:
    """One GET of a run of blocks. `sent_s` and `begun_s` are the trio thread's to keep, by its clock.

    `numbers_read`: blocks that came, right also after a failure; read it when `run` has ended. `was_cut`: nobody wanted
    it to its end.
    """

    def __init__(self, source: FillSource, numbers: range, listener: TransferListener, sent_s: float) -> None:
        self.numbers = numbers
        self.sent_s = sent_s
        self.begun_s: float | None = None
        self.numbers_read = range(numbers.start, numbers.start)
        self.was_cut = False
        self._source = source
        self._listener = listener
        self._lock = threading.Lock()
        self._next = numbers.start
        self._end = numbers.stop

    def run(self, post: Callable[..., None]) -> None:
        """The whole GET; blocks. `post` is the trio token's run_sync_soon.

        Raises:
            RemoteStorageError: as the stream does; blocks before it are delivered.
        """
        stream = self._source.opened.open_stream(*self._source.positions(self.numbers))
        try:
            is_wanted = self._listener.may_begin(self)
            if not is_wanted:
                self.was_cut = True
            post(self._listener.on_begun, self)
            while is_wanted and (number := self._take_next()) is not None:
                size_bytes = self._source.size_bytes(number)
                data = stream.read(size_bytes)
                if len(data) != size_bytes:
                    raise CorruptObjectError(
                        f"segment {self._source.segment.segment_id}: block {number} has {len(data)} bytes, "
                        f"{size_bytes} wanted"
                    )
                self.numbers_read = range(self.numbers.start, number + 1)
                post(self._listener.on_block, self, number, Block(memoryview(data)))
                # Otherwise this thread would keep it from being freed while it reads the next.
                del data
        finally:
            stream.close()

    def give_away(self) -> range | None:
        """Leave the second half of what is left, in whole units, to another GET; None: too little is left.

        The block that is being read counts as left and is kept.
        """
        with self._lock:
            reading = max(self._next - 1, self.numbers.start)
            if self._end - reading < 2:
                return None
            middle = reading + (self._end - reading + 1) // 2
            # The first block of the unit after; a unit in two GETs would be transferred and decoded by both.
            start = self._source.grid.unit(middle - 1).stop
            if start >= self._end:
                return None
            given = range(start, self._end)
            self._end = start
            return given

    def stop(self) -> None:
        """Begin to read no other block."""
        with self._lock:
            self.was_cut = self.was_cut or self._next < self._end
            self._end = self._next

    def _take_next(self) -> int | None:
        with self._lock:
            if self._next >= self._end:
                return None
            self._next += 1
            return self._next - 1


def token_post() -> Callable[..., None]:
    """What posts to the trio thread that calls this."""
    return trio.lowlevel.current_trio_token().run_sync_soon
