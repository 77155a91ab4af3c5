import io

import pytest
from rich.console import Console

from tools.demo import steps
from tools.demo.steps import StepFailed, Steps


def plain_console() -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=False, width=80), written


def test_without_a_terminal_a_step_is_two_plain_lines() -> None:
    console, written = plain_console()
    with Steps(console).step("Doing it") as step:
        step.show(1, 2)
        step.result = "done twice"
    first, second = written.getvalue().splitlines()
    assert first == "   Doing it"
    assert second.split()[1:] == ["Doing", "it", "0.0", "s", "done", "twice"]
    assert "\x1b" not in written.getvalue()


def test_a_long_step_says_now_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PLAIN_LINE_INTERVAL_S", 0.0)
    console, written = plain_console()
    with Steps(console).step("Doing it") as step:
        step.show(1_000, 300_000)
        step.show(2_000, 300_000)
    assert written.getvalue().splitlines()[1:3] == ["   Doing it: 1,000 of 300,000", "   Doing it: 2,000 of 300,000"]


def test_a_step_that_fails_says_so_and_lets_the_error_through() -> None:
    console, written = plain_console()
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
