import io

import pytest
from rich.console import Console

from tools.demo.steps import StepFailed, Steps


def test_without_a_terminal_a_step_says_in_plain_lines_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=False, width=80)
    with Steps(console).step("Doing it") as step:
        step.show(1_000, 300_000)
        monkeypatch.setattr(step, "_line_due_s", 0.0)
        step.show(2_000, 300_000)
        step.result = "done twice"
    first, second, third = written.getvalue().splitlines()
    assert (first, second) == ("   Doing it", "   Doing it: 2,000 of 300,000")
    assert third.split()[1:] == ["Doing", "it", "0.0", "s", "done", "twice"]
    assert "\x1b" not in written.getvalue()
    with pytest.raises(StepFailed, match="the reason"), Steps(console).step("Doing it"):
        raise StepFailed("the reason")
    assert written.getvalue().splitlines()[-1].endswith("not done")


def test_an_encoding_without_ticks_gets_letters() -> None:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"), force_terminal=False)
    with Steps(console).step("Doing it"):
        pass
    console.file.flush()
    assert raw.getvalue().splitlines()[-1].startswith(b"ok Doing it")


def test_on_a_terminal_the_bar_gives_way_to_one_line() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80)
    with Steps(console).step("Doing it") as step:
        step.show(1, 2)
        step.result = "done"
    assert "50 %" in written.getvalue()
    assert written.getvalue().rstrip().endswith("done")
