"""What a scan will read, said before anything is read."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from table.history.predicate import AllOf, Comparison, Predicate, bounds_of, conjuncts
from table.one_read import PlannedRead
from table.planning.bounds import Bounds
from table.planning.request import ReadRequest
from table.reading.segment_task import PIECE_BYTES_MIN
from table.tasks import ReadOptions, SegmentTask, TailTask, TierTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Its text is for people. Bytes are of log, as the planner estimates them; a bound on time may make them fewer,
    which only the segments' time indexes say.

    Attributes:
        segments: that are read, of of_segments that the tier has of these partitions; so the bytes.
        gets: about how many GETs it takes.
        not_tiered_offsets: that are in no segment yet.
        full_scans: the parts of the filter that save no reading: each row is looked at for them.
    """

    partitions: int
    tasks: int
    segments: int
    of_segments: int
    bytes: int
    of_bytes: int
    gets: int
    not_tiered_offsets: int
    reads_tail: bool
    full_scans: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.segments} of {self.of_segments} segments, in {self.tasks} tasks of {self.partitions} partitions"
        yield f"{self.bytes / 1e6:.1f} of {self.of_bytes / 1e6:.1f} MB of log at most, about {self.gets} GETs"
        where = "read from the brokers" if self.reads_tail else "not in the tier yet, and left out"
        yield f"{self.not_tiered_offsets} offsets {where}"
        for part in self.full_scans:
            yield f"looked at row by row, saves no reading: {part}"
        yield from self.notes


def explained(
    planned: PlannedRead, predicate: Predicate, *, request: ReadRequest, has_manifests: bool, notes: Iterable[str] = ()
) -> Explanation:
    """Return what this read costs."""
    options, reads_tail = request.read_options, request.reads_tail
    parts = [part for task in planned.tasks if isinstance(task, TierTask) for part in task.parts]
    served = [each.segment for view in planned.views for each in view.segments]
    return Explanation(
        partitions=len({(task.topic, task.partition) for task in planned.tasks}),
        tasks=len(planned.tasks),
        segments=len({part.segment.segment_id for part in parts}),
        of_segments=len(served),
        bytes=sum(part.estimated_bytes for part in parts),
        of_bytes=sum(segment.segment_size_bytes for segment in served),
        gets=sum(_gets(part, options, has_manifests) for part in parts),
        not_tiered_offsets=not_tiered(planned, reads_tail=reads_tail),
        reads_tail=reads_tail,
        full_scans=tuple(map(str, full_scans(predicate, is_ordered=request.timestamp_disorder_ms is not None))),
        notes=tuple(notes),
    )


def not_tiered(planned: PlannedRead, *, reads_tail: bool) -> int:
    """Offsets that no segment has: those that the read's tail takes, or that it leaves out."""
    if reads_tail:
        return sum(task.end_offset - task.first_offset for task in planned.tasks if isinstance(task, TailTask))
    return sum(view.latest_offset - view.readable_end_offset for view in planned.views)


def full_scans(predicate: Predicate, *, is_ordered: bool) -> Iterator[Predicate]:
    """The parts that save no reading. An upper end of time is one of them unless an order of times is declared: later
    records may have an earlier time."""
    if predicate == AllOf(()):
        return
    for part in conjuncts(predicate):
        bounds = bounds_of(part)
        is_upper_end = isinstance(part, Comparison) and part.column == ("timestamp",) and part.operator in ("<", "<=")
        if bounds == Bounds() or (is_upper_end and not is_ordered):
            yield part


def _gets(part: SegmentTask, options: ReadOptions, has_manifests: bool) -> int:
    """Manifest, indexes, and the pieces of the log, of which the first one is small."""
    segment = part.segment
    is_whole = (part.start_position, part.end_position) == (0, segment.segment_size_bytes)
    has_all = part.first_offset <= segment.start_offset and part.end_offset > segment.end_offset
    is_timed = options.timestamp_min_ms is not None
    indexes = is_timed + (is_timed or not (is_whole and has_all))
    piece_bytes = max(options.task_bytes_max // 16, PIECE_BYTES_MIN)
    rest = max(part.estimated_bytes - PIECE_BYTES_MIN, 0)
    return has_manifests + indexes + 1 + -(-rest // piece_bytes)
