"""Progress as a log has it (a line a step), and as a terminal has it."""

import io
import threading
from typing import TYPE_CHECKING, cast

import pytest
from rich.console import Console

from pipeline.jobs import progress
from pipeline.jobs.progress import JobProgress, duration, size

if TYPE_CHECKING:
    from pyspark import SparkContext

ASKED_S_MAX = 30


def test_elsewhere_than_on_a_terminal_each_step_is_a_line() -> None:
    """Given a job of four steps, one of them done before, when the next take 10 s each, then so much is left."""
    told, now = io.StringIO(), [100.0]
    with JobProgress(Console(file=told), "backfill orders", "steps", clock=lambda: now[0]) as told_of:
        told_of.begin(1, 4)
        for done in (2, 3, 4):
            now[0] += 10
            told_of.advance(done, 4, "1,000 rows")
    assert told.getvalue().splitlines() == [
        "backfill orders: 1 of 4 steps were done before",
        "backfill orders: 2 of 4 steps: 1,000 rows, 0:20 left",
        "backfill orders: 3 of 4 steps: 1,000 rows, 0:10 left",
        "backfill orders: 4 of 4 steps: 1,000 rows",
    ]


def test_on_a_terminal_there_is_a_bar() -> None:
    told = io.StringIO()
    with JobProgress(Console(file=told, force_terminal=True, width=120), "stats", "segments") as told_of:
        told_of.begin(0, 2)
        told_of.advance(2, 2, "of 3 MB")
    assert "2/2 segments" in told.getvalue()
    assert "of 3 MB" in told.getvalue()


def test_elsewhere_than_on_a_terminal_tasks_are_told_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a step of hours, when tasks end, then a line says how many; while none does, nothing is said again."""
    counts = iter([(0, 0), (0, 4), (0, 4), (3, 4)])
    asked_all = threading.Event()

    def running(_: object) -> tuple[int, int]:
        found = next(counts, None)
        if found is None:
            asked_all.set()
            return 3, 4
        return found

    monkeypatch.setattr(progress, "running_tasks", running)
    told = io.StringIO()
    context = cast("SparkContext", object())
    with JobProgress(Console(file=told), "backfill orders", "steps", context=context, lines_s=0):
        assert asked_all.wait(ASKED_S_MAX)
    assert told.getvalue().splitlines() == [
        "backfill orders: 0 of 4 tasks are done",
        "backfill orders: 3 of 4 tasks are done",
    ]


def test_times_and_sizes_are_for_people() -> None:
    assert (duration(3.4), duration(125), duration(3723)) == ("0:03", "2:05", "1:02:03")
    assert size(1_500_000) == "1.5 MB"
