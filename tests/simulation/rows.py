"""The rows of the table: which part of the tests runs them, and what each must hold."""

from typing import Literal

import pytest

from tests.simulation.aims import SHARE_TOLERANCE, missed_aims
from tests.simulation.baseline import BASELINE, MISSED
from tests.simulation.cases import CASES, LINKS, Case
from tests.simulation.world import run_case

Part = Literal["quick", "all", "long"]


def rows_of(part: Part) -> pytest.MarkDecorator:
    """The test runs the rows of this part: each row is in one of them."""
    found = [(case, link) for case in CASES for at, link in enumerate(LINKS) if _part_of(case, at) == part]
    return pytest.mark.parametrize(("case", "link"), found, ids=[f"{case.name} {link}" for case, link in found])


def _part_of(case: Case, at: int) -> Part:
    if case.is_quick and at == 0:
        return "quick"
    return "all" if at < case.links_in_all else "long"


def check_row(case: Case, link: str) -> None:
    """Each consumer gets all batches that it asked for, in order (it checks that), every pass is as fast as BASELINE
    says, and all aims of the case are met unless MISSED has it."""
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
