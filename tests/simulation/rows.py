"""The rows of the table: which part of the tests runs them, and what each must hold."""

from typing import Literal

import pytest

from tests.simulation.aims import SHARE_TOLERANCE, WORST_TOLERANCE, means, missed_aims
from tests.simulation.baseline import BASELINE, MISSED
from tests.simulation.cases import CASES, LINKS, SEEDS, Case
from tests.simulation.world import Pass, run_case

Part = Literal["quick", "all", "long"]


def rows_of(part: Part) -> pytest.MarkDecorator:
    """The test runs the rows of this part."""
    found = [(case, link) for case in CASES for at, link in enumerate(case.links) if part in _parts_of(case, at)]
    return pytest.mark.parametrize(("case", "link"), found, ids=[f"{case.name} {link}" for case, link in found])


def _parts_of(case: Case, at: int) -> tuple[Part, ...]:
    """`make test` looks at some rows by one seed, and test-all at those again, by all."""
    seeds: Part = "all" if at < case.links_in_all else "long"
    return (seeds, "quick") if case.is_quick and at == 0 else (seeds,)


def check_row(case: Case, link: str) -> None:
    """Each consumer gets all batches that it asked for, in order (it checks that). Over the seeds every pass is as fast
    as BASELINE says, in the mean and at worst, and all aims of the case are met unless MISSED has it."""
    runs = [check_seed(case, link, seed) for seed in SEEDS]
    floors = BASELINE[case.name][link]
    shares = means(runs, lambda done: done.share)
    assert all(share >= mean - SHARE_TOLERANCE for share, (mean, _) in zip(shares, floors, strict=True)), (
        shares,
        floors,
    )
    cold_share = None if case.not_below is None else BASELINE[case.not_below][link][0][0]
    missed = missed_aims(case, runs, cold_share)
    assert bool(missed) == ((case.name, link) in MISSED), missed or "take it out of MISSED"


def check_seed(case: Case, link: str, seed: int) -> tuple[Pass, ...]:
    """One seed's passes, none of which is slower than the worst has been."""
    batch_bytes = case.topic.batch_bytes
    wanted = sum(position.end_offset - position.start_offset for of_one in case.positions(seed) for position in of_one)
    passes = run_case(case, LINKS[link], seed).passes
    assert [done.delivered_bytes // batch_bytes >= wanted for done in passes] == [True] * case.passes
    for done, (_, worst) in zip(passes, BASELINE[case.name][link], strict=True):
        assert done.share >= worst - WORST_TOLERANCE, (done.share, worst)
    return passes
