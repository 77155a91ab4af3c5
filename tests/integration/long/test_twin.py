"""Standalone mode against a twin broker: many questions."""

import pytest

from tests.integration import test_twin
from tests.integration.test_twin import SEED, ask
from tests.support.twin_world import TwinWorld

pytestmark = test_twin.pytestmark
twins = test_twin.twins


def test_no_answer_of_many_differs(twins: TwinWorld, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        differences = ask(twins, SEED + 1, 20_000)
    assert not differences, f"TIDEGATE_TWIN_SEED={SEED}\n{differences}"
