"""Bars, options and the layout of data of the cold reads; the script itself needs tools that tests do without."""

import json
from dataclasses import replace

import pytest

from benchmarks.support.aiven_stage import LONG_PARTITIONS, PARTITIONS, segment_counts
from benchmarks.support.cold_options import ColdOptions, parse_cold_options
from benchmarks.support.cold_report import Check, ColdRead, ColdReport, show

READ = ColdRead(
    variant="AES",
    partitions=2,
    reader="bare Fetch",
    megabytes_per_s=400.0,
    boto3_megabytes_per_s=500.0,
    log_gets_per_gb=90.0,
    other_gets_per_gb=15.0,
    stored_bytes_asked=1.0,
    readahead_used_mb=380.0,
    readahead_wasted_mb=0.0,
    hedges=1,
    splits=2,
    core_seconds_per_gb=1.5,
    peak_rss_mib=400.0,
    get_usd_per_tb=0.042,
)


@pytest.mark.parametrize(
    ("value", "verdict", "holds"),
    [(121.0, "the floor does not hold", False), (120.0, "floor holds", True), (80.0, "aim reached", True)],
)
def test_an_upper_bound_must_not_be_passed(value: float, verdict: str, holds: bool) -> None:
    check = Check("GETs per GB", value, "", floor=120.0, aim=80.0, is_upper_bound=True)
    assert (check.verdict, check.holds) == (verdict, holds)


@pytest.mark.parametrize(("value", "verdict"), [(0.79, "short of the aim"), (0.8, "aim reached")])
def test_an_aim_without_a_floor_fails_no_run(value: float, verdict: str) -> None:
    check = Check("of bare boto3", value, "×", aim=0.8)
    assert (check.verdict, check.holds) == (verdict, True)


def test_a_complaint_fails_the_run_whatever_the_checks_say() -> None:
    report = ColdReport("cold", checks=[Check("GETs", 1.0, "", floor=2.0, is_upper_bound=True)])
    assert report.holds
    report.complaints.append("it was not cold")
    assert not report.holds


def test_a_check_whose_floor_does_not_hold_fails_the_run() -> None:
    assert not ColdReport("cold", checks=[Check("GETs", 3.0, "", floor=2.0, is_upper_bound=True)]).holds


def test_the_json_holds_reads_with_their_ratio_and_checks_with_their_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(ColdReport("cold", reads=[READ], checks=[Check("of bare boto3", READ.ratio, "×", aim=0.8)]), as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["reads"][0]["ratio"] == 0.8
    assert shown["checks"][0]["verdict"] == "aim reached"
    assert shown["holds"] is True


def test_the_tables_show_reads_checks_notes_and_complaints(capsys: pytest.CaptureFixture[str]) -> None:
    show(ColdReport("cold", reads=[READ], notes=["a note"], complaints=["a complaint"]), as_json=False)
    shown = capsys.readouterr().out
    assert "AES, 2p" in shown
    assert "a note" in shown
    assert "failed: a complaint" in shown


def test_every_partition_gets_a_segment_and_the_long_ones_the_rest() -> None:
    assert segment_counts(12 * 64, 64) == [3] * LONG_PARTITIONS + [1] * (PARTITIONS - LONG_PARTITIONS)
    assert segment_counts(9 * 64 - 1, 64) == [2] + [1] * (PARTITIONS - 1)
    assert segment_counts(1, 64) == [1] * PARTITIONS


def test_cold_options_have_defaults() -> None:
    assert parse_cold_options([]) == ColdOptions()


def test_cold_options_are_taken_from_the_command_line() -> None:
    arguments = ["--quick", "--plugin-like", "--json", "--chunk-kib", "64", "--usd-per-1000-gets", "0.5"]
    expected = replace(
        ColdOptions(), is_quick=True, has_plugin_model=True, as_json=True, chunk_kib=64, usd_per_1000_gets=0.5
    )
    assert parse_cold_options(arguments) == expected


@pytest.mark.parametrize(
    "arguments",
    [["--megabytes", "1"], ["--chunk-kib", "0"], ["--streams", "0"], ["--first-byte-ms", "-1"], ["--segment-mib", "x"]],
)
def test_cold_options_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_cold_options(arguments)
    assert caught.value.code == 2
