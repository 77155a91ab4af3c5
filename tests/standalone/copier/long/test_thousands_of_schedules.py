"""Thousands of schedules: minutes."""

from pathlib import Path
from typing import Any

import pytest

from tests.standalone.copier.all.test_more_schedules import SCHEDULES
from tests.standalone.copier.test_simulation import KINDS, check_schedules

PARTS, OF_A_PART = 10, 120


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_schedules_leave_no_hole_either(tmp_path: Path, kind: dict[str, Any], part: int) -> None:
    first = SCHEDULES + part * OF_A_PART
    check_schedules(range(first, first + OF_A_PART), tmp_path, **kind)
