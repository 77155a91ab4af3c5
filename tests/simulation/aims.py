"""What a case is to reach, and what it misses of that, in the mean over its seeds. Pure."""

from collections.abc import Callable, Sequence
from statistics import mean

from tests.simulation.cases import Case
from tests.simulation.world import Pass

FETCHED_RATIO_MAX = 1.05
"""Bytes fetched of what was asked for, over bytes delivered."""

GETS_PER_GB_MAX = 120
"""For reads of two GB or more."""

SHARE_TOLERANCE = 0.02
"""Shares this close are equal: over four seeds a mean is off by 0.003 to 0.015."""

WORST_TOLERANCE = 0.06
"""The same for the worst of the seeds."""

Runs = Sequence[Sequence[Pass]]
"""The passes of each seed."""


def means(runs: Runs, of: Callable[[Pass], float]) -> list[float]:
    """Return the mean over the seeds, for each pass."""
    return [mean(map(of, passes)) for passes in zip(*runs, strict=True)]


def missed_aims(case: Case, runs: Runs, cold_share: float | None = None) -> list[str]:
    """One phrase for each aim that is missed.

    Args:
        cold_share: what the case that this one is not to be slower than (`Case.not_below`) reaches on the same link.
    """
    first, *others = means(runs, lambda done: done.share)
    missed = []
    if case.aim is not None and first < case.aim:
        missed.append(f"share {first:.2f} < {case.aim}")
    if cold_share is not None and first < cold_share - SHARE_TOLERANCE:
        missed.append(f"slower than cold, {cold_share:.2f}")
    missed += [
        f"pass {number} slower than the first"
        for number, other in enumerate(others, 2)
        if other < first - SHARE_TOLERANCE
    ]
    window_bytes = case.settings.readahead_stream_bytes_max * sum(map(len, case.readers))
    if (fetched := max(means(runs, lambda done: done.fetched_ratio))) > FETCHED_RATIO_MAX:
        missed.append(f"fetched {fetched:.2f} times")
    if max(done.beyond_bytes for passes in runs for done in passes) > window_bytes:
        missed.append("more than a window a stream beyond")
    gets_per_gb = max(means(runs, lambda done: done.gets_per_gb))
    if runs[0][0].delivered_bytes >= 2e9 and gets_per_gb > GETS_PER_GB_MAX:
        missed.append(f"{gets_per_gb:.0f} GETs a GB")
    return missed
