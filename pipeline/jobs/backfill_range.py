"""What a backfill reads: from the bounds that were asked for to offsets of each partition, settled when it begins.

Both sources are asked the same way (pipeline.planning.tier_view, pipeline.planning.offset_bounds), so the same bounds
are the same offsets. What differs is the end: the tier source alone ends where the tier does; the Kafka source, and
the tier source with `tail=kafka`, where the log does (high watermark, or last stable offset for READ_COMMITTED).

Sizes are the segments'; what is not in the tier counts as much an offset as what is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.driver import Tier
from pipeline.jobs.backfill import BackfillRange
from pipeline.jobs.backfill_plan import OffsetRange
from pipeline.planning.offset_bounds import wanted_offsets
from pipeline.planning.options import SourceOptions, parse_options
from pipeline.planning.partition_view import WantedOffsets

BYTES_PER_OFFSET = 1024
"""Where nothing is in the tier yet: a guess that only decides how many steps there are."""


def range_options(
    config: str, topic: str, *, reads_kafka: bool, isolation: str, bounds: Mapping[str, str]
) -> SourceOptions:
    """The tier source's options that say the same.

    Args:
        reads_kafka: the Kafka source, or a tail through it.
        bounds: startingOffsets and the like.

    Raises:
        OptionsError: with a sentence for each that is wrong.
    """
    options = {"config": config, "subscribe": topic, "isolation": isolation, **bounds}
    return parse_options({**options, "tail": "kafka"} if reads_kafka else options)


def find_range(tier: Tier, options: SourceOptions, *, source: str) -> BackfillRange:
    """What there is to read now.

    Raises:
        OffsetBoundsError: offsets that are wanted are not there.
        TierViewError: the topic is not there.
        UpstreamError: a broker refuses, or none answers.
    """
    views = tier.view.partitions(options.selection, options.read_committed)
    if source == "kafka":
        # A hole of the tier is no loss for who reads through Kafka: brokers may have the offsets.
        views = [replace(view, holes=()) for view in views]
    wanted = wanted_offsets(views, options, tier.client)
    ranges = tuple(OffsetRange(want.view.key[1], want.first_offset, want.end_offset) for want in wanted)
    return BackfillRange(ranges, _estimated_bytes(wanted))


def _estimated_bytes(wanted: Sequence[WantedOffsets]) -> int:
    in_tier = sum(
        served.estimated_bytes(want.first_offset, want.tier_end_offset)
        for want in wanted
        for served in want.view.segments
    )
    tiered = sum(want.tier_end_offset - want.first_offset for want in wanted)
    left = sum(want.end_offset - want.tier_end_offset for want in wanted)
    return in_tier + (left * in_tier // tiered if tiered and in_tier else left * BYTES_PER_OFFSET)
