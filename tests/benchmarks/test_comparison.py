"""Rows, verdicts and turns of benchmarks."""

import json

import pytest

from benchmarks.support.comparison import Report, Row, alternate, latency_row, show, throughput_row


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    row = throughput_row("bare", [(100.0, 90.0), (1000.0, 500.0), (10.0, 8.0)], floor=0.8, aim=0.95)
    assert row.compared == 0.8
    assert (row.direct, row.through) == ("100 MB/s", "90 MB/s")
    assert row.verdict == "floor holds"


VERDICTS = (("below the floor", False), ("floor holds", True), ("aim reached", True))


def test_a_throughput_must_not_be_below_its_floor_nor_a_latency_above() -> None:
    for through, through_ms, expected in zip((79.0, 80.0, 95.0), (1.6, 1.4, 0.9), VERDICTS, strict=True):
        throughput = throughput_row("bare", [(100.0, through)], floor=0.8, aim=0.95)
        latency = latency_row("Metadata", 1.0, through_ms, floor=0.5, aim=0.2)
        assert (throughput.verdict, throughput.holds) == (latency.verdict, latency.holds) == expected


def test_a_row_without_a_floor_only_informs_and_a_complaint_fails_the_run() -> None:
    row = latency_row("p99", 1.0, 50.0)
    assert (row.verdict, row.holds) == ("", True)
    assert Report("t", [Row("r", "1", "2", 2.0, floor=1.0)]).holds
    assert not Report("t", [Row("r", "1", "2", 2.0, floor=1.0)], complaints=["bypassed"]).holds


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    def side(name: str, value: float) -> float:
        order.append(name)
        return value

    assert alternate(3, lambda: side("direct", 1.0), lambda: side("through", 2.0)) == [(1.0, 2.0)] * 3
    assert order == ["direct", "through", "through", "direct", "direct", "through"]


def test_a_report_prints_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    row = throughput_row("bare", [(1000.0, 700.0)], floor=0.8, aim=0.95)
    report = Report("relay", [row], ["a note"], ["a complaint"])
    show(report, as_json=False)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("0.70 ×", "a note", "a complaint"))
    show(report, as_json=True)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("a note", "a complaint"))
    assert json.loads(printed)["holds"] is False
