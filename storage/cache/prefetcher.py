"""Read-ahead in the application: opens the segments that streams come to, and asks for blocks whenever a GET may start.

`read_ahead` says for whom, `block_cache` which blocks, `gets` whether there is a slot. Nothing here is waited for by a
reader, and no failure reaches one: a segment that cannot be opened is met again by its reader, who knows what to say.
"""

from collections.abc import Awaitable, Callable, Hashable

import structlog
import trio

from storage.cache.block_cache import BlockCache
from storage.cache.block_grid import SegmentBlocks
from storage.cache.gets import Gets
from storage.cache.memory import MemoryBlocks
from storage.cache.read_ahead import Ahead, Read, ReadAhead, Stream
from storage.errors import RemoteStorageError
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

GUESS_BYTES = 4 * 1024 * 1024
"""As large as a stream's first GET: an estimate that is off by more than that is of no use."""

_log = structlog.get_logger(__name__)


class Prefetcher:
    """Owned by the trio thread.

    Args:
        nursery: the application's.
        open_segment: the opened segment from its cache, or opened now.
        fetch_index: has the segment's offset index brought into its cache.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        read_ahead: ReadAhead,
        *,
        cache: BlockCache,
        gets: Gets,
        memory: MemoryBlocks,
        open_segment: Callable[[RemoteLogSegmentMetadata], Awaitable[OpenedSegment]],
        fetch_index: Callable[[RemoteLogSegmentMetadata], None],
    ) -> None:
        self._nursery = nursery
        self._read_ahead = read_ahead
        self._cache = cache
        self._gets = gets
        self._memory = memory
        self._open_segment = open_segment
        self._fetch_index = fetch_index
        self._opening: set[Uuid] = set()
        self._is_asking = False
        self._token = trio.lowlevel.current_trio_token()
        gets.when_room(self._ask)
        gets.when_failed(read_ahead.on_failed)

    def on_read(self, read: Read) -> None:
        """As `ReadAhead.on_read`, and does what it wants. Neither blocks nor raises."""
        try:
            for ahead in self._read_ahead.on_read(read):
                self._open_soon(ahead)
            # Not at once: reads of other partitions that end in the same turn have their streams nearest, too.
            self._token.run_sync_soon(self._ask, idempotent=True)
        except Exception:  # an answer that is ready does not fail for what may come after it
            _log.warning("read_ahead_failed", segment=str(read.blocks.segment.segment_id), exc_info=True)

    def reach_bytes(self, reader: Hashable, source: SegmentBlocks, start: int) -> int:
        """How far a GET for a read that begins there may go on, beyond what is read: as far as its stream's next."""
        stream = self._read_ahead.reach(reader, source, start)
        if stream is None:
            return 0
        return min(self._get_bytes(stream), self.room_bytes)

    def guess(self, source: SegmentBlocks, position: int) -> None:
        """Fetch what lies around the byte where a read is likely to begin, and a block before it, if a slot is free."""
        grid, room_bytes = source.grid, self.room_bytes
        count = min(GUESS_BYTES, room_bytes) // grid.block_bytes
        first = max(0, grid.number_at(position) - (1 if count > 1 else 0))
        if self._gets.may_read_ahead and count:
            end = min(grid.start(first + count), grid.size_bytes)
            self._cache.fetch_ahead(source, grid.start(first), end, GUESS_BYTES, room_bytes)

    def forget_reader(self, reader: Hashable) -> None:
        """As `ReadAhead.forget_reader`."""
        self._read_ahead.forget_reader(reader)

    def _get_bytes(self, stream: Stream) -> int:
        """What its next GET is to transfer: two at least fit into its window."""
        size_bytes = min(self._gets.pace.get_bytes(stream.asked_bytes), stream.get_bytes_max)
        return min(size_bytes, self._read_ahead.window(stream) // 2)

    @property
    def room_bytes(self) -> int:
        """What is left for blocks that are read ahead and unread, here or under way.

        Blocks that no stream comes to any more, because their readers have gone, take no room: they make way first,
        being the oldest.
        """
        unread_bytes = self._memory.unread_bytes + self._cache.read_ahead_bytes
        return max(0, self._memory.unread_bytes_max - min(unread_bytes, self._read_ahead.ahead_bytes))

    def _ask(self) -> None:
        """Start what may be started, nearest first."""
        if self._is_asking:
            return  # what is asked for may find blocks dropped that give room again
        self._is_asking = True
        try:
            while self._gets.may_read_ahead and (stream := self._read_ahead.nearest()) is not None:
                has_asked = self._ask_for(stream)
                self._read_ahead.changed(stream)
                if not has_asked:
                    break
            self._note_stalls()
        except Exception:  # trio's own task may have called, which must live on; the nursery is closed at shutdown
            _log.warning("read_ahead_failed", exc_info=True)
        finally:
            self._is_asking = False

    def _note_stalls(self) -> None:
        """Why the streams that were read since have not been asked for more."""
        for stream in self._read_ahead.take_read_lately():
            self._read_ahead.stalled(stream, self._read_ahead.why_stalled(stream) or self._gets.why_full())

    def _ask_for(self, stream: Stream) -> bool:
        """Move the stream's frontier over what is here, or ask for a GET; False: there is no room."""
        frontier = stream.frontier
        assert frontier is not None, "nobody stands in line at the tier's end"
        source, window = frontier.blocks, self._read_ahead.window(stream)
        assert source is not None, "nor before a segment that is not open"
        position = frontier.position
        stop = min(source.grid.size_bytes, position + max(window - stream.ahead_bytes, source.grid.block_bytes))
        target_bytes = self._get_bytes(stream)
        asked = self._cache.fetch_ahead(source, position, stop, target_bytes, self.room_bytes)
        if asked is None:
            return False
        frontier.position, asked_bytes = asked
        stream.asked_bytes += asked_bytes
        return True

    def _open_soon(self, ahead: Ahead) -> None:
        if ahead.segment_id not in self._opening:
            # First, because it raises once the nursery is closed.
            self._nursery.start_soon(self._open, ahead.segment)
            self._opening.add(ahead.segment_id)

    async def _open(self, segment: RemoteLogSegmentMetadata) -> None:
        """One task per segment, for all streams that come to it."""
        try:
            try:
                opened = await self._open_segment(segment)
            finally:
                self._opening.discard(segment.segment_id.id)
            if self._read_ahead.opened(self._cache.blocks_of(segment, opened)):
                self._fetch_index(segment)
                self._ask()
        except Exception as error:  # the application's nursery must live on
            _log_failure("segment_not_read_ahead", segment, error)


def _log_failure(event: str, segment: RemoteLogSegmentMetadata, error: Exception) -> None:
    """Trouble with the tier is the reader's to tell; anything else is a bug of ours."""
    if isinstance(error, RemoteStorageError | trio.ClosedResourceError):
        _log.debug(event, segment=str(segment.segment_id), error=str(error))
    else:
        _log.warning(event, segment=str(segment.segment_id), exc_info=error)
