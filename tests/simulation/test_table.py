"""The table of the simulation: every case reads the right bytes, runs the same each time, and no slower than before.

`make test` runs a few rows of it (`Case.links_in_short`), `make test-long` all.
"""

from dataclasses import replace

import pytest

from tests.simulation.aims import SHARE_TOLERANCE, missed_aims
from tests.simulation.baseline import BASELINE, MISSED
from tests.simulation.cases import CASES, LINKS, Case, sequential
from tests.simulation.world import run_case
from tests.support.simulated_link import SLOW, STALLED, Manner
from tests.support.simulated_store import MIB

ROWS = [
    pytest.param(case, link, id=f"{case.name} {link}", marks=[pytest.mark.long] if at >= case.links_in_short else [])
    for case in CASES
    for at, link in enumerate(LINKS)
]


@pytest.mark.parametrize(("case", "link"), ROWS)
def test_all_is_read_no_slower_than_before(case: Case, link: str) -> None:
    """Given a case, when it runs, then each consumer gets all batches that it asked for, in order (it checks that),
    every pass is as fast as BASELINE says, and it meets all its aims unless MISSED has it."""
    batch_bytes = case.topic.batch_bytes
    wanted = sum(position.end_offset - position.start_offset for of_one in case.positions() for position in of_one)
    passes = run_case(case, LINKS[link]).passes
    assert [done.delivered_bytes // batch_bytes >= wanted for done in passes] == [True] * case.passes
    floors = BASELINE[case.name][[*LINKS].index(link)]
    shares = [done.share for done in passes]
    assert all(share >= floor - SHARE_TOLERANCE for share, floor in zip(shares, floors, strict=True)), (shares, floors)
    cold_share = None if case.not_below is None else BASELINE[case.not_below][[*LINKS].index(link)][0]
    missed = missed_aims(case, passes, cold_share)
    assert bool(missed) == ((case.name, link) in MISSED), missed or "take it out of MISSED"


@pytest.mark.parametrize("manner", [STALLED, SLOW])
def test_a_run_is_the_same_each_time(manner: Manner) -> None:
    """Given a connection that misbehaves, when a case runs twice, then every GET and every answer is the same to the
    last bit: also how long a GET that failed waits for its next attempt."""
    case, profile = replace(sequential("misbehaving", 2, 100 * MIB), manners={5: manner}), LINKS["30ms-60-400"]
    trace = run_case(case, profile).trace
    assert len(trace) > 50
    assert run_case(case, profile).trace == trace


def test_the_baseline_has_every_row() -> None:
    assert [*BASELINE] == [case.name for case in CASES]
    assert {len(floors) for floors in BASELINE.values()} == {len(LINKS)}
