"""Thousands of schedules of each kind: an hour."""

from pathlib import Path
from typing import Any

import pytest

from tests.standalone.copier import test_deletion_schedules, test_segment_copy, test_simulation

PARTS, OF_A_PART = 10, 120


def _seeds(part: int) -> range:
    return range(part * OF_A_PART, (part + 1) * OF_A_PART)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", test_simulation.KINDS)
def test_thousands_of_schedules_leave_no_hole_either(tmp_path: Path, kind: dict[str, Any], part: int) -> None:
    test_simulation.check_schedules(_seeds(part), tmp_path, **kind)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("strikes", [False, True])
def test_thousands_of_schedules_of_deletions_break_no_wait(tmp_path: Path, strikes: bool, part: int) -> None:
    test_deletion_schedules.check_schedules(_seeds(part), tmp_path, strikes=strikes)


@pytest.mark.parametrize(("kills", "failure_rate"), test_segment_copy.KINDS)
def test_thousands_of_orders_of_steps_leave_no_hole(kills: bool, failure_rate: float) -> None:
    test_segment_copy.check_schedules(range(PARTS * OF_A_PART), kills, failure_rate)
