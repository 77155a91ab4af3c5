"""Medians and ratios of the producers' benchmark."""

import json

import pytest

from benchmarks.support.producer_report import (
    ALONE,
    THROUGH_BROKER,
    THROUGH_TIDEGATE,
    Pacing,
    ProducerReport,
    Run,
    show,
)
from benchmarks.support.steady_producer import Latencies

SIDES = (ALONE, THROUGH_TIDEGATE, THROUGH_BROKER)


def run(side: str, p99_ms: float) -> Run:
    return Run(side, Latencies((p99_ms,)), 40.0, 1.0, 0.5, 7, 1.0, 100, 100)


def pacing(*rounds: tuple[float, float, float]) -> Pacing:
    return Pacing("flat out", [{side: run(side, ms) for side, ms in zip(SIDES, each, strict=True)} for each in rounds])


def test_a_percentile_is_a_value_that_was_measured() -> None:
    latencies = Latencies(tuple(float(each) for each in range(1, 101)))
    assert [latencies.percentile(share) for share in (0.5, 0.99, 0.999)] == [51.0, 100.0, 100.0]


def test_a_ratio_is_that_of_each_rounds_own_p99() -> None:
    measured = pacing((1.0, 2.0, 4.0), (10.0, 5.0, 50.0))
    assert measured.ratios(THROUGH_TIDEGATE, ALONE) == [2.0, 0.5]
    assert measured.ratios(THROUGH_TIDEGATE, THROUGH_BROKER) == [0.5, 0.1]
    assert measured.median(THROUGH_BROKER, lambda one: one.p99_ms) == 27.0


def test_a_report_shows_all_sides_and_what_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    report = ProducerReport("producers", [pacing((1.0, 2.0, 4.0))], ["a note"], ["a complaint"])
    said = ""
    for as_json in (False, True):
        show(report, as_json=as_json)
        said = capsys.readouterr().out
        assert all(text in said for text in (*SIDES, "flat out", "a note", "a complaint"))
    figures = json.loads(said)
    assert figures["pacings"][0]["p99 ratios"]["through Tidegate / no backfill"] == [2.0]
    assert not figures["holds"]
