"""From the bounds of a read to offsets: what is wanted of each partition, and from where.

Rules:
1. A time becomes the offset that a broker answers for it, or an earlier one in a tier of our own. Without such a record
   a start is an error, or the log's end with `startingOffsetsByTimestampStrategy=latest`; an end is the log's end (as
   the Kafka source).
2. Bounds that are given by partition are given for every partition that is read, and for no other (as there).
3. `tiered` ends where the tier alone can be read; what is left out is said in one warning.
4. Any other end that lies beyond is an error that names the offsets, or with `tail=kafka` read through Kafka from that
   very offset on: no gap, no repeat.
5. Offsets that are lost (below the log start, in a hole of the tier, beyond the log's end) are an error; with
   `failOnDataLoss=false` a warning, and the read goes on at the next offset there is.
"""

from collections.abc import Iterable, Mapping, Sequence

import structlog

from table.brokers.client import BrokerClient
from table.planning.partition_view import OffsetRange, PartitionView, WantedOffsets
from table.planning.request import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetBound,
    OffsetEdge,
    PartitionOffsets,
    PartitionTimestamps,
    ReadRequest,
    SameTimestamp,
    TopicPartition,
)

GOES_ON = "failOnDataLoss=false goes on without"
SHOWN_MAX = 20
"""Partitions that one sentence names."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class OffsetBoundsError(Exception):
    """Offsets that are wanted and are not there, or bounds that do not fit the partitions. One sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join([*problems[:SHOWN_MAX], *_and_more(problems)]))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type["OffsetBoundsError"], tuple[tuple[str, ...]]]:
        return OffsetBoundsError, (self.problems,)


def wanted_offsets(
    views: Sequence[PartitionView], options: ReadRequest, client: BrokerClient
) -> tuple[WantedOffsets, ...]:
    """Return what a batch read wants, partition by partition.

    Raises:
        OffsetBoundsError: by rules 1, 2, 4 and 5.
        UpstreamError: a broker does not answer for a time.
    """
    firsts = starting_offsets(views, options, client)
    problems = _coverage_problems("endingOffsets", options.ending, views)
    if problems:
        raise OffsetBoundsError(problems)
    ends: dict[TopicPartition, int] = {}
    found = _offsets_at(options.ending, views, client, options.read_committed)
    for view in views:
        end = found[view.key]
        ends[view.key] = view.latest_offset if end == LATEST_OFFSET else end
    if options.ending is OffsetEdge.TIERED:
        _warn_of_left_out(views, firsts)
    return wanted_between(
        views, firsts, ends, fails_on_data_loss=options.fails_on_data_loss, reads_tail=options.reads_tail
    )


def starting_offsets(
    views: Sequence[PartitionView], options: ReadRequest, client: BrokerClient
) -> dict[TopicPartition, int]:
    """Return where the read starts in each partition, as asked: it may be below the log start (rule 5 comes later).

    Raises:
        OffsetBoundsError: by rules 1 and 2.
    """
    problems = _coverage_problems("startingOffsets", options.starting, views)
    if problems:
        raise OffsetBoundsError(problems)
    by_time = isinstance(options.starting, SameTimestamp | PartitionTimestamps)
    found = _offsets_at(options.starting, views, client, options.read_committed)
    firsts: dict[TopicPartition, int] = {}
    for view in views:
        first = found[view.key]
        if first == LATEST_OFFSET:
            if by_time and not options.starts_at_latest_without_match:
                problems.append(
                    f"{view.name} has no record at or after the starting time: a later part of the log may come, or "
                    "startingOffsetsByTimestampStrategy=latest starts at its end"
                )
            first = view.latest_offset
        firsts[view.key] = view.log_start_offset if first == EARLIEST_OFFSET else first
    if problems:
        raise OffsetBoundsError(problems)
    return firsts


def wanted_between(
    views: Sequence[PartitionView],
    first_offsets: Mapping[TopicPartition, int],
    end_offsets: Mapping[TopicPartition, int],
    *,
    fails_on_data_loss: bool,
    reads_tail: bool,
) -> tuple[WantedOffsets, ...]:
    """The offsets from first to end (exclusive), split between the tier and Kafka (rules 4 and 5).

    Args:
        first_offsets: a partition that is not among them starts at its log start.
        end_offsets: those that are not among them are not read.

    Raises:
        OffsetBoundsError: by rules 4 and 5, with all partitions that it is so for.
    """
    wanted: list[WantedOffsets] = []
    lost: list[str] = []
    problems: list[str] = []
    for view in views:
        if view.key not in end_offsets:
            continue
        first, end = first_offsets.get(view.key, view.log_start_offset), end_offsets[view.key]
        lost += _lost(view, first, end)
        end = min(end, view.latest_offset)
        first = min(max(first, view.log_start_offset), max(end, view.log_start_offset))
        end = max(first, end)
        tier_end = max(first, min(end, view.readable_end_offset))
        if tier_end < end and not reads_tail:
            problems.append(_not_in_the_tier(view, OffsetRange(tier_end, end)))
        wanted.append(WantedOffsets(view=view, first_offset=first, tier_end_offset=tier_end, end_offset=end))
    if lost and fails_on_data_loss:
        problems += [f"{sentence}; {GOES_ON}" for sentence in lost]
    if problems:
        raise OffsetBoundsError(problems)
    if lost:
        _log.warning("offsets_lost", partitions=_listed(lost))
    return tuple(wanted)


def _offsets_at(
    bound: OffsetBound, views: Sequence[PartitionView], client: BrokerClient, read_committed: bool
) -> dict[TopicPartition, int]:
    """The bound by partition; -1 is the log's end (for a time: no record), -2 the log start."""
    latest = {view.key: view.latest_offset for view in views}
    match bound:
        case OffsetEdge.EARLIEST:
            return {view.key: view.log_start_offset for view in views}
        case OffsetEdge.LATEST:
            return dict.fromkeys(latest, LATEST_OFFSET)
        case OffsetEdge.TIERED:
            return {view.key: view.readable_end_offset for view in views}
        case PartitionOffsets(offsets):
            return dict(offsets)
        case SameTimestamp(timestamp_ms):
            return _offsets_for_times(dict.fromkeys(latest, timestamp_ms), views, client, read_committed)
        case PartitionTimestamps(timestamps_ms):
            return _offsets_for_times(timestamps_ms, views, client, read_committed)


def _offsets_for_times(
    times: Mapping[TopicPartition, int], views: Sequence[PartitionView], client: BrokerClient, read_committed: bool
) -> dict[TopicPartition, int]:
    answers = client.list_offsets(times, read_committed=read_committed) if times else {}
    offsets: dict[TopicPartition, int] = {}
    for view in views:
        if view.key not in times:
            continue
        told = answers[view.key].offset
        in_tier = None if view.first_at is None else view.first_at(times[view.key])
        if in_tier is not None and (told < 0 or in_tier < told):
            told = in_tier
        # Records that came after the view was made are not in it.
        offsets[view.key] = min(told, view.latest_offset)
    return offsets


def _coverage_problems(name: str, bound: OffsetBound, views: Sequence[PartitionView]) -> list[str]:
    match bound:
        case PartitionOffsets(offsets):
            given = set(offsets)
        case PartitionTimestamps(timestamps_ms):
            name, given = f"{name}ByTimestamp", set(timestamps_ms)
        case _:
            return []
    selected = {view.key for view in views}
    problems = []
    for what, keys in (("does not name", selected - given), ("names, though not selected,", given - selected)):
        if keys:
            problems.append(f"{name} {what} {_listed(f'{topic}-{number}' for topic, number in sorted(keys))}")
    return problems


def _lost(view: PartitionView, first: int, end: int) -> list[str]:
    """Return what of [first, end) is gone, a sentence each."""
    lost = []
    if first < min(end, view.log_start_offset):
        gone = OffsetRange(first, min(end, view.log_start_offset))
        lost.append(below_log_start(view.name, gone, view.log_start_offset))
    # A start at the very end is no loss; an offset behind it has never been, or the log was cut.
    if first > view.latest_offset or end > view.latest_offset:
        lost.append(f"{view.name}: offset {max(first, end)} is wanted, and the log ends at {view.latest_offset}")
    tier_end = min(end, view.readable_end_offset)
    for hole in view.holes:
        cut = OffsetRange(max(hole.first_offset, first), min(hole.end_offset, tier_end))
        if cut.first_offset < cut.end_offset:
            lost.append(f"{view.name}: offsets {cut} are in no segment of the tier, and later ones are")
    return lost


def below_log_start(name: str, gone: OffsetRange, log_start_offset: int) -> str:
    """Say which offsets retention took."""
    return f"{name}: offsets {gone} are below the log start {log_start_offset}"


def _not_in_the_tier(view: PartitionView, rest: OffsetRange) -> str:
    what = "are not in the tier yet"
    if rest.first_offset < view.tier_end_offset:
        what = "cannot be read from the tier yet with read_committed (a transaction is decided later)"
    return (
        f"{view.name}: offsets {rest} {what}: endingOffsets=tiered leaves them out, tail=kafka reads them through Kafka"
    )


def _warn_of_left_out(views: Sequence[PartitionView], firsts: Mapping[TopicPartition, int]) -> None:
    left_out = []
    for view in views:
        rest = OffsetRange(max(view.readable_end_offset, firsts[view.key]), view.latest_offset)
        if rest.first_offset < rest.end_offset:
            left_out.append(f"{view.name}: {rest}")
    if left_out:
        _log.warning("offsets_not_tiered_left_out", offsets=_listed(left_out))


def _listed(items: Iterable[str]) -> str:
    shown = list(items)
    return "; ".join([*shown[:SHOWN_MAX], *_and_more(shown)])


def _and_more(items: Sequence[str]) -> list[str]:
    return [f"and {len(items) - SHOWN_MAX} more"] if len(items) > SHOWN_MAX else []
