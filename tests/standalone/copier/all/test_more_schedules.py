"""More schedules than `make test` has time for, of both kinds of worlds."""

from pathlib import Path
from typing import Any

import pytest

from tests.standalone.copier import test_deletion_schedules, test_segment_copy, test_simulation

SCHEDULES = 30
STEPWISE_SCHEDULES = 300
DELETION_SCHEDULES = 40


@pytest.mark.parametrize("kind", test_simulation.KINDS)
def test_no_schedule_of_a_copier_leaves_a_hole(tmp_path: Path, kind: dict[str, Any]) -> None:
    test_simulation.check_schedules(range(test_simulation.SCHEDULES, SCHEDULES), tmp_path, **kind)


@pytest.mark.parametrize(("kills", "failure_rate"), test_segment_copy.KINDS)
def test_no_order_of_steps_leaves_a_hole(kills: bool, failure_rate: float) -> None:
    seeds = range(test_segment_copy.SCHEDULES, STEPWISE_SCHEDULES)
    test_segment_copy.check_schedules(seeds, kills, failure_rate)


@pytest.mark.parametrize("strikes", [False, True])
def test_no_schedule_of_deletions_breaks_a_wait(tmp_path: Path, strikes: bool) -> None:
    seeds = range(test_deletion_schedules.SCHEDULES, DELETION_SCHEDULES)
    test_deletion_schedules.check_schedules(seeds, tmp_path, strikes=strikes)
