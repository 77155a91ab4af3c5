"""Rows, verdicts and turns of benchmarks."""

import json

import pytest

from benchmarks.support.comparison import Report, Row, alternate, latency_row, show, throughput_row


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    row = throughput_row("bare", [(100.0, 90.0), (1000.0, 500.0), (10.0, 8.0)], floor=0.8, aim=0.95)
    assert row.compared == 0.8
    assert (row.direct, row.through) == ("100 MB/s", "90 MB/s")
    assert row.verdict == "floor holds"


@pytest.mark.parametrize(
    ("through", "verdict", "holds"),
    [(79.0, "below the floor", False), (80.0, "floor holds", True), (95.0, "aim reached", True)],
)
def test_a_throughput_must_not_be_below_its_floor(through: float, verdict: str, holds: bool) -> None:
    row = throughput_row("bare", [(100.0, through)], floor=0.8, aim=0.95)
    assert (row.verdict, row.holds) == (verdict, holds)


@pytest.mark.parametrize(
    ("through_ms", "verdict", "holds"),
    [(1.6, "below the floor", False), (1.4, "floor holds", True), (0.9, "aim reached", True)],
)
def test_a_latency_must_not_be_above_its_floor(through_ms: float, verdict: str, holds: bool) -> None:
    row = latency_row("Metadata", 1.0, through_ms, floor=0.5, aim=0.2)
    assert (row.verdict, row.holds) == (verdict, holds)


def test_a_row_without_a_floor_only_informs() -> None:
    row = latency_row("p99", 1.0, 50.0)
    assert (row.verdict, row.holds) == ("", True)


def test_a_complaint_fails_the_run_whatever_the_rows_say() -> None:
    assert Report("t", [Row("r", "1", "2", 2.0, floor=1.0)]).holds
    assert not Report("t", [Row("r", "1", "2", 2.0, floor=1.0)], complaints=["bypassed"]).holds


def test_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    def side(name: str, value: float) -> float:
        order.append(name)
        return value

    assert alternate(3, lambda: side("direct", 1.0), lambda: side("through", 2.0)) == [(1.0, 2.0)] * 3
    assert order == ["direct", "through", "through", "direct", "direct", "through"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_report_prints_both_sides(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        "relay", [throughput_row("bare", [(1000.0, 700.0)], floor=0.8, aim=0.95)], ["a note"], ["a complaint"]
    )
    show(report, as_json=as_json)
    printed = capsys.readouterr().out
    assert "a note" in printed
    assert "a complaint" in printed
    if as_json:
        assert json.loads(printed)["holds"] is False
    else:
        assert "0.70 ×" in printed
