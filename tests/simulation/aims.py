"""What a case is to reach, and what it misses of that. Pure."""

from collections.abc import Sequence

from tests.simulation.cases import Case
from tests.simulation.world import Pass

FETCHED_RATIO_MAX = 1.05
"""Bytes fetched of what was asked for, over bytes delivered."""

GETS_PER_GB_MAX = 120
"""For reads of two GB or more."""

SHARE_TOLERANCE = 0.02
"""Shares this close are equal."""


def missed_aims(case: Case, passes: Sequence[Pass], cold_share: float | None = None) -> list[str]:
    """One phrase for each aim that is missed.

    Args:
        cold_share: what the case that this one is not to be slower than (`Case.not_below`) reaches on the same link.
    """
    first, *others = passes
    missed = []
    if case.aim is not None and first.share < case.aim:
        missed.append(f"share {first.share:.2f} < {case.aim}")
    if cold_share is not None and first.share < cold_share - SHARE_TOLERANCE:
        missed.append(f"slower than cold, {cold_share:.2f}")
    missed += [
        f"pass {number} slower than the first"
        for number, other in enumerate(others, 2)
        if other.share < first.share - SHARE_TOLERANCE
    ]
    window_bytes = case.settings.readahead_stream_bytes_max * sum(map(len, case.readers))
    for done in passes:
        if done.fetched_ratio > FETCHED_RATIO_MAX:
            missed.append(f"fetched {done.fetched_ratio:.2f} times")
        if done.beyond_bytes > window_bytes:
            missed.append("more than a window a stream beyond")
        if done.delivered_bytes >= 2e9 and done.gets_per_gb > GETS_PER_GB_MAX:
            missed.append(f"{done.gets_per_gb:.0f} GETs a GB")
    return missed
