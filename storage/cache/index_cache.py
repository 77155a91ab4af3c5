"""Parsed offset indexes, within a byte budget, one fetch each however many ask.

A missing or corrupt index is not an error: it is rebuilt from the segment's own batches, as KIP-405 advises,
and counted. Only the log itself must be there.
"""

from collections import OrderedDict

import structlog
import trio

from metrics.probes import CacheProbe
from storage.cache.single_flight import SingleFlight
from storage.errors import CorruptObjectError, RemoteResourceNotFoundError
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.rebuild import rebuild_offset_index
from storage.model import IndexType, RemoteLogSegmentMetadata, Uuid
from storage.remote_storage_manager import RemoteStorageManager

INDEX_BYTES_MAX = 32 * 1024 * 1024
"""Of all parsed offset indexes: a 1 GiB segment of 16 KiB batches has 0.5 MiB of index, so some sixty of those."""

_ABOVE_ALL_OFFSETS = 2**63 - 1

_log = structlog.get_logger(__name__)


class OffsetIndexCache:
    """Offset indexes by segment. Owned by the trio thread."""

    def __init__(
        self,
        storage_manager: RemoteStorageManager,
        *,
        nursery: trio.Nursery,
        limiter: trio.CapacityLimiter,
        probe: CacheProbe,
        bytes_max: int = INDEX_BYTES_MAX,
    ) -> None:
        self._storage_manager = storage_manager
        self._flights: SingleFlight[Uuid, tuple[OffsetIndex, int]] = SingleFlight(nursery, limiter)
        self._indexes: OrderedDict[Uuid, tuple[OffsetIndex, int]] = OrderedDict()
        self._bytes_max = bytes_max
        self._probe = probe
        self.size_bytes = 0

    def resident(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex | None:
        """The index if it is in memory."""
        entry = self._indexes.get(segment.segment_id.id)
        if entry is None:
            return None
        self._indexes.move_to_end(segment.segment_id.id)
        return entry[0]

    async def get(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """The index, fetched or rebuilt when it is not in memory.

        Raises:
            RemoteStorageError: neither the index nor the log can be read.
        """
        index = self.resident(segment)
        if index is not None:
            return index
        flight = self._flights.start(
            segment.segment_id.id, lambda: self._load(segment), lambda entry: self._keep(segment.segment_id.id, entry)
        )
        return (await flight.wait())[0]

    async def rebuild(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """The index made anew from the log, in place of one that does not agree with it.

        Raises:
            RemoteStorageError: the log cannot be read, or is itself corrupt.
        """
        flight = self._flights.start(
            segment.segment_id.id,
            lambda: self._rebuild(segment, "it does not agree with the log"),
            lambda entry: self._keep(segment.segment_id.id, entry),
        )
        return (await flight.wait())[0]

    def drop_segment(self, segment_id: Uuid) -> None:
        """Forget a deleted segment's index."""
        entry = self._indexes.pop(segment_id, None)
        if entry is not None:
            self.size_bytes -= entry[1]

    def _keep(self, segment_id: Uuid, entry: tuple[OffsetIndex, int]) -> None:
        self.drop_segment(segment_id)
        self._indexes[segment_id] = entry
        self.size_bytes += entry[1]
        while self.size_bytes > self._bytes_max and len(self._indexes) > 1:
            self.drop_segment(next(iter(self._indexes)))

    def _load(self, segment: RemoteLogSegmentMetadata) -> tuple[OffsetIndex, int]:
        """In a worker thread."""
        name = f"offset index of {segment.segment_id}"
        try:
            data = self._storage_manager.fetch_index(segment, IndexType.OFFSET)
            index = OffsetIndex(data, segment.start_offset, name)
            _check_borders(index, segment, name)
        except (RemoteResourceNotFoundError, CorruptObjectError) as error:
            return self._rebuild(segment, str(error))
        return index, len(data)

    def _rebuild(self, segment: RemoteLogSegmentMetadata, reason: str) -> tuple[OffsetIndex, int]:
        """In a worker thread."""
        data = rebuild_offset_index(self._storage_manager, segment)
        self._probe.on_index_rebuilt("offset")
        _log.warning("index_rebuilt", segment=str(segment.segment_id), index="offset", reason=reason)
        return OffsetIndex(data, segment.start_offset, f"rebuilt offset index of {segment.segment_id}"), len(data)


def _check_borders(index: OffsetIndex, segment: RemoteLogSegmentMetadata, name: str) -> None:
    """An index that leads out of its segment is some other segment's, or garbage that happens to ascend."""
    offset, position = index.lookup(_ABOVE_ALL_OFFSETS)
    if len(index) and not (offset <= segment.end_offset and position < segment.segment_size_bytes):
        raise CorruptObjectError(f"{name}: its last entry, offset {offset} at {position}, lies outside the segment")
