"""A few rows of the table, by one seed: they read the right bytes, run the same each time, and are no slower than
before."""

from dataclasses import replace

import pytest

from tests.simulation.baseline import BASELINE
from tests.simulation.cases import CASES, LINKS, SEEDS, Case, sequential
from tests.simulation.rows import check_seed, rows_of
from tests.simulation.world import run_case
from tests.support.simulated_link import SLOW, STALLED, Manner
from tests.support.simulated_store import MIB


@rows_of("quick")
def test_all_is_read_no_slower_than_before(case: Case, link: str) -> None:
    check_seed(case, link, SEEDS[0])


@pytest.mark.parametrize("manner", [STALLED, SLOW])
def test_a_run_is_the_same_each_time(manner: Manner) -> None:
    """Given a connection that misbehaves, when a case runs twice, then every GET and every answer is the same to the
    last bit: also how long a GET that failed waits for its next attempt."""
    case, profile = replace(sequential("misbehaving", 2, 60 * MIB), manners={5: manner}), LINKS["30ms-60-400"]
    trace = run_case(case, profile).trace
    assert len(trace) > 50
    assert run_case(case, profile).trace == trace


def test_the_baseline_has_every_row() -> None:
    assert [(name, *floors) for name, floors in BASELINE.items()] == [(case.name, *case.links) for case in CASES]
