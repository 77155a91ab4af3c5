"""Every batch of a range of a segment, for readers that want all of it: synchronous, in bounded memory.

- A batch belongs to the range in which it begins: ranges that meet give each batch just once.
- What is handed out passed its CRC, lies inside its segment in bytes and offsets, and its offsets ascend.
- A batch is a view into the piece of the log that was fetched; one that straddles two pieces is a copy.
- A batch that fails is an error, or is reported and passed over as `storage.log.log_walk` says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from protocol.record_batches import BatchHeader
from storage.indexes.offset_index import OffsetIndex
from storage.log.log_walk import Depth, LogWalk, PassedOver, WalkedBatch
from storage.log.segment_window import LogWindow
from storage.model import RemoteLogSegmentMetadata
from storage.remote_storage_manager import OpenedSegment

MIB = 1024 * 1024
WINDOW_BYTES = 8 * MIB
BATCH_BYTES_MAX = 128 * MIB
"""A little more than the largest request that a broker takes by default (socket.request.max.bytes)."""


@dataclass(frozen=True, slots=True)
class BadBatch:
    """Bytes of the log that were stepped over, and why."""

    position: int
    size_bytes: int
    reason: str
    is_rest: bool = False
    """Nothing told where the next batch begins: these are all that was left of the range."""


class SegmentScan:
    """Iterates lists of the batches that begin in [start_position, end_position): about one list a window of the log.

    A list refers to the window that it came from: drop it before asking for the next to hold no more than two.
    Is iterated once, and belongs to one thread. A context manager: leaving it ends the GET under way.

    Args:
        start_position: where a batch begins.
        end_position: any position; the last batch may reach beyond it.
        fetch_end: where the last batch that is wanted probably ends: what is behind it is not fetched ahead.
        window_bytes: of the log in memory, about; twice as much while the next is fetched.
        range_bytes: of one GET, about; window_bytes if it is None.
        batch_bytes_max: a larger one is an error.
        on_bad: what is done about a bad batch instead of raising.
        index: tells where to go on behind a bad batch.

    Raises, while iterating:
        CorruptLogError: see there; only without `on_bad`.
        CorruptObjectError: the store's bytes break their format; only without `on_bad`.
        BatchTooLargeError: a batch is larger than batch_bytes_max.
        RemoteStorageError: as the store answers.
    """

    def __init__(
        self,
        opened: OpenedSegment,
        segment: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int,
        *,
        fetch_end: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        range_bytes: int | None = None,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        on_bad: Callable[[BadBatch], None] | None = None,
        index: OffsetIndex | None = None,
    ) -> None:
        self._on_bad = on_bad
        self._walk = LogWalk(
            segment,
            start_position,
            end_position,
            Depth.BATCHES,
            index=index,
            recovers=on_bad is not None,
            batch_bytes_max=batch_bytes_max,
        )
        self._window = LogWindow(
            opened,
            segment,
            min(end_position if fetch_end is None else fetch_end, segment.segment_size_bytes),
            piece_bytes=window_bytes,
            range_bytes=range_bytes or window_bytes,
            reads_ahead=True,
            has_holes=on_bad is not None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[list[WalkedBatch]]:
        for found in self._window.drive(self._walk.steps()):
            if isinstance(found, PassedOver):
                self._report(found)
            else:
                yield found
            del found

    def close(self) -> None:
        """End the GET under way. Idempotent."""
        self._window.close()

    def begins_with(self, is_expected: Callable[[BatchHeader], bool]) -> bool:
        """Whether a good and expected batch stands where the scan begins: for a start that someone else told.

        Ask before iterating. Nothing is reported.

        Raises:
            RemoteStorageError: as the store answers.
        """
        try:
            next(self._window.drive(self._walk.begins_with(is_expected)))
        except StopIteration as answer:
            return bool(answer.value)
        raise AssertionError("no batch is handed out")

    def _report(self, bad: PassedOver) -> None:
        assert self._on_bad is not None
        self._on_bad(BadBatch(bad.position, bad.end - bad.position, bad.error.reason, is_rest=bad.is_rest))
