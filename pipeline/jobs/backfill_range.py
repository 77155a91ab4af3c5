"""What a run of a backfill reads: from the bounds that were asked for to offsets of each partition, when it begins.

Both sources are asked the same way (table.planning.tier_view, table.planning.offset_bounds), so the same bounds
are the same offsets. What differs is the end: the tier source alone ends where the tier does; the Kafka source, and
the tier source with `tail=kafka`, where the log does (high watermark, or last stable offset for READ_COMMITTED).

Rules:
1. The first run starts where `--from` says, or at the log start. A partition without a record that late starts where
   the log ends by now: what comes later is later.
2. A later run starts where the run before it ended; a partition that is new, at its log start.
3. `--to` ends a run. A partition that is further by now has nothing new.
4. Offsets that retention took before they could be read are an error that names them; with `failOnDataLoss=false` the
   run starts at the log start, and says what was lost.

Sizes are the segments'; what is not in the tier counts as much an offset as what is.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pipeline.jobs.job_context import UsageError
from pipeline.jobs.sink import STEPS_MAX, OffsetRange, in_order
from storage.model import uuid_to_text
from table.driver import Tier
from table.planning.offset_bounds import GOES_ON, OffsetBoundsError, below_log_start, starting_offsets, wanted_offsets
from table.planning.partition_view import OffsetRange as Gone
from table.planning.partition_view import PartitionView, WantedOffsets
from table.planning.request import EARLIEST_OFFSET, OffsetBound, PartitionOffsets, SourceOptions

BYTES_PER_OFFSET = 1024
"""Where nothing is in the tier yet: a guess that only decides how many steps there are."""

_HINT = f"--option {GOES_ON}, and reports it"

Ends = Mapping[str, Mapping[int, int]]


class BackfillRefusedError(UsageError):
    """The job cannot go on as it was asked to; nothing was done."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What there is to read when a run begins."""

    topics: Mapping[str, str]
    """Ids by name, of the topics that are wanted."""
    ranges: tuple[OffsetRange, ...]
    lost: tuple[OffsetRange, ...]
    steps_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlans:
    """What a backfill asks of the tier and its brokers.

    Args:
        open_tier: opened for each question.
        bounds: the tier source's options that say what is wanted.
        reads_kafka: rows come through Spark's Kafka source, for which a hole of the tier is no loss.
    """

    open_tier: Callable[[], AbstractContextManager[Tier]]
    bounds: SourceOptions
    reads_kafka: bool
    bytes_per_step: int

    def topic_ids(self, names: tuple[str, ...]) -> Mapping[str, str]:
        """Return what names mean now; a topic that is not there is left out."""
        with self.open_tier() as tier:
            return {name: uuid_to_text(topic.topic_id) for name, topic in tier.client.topics(names).items()}

    def lost(self, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
        """Return what of these retention took.

        Raises:
            OffsetBoundsError: by rule 4.
        """
        with self.open_tier() as tier:
            starts = tier.view.log_starts([*dict.fromkeys((each.topic, each.partition) for each in ranges)])
        gone = [
            replace(each, end=min(each.end, starts[each.topic, each.partition]))
            for each in ranges
            if each.start < starts[each.topic, each.partition]
        ]
        if gone and self.bounds.fails_on_data_loss:
            raise OffsetBoundsError([_lost_sentence(each, starts[each.topic, each.partition]) for each in gone])
        return gone

    def next_run(self, ends: Ends, *, is_first: bool) -> Planned:
        """Return what is new behind these ends.

        Raises:
            BackfillRefusedError: more than STEPS_MAX steps.
            OffsetBoundsError: offsets that are wanted are not there.
            TierViewError: a topic that was named is not there.
            UpstreamError: a broker refuses, or none answers.
        """
        with self.open_tier() as tier:
            views = tier.view.partitions(self.bounds.selection, self.bounds.read_committed)
            if self.reads_kafka:
                # Brokers may have the offsets.
                views = [replace(view, holes=()) for view in views]
            bounds = replace(self.bounds, starting=self.bounds.starting if is_first else _starts(views, ends))
            starts = starting_offsets(views, bounds, tier.client)
            try:
                wanted = wanted_offsets(views, replace(bounds, starting=PartitionOffsets(starts)), tier.client)
            except OffsetBoundsError as error:
                raise OffsetBoundsError([_with_hint(problem) for problem in error.problems]) from error
        ranges, lost = _ranges(wanted, starts, goes_on=not bounds.fails_on_data_loss)
        return Planned(
            topics={view.partition.topic: uuid_to_text(view.partition.topic_id) for view in views},
            ranges=ranges,
            lost=lost,
            steps_count=self._steps_count(ranges, estimated_bytes(wanted)),
        )

    def _steps_count(self, ranges: Sequence[OffsetRange], bytes_estimated: int) -> int:
        longest = max((each.offsets for each in ranges), default=0)
        count = max(1, min(-(-bytes_estimated // self.bytes_per_step), longest))
        if count > STEPS_MAX:
            raise BackfillRefusedError(f"{count} steps, {STEPS_MAX} at most: make --bytes-per-step larger")
        return count


def _starts(views: Sequence[PartitionView], ends: Ends) -> OffsetBound:
    return PartitionOffsets({view.key: ends.get(view.key[0], {}).get(view.key[1], EARLIEST_OFFSET) for view in views})


def _ranges(
    wanted: Sequence[WantedOffsets], starts: Mapping[tuple[str, int], int], *, goes_on: bool
) -> tuple[tuple[OffsetRange, ...], tuple[OffsetRange, ...]]:
    ranges, lost = [], []
    for want in wanted:
        topic, partition = want.view.key
        asked = starts[want.view.key]
        start = max(asked, want.view.log_start_offset) if goes_on else asked
        # Never back: a start may be still to come, or behind `--to`.
        ranges.append(OffsetRange(topic, partition, start, max(start, want.end_offset)))
        if asked < start:
            lost.append(OffsetRange(topic, partition, asked, start))
    return in_order(ranges), in_order(lost)


def _lost_sentence(lost: OffsetRange, log_start_offset: int) -> str:
    gone = below_log_start(f"{lost.topic}-{lost.partition}", Gone(lost.start, lost.end), log_start_offset)
    return f"{gone}; {_HINT}"


def _with_hint(problem: str) -> str:
    return problem.replace(GOES_ON, _HINT)


def estimated_bytes(wanted: Sequence[WantedOffsets]) -> int:
    """Return about how many bytes of log are wanted."""
    in_tier = sum(
        served.estimated_bytes(want.first_offset, want.tier_end_offset)
        for want in wanted
        for served in want.view.segments
    )
    tiered = sum(want.tier_end_offset - want.first_offset for want in wanted)
    left = sum(want.end_offset - want.tier_end_offset for want in wanted)
    return in_tier + (left * in_tier // tiered if tiered and in_tier else left * BYTES_PER_OFFSET)
