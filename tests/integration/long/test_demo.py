"""`make demo` to its end, and interrupted late."""

from pathlib import Path

import pytest

from tests.integration.test_demo import DEMO_TIMEOUT_S, assert_the_table_is_right, interrupt, running_demo

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka")]


def test_the_demo_ends_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_demo(tmp_path, "--records", "60000") as demo:
        assert demo.process.wait(DEMO_TIMEOUT_S) == 0, demo.errors
        demo.assert_nothing_left()
    assert_the_table_is_right(demo)
    assert max(map(len, demo.output.splitlines())) <= 80


def test_ctrl_c_in_the_last_step_leaves_nothing_behind(tmp_path: Path) -> None:
    interrupt(tmp_path, "Reading all through Tidegate")
