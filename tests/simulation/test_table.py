"""The table of the simulation: every case reads the right bytes, runs the same each time, and no slower than before."""

import pytest

from tests.simulation.cases import CASES, LINKS, Case
from tests.simulation.world import run_case

ROWS = [
    pytest.param(case, link, id=f"{case.name} {link}", marks=[pytest.mark.long] if case.is_long else [])
    for case in CASES
    for link in LINKS
]


@pytest.mark.parametrize(("case", "link"), ROWS)
def test_all_is_read(case: Case, link: str) -> None:
    """Given a case, when it runs, then each consumer got all batches that it asked for, in order (it checks that)."""
    batch_bytes = case.topic.batch_bytes
    wanted = sum(position.end_offset - position.start_offset for of_one in case.positions() for position in of_one)
    for done in run_case(case, LINKS[link]).passes:
        assert done.delivered_bytes >= wanted * batch_bytes


def test_a_run_is_the_same_each_time() -> None:
    """Given one case, when it runs twice, then every GET and every answer is the same to the last bit."""
    case, profile = CASES[0], LINKS["30ms-60-400"]
    assert run_case(case, profile).trace == run_case(case, profile).trace
