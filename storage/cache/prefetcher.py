"""Read-ahead in the application: opens the segments that streams come to and hands over the blocks they want.

`read_ahead` decides, this shell does. Nothing here is waited for by a reader, and no failure reaches one: a segment
that cannot be opened is met again by its reader, who knows what to answer.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence

import structlog
import trio

from storage.cache.block_grid import BlockGrid, block_grid
from storage.cache.read_ahead import Following, ReadAhead, Want
from storage.errors import RemoteStorageError
from storage.model import RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import OpenedSegment

_log = structlog.get_logger(__name__)


class Prefetcher:
    """Owned by the trio thread.

    Args:
        nursery: the application's.
        block_bytes: `cache.block.bytes`.
        open_segment: the opened segment from its cache, or opened now.
        load_index: brings the segment's offset index into its cache; what it gives is not used.
        ahead: starts fills of those blocks that are neither resident nor under way; never blocks.
        room_bytes: what is left of the budget for blocks that are read ahead and unread, resident or under way.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        read_ahead: ReadAhead,
        *,
        block_bytes: int,
        open_segment: Callable[[RemoteLogSegmentMetadata], Awaitable[OpenedSegment]],
        load_index: Callable[[RemoteLogSegmentMetadata], Awaitable[object]],
        ahead: Callable[[RemoteLogSegmentMetadata, OpenedSegment, BlockGrid, Sequence[int]], None],
        room_bytes: Callable[[], int],
    ) -> None:
        self._nursery = nursery
        self._read_ahead = read_ahead
        self._block_bytes = block_bytes
        self._open_segment = open_segment
        self._load_index = load_index
        self._ahead = ahead
        self._room_bytes = room_bytes
        self._opening: dict[Uuid, list[Want]] = {}
        self._loading: set[Uuid] = set()
        self._planned_bytes = 0

    @property
    def planned_bytes(self) -> int:
        """Wanted from segments that are being opened."""
        return self._planned_bytes

    def on_read(
        self,
        reader: Hashable,
        segment: RemoteLogSegmentMetadata,
        start: int,
        end: int,
        *,
        waited: bool,
        following: Following,
    ) -> None:
        """As `ReadAhead.on_read`, and does what it wants. Neither blocks nor raises."""
        try:
            wants = self._read_ahead.on_read(
                reader, segment, start, end, waited=waited, following=following, room_bytes=self._room
            )
            for want in wants:
                self._start(want)
        except Exception:  # an answer that is ready does not fail for what may come after it
            _log.warning("read_ahead_failed", segment=str(segment.segment_id), exc_info=True)

    def forget_reader(self, reader: Hashable) -> None:
        """As `ReadAhead.forget_reader`."""
        self._read_ahead.forget_reader(reader)

    def _room(self) -> int:
        return self._room_bytes() - self._planned_bytes

    def _start(self, want: Want) -> None:
        segment_id = want.segment.segment_id.id
        if segment_id not in self._opening:
            # First, because it raises once the nursery is closed: no want may wait for a task that never starts.
            self._nursery.start_soon(self._open, want.segment)
            self._opening[segment_id] = []
        self._opening[segment_id].append(want)
        self._planned_bytes += want.size_bytes

    async def _open(self, segment: RemoteLogSegmentMetadata) -> None:
        """One task per segment, for all who want something of it by the time it is open."""
        segment_id = segment.segment_id.id
        opened: OpenedSegment | None = None
        try:
            opened = await self._open_segment(segment)
        except Exception as error:  # the application's nursery must live on
            _log_failure("segment_not_opened_ahead", segment, error)
        finally:
            wants = self._opening.pop(segment_id)
            self._planned_bytes -= sum(want.size_bytes for want in wants)
        if opened is None:
            return
        try:
            self._hand_over(segment, opened, wants)
            if segment_id not in self._loading and any(want.is_first and not want.run.is_dropped for want in wants):
                self._loading.add(segment_id)
                try:
                    await self._load_index(segment)
                finally:
                    self._loading.discard(segment_id)
        except Exception as error:  # the application's nursery must live on
            _log_failure("segment_not_read_ahead", segment, error)

    def _hand_over(self, segment: RemoteLogSegmentMetadata, opened: OpenedSegment, wants: Sequence[Want]) -> None:
        grid = block_grid(opened.chunk_bytes, segment.segment_size_bytes, self._block_bytes)
        for want in wants:
            numbers = self._read_ahead.take(want, grid, self._room())
            if numbers:
                self._ahead(segment, opened, grid, numbers)


def _log_failure(event: str, segment: RemoteLogSegmentMetadata, error: Exception) -> None:
    """Trouble with the tier is the reader's to tell; anything else is a bug of ours."""
    if isinstance(error, RemoteStorageError | trio.ClosedResourceError):
        _log.debug(event, segment=str(segment.segment_id), error=str(error))
    else:
        _log.warning(event, segment=str(segment.segment_id), exc_info=error)
