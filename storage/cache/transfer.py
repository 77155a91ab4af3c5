"""One ranged GET in one worker thread: opens the stream, reads block after block, hands them over, closes.

The thread never waits for the trio thread: what it has lies in a queue in order, and what it holds is bounded by what
was reserved for the GET. The trio thread takes blocks from there whenever it looks for one of them. It is told of each
block that somebody waits for, and otherwise every few MiB: each telling wakes the event loop. Beside the queue, all
that the two threads share is two flags, which only ever go from False to True.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import trio

from storage.arrival_walk import ArrivalWalk
from storage.cache.block_grid import SegmentBlocks
from storage.cache.memory import Block
from storage.errors import CorruptObjectError

POST_BYTES = 4 * 1024 * 1024
"""So often it is told of blocks that nobody waits for."""


class TransferListener(Protocol):
    """Who is told, in the trio thread."""

    def on_begun(self, transfer: "Transfer") -> None:
        """The store's answer has begun, wanted or not."""
        ...

    def on_blocks(self, transfer: "Transfer") -> None:
        """There may be blocks to `take`."""
        ...


class Transfer:
    """One GET of a run of blocks. `sent_s`, `begun_s` and `heard_s` are the trio thread's to keep, by its clock.

    `numbers_read`: blocks that came, right also after a failure; read it when `run` has ended.

    Args:
        batch_start: where a batch begins in the run, if that is known: batches are checked from there on as they come.
    """

    def __init__(
        self, source: SegmentBlocks, numbers: range, *, batch_start: int | None = None, is_second: bool = False
    ) -> None:
        self._walk = ArrivalWalk(source.segment, source.grid.block_bytes, batch_start)
        self.source = source
        self.numbers = numbers
        self.is_second = is_second
        self.sent_s: float | None = None
        self.begun_s: float | None = None
        self.heard_s = 0.0
        self.numbers_read = range(numbers.start, numbers.start)
        self.is_waited_for = False
        """Set it when somebody begins to wait for a block: each is told of from then on."""
        self._read: deque[tuple[int, Block]] = deque()
        self._stopping = threading.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    @property
    def was_cut(self) -> bool:
        """Whether it was stopped before its end."""
        return self.is_stopped and self.numbers_read.stop < self.numbers.stop

    def stop(self) -> None:
        """Begin to read no other block."""
        self._stopping.set()

    def take(self) -> list[tuple[int, Block]]:
        """Blocks that have come since, with their numbers."""
        # The thread may append meanwhile; what it has appended before is here.
        return [self._read.popleft() for _ in range(len(self._read))]

    def run(self, post: Callable[..., None], listener: TransferListener) -> None:
        """The whole GET; blocks. `post` is the trio token's run_sync_soon.

        Raises:
            RemoteStorageError: as the stream does; blocks before it are delivered.
        """
        if self._stopping.is_set():
            return
        stream = self.source.opened.open_stream(*self.source.positions(self.numbers))
        untold_bytes = 0
        try:
            post(listener.on_begun, self)
            for number in self.numbers:
                if self._stopping.is_set():
                    break
                size_bytes = self.source.size_bytes(number)
                data = stream.read(size_bytes)
                if len(data) != size_bytes:
                    raise CorruptObjectError(
                        f"segment {self.source.segment.segment_id}: block {number} has {len(data)} bytes, "
                        f"{size_bytes} wanted"
                    )
                self.numbers_read = range(self.numbers.start, number + 1)
                block = Block(memoryview(data))
                self._walk.feed(number, block)
                self._read.append((number, block))
                untold_bytes += size_bytes
                # Otherwise this thread would keep it from being freed while it reads the next.
                del data, block
                if self.is_waited_for or untold_bytes >= POST_BYTES:
                    post(listener.on_blocks, self)
                    untold_bytes = 0
        finally:
            if untold_bytes:
                post(listener.on_blocks, self)
            stream.close()


def token_post() -> Callable[..., None]:
    """What posts to the trio thread that calls this."""
    return trio.lowlevel.current_trio_token().run_sync_soon
