"""The profile of a cold and a warm Fetch is made and counted."""

import pytest

from tools.block_path import ENGINE_ROOM, main


def test_the_script_prints_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", "filesystem"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("cold ")
    assert f"of them in {ENGINE_ROOM} " in last
